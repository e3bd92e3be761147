//go:build linux

package trace

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/google/nftables"
	"github.com/kuryr/kuryr/datapath/nft"
	"github.com/kuryr/kuryr/internal/netns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// tableName is that of Kuryr's tables (package datapath/router).
const tableName = "kuryr"

// reader looks into one namespace.
type reader struct {
	Site
	links *netlink.Handle
	nft   *nft.Conn
}

func newReader(s Site) (*reader, error) {
	links, err := netlink.NewHandleAt(s.NS)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Name, err)
	}
	conn, err := nft.Dial(int(s.NS))
	if err != nil {
		links.Close()
		return nil, fmt.Errorf("%s: %w", s.Name, err)
	}
	return &reader{s, links, conn}, nil
}

func (r *reader) close() {
	r.links.Close()
	_ = r.nft.Close()
}

// way is a route as the kernel takes it.
type way struct {
	device string
	gw     netip.Addr // invalid: the destination is a neighbour
	src    netip.Addr
	local  bool // it is for this namespace itself
	mtu    int
	up     bool
}

// route asks the kernel for the way of a packet that comes in by a device.
func (r *reader) route(dst, src netip.Addr, in string) (way, error) {
	return r.ask(dst, src, &netlink.RouteGetOptions{Iif: in})
}

// send asks for the way of a packet that is sent here, by a device if one is named.
func (r *reader) send(dst, src netip.Addr, out string) (way, error) {
	return r.ask(dst, src, &netlink.RouteGetOptions{Oif: out})
}

func (r *reader) ask(dst, src netip.Addr, o *netlink.RouteGetOptions) (way, error) {
	if src.IsValid() {
		o.SrcAddr = src.AsSlice()
	}
	routes, err := r.links.RouteGetWithOptions(dst.AsSlice(), o)
	if err == nil && len(routes) == 0 {
		err = unix.ENETUNREACH
	}
	if err != nil {
		return way{}, err
	}
	route := routes[0]
	w := way{local: route.Type == unix.RTN_LOCAL, src: addr(route.Src), gw: addr(route.Gw)}
	switch route.Type {
	case unix.RTN_UNREACHABLE, unix.RTN_BLACKHOLE, unix.RTN_PROHIBIT:
		return w, unix.ENETUNREACH
	}
	link, err := r.links.LinkByIndex(route.LinkIndex)
	if err != nil {
		return w, err
	}
	w.device, w.mtu = link.Attrs().Name, link.Attrs().MTU
	w.up = link.Attrs().Flags&net.FlagUp != 0 && link.Attrs().OperState != netlink.OperDown &&
		link.Attrs().OperState != netlink.OperLowerLayerDown
	return w, nil
}

func addr(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// neighbour is what is known of an address's MAC on a device; "" if nothing.
func (r *reader) neighbour(device string, a netip.Addr) (mac string, failed bool) {
	link, err := r.links.LinkByName(device)
	if err != nil {
		return "", false
	}
	list, _ := r.links.NeighList(link.Attrs().Index, netlink.FAMILY_ALL)
	for _, n := range list {
		if addr(n.IP) == a {
			return n.HardwareAddr.String(), n.State == netlink.NUD_FAILED
		}
	}
	return "", false
}

// learnt is the bridge port on which a MAC was seen; "" if on none.
func (r *reader) learnt(bridge string, mac string) string {
	b, err := r.links.LinkByName(bridge)
	if err != nil {
		return ""
	}
	list, _ := r.links.NeighList(0, unix.AF_BRIDGE)
	for _, n := range list {
		if n.MasterIndex == b.Attrs().Index && n.HardwareAddr.String() == mac {
			if port, err := r.links.LinkByIndex(n.LinkIndex); err == nil {
				return port.Attrs().Name
			}
		}
	}
	return ""
}

// address is the first of a device's, of a family and of global scope.
func (r *reader) address(device string, four bool) netip.Addr {
	link, err := r.links.LinkByName(device)
	if err != nil {
		return netip.Addr{}
	}
	family := netlink.FAMILY_V6
	if four {
		family = netlink.FAMILY_V4
	}
	list, _ := r.links.AddrList(link, family)
	for _, a := range list {
		if found := addr(a.IP); !found.IsLinkLocalUnicast() {
			return found
		}
	}
	return netip.Addr{}
}

// near reports whether an address is in the range of one of a device's addresses.
func (r *reader) near(device string, a netip.Addr) bool {
	link, err := r.links.LinkByName(device)
	if err != nil {
		return false
	}
	list, _ := r.links.AddrList(link, netlink.FAMILY_ALL)
	for _, own := range list {
		length, _ := own.Mask.Size()
		if p, err := addr(own.IP).Prefix(length); err == nil && p.Contains(a) {
			return true
		}
	}
	return false
}

// holder is the device that has an address; "" if none has.
func (r *reader) holder(a netip.Addr) string {
	list, _ := r.links.AddrList(nil, netlink.FAMILY_ALL)
	for _, own := range list {
		if addr(own.IP) == a {
			if link, err := r.links.LinkByIndex(own.LinkIndex); err == nil {
				return link.Attrs().Name
			}
		}
	}
	return ""
}

// elements are those of a set of Kuryr's; an error that is ENOENT: there is no such set.
func (r *reader) elements(family nftables.TableFamily, set string) ([]nftables.SetElement, error) {
	return r.elementsIn(tableName, family, set)
}

func (r *reader) elementsIn(table string, family nftables.TableFamily, set string) ([]nftables.SetElement, error) {
	s, err := r.nft.GetSetByName(&nftables.Table{Name: table, Family: family}, set)
	if err != nil {
		return nil, fmt.Errorf("nft set %s %s: %w", table, set, err)
	}
	return r.nft.GetSetElements(s)
}

// isDown reports whether a port is switched off. Where no port is, there is no such table.
func (r *reader) isDown(tap string) bool {
	list, err := r.elementsIn(tableName+"_down", nftables.TableFamilyBridge, "down")
	if err != nil {
		return false
	}
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, tap)
	_, down := find(list, name)
	return down
}

// mapped is what a map of Kuryr's has for a key; nil for nothing.
func (r *reader) mapped(set string, key []byte) []byte {
	list, err := r.elements(nftables.TableFamilyINet, set)
	if err != nil {
		return nil
	}
	for _, e := range list {
		if bytes.Equal(e.Key, key) {
			if e.Val == nil {
				return []byte{}
			}
			return e.Val
		}
	}
	return nil
}

// rule reports whether a chain of Kuryr's has a rule with this comment.
func (r *reader) rule(chain, comment string) bool {
	t := &nftables.Table{Name: tableName, Family: nftables.TableFamilyINet}
	rules, _ := r.nft.GetRules(t, &nftables.Chain{Name: chain, Table: t})
	for _, rule := range rules {
		if name, _, _ := strings.Cut(commentOf(rule), " #"); name == comment {
			return true
		}
	}
	return false
}

// forwards reports whether the family's switch is on.
func (r *reader) forwards(four bool) bool {
	path := "/proc/sys/net/ipv6/conf/all/forwarding"
	if four {
		path = "/proc/sys/net/ipv4/ip_forward"
	}
	on := false
	_ = netns.Do(r.NS, func() error { // that of the thread's namespace
		text, err := os.ReadFile(path)
		on = strings.TrimSpace(string(text)) == "1"
		return err
	})
	return on
}

// guarded reports whether the guard lets a source pass: element of a set, or of one with
// ranges, or a port without a guard.
func (r *reader) guarded(tap string, mac net.HardwareAddr, src netip.Addr) (pass bool, how string, err error) {
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, tap)
	if list, err := r.elements(nftables.TableFamilyBridge, "unguarded"); err != nil {
		return false, "", err
	} else if _, ok := find(list, name); ok {
		return true, "the port has no guard", nil
	}
	set, head := "ip6", append(append(name, mac...), 0, 0)
	if src.Is4() {
		set = "ip4"
	}
	key := append(head, src.AsSlice()...)
	for _, s := range []string{set, set + "_range"} {
		list, err := r.elements(nftables.TableFamilyBridge, s)
		if err != nil {
			return false, "", err
		}
		if _, ok := find(list, key); ok {
			return true, fmt.Sprintf("anti-spoofing lets %s with %s pass (set %s)", src, mac, s), nil
		}
	}
	return false, fmt.Sprintf(
		"anti-spoofing has no element of %s with %s and %s in its set %s, and drops it", tap, mac, src,
		set,
	), nil
}

// find looks for a key among elements, of which those with an end are ranges.
func find(list []nftables.SetElement, key []byte) (nftables.SetElement, bool) {
	for _, e := range list {
		if bytes.Equal(e.Key, key) || len(e.Key) == len(key) && len(e.KeyEnd) == len(key) && between(e.Key, key, e.KeyEnd) {
			return e, true
		}
	}
	return nftables.SetElement{}, false
}

// between compares name and MAC for equality, and the address that follows by number.
func between(first, key, last []byte) bool {
	const head = unix.IFNAMSIZ + 8
	return len(key) > head && bytes.Equal(first[:head], key[:head]) &&
		bytes.Compare(first[head:], key[head:]) <= 0 && bytes.Compare(key[head:], last[head:]) <= 0
}

func isAbsent(err error) bool { return errors.Is(err, unix.ENOENT) }

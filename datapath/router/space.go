//go:build linux

package router

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/kuryr/kuryr/datapath/nft"
	kuryrns "github.com/kuryr/kuryr/internal/netns"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// space is a network namespace with its sockets open. It serves one call: opening costs
// 30 µs, and what is not kept open never keeps a deleted namespace alive. Only the
// nftables socket comes from a pool.
type space struct {
	ns  netns.NsHandle
	rt  *netlink.Handle
	raw map[int]*nl.SocketHandle // for messages the library has no call for
	nft *nft.Conn
	bad bool // the nftables socket may have something queued or unanswered, so it is not to be used again

	key  nsKey
	pool *pool
}

// openSpace takes ns over: it is closed with the space, and on error.
func (p *pool) openSpace(ns netns.NsHandle) (_ *space, err error) {
	s := &space{ns: ns, pool: p}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.rt, err = netlink.NewHandleAt(ns, unix.NETLINK_ROUTE); err != nil {
		return nil, fmt.Errorf("route socket: %w", err)
	}
	socket, err := nl.GetNetlinkSocketAt(ns, netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("route socket: %w", err)
	}
	s.raw = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: socket}}
	// Strict checking makes the kernel filter dumps by what the request says.
	if err := unix.SetsockoptInt(socket.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1); err != nil {
		return nil, fmt.Errorf("strict route socket: %w", err)
	}
	if s.key, err = keyOf(ns); err != nil {
		return nil, err
	}
	if s.nft, err = p.get(ns, s.key); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *space) close() {
	switch {
	case s.nft == nil:
	case s.bad:
		go func(c *nft.Conn) { _ = c.Close() }(s.nft)
	default:
		s.pool.put(s.key, s.nft)
	}
	for _, h := range s.raw {
		h.Close()
	}
	if s.rt != nil {
		s.rt.Close()
	}
	_ = s.ns.Close()
}

// do runs f on a thread in the namespace, for what has no netlink message: files under
// /proc/sys/net.
func (s *space) do(f func() error) error { return kuryrns.Do(s.ns, f) }

// link finds a link by name; nil if there is none.
func (s *space) link(name string) (netlink.Link, error) {
	link, err := s.rt.LinkByName(name)
	var absent netlink.LinkNotFoundError
	if errors.As(err, &absent) {
		return nil, nil
	}
	return link, err
}

// lacks reports whether it is certain that there is no such link.
func (s *space) lacks(name string) bool {
	link, err := s.link(name)
	return err == nil && link == nil
}

// links lists links; the kernel leaves out what is not of this kind ("" any) or not below
// this master (0 any).
func (s *space) links(kind string, master int) ([]netlink.Link, error) {
	return dump(func() ([]netlink.Link, error) {
		req := s.request(unix.RTM_GETLINK, unix.NLM_F_DUMP)
		req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
		if kind != "" {
			info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
			info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated(kind))
			req.AddData(info)
		}
		if master != 0 {
			req.AddData(nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(master))))
		}
		answers, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
		if err != nil {
			return nil, fmt.Errorf("list links: %w", err)
		}
		var links []netlink.Link
		for _, answer := range answers {
			link, err := netlink.LinkDeserialize(nil, answer)
			if err != nil {
				return nil, fmt.Errorf("list links: %w", err)
			}
			if (kind == "" || link.Type() == kind) && (master == 0 || link.Attrs().MasterIndex == master) {
				links = append(links, link)
			}
		}
		return links, nil
	})
}

// addrs lists all addresses as prefixes, by link index.
func (s *space) addrs() (map[int][]string, error) {
	list, err := dump(func() ([]netlink.Addr, error) { return s.rt.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	byLink := map[int][]string{}
	for _, a := range list {
		byLink[a.LinkIndex] = append(byLink[a.LinkIndex], a.IPNet.String())
	}
	return byLink, nil
}

// routes lists the main table's routes of both families that have our protocol number;
// link 0 is any.
func (s *space) routes(link int) ([]netlink.Route, error) {
	var all []netlink.Route
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		list, err := s.routesOf(family, unix.RT_TABLE_MAIN, link)
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	return all, nil
}

// routesOf lists a table's routes of a family that have our protocol number.
func (s *space) routesOf(family, table uint8, link int) ([]netlink.Route, error) {
	return dump(func() ([]netlink.Route, error) {
		req := s.request(unix.RTM_GETROUTE, unix.NLM_F_DUMP)
		msg := &nl.RtMsg{}
		msg.Family, msg.Table, msg.Protocol = family, table, protocol
		req.AddData(msg)
		if link != 0 {
			req.AddData(nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(link))))
		}
		answers, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWROUTE)
		if err != nil && !errors.Is(err, unix.ENOENT) { // ENOENT: the family has no such table yet
			return nil, fmt.Errorf("list routes: %w", err)
		}
		var routes []netlink.Route
		for _, answer := range answers {
			// A kernel without the family (ipv6.disable=1) answers with the routes of all others.
			if head := nl.DeserializeRtMsg(answer); head.Protocol != protocol || head.Family != family || head.Table != table {
				continue
			}
			route, err := deserializeRoute(answer)
			if err != nil {
				return nil, fmt.Errorf("list routes: %w", err)
			}
			if link == 0 || route.LinkIndex == link {
				routes = append(routes, route)
			}
		}
		return routes, nil
	})
}

// deserializeRoute reads what we compare of a route: destination, gateway, link.
func deserializeRoute(message []byte) (netlink.Route, error) {
	head := nl.DeserializeRtMsg(message)
	attrs, err := nl.ParseRouteAttr(message[head.Len():])
	if err != nil {
		return netlink.Route{}, err
	}
	bits := 32
	if head.Family == unix.AF_INET6 {
		bits = 128
	}
	route := netlink.Route{
		Family: int(head.Family), Protocol: netlink.RouteProtocol(head.Protocol), Table: int(head.Table),
		Scope: netlink.Scope(head.Scope), Type: int(head.Type),
	}
	route.Dst = &net.IPNet{IP: make(net.IP, bits/8), Mask: net.CIDRMask(int(head.Dst_len), bits)}
	for _, a := range attrs {
		switch a.Attr.Type {
		case unix.RTA_DST:
			route.Dst.IP = a.Value
		case unix.RTA_GATEWAY:
			route.Gw = a.Value
		case unix.RTA_OIF:
			route.LinkIndex = int(nl.NativeEndian().Uint32(a.Value))
		case unix.RTA_PRIORITY:
			route.Priority = int(nl.NativeEndian().Uint32(a.Value))
		}
	}
	return route, nil
}

// dump repeats a listing that the kernel says was disturbed by a change.
func dump[T any](list func() ([]T, error)) ([]T, error) { return dumped(list) }

func dumped[T any](list func() (T, error)) (T, error) {
	for try := 0; ; try++ {
		got, err := list()
		if try < 10 && (errors.Is(err, netlink.ErrDumpInterrupted) || errors.Is(err, unix.EINTR)) {
			continue
		}
		return got, err
	}
}

func (s *space) request(kind, flags int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(kind, flags)
	req.Sockets = s.raw
	return req
}

// sysctl is a file under /proc/sys/net and what should be in it.
type sysctl struct{ path, want string }

// sysctls makes files under /proc/sys/net say what they should. A file that is absent
// belongs to what this kernel cannot do.
func (s *space) sysctls(r *run, list []sysctl) error {
	return s.do(func() error {
		for _, c := range list {
			path := "/proc/sys/net/" + c.path
			content, err := os.ReadFile(path)
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			if have := strings.TrimSpace(string(content)); have != c.want {
				if err := r.mend(
					"sysctl net/"+c.path, c.want, have,
					func() error { return os.WriteFile(path, []byte(c.want), 0) },
				); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// syncAddrs makes a link carry exactly these addresses.
func (s *space) syncAddrs(r *run, link netlink.Link, want []netip.Prefix, have []string) error {
	name := link.Attrs().Name
	wanted := map[string]bool{}
	for _, p := range want {
		wanted[p.String()] = true
	}
	had := map[string]bool{}
	for _, h := range have {
		had[h] = true
		if !wanted[h] {
			err := r.mend("address "+h+" on "+name, "", h, func() error {
				addr, err := netlink.ParseAddr(h)
				if err != nil {
					return err
				}
				return ignore(s.rt.AddrDel(link, addr), unix.EADDRNOTAVAIL)
			})
			if err != nil {
				return err
			}
		}
	}
	for _, p := range want {
		if !had[p.String()] {
			if err := r.mend(
				"address "+p.String()+" on "+name, p.String(), "", func() error { return s.addAddr(link, p) },
			); err != nil {
				return err
			}
		}
	}
	return nil
}

// addAddr adds an address without the wait of duplicate address detection; there already is fine.
func (s *space) addAddr(link netlink.Link, p netip.Prefix) error {
	return ignore(s.rt.AddrAdd(link, &netlink.Addr{IPNet: ipNet(p), Flags: unix.IFA_F_NODAD}), unix.EEXIST)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func ignore(err error, fine ...error) error {
	for _, f := range fine {
		if errors.Is(err, f) {
			return nil
		}
	}
	return err
}

//go:build linux

package trace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
)

// Port is a port as the store knows it, with where its host end belongs.
type Port struct {
	Tap, Bridge string
	MAC         net.HardwareAddr
	Addrs       []netip.Addr
}

// Way is what Plan needs to know.
type Way struct {
	Flow
	From                    Port
	Container, Router, Host Site
	Uplink                  string // the router's link in the host
	// To is the port that is called, in its Router; the zero Port: none that is known.
	To           Port
	CalledRouter Site
	Called       string // name of the container, for people
}

const (
	mendReconcile = "kuryr sdn reconcile"
	mendReplug    = "disconnect the container from the network and connect it again"
	mendUp        = "set admin_state_up of the port or of its network"
	// A running kuryr turned it on already, and does so again only at its next start.
	mendForwarding = "sysctl net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1, or `kuryr doctor --fix`"
)

// Plan tells from the kernel's tables which way the packet would go, and what of it is
// missing. It sends nothing. The last hop stops if the packet would not get there.
func Plan(w Way) ([]Hop, error) {
	p := &planner{Way: w, hops: []Hop{}, readers: map[string]*reader{}}
	defer func() {
		for _, r := range p.readers {
			r.close()
		}
	}()
	err := p.container()
	if errors.Is(err, errStop) {
		err = nil
	}
	return p.hops, err
}

// Source is the address that the container's kernel would send from.
func Source(container Site, dst netip.Addr) (netip.Addr, error) {
	r, err := newReader(container)
	if err != nil {
		return netip.Addr{}, err
	}
	defer r.close()
	way, err := r.send(dst, netip.Addr{}, "")
	return way.src, err
}

// Holder is the device of a namespace that has an address; "" if none has.
func Holder(container Site, a netip.Addr) string {
	r, err := newReader(container)
	if err != nil {
		return ""
	}
	defer r.close()
	return r.holder(a)
}

var errStop = errors.New("the packet goes no further")

type planner struct {
	Way
	hops    []Hop
	readers map[string]*reader
}

func (p *planner) at(s Site) (*reader, error) {
	if r := p.readers[s.Name]; r != nil {
		return r, nil
	}
	r, err := newReader(s)
	if err == nil {
		p.readers[s.Name] = r
	}
	return r, err
}

func (p *planner) pass(r *reader, device, format string, args ...any) {
	p.hops = append(p.hops, Hop{Where: r.Name, Device: device, What: fmt.Sprintf(format, args...)})
}

func (p *planner) stop(r *reader, device, mend, format string, args ...any) error {
	p.hops = append(p.hops, Hop{Where: r.Name, Device: device, What: fmt.Sprintf(format, args...), Stop: true, Mend: mend})
	return errStop
}

func (p *planner) container() error {
	r, err := p.at(p.Container)
	if err != nil {
		return err
	}
	w, err := r.send(p.Dst, p.Src, p.Device)
	if err != nil {
		return p.stop(
			r, "", "give the network a gateway (no --internal), or look at the container's own routes",
			"no route to %s: %v", p.Dst, err,
		)
	}
	if w.local {
		p.pass(r, w.device, "%s is the container's own address", p.Dst)
		return nil
	}
	if p.Device != "" && !w.gw.IsValid() && !r.near(p.Device, p.Dst) {
		return p.stop(
			r, p.Device, "send by another of the container's networks, or give it a route",
			"no route to %s by %s: the kernel takes it for a neighbour", p.Dst, p.Device,
		)
	}
	next := p.Dst
	how := "on the link"
	if w.gw.IsValid() {
		next, how = w.gw, "by gateway "+w.gw.String()
	}
	if mac, failed := r.neighbour(w.device, next); failed {
		how += ", which did not answer when asked for its MAC last"
	} else if mac != "" {
		how += " (" + mac + ")"
	}
	if !w.up {
		return p.stop(r, w.device, mendReplug, "the link is down")
	}
	p.pass(r, w.device, "route to %s %s, source %s, MTU %d", p.Dst, how, p.Src, w.mtu)
	return p.port(next)
}

// port is the container's port on the bridge, and the guard there.
func (p *planner) port(next netip.Addr) error {
	r, err := p.at(p.Router)
	if err != nil {
		return err
	}
	if err := p.plugged(r, p.From); err != nil {
		return err
	}
	switch ok, how, err := r.guarded(p.From.Tap, p.From.MAC, p.Src); {
	case isAbsent(err):
		return p.stop(r, p.From.Tap, mendReconcile, "the anti-spoofing table is missing or not whole")
	case err != nil:
		return fmt.Errorf("%s: %w", r.Name, err)
	case !ok:
		mend := mendReconcile
		if !p.has(p.From, p.Src) {
			mend = "the port does not have that address: send from one that it has"
		}
		return p.stop(r, p.From.Tap, mend, "%s", how)
	default:
		p.pass(r, p.From.Tap, "%s", how)
	}
	if next == p.Dst && p.has(p.To, p.Dst) && p.To.Bridge == p.From.Bridge {
		return p.deliver(r)
	}
	if w, err := r.route(p.Dst, p.Src, p.From.Bridge); next == p.Dst && (err != nil || !w.local) {
		p.pass(
			r, p.From.Bridge,
			"on the bridge, but no port of the network has %s: who has it must answer when asked for "+
				"its MAC",
			p.Dst,
		)
		return nil
	}
	return p.routed(r)
}

func (p *planner) has(port Port, a netip.Addr) bool {
	for _, own := range port.Addrs {
		if own == a {
			return true
		}
	}
	return false
}

func (p *planner) plugged(r *reader, port Port) error {
	link, err := r.links.LinkByName(port.Tap)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return p.stop(r, port.Tap, mendReplug, "the port's device is missing")
	} else if err != nil {
		return fmt.Errorf("%s: %w", r.Name, err)
	}
	if r.isDown(port.Tap) {
		return p.stop(r, port.Tap, mendUp, "the port is switched off")
	}
	bridge, err := r.links.LinkByName(port.Bridge)
	switch {
	case err != nil:
		return p.stop(r, port.Bridge, mendReconcile, "the network's bridge is missing")
	case link.Attrs().MasterIndex != bridge.Attrs().Index:
		return p.stop(r, port.Tap, mendReplug, "the port's device is not on its bridge %s", port.Bridge)
	case link.Attrs().Flags&net.FlagUp == 0 || link.Attrs().OperState == netlink.OperDown ||
		link.Attrs().OperState == netlink.OperLowerLayerDown:
		return p.stop(r, port.Tap, mendReplug, "the port's device is down, or its other end is")
	case bridge.Attrs().Flags&net.FlagUp == 0:
		return p.stop(r, port.Bridge, mendReconcile, "the network's bridge is down")
	}
	return nil
}

// deliver is the last hop, from the bridge to the container that is called.
func (p *planner) deliver(r *reader) error {
	if err := p.plugged(r, p.To); err != nil {
		return err
	}
	how := "not learnt yet, so the frame goes to all ports"
	if on := r.learnt(p.To.Bridge, p.To.MAC.String()); on == p.To.Tap {
		how = "learnt"
	} else if on != "" {
		how = "learnt on another port, " + on
	}
	p.pass(r, p.To.Tap, "bridge %s to %s, MAC %s (%s)", p.To.Bridge, p.Called, p.To.MAC, how)
	return nil
}

func (p *planner) routed(r *reader) error {
	w, err := r.route(p.Dst, p.Src, p.From.Bridge)
	switch {
	case err != nil && !r.forwards(p.Dst.Is4()):
		return p.stop(r, p.From.Bridge, mendReconcile, "the router does not forward")
	case err != nil:
		return p.stop(
			r, p.From.Bridge, "give the network a router with a way out (no --internal)",
			"no route to %s: %v", p.Dst, err,
		)
	case w.local:
		p.pass(r, p.From.Bridge, "%s is the router's own address", p.Dst)
		return nil
	case strings.HasPrefix(w.device, "br-"):
		if !r.forwards(p.Dst.Is4()) {
			return p.stop(r, p.From.Bridge, mendReconcile, "the router does not forward")
		}
		p.pass(r, w.device, "routed from %s to %s", p.From.Bridge, w.device)
		if p.has(p.To, p.Dst) && p.To.Bridge == w.device {
			return p.deliver(r)
		}
		return nil
	case !r.forwards(p.Dst.Is4()):
		return p.stop(r, p.From.Bridge, mendReconcile, "the router does not forward")
	}
	src := p.Src
	if to, ok := netip.AddrFromSlice(r.mapped("floating_out"+version(src), src.AsSlice())); ok {
		p.pass(r, w.device, "routed by %s; SNAT %s → %s, its floating address", w.device, src, to)
		src = to
	} else if r.rule("postrouting", "leaves by the uplink address") {
		to := r.address(w.device, src.Is4())
		p.pass(r, w.device, "routed by %s; SNAT %s → %s", w.device, src, to)
		src = to
	} else {
		p.pass(r, w.device, "routed by %s, source %s stays", w.device, src)
	}
	return p.host(src)
}

// host is what the host does with what comes by the router's uplink.
func (p *planner) host(src netip.Addr) error {
	r, err := p.at(p.Host)
	if err != nil {
		return err
	}
	if _, err := r.links.LinkByName(p.Uplink); err != nil {
		return p.stop(r, p.Uplink, mendReconcile, "the router's link is missing in the host")
	}
	dst := p.Dst
	w, err := r.route(dst, src, p.Uplink)
	if err != nil && !r.forwards(dst.Is4()) {
		return p.stop(r, p.Uplink, mendForwarding, "the host does not forward")
	} else if err != nil {
		return p.stop(r, p.Uplink, "give the host a route to it", "the host has no route to %s: %v", dst, err)
	}
	if w.local {
		to, ok := p.led(r)
		if !ok {
			p.pass(r, p.Uplink, "%s is the host's own address: its filter of input and who listens there decide", dst)
			return nil
		}
		p.pass(
			r, p.Uplink, "DNAT %s → %s: the port is published by a container behind that router",
			netip.AddrPortFrom(dst, p.Port), to,
		)
		if w, err = r.route(to.Addr(), src, p.Uplink); err != nil {
			return p.stop(r, p.Uplink, mendReconcile, "the host has no route to the router %s: %v", to.Addr(), err)
		}
		if !r.forwards(dst.Is4()) {
			return p.stop(r, p.Uplink, mendForwarding, "the host does not forward")
		}
		p.pass(r, w.device, "routed by %s, source becomes the host's", w.device)
		return p.published(to.Port())
	}
	if !r.forwards(dst.Is4()) {
		return p.stop(r, p.Uplink, mendForwarding, "the host does not forward")
	}
	if strings.HasPrefix(w.device, "kr") && r.mapped("floating"+version(dst), dst.AsSlice()) == nil {
		return p.stop(r, w.device,
			"put both networks on one router (-o kuryr.router=NAME), or publish the port and call the "+
				"host's address",
			"the route to %s leads into another router by %s: inet kuryr forward drops it (%q)", dst,
			w.device, "nothing else into a router")
	}
	by := ""
	if w.gw.IsValid() {
		by = " by gateway " + w.gw.String()
	}
	if !w.up {
		return p.stop(r, w.device, "repair the host's link", "the host's way out is down")
	}
	p.pass(r, w.device, "routed by %s%s; SNAT %s → the host's address", w.device, by, src)
	return nil
}

// led is the router's address and port that the host leads the call to: by its address,
// or by any of the host's.
func (p *planner) led(r *reader) (netip.AddrPort, bool) {
	to := r.mapped("published_at"+version(p.Dst), append(p.Dst.AsSlice(), service(p.Protocol, p.Port)...))
	if to == nil {
		to = r.mapped("published"+version(p.Dst), service(p.Protocol, p.Port))
	}
	return addrPort(to, p.Dst.BitLen()/8, p.Port)
}

// published is the second half of a published port, in the router of the container that is called.
func (p *planner) published(port uint16) error {
	if p.To.Tap == "" {
		return nil
	}
	r, err := p.at(p.CalledRouter)
	if err != nil {
		return err
	}
	to, ok := addrPort(r.mapped("published"+version(p.Dst), service(p.Protocol, port)), p.Dst.BitLen()/8, port)
	if !ok {
		return p.stop(r, "up0", mendReconcile, "the router knows nothing of the published port")
	}
	p.pass(r, "up0", "DNAT to %s", to)
	return p.deliver(r)
}

// addrPort reads an address of so many bytes, and the port behind it where there is one.
func addrPort(b []byte, size int, port uint16) (netip.AddrPort, bool) {
	if len(b) < size {
		return netip.AddrPort{}, false
	}
	if len(b) >= size+2 {
		port = binary.BigEndian.Uint16(b[size:])
	}
	a, ok := netip.AddrFromSlice(b[:size])
	return netip.AddrPortFrom(a, port), ok
}

// version is the end of the names of a family's sets.
func version(a netip.Addr) string {
	if a.Is4() {
		return "4"
	}
	return "6"
}

// service is part of the keys of published ports: protocol and port, each in a word.
func service(protocol uint8, port uint16) []byte {
	return append(binary.BigEndian.AppendUint16([]byte{protocol, 0, 0, 0}, port), 0, 0)
}

// HostAddress is the address by which a namespace is best called: the source towards its
// default route, otherwise the first of any device of global scope; invalid where it has none
// of the family.
func HostAddress(host Site, four bool) netip.Addr {
	r, err := newReader(host)
	if err != nil {
		return netip.Addr{}
	}
	defer r.close()
	outside := netip.MustParseAddr("2001:db8::1")
	if four {
		outside = netip.MustParseAddr("192.0.2.1")
	}
	if w, err := r.send(outside, netip.Addr{}, ""); err == nil && w.src.IsValid() && w.src.Is4() == four {
		return w.src
	}
	links, _ := r.links.LinkList()
	for _, l := range links {
		if a := r.address(l.Attrs().Name, four); a.IsValid() && !a.IsLoopback() {
			return a
		}
	}
	return netip.Addr{}
}

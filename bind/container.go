//go:build linux

package bind

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
	"golang.org/x/sys/unix"
)

// setup is how a container end is configured.
type setup struct {
	addrs    []netip.Prefix // address and its subnet's length
	routes   []route
	replaces bool // the routes replace those of other interfaces
}

// route is a route by way of the container end. An invalid or unspecified via: the
// destination is on the link.
type route struct {
	to       netip.Prefix
	via      netip.Addr
	onlink   bool // via is outside the subnet, but on the link all the same
	replaces bool // an existing route to this destination, which the container end may take
}

// setup works out how the container end is configured. An interface that the engine moves
// has none.
func (i Interface) setup() (setup, error) {
	if i.Namespace == "" {
		return setup{}, nil
	}
	conf, err := newSetup(i.Port, i.Subnets)
	conf.replaces = i.ReplacesRoutes
	return conf, err
}

// newSetup works out addresses and routes: one default route a family, by the first
// subnet, in the order of the port's addresses, that has a gateway; and the subnets' host
// routes. The error IsInvalid where a subnet is missing or does not fit.
func newSetup(port sdn.Port, subnets []sdn.Subnet) (setup, error) {
	byID := make(map[sdn.ID]sdn.Subnet, len(subnets))
	for _, s := range subnets {
		byID[s.ID] = s
	}
	own := make(map[netip.Addr]bool, len(port.Addresses))
	for _, a := range port.Addresses {
		own[a.Addr] = true
	}
	var conf setup
	routed := make(map[netip.Prefix]bool)
	add := func(s sdn.Subnet, to netip.Prefix, via netip.Addr) {
		// The first one counts. A container that is itself the next hop needs no route.
		if to = to.Masked(); !routed[to] && !own[via] {
			routed[to] = true
			inside := via.IsValid() && (s.CIDR.Contains(via) || via.IsUnspecified() || via.IsLinkLocalUnicast() && via.Is6())
			conf.routes = append(conf.routes, route{to: to, via: via, onlink: !inside})
		}
	}
	var used []sdn.Subnet
	known := make(map[sdn.ID]bool)
	for _, a := range port.Addresses {
		s, ok := byID[a.Subnet]
		if !ok {
			return setup{}, sdn.Invalid("interface", "subnets", "the subnet %s of address %s is missing", a.Subnet, a.Addr)
		}
		if !a.Addr.IsValid() || !s.CIDR.IsValid() || a.Addr.Is4() != s.CIDR.Addr().Is4() || a.Addr.Zone() != "" {
			return setup{}, sdn.Invalid("port", "addresses", "%s does not fit subnet %s", a.Addr, s.CIDR)
		}
		conf.addrs = append(conf.addrs, netip.PrefixFrom(a.Addr, s.CIDR.Bits()))
		if !known[s.ID] {
			known[s.ID] = true
			used = append(used, s)
		}
	}
	for _, s := range used {
		if s.Gateway.IsValid() {
			if s.Gateway.Is4() != s.CIDR.Addr().Is4() {
				return setup{}, sdn.Invalid("subnet", "gateway", "%s does not fit subnet %s", s.Gateway, s.CIDR)
			}
			add(s, defaultRoute(s.Gateway), s.Gateway)
		}
	}
	for _, s := range used {
		for _, r := range s.HostRoutes {
			if !r.Destination.IsValid() || !r.NextHop.IsValid() ||
				r.Destination.Addr().Is4() != s.CIDR.Addr().Is4() || r.NextHop.Is4() != s.CIDR.Addr().Is4() {
				return setup{}, sdn.Invalid(
					"subnet", "host_routes", "%s by way of %s does not fit subnet %s", r.Destination, r.NextHop,
					s.CIDR,
				)
			}
			add(s, r.Destination, r.NextHop)
		}
	}
	return conf, nil
}

func defaultRoute(via netip.Addr) netip.Prefix {
	if via.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

func (c setup) has6() bool {
	for _, a := range c.addrs {
		if a.Addr().Is6() {
			return true
		}
	}
	return false
}

// maxLooks bounds how often the routes of other interfaces are read. More than two take
// several calls in one namespace.
const maxLooks = 20

// configureContainer puts the container end up with its addresses and routes, and the
// namespace's loopback; s and the calling thread are in the namespace. It may be
// repeated. Addresses that are there beyond those asked for stay. A route that another
// interface of the namespace has to one of the destinations stays, and the destination is
// returned, unless conf replaces such routes. reap deletes unplugged interfaces, whose
// routes do not count; nil where none can be there.
func configureContainer(
	s *socket, name string, mac net.HardwareAddr, mtu int, conf setup, reap func() error,
) (kept []netip.Prefix, err error) {
	index, err := s.index(name)
	if err != nil {
		return nil, err
	}
	// Before the link is up: a router advertisement must never configure a container.
	if err := writeSysctl("ipv6", name, "accept_ra", "0"); err != nil {
		return nil, fmt.Errorf("switch router advertisements off: %w", err)
	}
	failpoint.Here("bind.container.sysctl")
	if err := noLinkLocal(s, index); err != nil {
		return nil, err
	}
	failpoint.Here("bind.container.addrgen")
	// Another interface can get the same route between the look and the change. EEXIST
	// reports that.
	for range maxLooks {
		var own setup
		var idle bool
		if own, kept, idle, err = conf.beside(s, index); err != nil {
			return nil, err
		}
		if idle && reap != nil {
			if err = reap(); err != nil {
				return nil, err
			}
			reap = nil
			continue
		}
		if err = own.apply(s, name, index, mac, mtu); !errors.Is(err, unix.EEXIST) {
			break
		}
	}
	return kept, err
}

// beside returns the setup without the routes whose destination another interface of the
// namespace already routes, and those destinations. A setup that replaces such routes
// keeps all of its own. It is idle if such an interface has
// no carrier: it may be one that was unplugged.
func (c setup) beside(s *socket, index int32) (own setup, kept []netip.Prefix, idle bool, err error) {
	if len(c.routes) == 0 {
		return c, nil, false, nil
	}
	if c.replaces {
		own = setup{addrs: c.addrs, routes: slices.Clone(c.routes)}
		for k := range own.routes {
			own.routes[k].replaces = true
		}
		return own, nil, false, nil
	}
	here, others, err := s.routed(index)
	if err != nil {
		return c, nil, false, err
	}
	own = setup{addrs: c.addrs}
	for _, r := range c.routes {
		other, elsewhere := others[r.to]
		if r.replaces = here[r.to]; r.replaces || !elsewhere {
			own.routes = append(own.routes, r)
			continue
		}
		kept = append(kept, r.to)
		if other == 0 || idle { // a route without one interface, such as one of several next hops
			continue
		}
		l, err := s.link(other, "")
		if err != nil && !errors.Is(err, errNoLink) {
			return c, nil, false, err
		}
		idle = l.flags&unix.IFF_LOWER_UP == 0
	}
	return own, kept, idle, nil
}

// apply configures the link by the setup.
func (c setup) apply(s *socket, name string, index int32, mac net.HardwareAddr, mtu int) error {
	err := s.do(c.messages(index, mac, mtu))
	if errors.Is(err, unix.EACCES) && c.has6() {
		// Engines switch IPv6 off in namespaces they think have none.
		if err := writeSysctl("ipv6", name, "disable_ipv6", "0"); err != nil {
			return fmt.Errorf("switch IPv6 on: %w", err)
		}
		err = s.do(c.messages(index, mac, mtu))
	}
	return err
}

// noLinkLocal keeps the kernel from making a link-local address, which it would take up
// to 2 s to find unique. It must be a message before the one that puts the link up: in
// one message up comes first.
func noLinkLocal(s *socket, index int32) error {
	var b batch
	b.add("switch link-local addresses off", unix.RTM_SETLINK, 0, ifInfo(unix.AF_UNSPEC, index, 0, 0))
	b.nest(unix.IFLA_AF_SPEC, func() {
		b.nest(unix.AF_INET6, func() { b.attr(unix.IFLA_INET6_ADDR_GEN_MODE, []byte{addrGenModeNone}) })
	})
	err := s.do(&b)
	if errors.Is(err, unix.EAFNOSUPPORT) { // no IPv6 in this kernel, or on so small an MTU
		return nil
	}
	return err
}

// messages are all that configures the link, in one batch.
func (c setup) messages(index int32, mac net.HardwareAddr, mtu int) *batch {
	var b batch
	b.add("put lo up", unix.RTM_SETLINK, 0, ifInfo(unix.AF_UNSPEC, 1, unix.IFF_UP, unix.IFF_UP))
	b.add("put up", unix.RTM_SETLINK, 0, ifInfo(unix.AF_UNSPEC, index, unix.IFF_UP, unix.IFF_UP))
	if mtu > 0 {
		b.u32(unix.IFLA_MTU, uint32(mtu))
	}
	if c.has6() {
		// Neighbour discovery without traffic to answer for, and protocols such as DHCPv6, need
		// a link-local address.
		addAddress(&b, index, netip.PrefixFrom(linkLocal(mac), 64))
	}
	for _, a := range c.addrs {
		addAddress(&b, index, a)
	}
	for _, r := range c.routes {
		addRoute(&b, index, r)
	}
	return &b
}

// linkLocal is the modified EUI-64 address (RFC 4291, appendix A).
func linkLocal(mac net.HardwareAddr) netip.Addr {
	return netip.AddrFrom16([16]byte{
		0xfe, 0x80, 8: mac[0] ^ 2, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe, 13: mac[3], 14: mac[4],
		15: mac[5],
	})
}

// addAddress adds an address. NODAD: the SDN has given it to this port alone, and to ask
// the link would take 1 to 2 s.
func addAddress(b *batch, index int32, p netip.Prefix) {
	h := make([]byte, sizeIfAddr)
	h[0], h[1] = unix.AF_INET, byte(p.Bits())
	if p.Addr().Is6() {
		h[0], h[2] = unix.AF_INET6, unix.IFA_F_NODAD
		if p.Addr().IsLinkLocalUnicast() {
			h[3] = unix.RT_SCOPE_LINK
		}
	}
	binary.NativeEndian.PutUint32(h[4:], uint32(index))
	b.add("add address "+p.String(), unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, h)
	b.attr(unix.IFA_LOCAL, p.Addr().AsSlice())
	b.attr(unix.IFA_ADDRESS, p.Addr().AsSlice())
	if p.Addr().Is4() && p.Bits() < 31 {
		b.attr(unix.IFA_BROADCAST, broadcast(p))
	}
}

func broadcast(p netip.Prefix) []byte {
	a := p.Addr().As4()
	last := binary.BigEndian.Uint32(a[:]) | (1<<(32-p.Bits()) - 1)
	return binary.BigEndian.AppendUint32(nil, last)
}

// addRoute adds a route of the interface, or changes the one it has. It takes another
// interface's only if the route replaces it.
func addRoute(b *batch, index int32, r route) {
	h := make([]byte, sizeRtMsg)
	h[0], h[1] = unix.AF_INET6, byte(r.to.Bits())
	h[4], h[5], h[7] = unix.RT_TABLE_MAIN, unix.RTPROT_STATIC, unix.RTN_UNICAST
	direct := !r.via.IsValid() || r.via.IsUnspecified()
	if r.to.Addr().Is4() {
		h[0] = unix.AF_INET
		if direct {
			h[6] = unix.RT_SCOPE_LINK
		}
	}
	if r.onlink && !direct {
		binary.NativeEndian.PutUint32(h[8:], unix.RTNH_F_ONLINK)
	}
	flags := uint16(unix.NLM_F_CREATE | unix.NLM_F_EXCL)
	if r.replaces {
		flags = unix.NLM_F_CREATE | unix.NLM_F_REPLACE
	}
	b.add("add route "+r.to.String()+" via "+r.via.String(), unix.RTM_NEWROUTE, flags, h)
	b.attr(unix.RTA_DST, r.to.Addr().AsSlice())
	b.u32(unix.RTA_OIF, uint32(index))
	if !direct {
		b.attr(unix.RTA_GATEWAY, r.via.AsSlice())
	}
}

package local

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/datapath/lb"
	"github.com/kuryr/kuryr/datapath/router"
	"github.com/kuryr/kuryr/internal/sortslice"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/engine"
)

// The projection says what the store means to the kernel. It reads and decides; it changes nothing.
//
// A network on a router is a bridge in the router's domain, and a router's domain is there while it has networks. A network without a
// router has a domain of its own from its first plugged port on, so that a network that is to be put on a router is never built
// twice. An external network has none: it is the host. A port is the kernel's business while it has a host.

// projectDomain gives the domain of a router or network; nil where there is none.
func (p *Provider) projectDomain(b engine.Tx, id sdn.ID) (*router.Shape, error) {
	r, err := engine.Routers.Get(b, id)
	if err != nil {
		return nil, err
	}
	if r != nil {
		return p.projectRouter(b, r)
	}
	n, err := engine.Networks.Get(b, id)
	if err != nil || n == nil || !n.Own {
		return nil, err
	}
	return &router.Shape{ID: string(id), Bridges: []router.Bridge{{Network: string(id), MTU: n.MTU}}}, nil
}

// projectRouter gives the domain of a router. One that is off still bridges its networks. It has no address on
// them, and none on a network that is off.
func (p *Provider) projectRouter(b engine.Tx, r *engine.RouterRow) (*router.Shape, error) {
	if len(r.Interfaces) == 0 {
		return nil, nil
	}
	d := &router.Shape{ID: string(r.ID)}
	bridges := map[sdn.ID]int{}
	var reach []netip.Prefix
	for i, leg := range r.Interfaces {
		s, err := engine.Subnets.Need(b, leg.Subnet)
		if err != nil {
			return nil, err
		}
		at, known := bridges[r.Networks[i]]
		if !known {
			n, err := engine.Networks.Need(b, r.Networks[i])
			if err != nil {
				return nil, err
			}
			at = len(d.Bridges)
			bridges[n.ID] = at
			d.Bridges = append(d.Bridges, router.Bridge{Network: string(n.ID), MTU: n.MTU})
		}
		if r.Disabled || engine.NetworkDown(b, s.Network) {
			continue
		}
		d.Bridges[at].Addrs = append(d.Bridges[at].Addrs, netip.PrefixFrom(leg.Addr, s.CIDR.Bits()))
		reach = append(reach, s.CIDR)
	}
	sortslice.Func(d.Bridges, func(a, b router.Bridge) int { return cmp.Compare(a.Network, b.Network) })
	for i := range d.Bridges {
		sortslice.Func(d.Bridges[i].Addrs, netip.Prefix.Compare)
	}
	for _, route := range r.Routes {
		if !slices.ContainsFunc(reach, func(p netip.Prefix) bool { return p.Contains(route.NextHop) }) {
			continue // its router interface is down
		}
		d.Routes = append(d.Routes, router.Route{Destination: route.Destination, NextHop: route.NextHop})
	}
	down, err := engine.UplinkDown(b, r.ID)
	if r.Gateway == nil || down || err != nil {
		return d, err
	}
	d.Uplink = &router.Uplink{SNAT: r.Gateway.SNAT, MTU: p.mtu}
	if !r.Withheld() {
		sortslice.Func(reach, netip.Prefix.Compare)
		d.Uplink.Reach = reach
	}
	for _, a := range r.Gateway.Addresses {
		d.Uplink.Addrs = append(d.Uplink.Addrs, a.Addr)
	}
	fips, err := engine.FloatingIPs.All(b, "router", string(r.ID))
	if err != nil {
		return nil, err
	}
	for _, f := range fips {
		if f.OfHost() {
			continue
		}
		floating := router.Floating{External: f.Address, Internal: f.Target.Addr}
		if f.Balancer != "" {
			floating.Internal = netip.Addr{} // one more address of the load balancer's
		}
		d.Uplink.Floating = append(d.Uplink.Floating, floating)
	}
	sortslice.Func(d.Uplink.Floating, func(a, b router.Floating) int { return a.External.Compare(b.External) })
	return d, nil
}

// projectPort gives what guards, filters, limits and, where it is a subport, reaches a port; nil for one that is not plugged here.
func projectPort(b engine.Tx, r *engine.PortRow) (*router.Port, error) {
	if r == nil || !r.Plugged() {
		return nil, nil
	}
	policy, err := engine.PolicyOf(b, r)
	if err != nil {
		return nil, err
	}
	limits, err := projectLimits(b, policy)
	if err != nil {
		return nil, err
	}
	p := &router.Port{ID: string(r.ID), Network: string(r.Network), MAC: r.MAC, Guard: !r.NoPortSecurity, Limits: limits,
		Down: engine.IsDown(b, r)}
	for _, a := range r.Addresses {
		p.Addrs = append(p.Addrs, a.Addr)
		if a.Addr.Is4() {
			continue
		}
		subnet, err := engine.Subnets.Need(b, a.Subnet)
		if err != nil {
			return nil, err
		}
		p.OnLink = append(p.OnLink, subnet.CIDR)
	}
	for _, a := range r.AllowedPairs {
		p.Allowed = append(p.Allowed, router.AllowedAddress{Prefix: a.Prefix.Masked(), MAC: a.MAC})
	}
	for _, g := range r.Groups {
		p.Groups = append(p.Groups, string(g))
	}
	p.Parent = engine.Trunks.ID(b, "parent", string(r.ID)) != ""
	p.Trunk, err = projectTrunk(b, r)
	return p, err
}

// projectTrunk says what a subport is reached through.
func projectTrunk(b engine.Tx, r *engine.PortRow) (router.Trunk, error) {
	if r.Trunk == "" {
		return router.Trunk{}, nil
	}
	parent, err := engine.ParentOf(b, r)
	if err != nil {
		return router.Trunk{}, err
	}
	return router.Trunk{Parent: string(parent.ID), Network: string(parent.Network), VLAN: r.VLAN}, nil
}

// projectForward gives a forwarding's transport ports one by one.
func projectForward(r *engine.ForwardRow) []router.Forward {
	var out []router.Forward
	for i := range r.Width() {
		internal := r.Internal.First
		if r.Internal.Last != r.Internal.First {
			internal += uint16(i)
		}
		f := router.Forward{Address: r.Address, Protocol: uint8(r.Protocol), Port: r.External.First + uint16(i), To: netip.AddrPortFrom(r.Target.Addr, internal)}
		if r.Via != 0 {
			f.Via = r.Via + uint16(i)
		}
		out = append(out, f)
	}
	return out
}

// projectStored gives a domain, nil where there is none, and what is in it. What cannot be read is missing and an error.
func (p *Provider) projectStored(b engine.Tx, id sdn.ID) (*router.Shape, *wanted, error) {
	want := newWanted()
	d, err := p.projectDomain(b, id)
	if d == nil || err != nil {
		return nil, want, err
	}
	var errs []error
	for network := range networksIn(d) {
		for _, port := range engine.Ports.IDs(b, "network", string(network)) {
			r, err := engine.Ports.Get(b, port)
			if err == nil && r != nil && r.Plugged() {
				want.ports[string(port)], err = projectPort(b, r)
			}
			errs = append(errs, err)
		}
	}
	rows, err := engine.Forwards.All(b, "router", string(id))
	errs = append(errs, err)
	down, err := engine.UplinkDown(b, id)
	if errs = append(errs, err); down {
		rows = nil
	}
	for _, r := range rows {
		for _, f := range projectForward(r) {
			want.forwards[identify(f)] = &f
		}
	}
	r, err := engine.Routers.Get(b, id)
	if r == nil {
		return d, want, errors.Join(append(errs, err)...)
	}
	for _, leg := range r.Interfaces {
		balancers, err := engine.LoadBalancers.All(b, "subnet", string(leg.Subnet))
		errs = append(errs, err)
		for _, l := range balancers {
			errs = append(errs, eachBalance(b, l, func(domain sdn.ID, at balance) {
				if domain == id {
					want.balances[at.vip.Addr] = &at
				}
			}))
		}
	}
	return d, want, errors.Join(errs...)
}

// projectAll gives everything. Its order is that of ids.
func (p *Provider) projectAll(b engine.Tx) (router.State, error) {
	s := router.State{Ports: map[string][]router.Port{}, Forwards: map[string][]router.Forward{}, VIPs: map[string][]router.VIP{}, Frontends: map[string][]lb.Frontend{}}
	domains := map[sdn.ID]string{} // of networks
	add := func(d *router.Shape) {
		if d == nil {
			return
		}
		s.Shapes = append(s.Shapes, *d)
		for _, bridge := range d.Bridges {
			domains[sdn.ID(bridge.Network)] = d.ID
		}
	}
	err := engine.Routers.Each(b, func(r *engine.RouterRow) error {
		d, err := p.projectRouter(b, r)
		add(d)
		return err
	})
	if err != nil {
		return s, err
	}
	err = engine.Networks.Each(b, func(n *engine.NetworkRow) error {
		if n.Own {
			d, err := p.projectDomain(b, n.ID)
			add(d)
			return err
		}
		return nil
	})
	if err != nil {
		return s, err
	}
	err = engine.Ports.Each(b, func(r *engine.PortRow) error {
		port, err := projectPort(b, r)
		if err != nil || port == nil {
			return err
		}
		if d := domains[r.Network]; d != "" {
			s.Ports[d] = append(s.Ports[d], *port)
		}
		return nil
	})
	if err != nil {
		return s, err
	}
	if err := errors.Join(projectFilters(b, &s), projectBalances(b, &s)); err != nil {
		return s, err
	}
	uplinks := map[sdn.ID]bool{} // true for those that are down
	return s, engine.Forwards.Each(b, func(r *engine.ForwardRow) (err error) {
		down, known := uplinks[r.Router]
		if !known {
			if down, err = engine.UplinkDown(b, r.Router); err != nil {
				return err
			}
			uplinks[r.Router] = down
		}
		if down {
			return nil
		}
		s.Forwards[string(r.Router)] = append(s.Forwards[string(r.Router)], projectForward(r)...)
		return nil
	})
}

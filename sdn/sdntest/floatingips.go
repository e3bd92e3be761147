package sdntest

import (
	"context"
	"net/netip"

	"github.com/kuryr/kuryr/sdn"
)

func (s *suite) floating(spec sdn.FloatingIPSpec) sdn.FloatingIP {
	s.Helper()
	if spec.Key.IsZero() {
		spec.Base = s.base("fip")
	}
	if spec.Network == "" {
		spec.Network = s.can.ExternalNetwork
	}
	return must(s.tryFloating(spec))(s)
}

func (s *suite) tryFloating(spec sdn.FloatingIPSpec) (sdn.FloatingIP, error) {
	f, err := s.p.EnsureFloatingIP(s.ctx, spec)
	if err == nil {
		s.cleanup("floating IP", func(ctx context.Context) error { return s.p.DeleteFloatingIP(ctx, f.ID) })
	}
	return f, err
}

// lead has a floating IP lead to a target.
func (s *suite) lead(id sdn.ID, target sdn.Target, ifRevision int64) (sdn.FloatingIP, error) {
	return s.p.UpdateFloatingIP(s.ctx, id, sdn.FloatingIPPatch{Patch: sdn.Patch{IfRevision: ifRevision}, Target: &target})
}

var floatingIPTests = []test{
	{"ensure twice is once", func(s *suite) {
		n, r := s.routed("10.8.0.0/24")
		p := s.port(sdn.PortSpec{Network: n.ID})
		spec := sdn.FloatingIPSpec{Base: s.base("fip"), Target: sdn.Target{Port: p.ID}}
		a, b := s.floating(spec), s.floating(spec)
		equal(s, "id", b.ID, a.ID)
		equal(s, "address", b.Address, a.Address)
		equal(s, "target", b.Target, sdn.Target{Port: p.ID, Addr: p.Addresses[0].Addr})
		equal(s, "router", b.Router, r.ID)
		if s.can.PickFloatingIP {
			spec.Address = a.Address.Next()
			_, err := s.p.EnsureFloatingIP(s.ctx, spec)
			s.immutable(err, "address")
		}
	}},
	{"associate", func(s *suite) {
		n, r := s.routed("10.8.0.0/24")
		p, q := s.port(sdn.PortSpec{Network: n.ID}), s.port(sdn.PortSpec{Network: n.ID})
		f := s.floating(sdn.FloatingIPSpec{})
		equal(s, "router of one that leads nowhere", f.Router, "")
		a := must(s.lead(f.ID, sdn.Target{Port: p.ID}, f.Revision))(s)
		equal(s, "router", a.Router, r.ID)
		_, err := s.lead(f.ID, sdn.Target{Port: q.ID}, f.Revision)
		s.conflict(err, sdn.Stale)
		g := s.floating(sdn.FloatingIPSpec{})
		_, err = s.lead(g.ID, sdn.Target{Port: p.ID}, 0)
		s.conflict(err, sdn.Exists)
		moved := must(s.lead(f.ID, sdn.Target{Port: q.ID}, 0))(s)
		equal(s, "target", moved.Target.Port, q.ID)
		must(s.lead(g.ID, sdn.Target{Port: p.ID}, 0))(s)
		for range 2 {
			none := must(s.lead(f.ID, sdn.Target{}, 0))(s)
			equal(s, "target", none.Target, sdn.Target{})
			equal(s, "router", none.Router, "")
		}
		found := must(sdn.All(s.p.FindFloatingIPs(s.ctx, sdn.FloatingIPQuery{Ports: []sdn.ID{p.ID}})))(s)
		equal(s, "number found by port", len(found), 1)
	}},
	{"update", func(s *suite) {
		n, _ := s.routed("10.8.0.0/24")
		p := s.port(sdn.PortSpec{Network: n.ID})
		f := s.floating(sdn.FloatingIPSpec{Target: sdn.Target{Port: p.ID}})
		got := must(s.p.UpdateFloatingIP(s.ctx, f.ID, sdn.FloatingIPPatch{Patch: sdn.Patch{Name: ptr("renamed " + s.run), Tags: &[]string{"t"}}}))(s)
		equal(s, "name", got.Name, "renamed "+s.run)
		equal(s, "number of tags", len(got.Tags), 1)
		equal(s, "target stays", got.Target, f.Target)
		_, err := s.p.UpdateFloatingIP(s.ctx, absent, sdn.FloatingIPPatch{})
		s.notFound(err)
	}},
	{"to a router's interface", func(s *suite) {
		n, r := s.routed("10.8.0.0/24")
		leg := must(s.p.Router(s.ctx, r.ID))(s).Interfaces[0]
		f := s.floating(sdn.FloatingIPSpec{Target: sdn.Target{Port: leg.Port}})
		equal(s, "target", f.Target, sdn.Target{Port: leg.Port, Addr: leg.Addr})
		equal(s, "router", f.Router, r.ID)
		s.conflict(s.p.DetachSubnet(s.ctx, r.ID, n.Subnets[0]), sdn.InUse)
		must(s.lead(f.ID, sdn.Target{}, 0))(s)
		if s.can.Forwards {
			made := must(s.p.EnsureForwards(s.ctx, f.ID, []sdn.Forward{{
				Protocol: sdn.TCP, External: sdn.PortRange{First: 8080}, Internal: sdn.PortRange{First: 80},
				Target: sdn.Target{Port: leg.Port},
			}}))(s)
			equal(s, "target of the forwarding", made[0].Target, sdn.Target{Port: leg.Port, Addr: leg.Addr})
			s.ok(s.p.DeleteForwards(s.ctx, f.ID, []sdn.ID{made[0].ID}))
		}
		s.ok(s.p.DetachSubnet(s.ctx, r.ID, n.Subnets[0]))
	}},
	{"to what no router connects", func(s *suite) {
		n := s.network("10.8.0.0/24")
		p := s.port(sdn.PortSpec{Network: n.ID})
		spec := sdn.FloatingIPSpec{Base: s.base("fip"), Network: s.can.ExternalNetwork, Target: sdn.Target{Port: p.ID}}
		_, err := s.p.EnsureFloatingIP(s.ctx, spec)
		s.notFound(err)
		r := s.router(nil)
		s.attach(r.ID, n.Subnets[0])
		_, err = s.p.EnsureFloatingIP(s.ctx, spec)
		s.notFound(err)
		found := must(sdn.All(s.p.FindFloatingIPs(s.ctx, sdn.FloatingIPQuery{Match: sdn.Match{Keys: []sdn.Key{spec.Key}}})))(s)
		equal(s, "number made", len(found), 0)
	}},
	{"invalid", func(s *suite) {
		n, _ := s.routed("10.8.0.0/24")
		p := s.port(sdn.PortSpec{Network: n.ID})
		_, err := s.p.EnsureFloatingIP(s.ctx, sdn.FloatingIPSpec{Base: s.base("x"), Network: n.ID})
		s.invalid(err, "network")
		_, err = s.p.EnsureFloatingIP(s.ctx, sdn.FloatingIPSpec{Base: s.base("x"), Network: absent})
		s.notFound(err)
		_, err = s.p.EnsureFloatingIP(s.ctx, sdn.FloatingIPSpec{Base: s.base("x"), Network: s.can.ExternalNetwork, Target: sdn.Target{Port: absent}})
		s.notFound(err)
		_, err = s.p.EnsureFloatingIP(s.ctx, sdn.FloatingIPSpec{Base: s.base("x"), Network: s.can.ExternalNetwork, Target: sdn.Target{Port: p.ID, Addr: addr("10.8.0.254")}})
		s.invalid(err, "target")
	}},
	{"this address", func(s *suite) {
		if !s.can.PickFloatingIP {
			s.Skip("this SDN lets nobody choose")
		}
		f := s.floating(sdn.FloatingIPSpec{})
		_, err := s.p.EnsureFloatingIP(s.ctx, sdn.FloatingIPSpec{Base: s.base("x"), Network: s.can.ExternalNetwork, Address: f.Address})
		s.conflict(err, sdn.AddressInUse)
		// Another test may get the address before this one asks for it again.
		for attempt := range 10 {
			if attempt > 0 {
				f = s.floating(sdn.FloatingIPSpec{})
			}
			s.ok(s.p.DeleteFloatingIP(s.ctx, f.ID))
			s.ok(s.p.DeleteFloatingIP(s.ctx, f.ID))
			spec := sdn.FloatingIPSpec{Base: s.base("fip"), Network: s.can.ExternalNetwork, Address: f.Address}
			g, err := s.tryFloating(spec)
			if err == nil {
				equal(s, "address", g.Address, f.Address)
				return
			}
			s.conflict(err, sdn.AddressInUse)
		}
		s.Error("the address was never free")
	}},
	{"of a subnet", func(s *suite) {
		var outside []sdn.Subnet
		for o, err := range s.p.FindSubnets(s.ctx, sdn.SubnetQuery{Networks: []sdn.ID{s.can.ExternalNetwork}}) {
			s.ok(err)
			if o.CIDR.Addr().Is4() || s.can.FloatingIPv6 {
				outside = append(outside, o)
			}
		}
		if len(outside) == 0 {
			s.Skip("this SDN does not show the external network's subnets")
		}
		for _, o := range outside {
			spec := sdn.FloatingIPSpec{Base: s.base("fip"), Subnet: o.ID}
			f := s.floating(spec)
			equal(s, "is of the subnet", o.CIDR.Contains(f.Address), true)
			equal(s, "id of the same again", s.floating(spec).ID, f.ID)
			for _, other := range outside {
				if spec.Network, spec.Subnet = s.can.ExternalNetwork, other.ID; other.ID != o.ID {
					_, err := s.p.EnsureFloatingIP(s.ctx, spec)
					s.immutable(err, "subnet")
				}
			}
		}
		n := s.network("10.8.0.0/24")
		spec := sdn.FloatingIPSpec{Base: s.base("fip"), Network: s.can.ExternalNetwork, Subnet: n.Subnets[0]}
		_, err := s.p.EnsureFloatingIP(s.ctx, spec)
		s.invalid(err, "subnet")
		spec.Subnet = absent
		_, err = s.p.EnsureFloatingIP(s.ctx, spec)
		s.notFound(err)
		if s.can.PickFloatingIP {
			spec.Subnet, spec.Address = outside[0].ID, addr("192.0.2.77")
			if outside[0].CIDR.Addr().Is6() || outside[0].CIDR.Contains(spec.Address) {
				spec.Address = addr("198.51.100.77")
			}
			_, err = s.p.EnsureFloatingIP(s.ctx, spec)
			s.invalid(err, "address")
		}
		found := must(sdn.All(s.p.FindFloatingIPs(s.ctx, sdn.FloatingIPQuery{Match: sdn.Match{Keys: []sdn.Key{spec.Key}}})))(s)
		equal(s, "number made", len(found), 0)
		if s.can.HostAddresses {
			_, err = s.p.EnsureFloatingIP(s.ctx, sdn.FloatingIPSpec{Base: s.base("fip"), Network: s.can.ExternalNetwork, Address: netip.IPv4Unspecified(), Subnet: outside[0].ID})
			s.invalid(err, "subnet")
		}
	}},
	{"what holds it back", func(s *suite) {
		n, r := s.routed("10.8.0.0/24")
		p := s.port(sdn.PortSpec{Network: n.ID})
		f := s.floating(sdn.FloatingIPSpec{Target: sdn.Target{Port: p.ID}})
		s.conflict(s.p.DetachSubnet(s.ctx, r.ID, n.Subnets[0]), sdn.InUse)
		s.conflict(s.setGateway(r.ID, sdn.ExternalGateway{}), sdn.InUse)
		s.ok(s.p.DeletePorts(s.ctx, []sdn.ID{p.ID}))
		got := must(s.p.FloatingIP(s.ctx, f.ID))(s)
		equal(s, "target after its port went", got.Target, sdn.Target{})
		s.ok(s.p.DetachSubnet(s.ctx, r.ID, n.Subnets[0]))
	}},
	{"both families", func(s *suite) {
		if !s.can.FloatingIPv6 {
			s.Skip("this SDN has IPv4 only")
		}
		n, _ := s.routed("10.8.0.0/24", "fd00:8::/64")
		p := s.port(sdn.PortSpec{Network: n.ID})
		for id, err := range s.p.FindSubnets(s.ctx, sdn.SubnetQuery{Networks: []sdn.ID{s.can.ExternalNetwork}}) {
			s.ok(err)
			if !id.CIDR.Addr().Is6() || !s.can.PickFloatingIP {
				continue
			}
			a := id.CIDR.Addr()
			for range 0x99 {
				a = a.Next()
			}
			f := s.floating(sdn.FloatingIPSpec{Address: a, Target: sdn.Target{Port: p.ID}})
			equal(s, "family of the target", f.Target.Addr.Is6(), true)
			_, err := s.lead(f.ID, sdn.Target{Port: p.ID, Addr: p.Addresses[0].Addr}, 0)
			if p.Addresses[0].Addr.Is4() {
				s.invalid(err, "target")
			}
		}
	}},
	{"an address of the target's family", func(s *suite) {
		if !s.can.FloatingIPv6 {
			s.Skip("this SDN has IPv4 only")
		}
		n, _ := s.routed("10.8.0.0/24", "fd00:8::/64")
		p := s.port(sdn.PortSpec{Network: n.ID})
		f := s.floating(sdn.FloatingIPSpec{Target: sdn.Target{Port: p.ID}})
		equal(s, "family without a choice", f.Address.Is4(), true)
		for _, a := range p.Addresses {
			if a.Addr.Is4() {
				continue
			}
			f := s.floating(sdn.FloatingIPSpec{Target: sdn.Target{Port: p.ID, Addr: a.Addr}})
			equal(s, "family", f.Address.Is6(), true)
			equal(s, "target", f.Target.Addr, a.Addr)
		}
		six, _ := s.routed("fd00:9::/64")
		q := s.port(sdn.PortSpec{Network: six.ID})
		g := s.floating(sdn.FloatingIPSpec{Target: sdn.Target{Port: q.ID}})
		equal(s, "target of IPv6 alone", g.Target.Addr, q.Addresses[0].Addr)
	}},
}

var forwardTests = []test{
	{"ensure twice is once", func(s *suite) {
		n, r := s.routed("10.8.0.0/24")
		p := s.port(sdn.PortSpec{Network: n.ID})
		f := s.floating(sdn.FloatingIPSpec{})
		want := []sdn.Forward{
			{Protocol: sdn.TCP, External: sdn.PortRange{First: 8080}, Target: sdn.Target{Port: p.ID}, Internal: sdn.PortRange{First: 80}},
			{Protocol: sdn.UDP, External: sdn.PortRange{First: 8080}, Target: sdn.Target{Port: p.ID}, Internal: sdn.PortRange{First: 53}},
		}
		a := must(s.p.EnsureForwards(s.ctx, f.ID, want))(s)
		b := must(s.p.EnsureForwards(s.ctx, f.ID, want))(s)
		for i := range a {
			equal(s, "id", b[i].ID, a[i].ID)
			equal(s, "target's address", a[i].Target.Addr, p.Addresses[0].Addr)
		}
		equal(s, "router", must(s.p.FloatingIP(s.ctx, f.ID))(s).Router, r.ID)
		equal(s, "number found", len(must(sdn.All(s.p.FindForwards(s.ctx, sdn.ForwardQuery{FloatingIPs: []sdn.ID{f.ID}})))(s)), 2)
		equal(s, "number found by port", len(must(sdn.All(s.p.FindForwards(s.ctx, sdn.ForwardQuery{Ports: []sdn.ID{p.ID}})))(s)), 2)
		_, err := s.lead(f.ID, sdn.Target{Port: p.ID}, 0)
		s.conflict(err, sdn.InUse)
		for range 2 {
			s.ok(s.p.DeleteForwards(s.ctx, f.ID, []sdn.ID{a[0].ID, a[1].ID}))
		}
		must(s.lead(f.ID, sdn.Target{Port: p.ID}, 0))(s)
		_, err = s.p.EnsureForwards(s.ctx, f.ID, want)
		s.conflict(err, sdn.InUse)
	}},
	{"description", func(s *suite) {
		n, _ := s.routed("10.8.0.0/24")
		p := s.port(sdn.PortSpec{Network: n.ID})
		f := s.floating(sdn.FloatingIPSpec{})
		want := sdn.Forward{Protocol: sdn.TCP, External: sdn.PortRange{First: 2222}, Target: sdn.Target{Port: p.ID}, Internal: sdn.PortRange{First: 22}, Description: "for operators"}
		made, err := s.p.EnsureForwards(s.ctx, f.ID, []sdn.Forward{want})
		if sdn.IsUnsupported(err) {
			s.Skip("this SDN's forwardings have no words")
		}
		s.ok(err)
		want.Description = "for others"
		again := must(s.p.EnsureForwards(s.ctx, f.ID, []sdn.Forward{want}))(s)
		equal(s, "id", again[0].ID, made[0].ID)
		found := must(sdn.All(s.p.FindForwards(s.ctx, sdn.ForwardQuery{FloatingIPs: []sdn.ID{f.ID}})))(s)
		equal(s, "number found", len(found), 1)
		equal(s, "description", found[0].Description, "for operators")
	}},
	{"conflicts", func(s *suite) {
		n, _ := s.routed("10.8.0.0/24")
		p, q := s.port(sdn.PortSpec{Network: n.ID}), s.port(sdn.PortSpec{Network: n.ID})
		f := s.floating(sdn.FloatingIPSpec{})
		to := func(port sdn.ID, proto sdn.Protocol, external uint16) sdn.Forward {
			return sdn.Forward{Protocol: proto, External: sdn.PortRange{First: external}, Target: sdn.Target{Port: port}, Internal: sdn.PortRange{First: 80}}
		}
		must(s.p.EnsureForwards(s.ctx, f.ID, []sdn.Forward{to(p.ID, sdn.TCP, 80)}))(s)
		_, err := s.p.EnsureForwards(s.ctx, f.ID, []sdn.Forward{to(q.ID, sdn.TCP, 81), to(q.ID, sdn.TCP, 80)})
		s.conflict(err, sdn.Exists)
		equal(s, "number of forwardings: all or none", len(must(sdn.All(s.p.FindForwards(s.ctx, sdn.ForwardQuery{FloatingIPs: []sdn.ID{f.ID}})))(s)), 1)
		must(s.p.EnsureForwards(s.ctx, f.ID, []sdn.Forward{to(q.ID, sdn.UDP, 80)}))(s)
		g := s.floating(sdn.FloatingIPSpec{})
		must(s.p.EnsureForwards(s.ctx, g.ID, []sdn.Forward{to(q.ID, sdn.TCP, 80)}))(s) // another address
	}},
	{"invalid", func(s *suite) {
		n, _ := s.routed("10.8.0.0/24")
		p := s.port(sdn.PortSpec{Network: n.ID})
		f := s.floating(sdn.FloatingIPSpec{})
		good := sdn.Forward{Protocol: sdn.TCP, External: sdn.PortRange{First: 80}, Target: sdn.Target{Port: p.ID}, Internal: sdn.PortRange{First: 80}}
		for field, change := range map[string]func(*sdn.Forward){
			"forwards[0].protocol": func(f *sdn.Forward) { f.Protocol = 1 },
			"forwards[0].external": func(f *sdn.Forward) { f.External = sdn.PortRange{} },
			"forwards[0].internal": func(f *sdn.Forward) { f.Internal = sdn.PortRange{First: 9, Last: 8} },
			"target":               func(f *sdn.Forward) { f.Target.Addr = addr("10.8.0.254") },
		} {
			bad := good
			change(&bad)
			_, err := s.p.EnsureForwards(s.ctx, f.ID, []sdn.Forward{bad})
			s.invalid(err, field)
		}
		absentPort := good
		absentPort.Target.Port = absent
		_, err := s.p.EnsureForwards(s.ctx, f.ID, []sdn.Forward{absentPort})
		s.notFound(err)
		_, err = s.p.EnsureForwards(s.ctx, absent, []sdn.Forward{good})
		s.notFound(err)
	}},
	{"they go with their port", func(s *suite) {
		n, r := s.routed("10.8.0.0/24")
		p := s.port(sdn.PortSpec{Network: n.ID})
		f := s.floating(sdn.FloatingIPSpec{})
		must(s.p.EnsureForwards(s.ctx, f.ID, []sdn.Forward{{Protocol: sdn.TCP, External: sdn.PortRange{First: 80}, Target: sdn.Target{Port: p.ID}, Internal: sdn.PortRange{First: 80}}}))(s)
		s.conflict(s.p.DetachSubnet(s.ctx, r.ID, n.Subnets[0]), sdn.InUse)
		s.ok(s.p.DeletePorts(s.ctx, []sdn.ID{p.ID}))
		equal(s, "number left", len(must(sdn.All(s.p.FindForwards(s.ctx, sdn.ForwardQuery{FloatingIPs: []sdn.ID{f.ID}})))(s)), 0)
		s.ok(s.p.DetachSubnet(s.ctx, r.ID, n.Subnets[0]))
	}},
	{"they go with their floating IP", func(s *suite) {
		n, _ := s.routed("10.8.0.0/24")
		p := s.port(sdn.PortSpec{Network: n.ID})
		f := s.floating(sdn.FloatingIPSpec{})
		must(s.p.EnsureForwards(s.ctx, f.ID, []sdn.Forward{{Protocol: sdn.TCP, External: sdn.PortRange{First: 80}, Target: sdn.Target{Port: p.ID}, Internal: sdn.PortRange{First: 80}}}))(s)
		s.ok(s.p.DeleteFloatingIP(s.ctx, f.ID))
		equal(s, "number left", len(must(sdn.All(s.p.FindForwards(s.ctx, sdn.ForwardQuery{Ports: []sdn.ID{p.ID}})))(s)), 0)
	}},
	{"ranges", func(s *suite) {
		if !s.can.ForwardRanges {
			s.Skip("this SDN has none")
		}
		n, _ := s.routed("10.8.0.0/24")
		p := s.port(sdn.PortSpec{Network: n.ID})
		f := s.floating(sdn.FloatingIPSpec{})
		wide := sdn.Forward{Protocol: sdn.TCP, External: sdn.PortRange{First: 8000, Last: 8009}, Target: sdn.Target{Port: p.ID}, Internal: sdn.PortRange{First: 9000, Last: 9009}}
		a := must(s.p.EnsureForwards(s.ctx, f.ID, []sdn.Forward{wide}))(s)
		equal(s, "id of the same again", must(s.p.EnsureForwards(s.ctx, f.ID, []sdn.Forward{wide}))(s)[0].ID, a[0].ID)
		inside := sdn.Forward{Protocol: sdn.TCP, External: sdn.PortRange{First: 8009, Last: 8012}, Target: sdn.Target{Port: p.ID}, Internal: sdn.PortRange{First: 80}}
		_, err := s.p.EnsureForwards(s.ctx, f.ID, []sdn.Forward{inside})
		s.conflict(err, sdn.Exists)
		inside.External = sdn.PortRange{First: 8010, Last: 8012}
		must(s.p.EnsureForwards(s.ctx, f.ID, []sdn.Forward{inside}))(s)
		inside.External, inside.Internal = sdn.PortRange{First: 1, Last: 5}, sdn.PortRange{First: 1, Last: 4}
		_, err = s.p.EnsureForwards(s.ctx, f.ID, []sdn.Forward{inside})
		s.invalid(err, "forwards[0].internal")
	}},
	{"every address of the host", func(s *suite) {
		if !s.can.HostAddresses {
			s.Skip("this SDN has none")
		}
		n, _ := s.routed("10.8.0.0/24", "fd00:8::/64")
		p := s.port(sdn.PortSpec{Network: n.ID})
		any, other := s.floating(sdn.FloatingIPSpec{Address: netip.IPv4Unspecified()}), s.floating(sdn.FloatingIPSpec{Address: netip.IPv4Unspecified()})
		any6 := s.floating(sdn.FloatingIPSpec{Address: netip.IPv6Unspecified()})
		one := s.floating(sdn.FloatingIPSpec{})
		if any.ID == other.ID {
			s.Error("two keys have one floating IP")
		}
		_, err := s.p.EnsureFloatingIP(s.ctx, sdn.FloatingIPSpec{Base: s.base("x"), Network: s.can.ExternalNetwork, Address: netip.IPv4Unspecified(), Target: sdn.Target{Port: p.ID}})
		s.invalid(err, "target")
		web := func(port uint16) []sdn.Forward {
			return []sdn.Forward{{Protocol: sdn.TCP, External: sdn.PortRange{First: port}, Target: sdn.Target{Port: p.ID}, Internal: sdn.PortRange{First: 80}}}
		}
		must(s.p.EnsureForwards(s.ctx, any.ID, web(80)))(s)
		must(s.p.EnsureForwards(s.ctx, any6.ID, web(80)))(s) // the other family
		_, err = s.p.EnsureForwards(s.ctx, other.ID, web(80))
		s.conflict(err, sdn.Exists)
		_, err = s.p.EnsureForwards(s.ctx, one.ID, web(80))
		s.conflict(err, sdn.Exists)
		must(s.p.EnsureForwards(s.ctx, one.ID, web(81)))(s)
		_, err = s.p.EnsureForwards(s.ctx, any.ID, web(81))
		s.conflict(err, sdn.Exists)
		must(s.p.EnsureForwards(s.ctx, other.ID, web(82)))(s)
	}},
	{"one address of the host", func(s *suite) {
		if !s.can.HostAddresses {
			s.Skip("this SDN has none")
		}
		n, r := s.routed("10.8.0.0/24", "fd00:8::/64")
		other, _ := s.routed("10.9.0.0/24")
		p, q, far := s.port(sdn.PortSpec{Network: n.ID}), s.port(sdn.PortSpec{Network: n.ID}), s.port(sdn.PortSpec{Network: other.ID})
		host := func(a string) sdn.FloatingIP {
			return s.floating(sdn.FloatingIPSpec{Address: netip.MustParseAddr(a), OfHost: true})
		}
		web := func(port sdn.ID, first, last uint16) []sdn.Forward {
			return []sdn.Forward{{Protocol: sdn.TCP, External: sdn.PortRange{First: first, Last: last}, Target: sdn.Target{Port: port}, Internal: sdn.PortRange{First: 80}}}
		}
		local, public, public2, six := host("127.0.0.1"), host("203.0.113.7"), host("203.0.113.7"), host("::1")
		equal(s, "address", public.Address, netip.MustParseAddr("203.0.113.7"))
		if public.ID == public2.ID {
			s.Error("two keys have one floating IP")
		}
		spec := sdn.FloatingIPSpec{Base: s.base("once"), Network: s.can.ExternalNetwork, Address: netip.MustParseAddr("203.0.113.8"), OfHost: true}
		once := s.floating(spec)
		equal(s, "id of the same again", s.floating(spec).ID, once.ID)
		spec.OfHost = false
		_, err := s.p.EnsureFloatingIP(s.ctx, spec)
		s.immutable(err, "ofHost")
		_, err = s.p.EnsureFloatingIP(s.ctx, sdn.FloatingIPSpec{Base: s.base("x"), Network: s.can.ExternalNetwork, OfHost: true})
		s.invalid(err, "address")
		_, err = s.lead(local.ID, sdn.Target{Port: p.ID}, 0)
		s.invalid(err, "target")

		// One port of two addresses, behind one router and another; and of one address, once.
		must(s.p.EnsureForwards(s.ctx, local.ID, web(p.ID, 80, 82)))(s)
		must(s.p.EnsureForwards(s.ctx, public.ID, web(q.ID, 80, 82)))(s)
		must(s.p.EnsureForwards(s.ctx, six.ID, web(q.ID, 80, 82)))(s)
		must(s.p.EnsureForwards(s.ctx, once.ID, web(far.ID, 80, 82)))(s)
		equal(s, "router", must(s.p.FloatingIP(s.ctx, public.ID))(s).Router, r.ID)
		_, err = s.p.EnsureForwards(s.ctx, public2.ID, web(q.ID, 82, 0))
		s.conflict(err, sdn.Exists)
		// Every address is each of them.
		any, any6 := s.floating(sdn.FloatingIPSpec{Address: netip.IPv4Unspecified()}), s.floating(sdn.FloatingIPSpec{Address: netip.IPv6Unspecified()})
		_, err = s.p.EnsureForwards(s.ctx, any.ID, web(p.ID, 81, 0))
		s.conflict(err, sdn.Exists)
		_, err = s.p.EnsureForwards(s.ctx, any6.ID, web(p.ID, 81, 0))
		s.conflict(err, sdn.Exists)
		must(s.p.EnsureForwards(s.ctx, any.ID, web(p.ID, 83, 0)))(s)
		_, err = s.p.EnsureForwards(s.ctx, local.ID, web(p.ID, 83, 0))
		s.conflict(err, sdn.Exists)
		must(s.p.EnsureForwards(s.ctx, six.ID, web(p.ID, 83, 0)))(s)
		s.ok(s.p.DeleteFloatingIP(s.ctx, public.ID))
		must(s.p.EnsureForwards(s.ctx, public2.ID, web(q.ID, 82, 0)))(s)
	}},
}

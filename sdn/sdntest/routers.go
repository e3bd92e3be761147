package sdntest

import (
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/sdn"
)

// setGateway sets a router's way out; the zero one takes it away.
func (s *suite) setGateway(router sdn.ID, gw sdn.ExternalGateway) error {
	_, err := s.p.UpdateRouter(s.ctx, router, sdn.RouterPatch{Gateway: &gw})
	return err
}

var routerTests = []test{
	{"ensure twice is once", func(s *suite) {
		spec := sdn.RouterSpec{Base: s.base("router"), Gateway: &sdn.ExternalGateway{Network: s.can.ExternalNetwork, SNAT: true}}
		spec.New = true
		a := must(s.p.EnsureRouter(s.ctx, spec))(s)
		spec.New = false
		b := must(s.p.EnsureRouter(s.ctx, spec))(s)
		equal(s, "id", b.ID, a.ID)
		if b.Gateway == nil || len(b.Gateway.Addresses) == 0 {
			s.Fatalf("the gateway is %+v", b.Gateway)
		}
		equal(s, "gateway's address", b.Gateway.Addresses[0], a.Gateway.Addresses[0])
		spec.Gateway = nil
		c := must(s.p.EnsureRouter(s.ctx, spec))(s)
		equal(s, "the gateway stays without one in the spec", c.Gateway != nil, true)
		s.ok(s.p.DeleteRouter(s.ctx, a.ID))
		s.ok(s.p.DeleteRouter(s.ctx, a.ID))
		_, err := s.p.Router(s.ctx, a.ID)
		s.notFound(err)
	}},
	{"attach and detach", func(s *suite) {
		n := s.network("10.7.0.0/24", "fd00:7::/64")
		r := s.router(nil)
		for range 2 {
			for _, id := range n.Subnets {
				s.ok(s.p.AttachSubnet(s.ctx, r.ID, id, netip.Addr{}))
			}
		}
		got := must(s.p.Router(s.ctx, r.ID))(s)
		equal(s, "number of legs", len(got.Interfaces), 2)
		for _, leg := range got.Interfaces {
			sub := must(s.p.Subnet(s.ctx, leg.Subnet))(s)
			equal(s, "address of the leg", leg.Addr, sub.Gateway)
			if leg.Port != "" {
				s.conflict(s.p.DeletePorts(s.ctx, []sdn.ID{leg.Port}), sdn.InUse)
				equal(s, "owner of the leg's port", must(s.p.Port(s.ctx, leg.Port))(s).DeviceOwner, sdn.OwnerRouterInterface)
			}
		}
		found := must(sdn.All(s.p.FindRouters(s.ctx, sdn.RouterQuery{Subnets: n.Subnets})))(s)
		equal(s, "number found by subnets", len(found), 1)
		s.conflict(s.p.DeleteRouter(s.ctx, r.ID), sdn.InUse)
		s.conflict(s.p.DeleteNetwork(s.ctx, n.ID), sdn.InUse)
		s.conflict(s.p.DeleteSubnet(s.ctx, n.Subnets[0]), sdn.InUse)
		for range 2 {
			for _, id := range n.Subnets {
				s.ok(s.p.DetachSubnet(s.ctx, r.ID, id))
			}
		}
		s.ok(s.p.DeleteRouter(s.ctx, r.ID))
		s.ok(s.p.DeleteNetwork(s.ctx, n.ID))
	}},
	{"the gateway's address is whoever's names it first", func(s *suite) {
		if !s.can.ChooseAddress {
			s.Skip("this SDN lets nobody choose")
		}
		n := s.network("10.7.0.0/24", "fd00:7::/64")
		r := s.router(nil)
		asked := []sdn.Address{{Subnet: n.Subnets[0], Addr: addr("10.7.0.1")}}
		p := s.port(sdn.PortSpec{Network: n.ID, Addresses: asked})
		equal(s, "address", slices.Equal(addresses(p), []netip.Addr{addr("10.7.0.1")}), true)
		s.conflict(s.p.AttachSubnet(s.ctx, r.ID, n.Subnets[0], netip.Addr{}), sdn.AddressInUse)
		_, err := s.tryPort(sdn.PortSpec{Network: n.ID, Addresses: asked})
		s.conflict(err, sdn.AddressInUse)
		s.ok(s.p.DeletePorts(s.ctx, []sdn.ID{p.ID}))
		s.ok(s.p.AttachSubnet(s.ctx, r.ID, n.Subnets[0], netip.Addr{}))
		_, err = s.tryPort(sdn.PortSpec{Network: n.ID, Addresses: asked})
		s.conflict(err, sdn.AddressInUse)
		s.ok(s.p.DetachSubnet(s.ctx, r.ID, n.Subnets[0]))
		equal(s, "addresses of one that names none", slices.Contains(addresses(s.port(sdn.PortSpec{Network: n.ID})), addr("10.7.0.1")), false)
	}},
	{"attach to what is absent", func(s *suite) {
		n := s.network("10.7.0.0/24")
		r := s.router(nil)
		s.notFound(s.p.AttachSubnet(s.ctx, absent, n.Subnets[0], netip.Addr{}))
		s.notFound(s.p.AttachSubnet(s.ctx, r.ID, absent, netip.Addr{}))
		s.ok(s.p.DetachSubnet(s.ctx, r.ID, n.Subnets[0]))
	}},
	{"legs at other addresses", func(s *suite) {
		n := s.network()
		sub := s.subnet(sdn.SubnetSpec{Network: n.ID, CIDR: prefix("10.7.0.0/24"), Gateway: sdn.Gateway{None: true}})
		r := s.router(nil)
		s.invalid(s.p.AttachSubnet(s.ctx, r.ID, sub.ID, netip.Addr{}), "addr")
		p := s.port(sdn.PortSpec{Network: n.ID})
		s.conflict(s.p.AttachSubnet(s.ctx, r.ID, sub.ID, p.Addresses[0].Addr), sdn.AddressInUse)
		s.ok(s.p.AttachSubnet(s.ctx, r.ID, sub.ID, addr("10.7.0.254")))
		s.immutable(s.p.AttachSubnet(s.ctx, r.ID, sub.ID, addr("10.7.0.253")), "addr")
		_, err := s.tryPort(sdn.PortSpec{Network: n.ID, Addresses: []sdn.Address{{Addr: addr("10.7.0.254")}}})
		s.conflict(err, sdn.AddressInUse)
		s.ok(s.p.DetachSubnet(s.ctx, r.ID, sub.ID))
		s.port(sdn.PortSpec{Network: n.ID, Addresses: []sdn.Address{{Addr: addr("10.7.0.254")}}})
	}},
	{"overlapping legs", func(s *suite) {
		a, b := s.network("10.7.0.0/24"), s.network("10.7.0.0/16")
		r, other := s.router(nil), s.router(nil)
		s.attach(r.ID, a.Subnets[0])
		if err := s.p.AttachSubnet(s.ctx, r.ID, b.Subnets[0], netip.Addr{}); !sdn.IsConflict(err) {
			s.Errorf("got error %v, want a conflict", err)
		}
		s.attach(other.ID, b.Subnets[0]) // on another router it is free
	}},
	{"one network on two routers", func(s *suite) {
		if s.can.SharedNetwork {
			s.Skip("this SDN allows it")
		}
		n := s.network("10.7.0.0/24", "10.8.0.0/24")
		r, other := s.router(nil), s.router(nil)
		s.attach(r.ID, n.Subnets[0])
		s.conflict(s.p.AttachSubnet(s.ctx, other.ID, n.Subnets[0], netip.Addr{}), sdn.InUse)
		s.conflict(s.p.AttachSubnet(s.ctx, other.ID, n.Subnets[1], netip.Addr{}), sdn.InUse)
		s.attach(r.ID, n.Subnets[1])
	}},
	{"moving a gateway that a router holds", func(s *suite) {
		n := s.network("10.7.0.0/24")
		r := s.router(nil)
		s.attach(r.ID, n.Subnets[0])
		_, err := s.p.UpdateSubnet(s.ctx, n.Subnets[0], sdn.SubnetPatch{Gateway: &sdn.Gateway{Addr: addr("10.7.0.9")}})
		s.conflict(err, sdn.InUse)
	}},
	{"routes", func(s *suite) {
		n := s.network("10.7.0.0/24")
		r := s.router(nil)
		route := sdn.HostRoute{Destination: prefix("10.70.0.0/16"), NextHop: addr("10.7.0.9")}
		_, err := s.p.UpdateRouter(s.ctx, r.ID, sdn.RouterPatch{Routes: &[]sdn.HostRoute{route}})
		s.invalid(err, "routes")
		s.attach(r.ID, n.Subnets[0])
		got := must(s.p.UpdateRouter(s.ctx, r.ID, sdn.RouterPatch{Routes: &[]sdn.HostRoute{route}}))(s)
		equal(s, "number of routes", len(got.Routes), 1)
		s.conflict(s.p.DetachSubnet(s.ctx, r.ID, n.Subnets[0]), sdn.InUse)
		must(s.p.UpdateRouter(s.ctx, r.ID, sdn.RouterPatch{Routes: &[]sdn.HostRoute{}}))(s)
		s.ok(s.p.DetachSubnet(s.ctx, r.ID, n.Subnets[0]))
	}},
	{"gateway", func(s *suite) {
		n := s.network("10.7.0.0/24")
		r := s.router(nil)
		s.attach(r.ID, n.Subnets[0])
		s.invalid(s.setGateway(r.ID, sdn.ExternalGateway{Network: n.ID}), "gateway")
		s.invalid(s.setGateway(r.ID, sdn.ExternalGateway{SNAT: true}), "gateway")
		s.notFound(s.setGateway(r.ID, sdn.ExternalGateway{Network: absent}))
		gw := sdn.ExternalGateway{Network: s.can.ExternalNetwork, SNAT: true}
		s.ok(s.setGateway(r.ID, gw))
		first := must(s.p.Router(s.ctx, r.ID))(s).Gateway
		s.ok(s.setGateway(r.ID, gw))
		again := must(s.p.Router(s.ctx, r.ID))(s).Gateway
		equal(s, "the address stays", again.Addresses[0], first.Addresses[0])
		equal(s, "SNAT", again.SNAT, true)
		s.ok(s.setGateway(r.ID, sdn.ExternalGateway{}))
		s.ok(s.setGateway(r.ID, sdn.ExternalGateway{}))
		equal(s, "there is a gateway", must(s.p.Router(s.ctx, r.ID))(s).Gateway != nil, false)
	}},
	{"a gateway at a stale revision", func(s *suite) {
		r := s.router(nil)
		other := must(s.p.UpdateRouter(s.ctx, r.ID, sdn.RouterPatch{Patch: sdn.Patch{Name: ptr("b " + s.run)}}))(s)
		gw := sdn.ExternalGateway{Network: s.can.ExternalNetwork, SNAT: true}
		_, err := s.p.UpdateRouter(s.ctx, r.ID, sdn.RouterPatch{Patch: sdn.Patch{IfRevision: r.Revision}, Gateway: &gw})
		s.conflict(err, sdn.Stale)
		equal(s, "there is a gateway", must(s.p.Router(s.ctx, r.ID))(s).Gateway != nil, false)
		got := must(s.p.UpdateRouter(s.ctx, r.ID, sdn.RouterPatch{Patch: sdn.Patch{IfRevision: other.Revision}, Gateway: &gw}))(s)
		equal(s, "there is a gateway", got.Gateway != nil, true)
	}},
	{"stale revision", func(s *suite) {
		r := s.router(nil)
		must(s.p.UpdateRouter(s.ctx, r.ID, sdn.RouterPatch{Patch: sdn.Patch{Name: ptr("b " + s.run)}}))(s)
		_, err := s.p.UpdateRouter(s.ctx, r.ID, sdn.RouterPatch{Patch: sdn.Patch{IfRevision: r.Revision, Name: ptr("c")}})
		s.conflict(err, sdn.Stale)
	}},
}

package sdntest

import (
	"context"
	"slices"

	"github.com/kuryr/kuryr/sdn"
)

var networkTests = []test{
	{"ensure twice is once", func(s *suite) {
		spec := s.networkSpec("10.1.0.0/24", "fd01:1::/64")
		a := must(s.p.EnsureNetwork(s.ctx, spec))(s)
		s.cleanup("network", func(ctx context.Context) error { return s.p.DeleteNetwork(ctx, a.ID) })
		b := must(s.p.EnsureNetwork(s.ctx, spec))(s)
		equal(s, "id", b.ID, a.ID)
		equal(s, "number of subnets", len(b.Subnets), 2)
		equal(s, "subnets are the same", slices.Equal(a.Subnets, b.Subnets), true)
		found := must(sdn.All(s.p.FindNetworks(s.ctx, sdn.NetworkQuery{Match: sdn.Match{Keys: []sdn.Key{spec.Key}}})))(s)
		equal(s, "number found by key", len(found), 1)
	}},
	{"ensure finishes", func(s *suite) {
		spec := s.networkSpec("10.1.0.0/24")
		whole := spec.Subnets
		spec.Subnets = nil
		a := must(s.p.EnsureNetwork(s.ctx, spec))(s)
		s.cleanup("network", func(ctx context.Context) error { return s.p.DeleteNetwork(ctx, a.ID) })
		spec.Subnets = whole
		b := must(s.p.EnsureNetwork(s.ctx, spec))(s)
		equal(s, "id", b.ID, a.ID)
		equal(s, "number of subnets", len(b.Subnets), 1)
	}},
	{"ensure sets what differs", func(s *suite) {
		spec := s.networkSpec()
		a := must(s.p.EnsureNetwork(s.ctx, spec))(s)
		s.cleanup("network", func(ctx context.Context) error { return s.p.DeleteNetwork(ctx, a.ID) })
		if a.MTU < 1280 {
			s.Errorf("the MTU is %d by default", a.MTU)
		}
		spec.Name, spec.MTU = "renamed-"+s.run, 1300
		b := must(s.p.EnsureNetwork(s.ctx, spec))(s)
		equal(s, "name", b.Name, spec.Name)
		equal(s, "MTU", b.MTU, 1300)
		spec.Name, spec.MTU = "", 0
		c := must(s.p.EnsureNetwork(s.ctx, spec))(s)
		equal(s, "name after an Ensure without one", c.Name, b.Name)
		equal(s, "MTU after an Ensure without one", c.MTU, 1300)
	}},
	{"immutable", func(s *suite) {
		spec := s.networkSpec()
		a := must(s.p.EnsureNetwork(s.ctx, spec))(s)
		s.cleanup("network", func(ctx context.Context) error { return s.p.DeleteNetwork(ctx, a.ID) })
		spec.External = true
		_, err := s.p.EnsureNetwork(s.ctx, spec)
		s.immutable(err, "external")
	}},
	{"a segment where there are none", func(s *suite) {
		if s.can.Segments {
			s.Skip("this SDN has physical networks")
		}
		_, err := s.p.EnsureNetwork(s.ctx, sdn.NetworkSpec{Base: s.base("segment"), Segment: sdn.Segment{Type: "vlan", Physical: "physnet1", ID: 7}})
		s.says("a segment", false, err)
		equal(s, "field", sdn.FieldOf(err), "segment")
	}},
	{"bad MTU", func(s *suite) {
		for _, mtu := range []int{-1, 1, 67, 1 << 20} {
			_, err := s.p.EnsureNetwork(s.ctx, sdn.NetworkSpec{Base: s.base("x"), MTU: mtu})
			s.invalid(err, "mtu")
		}
	}},
	{"nothing is left of what failed", func(s *suite) {
		spec := s.networkSpec("10.1.0.0/24", "10.1.0.128/25")
		_, err := s.p.EnsureNetwork(s.ctx, spec)
		s.conflict(err, sdn.Exists)
		found := must(sdn.All(s.p.FindNetworks(s.ctx, sdn.NetworkQuery{Match: sdn.Match{Keys: []sdn.Key{spec.Key}}})))(s)
		for _, n := range found {
			s.ok(s.p.DeleteNetwork(s.ctx, n.ID))
		}
		left := must(sdn.All(s.p.FindSubnets(s.ctx, sdn.SubnetQuery{Match: sdn.Match{Keys: []sdn.Key{spec.Subnets[0].Key, spec.Subnets[1].Key}}})))(s)
		equal(s, "number of subnets left", len(left), 0)
	}},
	{"update", func(s *suite) {
		n := s.network()
		got := must(s.p.UpdateNetwork(s.ctx, n.ID, sdn.NetworkPatch{MTU: ptr(1400), NoPortSecurity: ptr(true)}))(s)
		equal(s, "MTU", got.MTU, 1400)
		equal(s, "no port security", got.NoPortSecurity, true)
		equal(s, "name", got.Name, n.Name)
	}},
	{"shared and external later", func(s *suite) {
		n := s.network()
		got, err := s.p.UpdateNetwork(s.ctx, n.ID, sdn.NetworkPatch{Shared: ptr(true), External: ptr(true)})
		if sdn.IsDenied(err) {
			s.Skip("these credentials may not")
		}
		s.ok(err)
		equal(s, "shared", got.Shared, true)
		equal(s, "external", got.External, true)
		got = must(s.p.UpdateNetwork(s.ctx, n.ID, sdn.NetworkPatch{Shared: ptr(false), External: ptr(false)}))(s)
		equal(s, "shared", got.Shared, false)
		equal(s, "external", got.External, false)
	}},
	{"delete takes subnets along", func(s *suite) {
		n := s.network("10.1.0.0/24")
		s.ok(s.p.DeleteNetwork(s.ctx, n.ID))
		s.ok(s.p.DeleteNetwork(s.ctx, n.ID))
		_, err := s.p.Network(s.ctx, n.ID)
		s.notFound(err)
		_, err = s.p.Subnet(s.ctx, n.Subnets[0])
		s.notFound(err)
	}},
	{"delete with ports", func(s *suite) {
		n := s.network("10.1.0.0/24")
		p := s.port(sdn.PortSpec{Network: n.ID})
		s.conflict(s.p.DeleteNetwork(s.ctx, n.ID), sdn.InUse)
		equal(s, "number of subnets", len(must(s.p.Network(s.ctx, n.ID))(s).Subnets), 1)
		s.ok(s.p.DeletePorts(s.ctx, []sdn.ID{p.ID}))
		s.ok(s.p.DeleteNetwork(s.ctx, n.ID))
	}},
	{"a key can be used again", func(s *suite) {
		spec := s.networkSpec("10.1.0.0/24")
		a := must(s.p.EnsureNetwork(s.ctx, spec))(s)
		s.ok(s.p.DeleteNetwork(s.ctx, a.ID))
		b := must(s.p.EnsureNetwork(s.ctx, spec))(s)
		s.ok(s.p.DeleteNetwork(s.ctx, b.ID))
		if a.ID == b.ID {
			s.Error("a new object has the id of one that was deleted")
		}
	}},
	{"find by owner and kind", func(s *suite) {
		n := s.network()
		kind := "sdntest-" + s.run
		b := s.base("other")
		b.Key.Kind = kind
		other := must(s.p.EnsureNetwork(s.ctx, sdn.NetworkSpec{Base: b}))(s)
		s.cleanup("network", func(ctx context.Context) error { return s.p.DeleteNetwork(ctx, other.ID) })
		found := must(sdn.All(s.p.FindNetworks(s.ctx, sdn.NetworkQuery{Match: sdn.Match{Owner: s.p.Installation(), Kind: kind}})))(s)
		equal(s, "number found", len(found), 1)
		equal(s, "found", found[0].ID, other.ID)
		found = must(sdn.All(s.p.FindNetworks(s.ctx, sdn.NetworkQuery{Match: sdn.Match{IDs: []sdn.ID{n.ID, other.ID, absent}}})))(s)
		equal(s, "number found by ids", len(found), 2)
	}},
}

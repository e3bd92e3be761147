package sdntest

import (
	"net/netip"
	"sync"

	"github.com/kuryr/kuryr/sdn"
)

// together runs f n times at once and gives the answers.
func together[T any](n int, f func(i int) (T, error)) ([]T, []error) {
	values, errs := make([]T, n), make([]error, n)
	start := make(chan struct{})
	var done sync.WaitGroup
	for i := range n {
		done.Go(func() {
			<-start
			values[i], errs[i] = f(i)
		})
	}
	close(start)
	done.Wait()
	return values, errs
}

var concurrencyTests = []test{
	{"one key at once is one object", func(s *suite) {
		spec := s.networkSpec("10.11.0.0/24")
		networks, errs := together(8, func(int) (sdn.Network, error) { return s.p.EnsureNetwork(s.ctx, spec) })
		for i := range networks {
			s.ok(errs[i])
			equal(s, "id", networks[i].ID, networks[0].ID)
		}
		n := networks[0]
		equal(s, "number of subnets", len(must(s.p.Network(s.ctx, n.ID))(s).Subnets), 1)
		port := sdn.PortSpec{Base: s.base("port"), Network: n.ID, Host: s.fixture.Host}
		ports, errs := together(8, func(int) ([]sdn.Port, error) { return s.p.EnsurePorts(s.ctx, []sdn.PortSpec{port}) })
		for i := range ports {
			s.ok(errs[i])
			equal(s, "id", ports[i][0].ID, ports[0][0].ID)
		}
		equal(s, "used addresses", must(s.p.SubnetUsage(s.ctx, n.Subnets[0]))(s).Used, 1)
		s.dropAll(ports[0])
		s.ok(s.p.DeleteNetwork(s.ctx, n.ID))
	}},
	{"one range at once is one subnet", func(s *suite) {
		n := s.network()
		specs := make([]sdn.SubnetSpec, 6)
		for i := range specs {
			specs[i] = sdn.SubnetSpec{Base: s.base("subnet"), Network: n.ID, CIDR: prefix("10.11.0.0/24")}
		}
		_, errs := together(len(specs), func(i int) (sdn.Subnet, error) { return s.p.EnsureSubnet(s.ctx, specs[i]) })
		made := 0
		for _, err := range errs {
			if err == nil {
				made++
			} else {
				s.conflict(err, sdn.Exists)
			}
		}
		equal(s, "subnets made", made, 1)
		equal(s, "number of subnets", len(must(s.p.Network(s.ctx, n.ID))(s).Subnets), 1)
	}},
	{"no address twice", func(s *suite) {
		cidr, has := "10.11.0.0/27", 29
		if s.can.MaxBulk < 300 { // a remote SDN: fewer will do
			cidr, has = "10.11.0.0/28", 13
		}
		n := s.network(cidr)
		ports, errs := together(has+11, func(int) (sdn.Port, error) {
			p, err := s.p.EnsurePorts(s.ctx, []sdn.PortSpec{{Network: n.ID, Base: sdn.Base{Name: s.run}}})
			if err != nil {
				return sdn.Port{}, err
			}
			return p[0], nil
		})
		seen := map[netip.Addr]bool{}
		var made []sdn.Port
		for i, p := range ports {
			if errs[i] != nil {
				s.exhausted(errs[i], sdn.NoAddresses)
				continue
			}
			equal(s, "address given twice", seen[p.Addresses[0].Addr], false)
			seen[p.Addresses[0].Addr] = true
			made = append(made, p)
		}
		equal(s, "ports made", len(made), has)
		s.dropAll(made)
	}},
	{"one address at once is one port's", func(s *suite) {
		if !s.can.ChooseAddress {
			s.Skip("this SDN lets nobody choose")
		}
		n := s.network("10.11.0.0/24")
		specs := make([]sdn.PortSpec, 8)
		for i := range specs {
			specs[i] = sdn.PortSpec{Base: s.base("port"), Network: n.ID, Addresses: []sdn.Address{{Addr: addr("10.11.0.7")}}}
		}
		ports, errs := together(len(specs), func(i int) ([]sdn.Port, error) { return s.p.EnsurePorts(s.ctx, specs[i:i+1]) })
		made := 0
		for i := range ports {
			if errs[i] == nil {
				made++
				s.dropAll(ports[i])
			}
		}
		if made == 0 {
			s.Error("nobody got it")
		}
	}},
	{"legs at once", func(s *suite) {
		if !s.can.Routers {
			s.Skip("this SDN has no routers")
		}
		n := s.network("10.11.0.0/24")
		r := s.router(nil)
		_, errs := together(6, func(int) (int, error) { return 0, s.p.AttachSubnet(s.ctx, r.ID, n.Subnets[0], netip.Addr{}) })
		for _, err := range errs {
			s.ok(err)
		}
		equal(s, "number of legs", len(must(s.p.Router(s.ctx, r.ID))(s).Interfaces), 1)
		s.ok(s.p.DetachSubnet(s.ctx, r.ID, n.Subnets[0]))
	}},
}

var recoveryTests = []test{
	{"a lost answer", func(s *suite) {
		if s.fixture.DropReply == nil {
			s.Skip("answers cannot be lost here")
		}
		spec := s.networkSpec("10.12.0.0/24")
		s.fixture.DropReply(s.T)
		if _, err := s.p.EnsureNetwork(s.ctx, spec); !sdn.IsUnavailable(err) {
			s.Errorf("got error %v, want unavailable", err)
		}
		n := must(s.p.EnsureNetwork(s.ctx, spec))(s)
		equal(s, "number found", len(must(sdn.All(s.p.FindNetworks(s.ctx, sdn.NetworkQuery{Match: sdn.Match{Keys: []sdn.Key{spec.Key}}})))(s)), 1)
		port := sdn.PortSpec{Base: s.base("port"), Network: n.ID, Host: s.fixture.Host}
		s.fixture.DropReply(s.T)
		if _, err := s.p.EnsurePorts(s.ctx, []sdn.PortSpec{port}); !sdn.IsUnavailable(err) {
			s.Errorf("got error %v, want unavailable", err)
		}
		p := must(s.p.EnsurePorts(s.ctx, []sdn.PortSpec{port}))(s)
		equal(s, "used addresses", must(s.p.SubnetUsage(s.ctx, n.Subnets[0]))(s).Used, 1)
		s.dropAll(p)
		s.ok(s.p.DeleteNetwork(s.ctx, n.ID))
	}},
	{"a restart", func(s *suite) {
		if s.fixture.Reopen == nil {
			s.Skip("this SDN cannot be restarted here")
		}
		spec := s.networkSpec("10.12.0.0/24", "fd00:12::/64")
		n := must(s.p.EnsureNetwork(s.ctx, spec))(s)
		port := sdn.PortSpec{Base: s.base("port"), Network: n.ID, Host: s.fixture.Host}
		made := must(s.p.EnsurePorts(s.ctx, []sdn.PortSpec{port}))(s)[0]
		before := must(s.p.Port(s.ctx, made.ID))(s) // an SDN may have done something of its own to it since it answered
		equal(s, "address", before.Addresses[0], made.Addresses[0])
		was := s.p.Installation()
		s.p = s.fixture.Reopen(s.T)
		equal(s, "installation", s.p.Installation(), was)
		equal(s, "external network", s.p.Capabilities().ExternalNetwork, s.can.ExternalNetwork)
		after := must(s.p.EnsurePorts(s.ctx, []sdn.PortSpec{port}))(s)[0]
		equal(s, "id", after.ID, before.ID)
		equal(s, "revision", after.Revision, before.Revision)
		equal(s, "address", after.Addresses[0], before.Addresses[0])
		equal(s, "foreign", after.Foreign, false)
		s.dropAll([]sdn.Port{after})
		s.ok(s.p.DeleteNetwork(s.ctx, n.ID))
	}},
}

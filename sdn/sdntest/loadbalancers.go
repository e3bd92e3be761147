package sdntest

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

func endpoint(a string) netip.AddrPort { return netip.MustParseAddrPort(a) }

// members are at these addresses and ports.
func members(at ...string) []sdn.Member {
	var list []sdn.Member
	for _, a := range at {
		list = append(list, sdn.Member{Addr: endpoint(a)})
	}
	return list
}

// applied applies a load balancer, step by step until it is ready.
func (s *suite) applied(spec sdn.LoadBalancerSpec) sdn.LoadBalancer {
	s.Helper()
	return must(s.tryApply(spec))(s)
}

func (s *suite) tryApply(spec sdn.LoadBalancerSpec) (sdn.LoadBalancer, error) {
	s.Helper()
	return s.steps(spec, func(id sdn.ID) {
		s.cleanup("load balancer", func(ctx context.Context) error { return s.removed(ctx, id) })
	})
}

// steps tells of the load balancer at the first step.
func (s *suite) steps(spec sdn.LoadBalancerSpec, made func(sdn.ID)) (sdn.LoadBalancer, error) {
	s.Helper()
	for step := range 1000 {
		l, err := s.p.ApplyLoadBalancer(s.ctx, spec)
		if err != nil {
			return l, err
		}
		if step == 0 {
			made(l.ID)
		}
		if l.Status.Ready {
			return l, nil
		}
		if spec.Key.IsZero() {
			spec.ID = l.ID // else each step would make another
		}
		if err := s.pause(s.ctx, l.Status.RetryAfter); err != nil {
			return l, fmt.Errorf("load balancer %s is not ready: %s: %w", l.ID, l.Status.Message, err)
		}
	}
	s.Fatal("the load balancer does not become ready")
	return sdn.LoadBalancer{}, nil
}

// removed deletes a load balancer, and waits where the SDN is at work on it.
func (s *suite) removed(ctx context.Context, id sdn.ID) error {
	for {
		err := s.p.DeleteLoadBalancer(ctx, id)
		if !sdn.IsPending(err) {
			return err
		}
		if err := s.pause(ctx, sdn.RetryAfterOf(err)); err != nil {
			return err
		}
	}
}

func (s *suite) pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(max(d, 10*time.Millisecond)):
		return nil
	}
}

// vipGround is a network on a router for the VIPs and members of many tests: what the SDN chooses there is no address that one of them asks for. That it cannot go in the end is an error: what is
// left there is a test's.
func vipGround(s *suite) sdn.Network {
	spec := s.networkSpec("10.7.0.0/24")
	spec.Subnets[0].Ranges = []sdn.AddressRange{{First: addr("10.7.0.100"), Last: addr("10.7.0.199")}}
	n := must(s.p.EnsureNetwork(s.ctx, spec))(s)
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		if err := s.p.DeleteNetwork(ctx, n.ID); err != nil {
			s.Errorf("the network that the tests shared stays: %v", err)
		}
	})
	if s.can.Routers {
		s.onRouter(n)
	}
	return n
}

// vipNet is a network on a router for VIPs and members: the group's, where it has one, or one of the test's own, as where the test says what is to be on it.
func (s *suite) vipNet(cidrs ...string) sdn.Network {
	s.Helper()
	if len(cidrs) == 0 {
		if s.ground != nil {
			return *s.ground
		}
		cidrs = []string{"10.7.0.0/24"}
	}
	if !s.can.Routers {
		return s.network(cidrs...)
	}
	n, _ := s.routed(cidrs...)
	return n
}

// web is a load balancer on a network's first subnet with one listener.
func (s *suite) web(n sdn.Network) sdn.LoadBalancerSpec {
	return sdn.LoadBalancerSpec{Base: s.base("lb"), VIPs: []sdn.VIP{{Subnet: n.Subnets[0]}}, Listeners: []sdn.Listener{
		{Protocol: sdn.TCP, Port: 80, Pool: sdn.Pool{Members: members("10.7.0.201:8080", "10.7.0.202:8080")}},
	}}
}

func tcpMonitor() *sdn.HealthMonitor {
	return &sdn.HealthMonitor{
		Type: "TCP", Interval: 5 * time.Second, Timeout: 3 * time.Second, Rise: 2, Fall: 3,
	}
}

// checked returns a member that is a port, so that a health monitor of any SDN can check it.
func (s *suite) checked(n sdn.Network) []sdn.Member {
	s.Helper()
	at := []sdn.Address{{Subnet: n.Subnets[0]}}
	if owner := s.fixture.MonitorOwner; owner != "" {
		s.port(sdn.PortSpec{Network: n.ID, Addresses: at, DeviceOwner: owner})
	}
	member := s.port(sdn.PortSpec{Network: n.ID, Addresses: at})
	return []sdn.Member{{Addr: netip.AddrPortFrom(addresses(member)[0], 8080)}}
}

func (s *suite) hasMembers(p sdn.Pool, want ...string) {
	s.Helper()
	var have []string
	for _, m := range p.Members {
		have = append(have, m.Addr.String())
	}
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		s.Errorf("the members are %v, want %v", have, want)
	}
}

// stays wants what is stored to be as it was.
func (s *suite) stays(was sdn.LoadBalancer) {
	s.Helper()
	is := must(s.p.LoadBalancer(s.ctx, was.ID))(s)
	equal(s, "revision of what did not change", is.Revision, was.Revision)
	equal(s, "number of listeners of what did not change", len(is.Listeners), len(was.Listeners))
	equal(s, "number of VIPs of what did not change", len(is.VIPs), len(was.VIPs))
}

func (s *suite) unsupported(err error, field string) {
	s.Helper()
	if !sdn.IsUnsupported(err) || sdn.FieldOf(err) != field {
		s.Errorf("got error %v about the field %q, want an unsupported %s", err, sdn.FieldOf(err), field)
	}
}

var loadBalancerTests = []test{
	{"apply twice is once", func(s *suite) {
		spec := s.web(s.vipNet())
		a, b := s.applied(spec), s.applied(spec)
		equal(s, "id", b.ID, a.ID)
		equal(s, "key", b.Key, spec.Key)
		equal(s, "name", b.Name, spec.Name)
		equal(s, "foreign", b.Foreign, false)
		equal(s, "revision of what did not change", b.Revision, a.Revision)
		equal(s, "VIP", b.VIPs[0], a.VIPs[0])
		equal(s, "listener", b.Listeners[0].ID, a.Listeners[0].ID)
		equal(s, "ready", b.Status.Ready, true)
		got := must(s.p.LoadBalancer(s.ctx, a.ID))(s)
		equal(s, "port of the listener", got.Listeners[0].Port, 80)
		s.hasMembers(got.Listeners[0].Pool, "10.7.0.201:8080", "10.7.0.202:8080")
		for range 2 {
			s.ok(s.removed(s.ctx, a.ID))
		}
		_, err := s.p.LoadBalancer(s.ctx, a.ID)
		s.notFound(err)
	}},
	{"the absent", func(s *suite) {
		_, err := s.p.LoadBalancer(s.ctx, absent)
		s.notFound(err)
		_, err = s.p.ApplyLoadBalancer(s.ctx, sdn.LoadBalancerSpec{ID: absent})
		s.notFound(err)
		s.ok(s.p.DeleteLoadBalancer(s.ctx, absent))
		s.ok(s.p.DeleteLoadBalancer(s.ctx, ""))
		spec := s.web(s.vipNet())
		spec.VIPs[0].Subnet = absent
		_, err = s.tryApply(spec)
		s.notFound(err)
		s.noLoadBalancer(spec.Key)
	}},
	{"order and form mean nothing", func(s *suite) {
		spec := s.web(s.vipNet())
		if s.can.LoadBalancer.SourceRanges {
			spec.Listeners[0].Sources = prefixes("10.0.0.0/8", "192.0.2.0/24")
		}
		spec.Listeners = append(spec.Listeners, sdn.Listener{Protocol: sdn.TCP, Port: 443, Pool: sdn.Pool{Members: members("10.7.0.201:8443")}})
		a := s.applied(spec)
		slices.Reverse(spec.Listeners)
		slices.Reverse(spec.Listeners[1].Pool.Members)
		slices.Reverse(spec.Listeners[1].Sources)
		spec.Listeners[1].Pool.Members[0].Weight = 1 // which is the same as none
		b := s.applied(spec)
		equal(s, "revision of what did not change", b.Revision, a.Revision)
		equal(s, "first listener", b.Listeners[0].Port, 80)
	}},
	{"VIP", func(s *suite) {
		n := s.vipNet()
		spec := s.web(n)
		spec.VIPs[0].Addr = addr("10.7.0.77")
		l := s.applied(spec)
		equal(s, "address", l.VIPs[0].Addr, addr("10.7.0.77"))
		equal(s, "subnet", l.VIPs[0].Subnet, n.Subnets[0])
		for what, vips := range map[string][]sdn.VIP{"the subnet alone": {{Subnet: n.Subnets[0]}}, "the address alone": {{Addr: addr("10.7.0.77")}}, "nothing": nil} {
			spec.VIPs = vips
			equal(s, "VIP after an apply that says "+what, s.applied(spec).VIPs[0], l.VIPs[0])
		}
		spec.VIPs = []sdn.VIP{{Subnet: n.Subnets[0], Addr: addr("10.7.0.78")}}
		_, err := s.p.ApplyLoadBalancer(s.ctx, spec)
		s.immutable(err, "vips[0].addr")
		other := s.network("10.7.9.0/24")
		spec.VIPs = []sdn.VIP{{Subnet: other.Subnets[0]}}
		_, err = s.p.ApplyLoadBalancer(s.ctx, spec)
		s.immutable(err, "vips[0].subnet")
		s.stays(l)
	}},
	{"a VIP in use", func(s *suite) {
		n := s.vipNet()
		first := s.web(n)
		first.VIPs[0].Addr = addr("10.7.0.76") // which no other test is given when it is given back
		one := s.applied(first)
		taken := s.port(sdn.PortSpec{Network: n.ID})
		for _, a := range []netip.Addr{one.VIPs[0].Addr, taken.Addresses[0].Addr} {
			spec := s.web(n)
			spec.VIPs[0].Addr = a
			_, err := s.tryApply(spec)
			s.conflict(err, sdn.AddressInUse)
			s.noLoadBalancer(spec.Key)
		}
		_, err := s.tryPort(sdn.PortSpec{Network: n.ID, Addresses: []sdn.Address{{Subnet: n.Subnets[0], Addr: one.VIPs[0].Addr}}})
		s.conflict(err, sdn.AddressInUse)
		s.ok(s.removed(s.ctx, one.ID))
		spec := s.web(n)
		spec.VIPs[0].Addr = one.VIPs[0].Addr
		equal(s, "VIP that was given back", s.applied(spec).VIPs[0].Addr, one.VIPs[0].Addr)
	}},
	{"a VIP's port", func(s *suite) {
		n := s.vipNet()
		l := s.applied(s.web(n))
		if l.VIPs[0].Port == "" {
			s.Skip("this SDN has no such object")
		}
		p := must(s.p.Port(s.ctx, l.VIPs[0].Port))(s)
		equal(s, "address", p.Addresses[0].Addr, l.VIPs[0].Addr)
		equal(s, "network", p.Network, n.ID)
		found := must(sdn.All(s.p.FindLoadBalancers(s.ctx, sdn.LoadBalancerQuery{Ports: []sdn.ID{p.ID}})))(s)
		equal(s, "number found by port", len(found), 1)
		s.conflict(s.p.DeleteNetwork(s.ctx, n.ID), sdn.InUse)
		s.ok(s.removed(s.ctx, l.ID))
		_, err := s.p.Port(s.ctx, p.ID)
		s.notFound(err)
	}},
	{"floating IP", func(s *suite) {
		if !s.can.FloatingIPs || !s.can.Routers {
			s.Skip("this SDN has none")
		}
		l := s.applied(s.web(s.vipNet()))
		if l.VIPs[0].Port == "" {
			s.Skip("this SDN has no ports of VIPs")
		}
		f := s.floating(sdn.FloatingIPSpec{Target: sdn.Target{Port: l.VIPs[0].Port}})
		equal(s, "target", f.Target, sdn.Target{Port: l.VIPs[0].Port, Addr: l.VIPs[0].Addr})
		must(s.lead(f.ID, sdn.Target{}, 0))(s)
		must(s.lead(f.ID, sdn.Target{Port: l.VIPs[0].Port}, 0))(s)
		s.ok(s.removed(s.ctx, l.ID))
		gone := must(s.p.FloatingIP(s.ctx, f.ID))(s)
		equal(s, "target after the load balancer went", gone.Target, sdn.Target{})
	}},
	{"without listeners and members", func(s *suite) {
		spec := s.web(s.vipNet())
		listeners := spec.Listeners
		spec.Listeners = nil
		l := s.applied(spec)
		equal(s, "number of listeners", len(l.Listeners), 0)
		spec.Listeners = []sdn.Listener{{Protocol: sdn.TCP, Port: 80}}
		l = s.applied(spec)
		s.hasMembers(l.Listeners[0].Pool)
		spec.Listeners = listeners
		again := s.applied(spec)
		equal(s, "listener", again.Listeners[0].ID, l.Listeners[0].ID)
		s.hasMembers(again.Listeners[0].Pool, "10.7.0.201:8080", "10.7.0.202:8080")
		spec.Listeners = nil
		equal(s, "number of listeners", len(s.applied(spec).Listeners), 0)
	}},
	{"members come and go", func(s *suite) {
		spec := s.web(s.vipNet())
		a := s.applied(spec)
		spec.Listeners[0].Pool.Members = members("10.7.0.202:8080", "10.7.0.203:8080", "10.7.0.203:8081")
		b := s.applied(spec)
		s.hasMembers(b.Listeners[0].Pool, "10.7.0.202:8080", "10.7.0.203:8080", "10.7.0.203:8081")
		equal(s, "id of the load balancer", b.ID, a.ID)
		equal(s, "id of the listener", b.Listeners[0].ID, a.Listeners[0].ID)
		equal(s, "id of the pool", b.Listeners[0].Pool.ID, a.Listeners[0].Pool.ID)
		equal(s, "id of the member that stays", member(b, "10.7.0.202:8080").ID, member(a, "10.7.0.202:8080").ID)
		if b.Revision == a.Revision && a.Revision != 0 {
			s.Error("a change did not change the revision")
		}
	}},
	{"listeners come and go", func(s *suite) {
		spec := s.web(s.vipNet())
		a := s.applied(spec)
		spec.Listeners = append(spec.Listeners, sdn.Listener{Protocol: sdn.TCP, Port: 443, Pool: sdn.Pool{Members: members("10.7.0.201:8443")}})
		b := s.applied(spec)
		equal(s, "number of listeners", len(b.Listeners), 2)
		equal(s, "id of the listener that stays", b.Listeners[0].ID, a.Listeners[0].ID)
		spec.Listeners = spec.Listeners[1:]
		c := s.applied(spec)
		equal(s, "number of listeners", len(c.Listeners), 1)
		equal(s, "id of the listener that stays", c.Listeners[0].ID, b.Listeners[1].ID)
		s.hasMembers(c.Listeners[0].Pool, "10.7.0.201:8443")
	}},
	{"by id", func(s *suite) {
		spec := s.web(s.vipNet())
		a := s.applied(spec)
		b := s.applied(sdn.LoadBalancerSpec{ID: a.ID, Base: sdn.Base{Name: "renamed " + s.run}})
		equal(s, "name", b.Name, "renamed "+s.run)
		equal(s, "key", b.Key, a.Key)
		equal(s, "VIP", b.VIPs[0], a.VIPs[0])
		equal(s, "number of listeners", len(b.Listeners), 0)
		if a.Revision == 0 {
			return
		}
		_, err := s.p.ApplyLoadBalancer(s.ctx, sdn.LoadBalancerSpec{ID: a.ID, IfRevision: a.Revision})
		s.conflict(err, sdn.Stale)
		s.stays(b)
	}},
	{"find", func(s *suite) {
		n := s.vipNet("10.7.0.0/24") // where no other test has any
		spec := s.web(n)
		spec.Tags = []string{"lb-" + s.run}
		a, b := s.applied(spec), s.applied(s.web(n))
		for what, want := range map[string]struct {
			q      sdn.LoadBalancerQuery
			number int
		}{
			"ids":       {sdn.LoadBalancerQuery{Match: sdn.Match{IDs: []sdn.ID{a.ID, b.ID, absent}}}, 2},
			"keys":      {sdn.LoadBalancerQuery{Match: sdn.Match{Keys: []sdn.Key{a.Key, b.Key}}}, 2},
			"names":     {sdn.LoadBalancerQuery{Match: sdn.Match{Names: []string{a.Name}}}, 1},
			"subnets":   {sdn.LoadBalancerQuery{Subnets: n.Subnets}, 2},
			"addresses": {sdn.LoadBalancerQuery{Subnets: n.Subnets, Addresses: []netip.Addr{b.VIPs[0].Addr}}, 1},
			"nothing":   {sdn.LoadBalancerQuery{Subnets: []sdn.ID{absent}}, 0},
		} {
			equal(s, "number found by "+what, len(must(sdn.All(s.p.FindLoadBalancers(s.ctx, want.q)))(s)), want.number)
		}
		outlined := must(sdn.All(s.p.FindLoadBalancers(s.ctx, sdn.LoadBalancerQuery{Match: sdn.Match{Keys: []sdn.Key{a.Key}}, Outline: true})))(s)
		if equal(s, "number found in outline", len(outlined), 1); len(outlined) == 1 {
			equal(s, "id in outline", outlined[0].ID, a.ID)
			equal(s, "key in outline", outlined[0].Key, a.Key)
			equal(s, "VIP in outline", outlined[0].VIPs[0], a.VIPs[0])
		}
		if s.can.HasTags() {
			found := must(sdn.All(s.p.FindLoadBalancers(s.ctx, sdn.LoadBalancerQuery{Match: sdn.Match{Tags: spec.Tags}})))(s)
			equal(s, "number found by tag", len(found), 1)
		}
		if ids := b.Parts(); len(ids) > 0 {
			found := must(sdn.All(s.p.FindLoadBalancers(s.ctx, sdn.LoadBalancerQuery{Parts: []sdn.ID{ids[len(ids)-1], absent}})))(s)
			equal(s, "number found by a part", len(found), 1)
		}
	}},
	{"foreign", func(s *suite) {
		spec := s.web(s.vipNet())
		spec.Base = sdn.Base{Name: "plain-" + s.run, Description: "words"}
		l := must(s.tryApply(spec))(s)
		equal(s, "foreign", l.Foreign, true)
		ours := s.web(s.network("10.7.0.0/24"))
		s.noLoadBalancer(ours.Key)
		must(s.tryApply(ours))(s)
		s.stays(l)
	}},
	{"one key at once is one load balancer", func(s *suite) {
		spec := s.web(s.vipNet())
		list, errs := together(6, func(int) (sdn.LoadBalancer, error) { return s.p.ApplyLoadBalancer(s.ctx, spec) })
		for i, l := range list {
			s.ok(errs[i])
			equal(s, "id", l.ID, list[0].ID)
			s.cleanup("load balancer", func(ctx context.Context) error { return s.removed(ctx, l.ID) })
		}
		equal(s, "number", len(must(sdn.All(s.p.FindLoadBalancers(s.ctx, sdn.LoadBalancerQuery{Match: sdn.Match{Keys: []sdn.Key{spec.Key}}})))(s)), 1)
	}},
	{"survives", func(s *suite) {
		if s.fixture.Reopen == nil {
			s.Skip("this SDN cannot be restarted here")
		}
		n := must(s.p.EnsureNetwork(s.ctx, s.networkSpec("10.7.0.0/24")))(s)
		spec := s.web(n)
		a := must(s.steps(spec, func(sdn.ID) {}))(s)
		s.p = s.fixture.Reopen(s.T)
		b := must(s.steps(spec, func(sdn.ID) {}))(s)
		equal(s, "id", b.ID, a.ID)
		equal(s, "revision", b.Revision, a.Revision)
		equal(s, "VIP", b.VIPs[0], a.VIPs[0])
		s.ok(s.removed(s.ctx, b.ID))
		s.ok(s.p.DeleteNetwork(s.ctx, n.ID))
	}},
}

// member is the one at an address.
func member(l sdn.LoadBalancer, at string) sdn.Member {
	for _, listener := range l.Listeners {
		for _, m := range listener.Pool.Members {
			if m.Addr == endpoint(at) {
				return m
			}
		}
	}
	return sdn.Member{}
}

// noLoadBalancer wants a refused apply to have left nothing.
func (s *suite) noLoadBalancer(key sdn.Key) {
	s.Helper()
	_, found, err := sdn.First(s.p.FindLoadBalancers(s.ctx, sdn.LoadBalancerQuery{Match: sdn.Match{Keys: []sdn.Key{key}}}))
	s.ok(err)
	equal(s, "one was made", found, false)
}

package sdntest

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// What not every SDN's load balancers can: where they can it is done, else refused by the field's name, and nothing is left of it.
var loadBalancerCapabilityTests = []test{
	{"protocols", func(s *suite) {
		n := s.vipNet()
		for _, p := range []sdn.Protocol{sdn.TCP, sdn.UDP, sdn.SCTP} {
			spec := s.web(n)
			spec.Listeners[0].Protocol = p
			s.perhaps(spec, slices.Contains(s.can.LoadBalancer.Protocols, p), "listeners[0].protocol", func(l sdn.LoadBalancer) {
				equal(s, "protocol", l.Listeners[0].Protocol, p)
			})
		}
	}},
	{"one port of two protocols", func(s *suite) {
		if !slices.Contains(s.can.LoadBalancer.Protocols, sdn.UDP) {
			s.Skip("it has one protocol")
		}
		spec := s.web(s.vipNet())
		spec.Listeners = append(spec.Listeners, sdn.Listener{Protocol: sdn.UDP, Port: 80, Pool: sdn.Pool{Members: members("10.7.0.203:53")}})
		s.perhaps(spec, s.can.LoadBalancer.MixedProtocols, "listeners[1].protocol", func(l sdn.LoadBalancer) {
			equal(s, "number of listeners", len(l.Listeners), 2)
			s.hasMembers(l.Listeners[1].Pool, "10.7.0.203:53")
		})
	}},
	{"algorithms", func(s *suite) {
		n := s.vipNet()
		for _, a := range []sdn.Algorithm{sdn.RoundRobin, sdn.LeastConns, sdn.SourceIP, sdn.SourceIPPort} {
			spec := s.web(n)
			spec.Listeners[0].Pool.Algorithm = a
			s.perhaps(spec, slices.Contains(s.can.LoadBalancer.Algorithms, a), "listeners[0].pool.algorithm", func(l sdn.LoadBalancer) {
				equal(s, "algorithm", l.Listeners[0].Pool.Algorithm, a)
			})
		}
	}},
	{"sources", func(s *suite) {
		spec := s.web(s.vipNet())
		spec.Listeners[0].Sources = prefixes("192.0.2.0/24", "10.0.0.0/8")
		s.perhaps(spec, s.can.LoadBalancer.SourceRanges, "listeners[0].sources", func(l sdn.LoadBalancer) {
			equal(s, "number of sources", len(l.Listeners[0].Sources), 2)
			spec.Listeners[0].Sources = nil
			equal(s, "number of sources", len(s.applied(spec).Listeners[0].Sources), 0)
		})
	}},
	{"affinity", func(s *suite) {
		spec := s.web(s.vipNet())
		spec.Listeners[0].Pool.Affinity = sdn.Affinity{ClientIP: true}
		s.perhaps(spec, s.can.LoadBalancer.Affinity, "listeners[0].pool.affinity", func(l sdn.LoadBalancer) {
			equal(s, "affinity", l.Listeners[0].Pool.Affinity.ClientIP, true)
			spec.Listeners[0].Pool.Affinity.Timeout = 90 * time.Second
			s.perhaps(spec, s.can.LoadBalancer.AffinityTCP, "listeners[0].pool.affinity.timeout", func(l sdn.LoadBalancer) {
				equal(s, "timeout", l.Listeners[0].Pool.Affinity.Timeout, 90*time.Second)
			})
			spec.Listeners[0].Pool.Affinity = sdn.Affinity{}
			equal(s, "affinity", s.applied(spec).Listeners[0].Pool.Affinity, sdn.Affinity{})
		})
	}},
	{"weight and drain", func(s *suite) {
		spec := s.web(s.vipNet())
		first := s.applied(spec)
		if s.can.LoadBalancer.Weights {
			spec.Listeners[0].Pool.Members[0].Weight = 5
			l := s.applied(spec)
			equal(s, "weight", member(l, "10.7.0.201:8080").Weight, 5)
			equal(s, "id", member(l, "10.7.0.201:8080").ID, member(first, "10.7.0.201:8080").ID)
		}
		if s.can.LoadBalancer.Drain {
			spec.Listeners[0].Pool.Members[1].Drain = true
			l := s.applied(spec)
			equal(s, "drain", member(l, "10.7.0.202:8080").Drain, true)
			equal(s, "drain of the other", member(l, "10.7.0.201:8080").Drain, false)
			spec.Listeners[0].Pool.Members[1].Drain = false
			equal(s, "drain", member(s.applied(spec), "10.7.0.202:8080").Drain, false)
		}
	}},
	{"what few have", func(s *suite) {
		n, can := s.vipNet(), s.can.LoadBalancer
		for field, of := range map[string]struct {
			can    bool
			change func(*sdn.LoadBalancerSpec)
		}{
			"listeners[0].connection_limit": {can.Limits, func(l *sdn.LoadBalancerSpec) { l.Listeners[0].ConnectionLimit = 100 }},
			"listeners[0].client_timeout":   {can.Timeouts, func(l *sdn.LoadBalancerSpec) { l.Listeners[0].ClientTimeout = time.Minute }},
			"listeners[0].member_timeout":   {can.Timeouts, func(l *sdn.LoadBalancerSpec) { l.Listeners[0].MemberTimeout = time.Minute }},
			"listeners[0].proxy_protocol":   {can.ProxyProtocol, func(l *sdn.LoadBalancerSpec) { l.Listeners[0].ProxyProtocol = true }},
			"listeners[0].pool.health": {can.HealthMonitors, func(l *sdn.LoadBalancerSpec) {
				l.Listeners[0].Pool.Health = tcpMonitor()
				l.Listeners[0].Pool.Members = s.checked(n)
			}},
		} {
			spec := s.web(n)
			of.change(&spec)
			s.perhaps(spec, of.can, field, func(sdn.LoadBalancer) {})
		}
	}},
	{"what is not asked for any more", func(s *suite) {
		n, can := s.vipNet(), s.can.LoadBalancer
		spec := s.web(n)
		if can.HealthMonitors {
			spec.Listeners[0].Pool.Members = s.checked(n)
		}
		if slices.Contains(can.Protocols, sdn.UDP) {
			spec.Listeners = append(spec.Listeners, sdn.Listener{Protocol: sdn.UDP, Port: 53, Pool: sdn.Pool{Affinity: sdn.Affinity{ClientIP: can.Affinity}, Members: members("10.7.0.203:53")}})
		}
		first, more := s.applied(spec), spec
		more.Listeners = slices.Clone(spec.Listeners)
		l := &more.Listeners[0]
		if can.Limits {
			l.ConnectionLimit = 100
		}
		if can.Timeouts {
			l.ClientTimeout, l.MemberTimeout, l.ConnectTimeout, l.InspectTimeout = 61*time.Second, 62*time.Second, 3*time.Second, 4*time.Second
		}
		for _, a := range can.Algorithms {
			if a != first.Listeners[0].Pool.Algorithm {
				l.Pool.Algorithm = a
			}
		}
		l.Pool.Affinity.ClientIP = can.Affinity
		if can.HealthMonitors {
			l.Pool.Health = tcpMonitor()
		}
		if last := &more.Listeners[len(more.Listeners)-1]; last != l && can.Affinity {
			last.Pool.Affinity.Timeout = 90 * time.Second
		}
		equal(s, "id", s.applied(more).ID, first.ID)
		if again := s.applied(spec); !reflect.DeepEqual(again.Listeners, first.Listeners) {
			s.Errorf("the listeners are %+v, and were %+v", again.Listeners, first.Listeners)
		}
	}},
	{"health monitors of two listeners", func(s *suite) {
		if !s.can.LoadBalancer.HealthMonitors {
			s.Skip("it has no health monitors")
		}
		n := s.vipNet()
		spec := s.web(n)
		spec.Listeners[0].Pool.Members = s.checked(n)
		second := spec.Listeners[0]
		second.Port = 81
		spec.Listeners = append(spec.Listeners, second)
		for i := range spec.Listeners {
			spec.Listeners[i].Pool.Health = tcpMonitor()
		}
		for i, l := range s.applied(spec).Listeners {
			equal(s, "health monitor", l.Pool.Health != nil, true)
			spec.Listeners[i].Pool.Health = nil
		}
		for i, l := range s.applied(spec).Listeners {
			equal(s, "no health monitor", l.Pool.Health == nil, true)
			spec.Listeners[i].Pool.Members = members("10.7.0.201:8080")
		}
		for _, l := range s.applied(spec).Listeners { // a pool without its monitor takes changes
			s.hasMembers(l.Pool, "10.7.0.201:8080")
		}
	}},
	{"both families", func(s *suite) {
		n := s.vipNet("10.7.0.0/24", "fd00:7::/64")
		spec := s.web(n)
		spec.VIPs = append(spec.VIPs, sdn.VIP{Subnet: n.Subnets[1]})
		spec.Listeners[0].Pool.Members = append(spec.Listeners[0].Pool.Members, members("[fd00:7::201]:8080")...)
		s.perhaps(spec, s.can.LoadBalancer.TwoFamilies, "vips", func(l sdn.LoadBalancer) {
			equal(s, "number of VIPs", len(l.VIPs), 2)
			equal(s, "the first VIP is IPv4", l.VIPs[0].Addr.Is4(), true)
			slices.Reverse(spec.VIPs)
			equal(s, "revision of what did not change", s.applied(spec).Revision, l.Revision)
		})
	}},
	{"a family that comes and goes", func(s *suite) {
		if !s.can.LoadBalancer.TwoFamilies {
			s.Skip("it has one family")
		}
		n := s.vipNet("10.7.0.0/24", "fd00:7::/64")
		spec := s.web(n)
		a := s.applied(spec)
		spec.VIPs = append(spec.VIPs, sdn.VIP{Subnet: n.Subnets[1], Addr: addr("fd00:7::77")})
		b, err := s.tryApply(spec)
		if !s.can.LoadBalancer.ChangeFamilies {
			s.conflict(err, sdn.Immutable)
			s.stays(a)
			return
		}
		s.ok(err)
		equal(s, "id", b.ID, a.ID)
		equal(s, "the VIP that stays", b.VIPs[0], a.VIPs[0])
		equal(s, "the VIP that came", b.VIPs[1].Addr, addr("fd00:7::77"))
		spec.VIPs = []sdn.VIP{{Subnet: n.Subnets[1]}}
		spec.Listeners[0].Pool.Members = members("[fd00:7::201]:8080")
		c := s.applied(spec)
		equal(s, "number of VIPs", len(c.VIPs), 1)
		equal(s, "the VIP that stays", c.VIPs[0], b.VIPs[1])
		taken := s.web(n)
		taken.VIPs[0].Addr = a.VIPs[0].Addr
		equal(s, "the VIP that was given back", s.applied(taken).VIPs[0].Addr, a.VIPs[0].Addr)
	}},
	{"pools by themselves", func(s *suite) {
		spec := s.web(s.vipNet())
		spec.Pools = []sdn.Pool{{Name: "spare", Protocol: sdn.TCP, Members: members("10.7.0.203:8080")}}
		s.perhaps(spec, s.can.LoadBalancer.FreePools, "pools", func(l sdn.LoadBalancer) {
			spare, used := l.Pools[0], l.Listeners[0].Pool
			// They change places.
			spec.Listeners[0].Pool, spec.Pools[0] = spare, used
			spec.Pools[0].Protocol = sdn.TCP
			l = s.applied(spec)
			equal(s, "id of the listener's pool", l.Listeners[0].Pool.ID, spare.ID)
			equal(s, "id of the spare one", l.Pools[0].ID, used.ID)
			equal(s, "id of a member", l.Listeners[0].Pool.Members[0].ID, spare.Members[0].ID)
			s.hasMembers(l.Listeners[0].Pool, "10.7.0.203:8080")
			spec.Listeners[0].Pool, spec.Listeners[0].WithoutPool = sdn.Pool{}, true
			l = s.applied(spec)
			equal(s, "without a pool", l.Listeners[0].WithoutPool, true)
			equal(s, "id of the spare one", l.Pools[0].ID, used.ID)
			equal(s, "number of spare ones", len(l.Pools), 1)
		})
	}},
	{"nonsense", func(s *suite) {
		n := s.vipNet()
		good := s.applied(s.web(n))
		for field, change := range map[string]func(*sdn.LoadBalancerSpec){
			"vips":                              func(l *sdn.LoadBalancerSpec) { l.VIPs = []sdn.VIP{} },
			"vips[0].addr":                      func(l *sdn.LoadBalancerSpec) { l.VIPs[0].Addr = addr("192.0.2.9") },
			"listeners[0].port":                 func(l *sdn.LoadBalancerSpec) { l.Listeners[0].Port = 0 },
			"listeners[1].port":                 func(l *sdn.LoadBalancerSpec) { l.Listeners = append(l.Listeners, l.Listeners[0]) },
			"listeners[0].protocol":             func(l *sdn.LoadBalancerSpec) { l.Listeners[0].Protocol = 1 },
			"listeners[0].sources[0]":           func(l *sdn.LoadBalancerSpec) { l.Listeners[0].Sources = []netip.Prefix{{}} },
			"listeners[0].pool.algorithm":       func(l *sdn.LoadBalancerSpec) { l.Listeners[0].Pool.Algorithm = "LUCK" },
			"listeners[0].pool.members[1].addr": func(l *sdn.LoadBalancerSpec) { l.Listeners[0].Pool.Members = members("10.7.0.201:1", "10.7.0.201:1") },
			"listeners[0].pool.members[0].addr": func(l *sdn.LoadBalancerSpec) { l.Listeners[0].Pool.Members = members("[fd00::1]:80") },
			"listeners[0].name":                 func(l *sdn.LoadBalancerSpec) { l.Listeners[0].Name = strings.Repeat("n", 256) },
			"name":                              func(l *sdn.LoadBalancerSpec) { l.Name = strings.Repeat("n", 256) },
		} {
			spec := s.web(n)
			change(&spec)
			_, err := s.tryApply(spec)
			s.invalid(err, field)
			s.noLoadBalancer(spec.Key)
			again := spec
			again.ID, again.Key, again.VIPs = good.ID, sdn.Key{}, nil
			if field != "vips" && field != "vips[0].addr" {
				_, err = s.p.ApplyLoadBalancer(s.ctx, again)
				s.invalid(err, field)
			}
		}
		s.stays(good)
	}},
	{"quotas", func(s *suite) {
		if !s.can.Quotas {
			s.Skip("this SDN has none")
		}
		project := "project-" + s.run
		usage, err := s.p.Usage(s.ctx, project)
		if _, counted := usage[sdn.NounLoadBalancer]; err != nil || !counted {
			s.Skip("load balancers are not counted here")
		}
		n := s.vipNet()
		for noun, change := range map[sdn.Noun]func(*sdn.LoadBalancerSpec){
			sdn.NounLoadBalancer: nil,
			sdn.NounListener: func(l *sdn.LoadBalancerSpec) {
				l.Listeners = append(l.Listeners, sdn.Listener{Protocol: sdn.TCP, Port: 81, WithoutPool: s.can.LoadBalancer.FreePools})
			},
			sdn.NounMember: func(l *sdn.LoadBalancerSpec) {
				l.Listeners[0].Pool.Members = append(l.Listeners[0].Pool.Members, members("10.7.0.209:80")...)
			},
		} {
			spec := s.web(n)
			spec.Project = project + "-" + string(noun)
			l := s.applied(spec)
			used := must(s.p.Usage(s.ctx, spec.Project))(s)[noun].Used
			s.ok(s.p.SetQuota(s.ctx, spec.Project, map[sdn.Noun]int64{noun: used}))
			if change == nil {
				next := s.web(n)
				next.Project = spec.Project
				_, err := s.tryApply(next)
				s.exhausted(err, sdn.NoQuota)
				s.noLoadBalancer(next.Key)
			} else {
				change(&spec)
				_, err := s.tryApply(spec)
				s.exhausted(err, sdn.NoQuota)
				s.stays(l)
			}
			s.ok(s.removed(s.ctx, l.ID))
			equal(s, "used "+string(noun)+" after the deletion", must(s.p.Usage(s.ctx, spec.Project))(s)[noun].Used, 0)
		}
	}},
	{"shared with others", func(s *suite) {
		spec := s.web(s.vipNet())
		owner := s.applied(spec)
		guest := sdn.LoadBalancerSpec{Base: s.base("guest"), ID: owner.ID, Shared: true, Listeners: []sdn.Listener{
			{Protocol: sdn.TCP, Port: 80, Pool: sdn.Pool{Members: members("10.7.0.209:8080")}},
		}}
		if !s.can.LoadBalancer.Share {
			_, err := s.p.ApplyLoadBalancer(s.ctx, guest)
			s.unsupported(err, "shared")
			s.stays(owner)
			return
		}
		_, err := s.p.ApplyLoadBalancer(s.ctx, guest)
		s.conflict(err, sdn.Exists) // the owner's port
		guest.Listeners[0].Port = 81
		l := s.applied(guest)
		equal(s, "number of listeners", len(l.Listeners), 2)
		equal(s, "key of the guest's", l.Listeners[1].Key, guest.Key)
		equal(s, "key of the load balancer", l.Key, spec.Key)
		equal(s, "name", l.Name, spec.Name)
		id := l.Listeners[1].ID
		spec.Listeners[0].Pool.Members = members("10.7.0.202:8080") // what the owner changes is its own
		l = s.applied(spec)
		equal(s, "number of listeners", len(l.Listeners), 2)
		equal(s, "id of the guest's", l.Listeners[1].ID, id)
		s.hasMembers(l.Listeners[1].Pool, "10.7.0.209:8080")
		spec.Listeners = append(spec.Listeners, guest.Listeners...)
		_, err = s.p.ApplyLoadBalancer(s.ctx, spec)
		s.conflict(err, sdn.Exists)
		guest.Listeners[0].Pool.Members = members("10.7.0.208:8080")
		l = s.applied(guest)
		s.hasMembers(l.Listeners[0].Pool, "10.7.0.202:8080")
		s.hasMembers(l.Listeners[1].Pool, "10.7.0.208:8080")
		l = s.applied(guest) // twice is once
		equal(s, "number of listeners", len(l.Listeners), 2)
		guest.Listeners = nil
		l = s.applied(guest)
		equal(s, "number of listeners", len(l.Listeners), 1)
		equal(s, "port", l.Listeners[0].Port, 80)
		guest.ID = absent
		_, err = s.p.ApplyLoadBalancer(s.ctx, guest)
		s.notFound(err)
	}},
}

// perhaps applies what an SDN can or cannot do: then it is refused by the field's name, and nothing is left.
func (s *suite) perhaps(spec sdn.LoadBalancerSpec, can bool, field string, then func(sdn.LoadBalancer)) {
	s.Helper()
	before, there, err := sdn.First(s.p.FindLoadBalancers(s.ctx, sdn.LoadBalancerQuery{Match: sdn.Match{Keys: []sdn.Key{spec.Key}}}))
	s.ok(err)
	l, err := s.tryApply(spec)
	switch {
	case can:
		s.ok(err)
		then(l)
		return
	case there:
		s.unsupported(err, field)
		s.stays(before)
		return
	}
	s.unsupported(err, field)
	s.noLoadBalancer(spec.Key)
}

package docker

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// The calls of a swarm that take down come in any order, some more than once, from the manager and two nodes, and nothing is
// left.
func TestSwarmTakenDownInAnyOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		boxes := newSwarm(t, "two", "three")
		type call struct {
			on     int
			method string
			body   m
		}
		n := boxes[0].allocate(&network{v4: []*pool{{cidr: "10.130.0.0/24"}, {cidr: "10.131.0.0/24"}}})
		calls := []call{{0, "NetworkDriver.FreeNetwork", m{"NetworkID": n.id}}}
		for _, p := range n.v4 {
			calls = append(calls, call{0, "IpamDriver.ReleaseAddress", m{"PoolID": p.id, "Address": p.gateway}},
				call{0, "IpamDriver.ReleasePool", m{"PoolID": p.id}})
		}
		boxes[0].task(n) // a VIP that is never released: the pool is
		for i, b := range boxes {
			if !rapid.Bool().Draw(r, "a node") {
				continue
			}
			node := b.onNode(n)
			for range rapid.IntRange(0, 2).Draw(r, "endpoints") {
				e := b.run(&endpoint{net: node, ip4: boxes[0].task(n)})
				calls = append(calls,
					call{i, "NetworkDriver.RevokeExternalConnectivity", e.body()}, call{i, "NetworkDriver.Leave", e.body()},
					call{i, "NetworkDriver.DeleteEndpoint", e.body()},
					call{i, "IpamDriver.ReleaseAddress", m{"PoolID": node.v4[0].id, "Address": e.ip4}})
				if rapid.Bool().Draw(r, "released by the manager") {
					calls = append(calls, call{0, "IpamDriver.ReleaseAddress", m{"PoolID": n.v4[0].id, "Address": e.ip4}})
				}
			}
			for _, p := range node.v4 {
				calls = append(calls, call{i, "IpamDriver.ReleaseAddress", m{"PoolID": p.id, "Address": p.gateway}},
					call{i, "IpamDriver.ReleasePool", m{"PoolID": p.id}})
			}
			calls = append(calls, call{i, "NetworkDriver.DeleteNetwork", m{"NetworkID": n.id}})
		}
		some := calls[:rapid.IntRange(0, len(calls)).Draw(r, "repeated")]
		order := rapid.Permutation(slices.Concat(calls, some)).Draw(r, "calls")
		for i, c := range order {
			boxes[c.on].ok(c.method, c.body)
			if i%5 == 2 {
				boxes[c.on].restart()
			}
		}
		for _, b := range boxes {
			b.clean()
		}
		if t.Failed() {
			for _, c := range order {
				r.Log(c.on, c.method, c.body)
			}
			r.FailNow()
		}
	})
}

// manager and its nodes as they know themselves, for TestSwarmAtRandom.
type randomSwarm struct {
	*rapid.T
	boxes     []*box
	leader    int
	net       *network
	held      map[string]bool      // what the manager has
	nodes     map[int]*network     // by box
	endpoints map[string]*endpoint // by address
	on        map[string]int       // the box of an endpoint
}

func (s *randomSwarm) manager() *box { return s.boxes[s.leader] }

// pick is one of the addresses, of which there are some.
func (s *randomSwarm) pick(what string, addresses []string) string {
	if len(addresses) == 0 {
		s.Skip("no", what)
	}
	slices.Sort(addresses)
	return rapid.SampledFrom(addresses).Draw(s.T, what)
}

func (s *randomSwarm) take() {
	a := s.manager().task(s.net)
	if s.held[a] || s.endpoints[a] != nil {
		s.Fatalf("%s was given twice", a)
	}
	s.held[a] = true
}

func (s *randomSwarm) release() {
	a := s.pick("held", slices.Collect(maps.Keys(s.held)))
	s.manager().addressRelease(s.net.v4[0], a)
	delete(s.held, a)
}

// run starts a task on a node.
func (s *randomSwarm) run() {
	free := slices.DeleteFunc(slices.Collect(maps.Keys(s.held)), func(a string) bool { return s.endpoints[a] != nil })
	a := s.pick("for a task", free)
	i := rapid.IntRange(0, len(s.boxes)-1).Draw(s.T, "node")
	if s.nodes[i] == nil {
		s.nodes[i] = s.boxes[i].onNode(s.net)
	}
	s.endpoints[a], s.on[a] = s.boxes[i].run(&endpoint{net: s.nodes[i], ip4: a}), i
}

// stop ends a task; its DeleteEndpoint may be lost.
func (s *randomSwarm) stop() {
	a := s.pick("task", slices.Collect(maps.Keys(s.endpoints)))
	e, b := s.endpoints[a], s.boxes[s.on[a]]
	if rapid.Bool().Draw(s.T, "lost") {
		b.giveBack(e)
	} else {
		b.stop(e)
	}
	delete(s.endpoints, a)
}

// leave takes the network from a node without tasks.
func (s *randomSwarm) leave() {
	i := rapid.IntRange(0, len(s.boxes)-1).Draw(s.T, "node")
	for a := range s.endpoints {
		if s.on[a] == i {
			s.Skip("it has tasks")
		}
	}
	if s.nodes[i] == nil {
		s.Skip("it does not have the network")
	}
	s.boxes[i].remove(s.nodes[i])
	delete(s.nodes, i)
}

// lead makes another host the leader, or the same one again.
func (s *randomSwarm) lead() {
	s.leader = rapid.IntRange(0, len(s.boxes)-1).Draw(s.T, "leader")
	p := s.net.v4[0]
	again := &network{id: s.net.id, v4: []*pool{{cidr: p.cidr, gateway: p.gateway}}}
	s.manager().allocate(again)
	s.net = again
	for a := range s.held {
		s.manager().ok("IpamDriver.RequestAddress", m{"PoolID": again.v4[0].id, "Address": a, "Options": serialOption})
	}
}

func (s *randomSwarm) restart() {
	b := s.boxes[rapid.IntRange(0, len(s.boxes)-1).Draw(s.T, "killed")]
	b.restart()
	b.must(b.driver.Reconcile(b.t.Context()))
}

// check: what there is, is what the manager holds and the endpoints have.
func (s *randomSwarm) check(*rapid.T) {
	want := maps.Clone(s.held)
	for a := range s.endpoints {
		want[a] = true
	}
	routers := 0
	if s.boxes[0].counts()[1] > 0 {
		routers = 1
	}
	if got := s.boxes[0].counts(); got != [3]int{1, routers, len(want)} {
		s.Fatalf("%v networks, routers and ports; the manager holds %v, endpoints have %v\n%s", got, s.held, s.endpoints, s.boxes[0].dump())
	}
	for i, b := range s.boxes {
		n := 0
		for a := range s.endpoints {
			if s.on[a] == i {
				n++
			}
		}
		if b.binder.count() != n {
			s.Fatalf("%d plugged on node %d, want %d", b.binder.count(), i, n)
		}
	}
}

// A manager and three nodes do what they do in any order, are killed and started again, and another leads; when all is given
// back nothing is left.
func TestSwarmAtRandom(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		s := &randomSwarm{T: r, boxes: newSwarm(t, "two", "three"), held: map[string]bool{}, nodes: map[int]*network{},
			endpoints: map[string]*endpoint{}, on: map[string]int{}}
		s.net = s.manager().allocate(&network{v4: []*pool{{cidr: "10.130.0.0/24"}}})
		act := func(do func()) func(*rapid.T) {
			return func(r *rapid.T) {
				s.T = r
				do()
			}
		}
		r.Repeat(map[string]func(*rapid.T){
			"take": act(s.take), "release": act(s.release), "run": act(s.run), "stop": act(s.stop), "leave": act(s.leave),
			"lead": act(s.lead), "restart": act(s.restart), "": s.check,
		})
		s.T = r
		early := rapid.Bool().Draw(r, "freed before the tasks end")
		if early {
			s.manager().unallocate(s.net)
		}
		for a, e := range s.endpoints {
			s.boxes[s.on[a]].stop(e)
		}
		for i, node := range s.nodes {
			s.boxes[i].remove(node)
		}
		if !early {
			s.manager().unallocate(s.net)
		}
		for _, b := range s.boxes {
			b.clean()
		}
		if t.Failed() {
			r.FailNow()
		}
	})
}

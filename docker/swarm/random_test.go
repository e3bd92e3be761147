package swarm

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// The calls that take a network down come in any order, some more than once, from the
// manager and two nodes, and nothing is left.
func TestTakenDownInAnyOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		envs := newSwarm(t, "two", "three")
		type call struct {
			on   int
			name string
			do   func(e *env) error
		}
		n := envs[0].allocate(&docknet{pools: ranges("10.130.0.0/24", "10.131.0.0/24")})
		calls := []call{{0, "FreeNetwork", func(e *env) error { return e.tryFree(n) }}}
		release := func(on int, p *pool, a netip.Addr) call {
			return call{on, "ReleaseAddress " + a.String(), func(e *env) error { return e.releaseAddress(p.id, a) }}
		}
		releasePool := func(on int, p *pool) call {
			return call{on, "ReleasePool " + p.id.String(), func(e *env) error { return e.releasePool(p.id) }}
		}
		for _, p := range n.pools {
			calls = append(calls, release(0, p, p.gateway), releasePool(0, p))
		}
		envs[0].any(n) // a VIP that is never released: the pool is
		for i, e := range envs {
			if !rapid.Bool().Draw(r, "a node") {
				continue
			}
			node := e.onNode(n)
			for range rapid.IntRange(0, 2).Draw(r, "endpoints") {
				x := e.run(node, envs[0].any(n))
				calls = append(calls,
					call{i, "Leave " + x.id, func(e *env) error { return e.endpoints.Leave(e.Context(), x.id) }},
					call{i, "DeleteEndpoint " + x.id, func(e *env) error { return e.endpoints.Delete(e.Context(), x.id) }},
					release(i, x.pool, x.addr))
				if rapid.Bool().Draw(r, "released by the manager") {
					calls = append(calls, release(0, n.pools[0], x.addr))
				}
			}
			for _, p := range node.pools {
				calls = append(calls, release(i, p, p.gateway), releasePool(i, p))
			}
			calls = append(calls, call{i, "DeleteNetwork", func(e *env) error { return e.DeleteNetwork(e.Context(), n.id) }})
		}
		some := calls[:rapid.IntRange(0, len(calls)).Draw(r, "repeated")]
		order := rapid.Permutation(slices.Concat(calls, some)).Draw(r, "calls")
		for i, c := range order {
			envs[c.on].must(c.do(envs[c.on]))
			if i%5 == 2 {
				envs[c.on].restart()
			}
		}
		cleanAll(envs)
		for _, e := range envs {
			e.stop()
		}
		if t.Failed() {
			for _, c := range order {
				r.Log(c.on, c.name)
			}
			r.FailNow()
		}
	})
}

// randomSwarm is a manager and its nodes as they know themselves.
type randomSwarm struct {
	*rapid.T
	envs   []*env
	leader int
	net    *docknet
	held   map[netip.Addr]bool  // what the manager has
	nodes  map[int]*docknet     // by host
	tasks  map[netip.Addr]*task // by address
	on     map[netip.Addr]int   // the host of a task
}

func (s *randomSwarm) manager() *env { return s.envs[s.leader] }

// pick returns one of the addresses, if there are any.
func (s *randomSwarm) pick(what string, addrs []netip.Addr) netip.Addr {
	if len(addrs) == 0 {
		s.Skip("no", what)
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return rapid.SampledFrom(addrs).Draw(s.T, what)
}

func (s *randomSwarm) take() {
	a := s.manager().any(s.net)
	if s.held[a] || s.tasks[a] != nil {
		s.Fatalf("%s was given twice", a)
	}
	s.held[a] = true
}

// release releases an address, which may be while the SDN is unavailable.
func (s *randomSwarm) release() {
	a := s.pick("held", slices.Collect(maps.Keys(s.held)))
	e := s.manager()
	s.unavailable(e, func() { e.must(e.releaseAddress(s.net.pools[0].id, a)) })
	delete(s.held, a)
}

// unavailable makes a call that succeeds with or without the SDN.
func (s *randomSwarm) unavailable(e *env, call func()) {
	e.away.Store(rapid.Bool().Draw(s.T, "unavailable"))
	call()
	e.away.Store(false)
}

// run starts a task on a node.
func (s *randomSwarm) run() {
	free := slices.DeleteFunc(slices.Collect(maps.Keys(s.held)), func(a netip.Addr) bool { return s.tasks[a] != nil })
	a := s.pick("for a task", free)
	i := rapid.IntRange(0, len(s.envs)-1).Draw(s.T, "node")
	if s.nodes[i] == nil {
		s.nodes[i] = s.envs[i].onNode(s.net)
	}
	x := &task{net: s.nodes[i], addr: a}
	// The cleanup of an earlier task with the address may be pending on another node.
	var err error
	if !eventually(func() bool { err = s.envs[i].tryRun(x); return err == nil }) {
		s.Fatalf("run a task with %s: %v", a, err)
	}
	s.tasks[a], s.on[a] = x, i
}

// stop ends a task. Its DeleteEndpoint may be lost.
func (s *randomSwarm) stop() {
	a := s.pick("task", slices.Collect(maps.Keys(s.tasks)))
	e, r := s.envs[s.on[a]], s.tasks[a]
	if rapid.Bool().Draw(s.T, "lost") {
		e.must(e.releaseAddress(r.pool.id, r.addr))
	} else {
		s.unavailable(e, func() { e.halt(r) })
	}
	delete(s.tasks, a)
}

// leave takes the network from a node without tasks.
func (s *randomSwarm) leave() {
	i := rapid.IntRange(0, len(s.envs)-1).Draw(s.T, "node")
	for a := range s.tasks {
		if s.on[a] == i {
			s.Skip("it has tasks")
		}
	}
	if s.nodes[i] == nil {
		s.Skip("it does not have the network")
	}
	s.envs[i].remove(s.nodes[i])
	delete(s.nodes, i)
}

// lead makes another host the leader, or the same one again.
func (s *randomSwarm) lead() {
	s.leader = rapid.IntRange(0, len(s.envs)-1).Draw(s.T, "leader")
	p := s.net.pools[0]
	again := &docknet{id: s.net.id, pools: []*pool{{cidr: p.cidr, gateway: p.gateway}}}
	s.manager().allocate(again)
	s.net = again
	for a := range s.held {
		if _, err := s.manager().take(again, a); err != nil {
			s.Fatalf("take %s again: %v", a, err)
		}
	}
}

func (s *randomSwarm) restart() {
	s.envs[rapid.IntRange(0, len(s.envs)-1).Draw(s.T, "killed")].restart()
}

// check compares the SDN with what the manager holds and the tasks have, when all that is
// pending is done.
func (s *randomSwarm) check(*rapid.T) {
	want := maps.Clone(s.held)
	for a := range s.tasks {
		want[a] = true
	}
	plugged := make([]int, len(s.envs))
	for a := range s.tasks {
		plugged[s.on[a]]++
	}
	ok := eventually(func() bool {
		got := s.envs[0].counts()
		if got[0] != 1 || got[1] > 1 || got[2] != len(want) {
			return false
		}
		for i, e := range s.envs {
			if e.binder.count() != plugged[i] {
				return false
			}
		}
		return true
	})
	if !ok {
		s.Fatalf("the manager holds %v, the tasks have %v, the SDN\n%s",
			s.held, slices.Collect(maps.Keys(s.tasks)), s.envs[0].dump())
	}
}

// A manager and three nodes do what they do in any order, are killed and started again,
// and another leads. When all is released, nothing is left.
func TestAtRandom(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		s := &randomSwarm{
			T: r, envs: newSwarm(t, "two", "three"), held: map[netip.Addr]bool{}, nodes: map[int]*docknet{},
			tasks: map[netip.Addr]*task{}, on: map[netip.Addr]int{},
		}
		s.net = s.manager().allocate(&docknet{pools: ranges("10.130.0.0/24")})
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
		for a, x := range s.tasks {
			s.envs[s.on[a]].halt(x)
		}
		for i, node := range s.nodes {
			s.envs[i].remove(node)
		}
		if !early {
			s.manager().unallocate(s.net)
		}
		cleanAll(s.envs)
		for _, e := range s.envs {
			e.stop()
		}
		if t.Failed() {
			r.FailNow()
		}
	})
}

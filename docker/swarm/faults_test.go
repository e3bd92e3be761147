package swarm

import (
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/dockertest"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// What a manager and a node release while the SDN is unavailable goes when it is
// available again.
func TestUnavailableAtFree(t *testing.T) {
	t.Parallel()
	for _, restarted := range []bool{false, true} {
		envs := newSwarm(t, "two")
		manager, two := envs[0], envs[1]
		n := manager.allocate(&docknet{pools: ranges("10.130.0.0/24")})
		manager.any(n)
		node := two.onNode(n)
		r := two.run(node, manager.any(n))
		for _, e := range envs {
			e.away.Store(true)
		}
		if err := manager.tryAllocate(&docknet{pools: ranges("10.131.0.0/24")}); !sdn.IsUnavailable(err) {
			t.Errorf("error %v", err)
		}
		two.halt(r)
		two.must(two.DeleteNetwork(t.Context(), n.id))
		manager.must(manager.releaseAddress(n.pools[0].id, r.addr))
		manager.must(manager.tryFree(n))
		manager.must(manager.releasePool(n.pools[0].id))
		if two.binder.count() != 0 {
			t.Error("still plugged")
		}
		manager.expect(1, 1, 2)
		for _, e := range envs {
			if restarted {
				e.restart()
			}
			e.away.Store(false)
		}
		cleanAll(envs)
	}
}

// A manager that lost its place frees nothing of what another one has taken since.
func TestLateReleaseOfEarlierLife(t *testing.T) {
	t.Parallel()
	envs := newSwarm(t, "other")
	e, leader := envs[0], envs[1]
	n := e.allocate(&docknet{pools: ranges("10.130.0.0/24")})
	addr := e.any(n)
	e.away.Store(true)
	e.must(e.releaseAddress(n.pools[0].id, addr))
	again := leader.allocate(&docknet{id: n.id, pools: ranges("10.130.0.0/24")})
	_, err := leader.take(again, addr)
	leader.must(err)
	e.away.Store(false)
	if !eventually(func() bool { return len(e.store.Rows()) == 0 }) {
		t.Error("the release is pending")
	}
	if p, found := leader.port(again, addr); !found || len(heldBy(p)) != 1 {
		t.Errorf("port %+v", p)
	}
	leader.unallocate(again)
	cleanAll(envs)
}

// Another manager frees what one has allocated, and the other one's rows do not matter.
func TestFreedByAnother(t *testing.T) {
	t.Parallel()
	envs := newSwarm(t, "other")
	e, other := envs[0], envs[1]
	n := e.allocate(&docknet{pools: ranges("10.130.0.0/24")})
	e.any(n)
	if rows := e.store.Rows(); len(rows) != 0 {
		t.Errorf("rows of an answered manager: %v", rows)
	}
	other.unallocate(n)
	e.restart()
	cleanAll(envs)
	e.allocate(n)
	e.unallocate(n)
	cleanAll(envs)
}

// A host that comes back does not delete what another manager has allocated since.
func TestKilledAllocationIsAnothers(t *testing.T) {
	t.Parallel()
	envs := newSwarm(t, "other")
	e, leader := envs[0], envs[1]
	e.fault = dieAt(e, "UpdateNetwork")
	n := &docknet{pools: ranges("10.130.0.0/24")}
	if e.tryAllocate(n) == nil {
		t.Fatal("a killed host has answered")
	}
	again := leader.allocate(&docknet{id: n.id, pools: ranges("10.130.0.0/24")})
	vip := leader.any(again)
	e.fault = nil
	e.revive()
	if !eventually(func() bool { return len(e.store.Rows()) == 0 }) {
		t.Error("its allocation is pending")
	}
	if p, found := leader.port(again, vip); !found {
		t.Errorf("port %+v", p)
	}
	v, _, err := e.network(t.Context(), n.id)
	if err != nil || isDeleted(v) || !slices.Contains(v.Tags, identity.TagAllocated) {
		t.Errorf("network %+v, error %v", v, err)
	}
	leader.unallocate(again)
	cleanAll(envs)
}

// A call that the engine waits for is made again while other hosts change the same tags. A
// deletion is answered, and done later.
func TestStale(t *testing.T) {
	t.Parallel()
	e := newSwarm(t)[0]
	var left atomic.Int32
	e.fault = func(method string, after bool) error {
		if method == "UpdateNetwork" && !after && left.Add(-1) >= 0 {
			return sdn.Conflict(sdn.Stale, "network", "", "others change it")
		}
		return nil
	}
	left.Store(8)
	n := e.allocate(&docknet{pools: ranges("10.130.0.0/24")})
	left.Store(8)
	e.onNode(n)
	left.Store(1000)
	e.must(e.DeleteNetwork(t.Context(), n.id))
	left.Store(0)
	e.unallocate(n)
	cleanAll([]*env{e})
}

// Nodes join and leave a network at the same time.
func TestNodesAtOnce(t *testing.T) {
	t.Parallel()
	envs := newSwarm(t, "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
	n := envs[0].allocate(&docknet{pools: ranges("10.130.0.0/24")})
	all := func(call func(*env) error) {
		t.Helper()
		var calls sync.WaitGroup
		for _, e := range envs {
			calls.Go(func() {
				if err := call(e); err != nil {
					t.Error(err)
				}
			})
		}
		calls.Wait()
	}
	all(func(e *env) error { _, err := e.tryOnNode(n); return err })
	found, _, err := envs[0].network(t.Context(), n.id)
	if err != nil || len(nodes(found.Tags)) != len(envs) {
		t.Errorf("nodes %v, %v", nodes(found.Tags), err)
	}
	all(func(e *env) error { return e.DeleteNetwork(t.Context(), n.id) })
	envs[0].unallocate(n)
	cleanAll(envs)
}

// A repeat of a call that was killed completes the cleanup of the first try.
func TestRepeatOfKilled(t *testing.T) {
	t.Parallel()
	e := newSwarm(t)[0]
	n := &docknet{pools: ranges("10.130.0.0/24")}
	killed := func(method string, call func() error) {
		t.Helper()
		e.fault = dieAt(e, method)
		if err := call(); e.reborn == nil {
			t.Fatalf("the host was not killed at %s: %v", method, err)
		}
		e.fault = nil
		e.reborn()
		e.reborn = nil
		e.away.Store(true) // nothing is cleaned up before the repeat
		e.start()
		time.AfterFunc(20*time.Millisecond, func() { e.away.Store(false) })
		if !eventually(func() bool { return !e.away.Load() }) {
			t.Fatal("the SDN is unavailable")
		}
		e.must(call())
	}
	killed("UpdateNetwork", func() error { return e.tryAllocate(n) })
	var node *docknet
	killed("AttachSubnet", func() (err error) {
		node, err = e.tryOnNode(n)
		return err
	})
	e.expect(1, 1, 0)
	e.remove(node)
	e.unallocate(n)
	e.clean()
}

// dieAt kills a host before its next call of a method.
func dieAt(e *env, method string) func(string, bool) error {
	var once sync.Once
	return func(m string, _ bool) error {
		if m != method {
			return nil
		}
		once.Do(e.die)
		return errAway
	}
}

// die keeps the database of this moment, and makes the SDN unavailable to the process,
// whose calls end. The next process is e.start.
func (e *env) die() {
	e.away.Store(true)
	path, stop := dockertest.CopyDatabase(e, e.path), e.stop
	e.reborn = func() {
		stop()
		e.path = path
		e.away.Store(false)
	}
}

// faultAt makes the n-th call of any host that changes something fail. mode says how.
type faultAt struct {
	mu   sync.Mutex
	n    int
	mode string
	hit  bool
}

func (f *faultAt) of(e *env) func(string, bool) error {
	return func(_ string, after bool) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if !after {
			f.n--
		}
		if f.n != 0 || after == (f.mode == "killed before") || f.hit {
			return nil
		}
		f.hit = true
		if f.mode != "lost" {
			e.die()
		}
		return errAway
	}
}

// step is what an engine does. After an error it undoes it, if there is something to
// undo, and repeats it.
type step struct {
	on   int
	do   func(e *env) error
	undo func(e *env) error
}

// story is the life of a network of a swarm.
func story() []step {
	n := &docknet{id: swarmID(), pools: ranges("10.130.0.0/24", "fd00:130::/64")}
	var node, other *docknet
	var vip, first, second netip.Addr
	a, b := &task{id: endpointID()}, &task{id: endpointID()}
	do := func(on int, f func(e *env) error) step { return step{on: on, do: f} }
	take := func(to *netip.Addr) step {
		return do(0, func(e *env) (err error) {
			*to, err = e.take(n, netip.Addr{})
			return err
		})
	}
	create := func(on int, to **docknet) step {
		return do(on, func(e *env) (err error) {
			*to, err = e.tryOnNode(n)
			return err
		})
	}
	run := func(on int, r *task, of **docknet, addr *netip.Addr) step {
		s := do(on, func(e *env) error {
			r.net, r.addr = *of, *addr
			return e.tryRun(r)
		})
		s.undo = func(e *env) error { return e.tryStop(r) }
		return s
	}
	return []step{
		do(0, func(e *env) error { return e.tryAllocate(n) }),
		take(&vip), take(&first), take(&second),
		create(0, &node), create(1, &other),
		run(0, a, &node, &first), run(1, b, &other, &second),
		do(0, func(e *env) error { return e.releaseAddress(n.pools[0].id, first) }),
		do(0, func(e *env) error { return e.tryStop(a) }),
		do(0, func(e *env) error { return e.tryRemove(node) }),
		do(0, func(e *env) error { return e.tryUnallocate(n) }),
		do(1, func(e *env) error { return e.tryStop(b) }),
		do(1, func(e *env) error { return e.tryRemove(other) }),
	}
}

// Hosts are killed at each call of the SDN that changes something, before and after its
// effect, and its answer is lost.
func TestKilledAnywhere(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"killed before", "killed after", "lost"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			p := newHosts(t)
			for n := 1; ; n++ {
				f := &faultAt{n: n, mode: mode}
				envs := swarmOn(t, p, "two")
				for _, e := range envs {
					e.fault = f.of(e)
				}
				for i, s := range story() {
					e := envs[s.on]
					var err error
					for range 3 {
						err = s.do(e)
						dead := false
						for _, e := range envs {
							dead = e.revive() || dead
						}
						if err == nil && !dead {
							break
						}
						if s.undo != nil {
							e.must(s.undo(e))
						}
					}
					if err != nil {
						t.Fatalf("call %d, step %d: %v", n, i, err)
					}
				}
				for _, e := range envs {
					if e.clean(); t.Failed() {
						t.Fatalf("call %d", n)
					}
					e.stop()
				}
				if !f.hit {
					t.Logf("%d calls", n-1)
					return
				}
			}
		})
	}
}

// revive starts the next process of a host that died.
func (e *env) revive() bool {
	if e.reborn == nil {
		return false
	}
	e.reborn()
	e.reborn = nil
	e.start()
	return true
}

// A network whose router is refused is not this node's, and a repeat is answered.
func TestRefusedJoin(t *testing.T) {
	t.Parallel()
	e := newSwarm(t)[0]
	n := e.allocate(&docknet{pools: ranges("10.130.0.0/24")})
	e.fault = func(method string, _ bool) error {
		if method == "AttachSubnet" {
			return sdn.Conflict(sdn.InUse, "router", "", "test")
		}
		return nil
	}
	if _, err := e.tryOnNode(n); sdn.ReasonOf(err) != sdn.InUse {
		t.Errorf("error %v", err)
	}
	found, _, err := e.network(t.Context(), n.id)
	e.must(err)
	if len(nodes(found.Tags)) > 0 {
		t.Errorf("tags %v", found.Tags)
	}
	e.fault = nil
	node := e.onNode(n)
	e.expect(1, 1, 0)
	e.remove(node)
	e.unallocate(n)
	e.clean()
}

// A node that lost its database has its networks and endpoints again.
func TestDatabaseLost(t *testing.T) {
	t.Parallel()
	e := newSwarm(t)[0]
	n := e.allocate(&docknet{pools: ranges("10.130.0.0/24")})
	node := e.onNode(n)
	lost, kept := e.run(node, e.any(n)), e.run(node, e.any(n))
	e.stop()
	e.path = filepath.Join(t.TempDir(), "docker.db")
	e.start()
	if !eventually(func() bool { _, joined := e.share.Get(n.id); return joined }) {
		t.Error("the network has no row")
	}
	e.must(e.releaseAddress(lost.pool.id, lost.addr)) // its DeleteEndpoint was lost, too
	if p, found := e.port(n, lost.addr); !found || p.DeviceID != "" {
		t.Errorf("port %+v", p)
	}
	e.halt(kept)
	if v, err := e.Find(t.Context(), n.id); err != nil || len(v.Subnets) != 1 {
		t.Errorf("view %+v, error %v", v, err)
	}
	e.unallocate(n)
	e.remove(node)
	e.clean()
}

// Without room for new rows requests fail, and nothing is made. Old rows can be
// deleted.
func TestFull(t *testing.T) {
	t.Parallel()
	e := newSwarm(t)[0]
	n := e.allocate(&docknet{pools: ranges("10.130.0.0/24")})
	e.any(n)
	before := e.dump()
	e.stop()
	e.room = func() error { return errors.New("test") }
	e.start()
	if _, err := e.take(n, netip.Addr{}); !errors.Is(err, reconcile.ErrFull) {
		t.Errorf("error %v", err)
	}
	if _, err := e.tryOnNode(n); !errors.Is(err, reconcile.ErrFull) {
		t.Errorf("error %v", err)
	}
	if after := e.dump(); after != before {
		t.Errorf("the SDN has\n%s\nand had\n%s", after, before)
	}
	e.unallocate(n)
	e.clean()
}

// A request for the address of an endpoint that another node runs is refused, also at the
// same time.
func TestSameAddressAtOnce(t *testing.T) {
	t.Parallel()
	e := newSwarm(t)[0]
	n := e.allocate(&docknet{pools: ranges("10.130.0.0/24")})
	want := netip.MustParseAddr("10.130.0.77")
	var calls sync.WaitGroup
	given := make(chan netip.Addr, 8)
	for range cap(given) {
		calls.Go(func() {
			a, err := e.take(n, want)
			if err == nil {
				given <- a
			} else if _, ok := errors.AsType[*api.Refusal](err); !ok {
				t.Errorf("error %v", err)
			}
		})
	}
	calls.Wait()
	if len(given) != 1 {
		t.Errorf("%d requests got %v", len(given), want)
	}
	e.expect(1, 0, 1)
	e.unallocate(n)
	e.clean()
}

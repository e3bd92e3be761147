package docker

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kuryr/kuryr/docker/engine"
	"github.com/kuryr/kuryr/sdn"
)

// fakeEngine has what it is told to have.
type fakeEngine struct {
	mu        sync.Mutex
	view      engine.List
	on        map[string][]engine.Endpoint
	err       error
	lists     atomic.Int64
	inspected atomic.Int64
}

func newFakeEngine(id string) *fakeEngine {
	return &fakeEngine{view: engine.List{Engine: id}, on: map[string][]engine.Endpoint{}}
}

func (e *fakeEngine) List(context.Context) (engine.List, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lists.Add(1)
	view := e.view
	view.Networks, view.Containers = slices.Clone(view.Networks), slices.Clone(view.Containers)
	return view, e.err
}

func (e *fakeEngine) Endpoints(_ context.Context, network string) ([]engine.Endpoint, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.inspected.Add(1)
	return slices.Clone(e.on[network]), e.err
}

// change changes what the engine has.
func (e *fakeEngine) change(do func(e *fakeEngine)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	do(e)
}

// ranges are the subnets of an engine's network.
func ranges(cidr string) []engine.Subnet {
	return []engine.Subnet{{Range: netip.MustParsePrefix(cidr)}}
}

// has makes the engine have networks.
func (e *fakeEngine) has(networks ...*network) {
	e.change(func(e *fakeEngine) {
		for _, n := range networks {
			known := engine.Network{ID: n.id, Name: "net-" + n.id, Ours: true, OurIPAM: true}
			for _, p := range slices.Concat(n.v4, n.v6) {
				known.Subnets = append(known.Subnets, ranges(p.cidr)...)
			}
			e.view.Networks = append(e.view.Networks, known)
		}
	})
}

// runs makes the engine have endpoints of containers that run.
func (e *fakeEngine) runs(endpoints ...*endpoint) {
	e.change(func(e *fakeEngine) {
		for _, p := range endpoints {
			has := engine.Endpoint{
				ID: p.id, Network: p.net.id, Container: "c" + p.id,
				Addresses: []netip.Addr{netip.MustParseAddr(p.ip4)},
			}
			e.view.Containers = append(e.view.Containers, engine.Container{State: "running", Endpoints: []engine.Endpoint{has}})
			e.on[p.net.id] = append(e.on[p.net.id], has)
		}
	})
}

// forgets makes the engine lose a network.
func (e *fakeEngine) forgets(n *network) {
	e.change(func(e *fakeEngine) {
		e.view.Networks = slices.DeleteFunc(e.view.Networks, func(has engine.Network) bool { return has.ID == n.id })
		delete(e.on, n.id)
	})
}

// stops makes the engine lose all containers, and with them their endpoints.
func (e *fakeEngine) stops() {
	e.change(func(e *fakeEngine) { e.view.Containers, e.on = nil, map[string][]engine.Endpoint{} })
}

// engineBox is a box whose rows are compared with an engine, by a driver that runs. What an engine
// does not have for a minute is deleted.
type engineBox struct {
	*box
	engine *fakeEngine
	reg    *prometheus.Registry
	end    func() // of Run
}

// withEngine calls a test in a bubble of synctest.
func withEngine(t *testing.T, test func(t *testing.T, e *engineBox)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { test(t, newEngineBox(t)) })
}

func newEngineBox(t *testing.T, change ...func(*Config)) *engineBox {
	t.Helper()
	e := &engineBox{engine: newFakeEngine("one"), reg: prometheus.NewRegistry(), end: func() {}}
	e.box = newBox(t, append([]func(*Config){func(c *Config) {
		c.Engine, c.ForgetAfter, c.Registerer = e.engine, time.Minute, e.reg
	}}, change...)...)
	t.Cleanup(func() { e.end() })
	e.runDriver()
	return e
}

func (e *engineBox) runDriver() {
	ctx, cancel := context.WithCancel(e.t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = e.driver.Run(ctx) })
	e.end = func() { cancel(); running.Wait() }
	synctest.Wait()
}

// again kills the plugin and starts it again, with the engine that there is now.
func (e *engineBox) again() {
	e.t.Helper()
	e.end()
	e.config.Registerer, e.config.Engine = nil, e.engine
	e.restart()
	e.runDriver()
}

// listed creates a network that the engine has.
func (e *engineBox) listed(cidr string) *network {
	e.t.Helper()
	n := e.create(v4Network(cidr))
	e.engine.has(n)
	return n
}

// unlisted creates a network that the engine had and no longer has.
func (e *engineBox) unlisted(cidr string) {
	e.t.Helper()
	n := e.listed(cidr)
	e.compare(0)
	e.engine.forgets(n)
}

// compare compares after some time, as after an event of the engine.
func (e *engineBox) compare(after time.Duration) {
	e.t.Helper()
	time.Sleep(after + time.Second) // at most one comparison a second
	e.driver.Compare()
	synctest.Wait()
}

// expire lets the grace period pass, and the minute in which an engine may be creating something.
func (e *engineBox) expire() {
	e.t.Helper()
	e.compare(0)
	e.compare(2 * time.Minute)
}

// wants checks what the engine does not have: by noun, whether it is kept, and whether it is in use.
func (e *engineBox) wants(want string) {
	e.t.Helper()
	synctest.Wait()
	found, err := e.driver.Orphans(e.t.Context())
	e.must(err)
	var all []string
	for _, o := range found {
		line := o.Noun
		if o.Kept {
			line += " kept"
		}
		if o.InUse {
			line += " used"
		}
		all = append(all, line)
	}
	slices.Sort(all)
	if got := strings.Join(all, ", "); got != want {
		e.t.Errorf("found %q, want %q", got, want)
	}
}

// purge deletes orphans on demand, and returns how many.
func (e *engineBox) purge(now bool, gone string) int {
	e.t.Helper()
	purged, err := e.driver.Purge(e.t.Context(), now, gone)
	e.must(err)
	for _, o := range purged {
		if o.Err != nil {
			e.t.Error(o, o.Err)
		}
	}
	synctest.Wait()
	return len(purged)
}

// halfEngine fails when it is asked for more than a list.
type halfEngine struct{ *fakeEngine }

func (halfEngine) Endpoints(context.Context, string) ([]engine.Endpoint, error) {
	return nil, errors.New("unavailable")
}

// failingBinder cannot unplug.
type failingBinder struct {
	*fakeBinder
	tried atomic.Int64
}

func (b *failingBinder) Unplug(context.Context, sdn.Port) error {
	b.tried.Add(1)
	return errors.New("the kernel is busy")
}

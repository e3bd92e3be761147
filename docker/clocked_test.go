package docker

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kuryr/kuryr/docker/engine"
	"github.com/kuryr/kuryr/sdn"
)

// fakeEngine has what it is told to have.
type fakeEngine struct {
	view      engine.List
	on        map[string][]engine.Endpoint
	err       error
	inspected int
}

func newFakeEngine(id string) *fakeEngine {
	return &fakeEngine{view: engine.List{Engine: id}, on: map[string][]engine.Endpoint{}}
}

func (e *fakeEngine) List(context.Context) (engine.List, error) { return e.view, e.err }

func (e *fakeEngine) Endpoints(_ context.Context, network string) ([]engine.Endpoint, error) {
	e.inspected++
	return e.on[network], e.err
}

// ranges are the subnets of an engine's network.
func ranges(cidr string) []engine.Subnet {
	return []engine.Subnet{{Range: netip.MustParsePrefix(cidr)}}
}

// has makes the engine know networks.
func (e *fakeEngine) has(networks ...*network) {
	for _, n := range networks {
		known := engine.Network{ID: n.id, Name: "net-" + n.id, Ours: true, OurIPAM: true}
		for _, p := range slices.Concat(n.v4, n.v6) {
			known.Subnets = append(known.Subnets, ranges(p.cidr)...)
		}
		e.view.Networks = append(e.view.Networks, known)
	}
}

// runs makes the engine know an endpoint by its container.
func (e *fakeEngine) runs(endpoints ...*endpoint) {
	for _, p := range endpoints {
		has := engine.Endpoint{ID: p.id}
		e.view.Containers = append(e.view.Containers, engine.Container{Endpoints: []engine.Endpoint{has}})
		has.Addresses = []netip.Addr{netip.MustParseAddr(p.ip4)}
		e.on[p.net.id] = append(e.on[p.net.id], has)
	}
}

func (e *fakeEngine) forgets(n *network) {
	e.view.Networks = slices.DeleteFunc(e.view.Networks, func(has engine.Network) bool { return has.ID == n.id })
}

// clocked is a box with an engine and a memory whose time the test sets.
type clocked struct {
	*box
	engine *fakeEngine
	memory *Memory
	time   time.Time
	reg    *prometheus.Registry
}

func newClocked(t *testing.T) *clocked {
	t.Helper()
	c := &clocked{time: time.Now(), reg: prometheus.NewRegistry()}
	c.box = newBox(t, func(cfg *Config) { cfg.Registerer = c.reg })
	c.engine = newFakeEngine("one")
	c.again()
	return c
}

// again is Kuryr started anew: nothing of the memory is left.
func (c *clocked) again() {
	c.config.Registerer = nil
	if c.memory != nil {
		c.restart()
	}
	c.memory = NewMemory(c.driver, c.engine, time.Minute)
	c.memory.now = func() time.Time { return c.time }
}

// compare compares after some time and gives when it wants to again.
func (c *clocked) compare(after time.Duration) time.Time {
	c.t.Helper()
	c.time = c.time.Add(after)
	next, err := c.memory.Compare(c.t.Context())
	c.must(err)
	return next
}

// findings are what a comparison says now, a line each.
func (c *clocked) findings() string {
	c.t.Helper()
	found, err := c.driver.Forgotten(c.t.Context(), c.engine)
	c.must(err)
	var all []string
	for _, f := range found.Forgotten {
		line := f.Noun
		if f.Kept != "" {
			line += " kept"
		}
		if f.Connected {
			line += " connected"
		}
		all = append(all, line)
	}
	slices.Sort(all) // of one noun they come in the order of their ids, which are random
	return strings.Join(all, ", ")
}

func (c *clocked) wants(want string) {
	c.t.Helper()
	if got := c.findings(); got != want {
		c.t.Errorf("found %q, want %q", got, want)
	}
}

func v4Network(cidr string) *network { return &network{v4: []*pool{{cidr: cidr}}} }

// halfEngine looks well and fails when it is asked more.
type halfEngine struct{ *fakeEngine }

func (halfEngine) Endpoints(context.Context, string) ([]engine.Endpoint, error) {
	return nil, errors.New("away")
}

// failingBinder cannot unplug.
type failingBinder struct {
	*fakeBinder
	tried int
}

func (b *failingBinder) Unplug(context.Context, sdn.Port) error {
	b.tried++
	return errors.New("the kernel is busy")
}

package docker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kuryr/kuryr/sdn"
)

// fakeEngine has what it is told to have.
type fakeEngine struct {
	view      EngineView
	on        map[string][]EngineEndpoint
	err       error
	inspected int
}

func (e *fakeEngine) Look(context.Context) (EngineView, error) { return e.view, e.err }

func (e *fakeEngine) Endpoints(_ context.Context, network string) ([]EngineEndpoint, bool, error) {
	e.inspected++
	list, ok := e.on[network]
	return list, ok, e.err
}

// has makes the engine know networks.
func (e *fakeEngine) has(networks ...*network) {
	for _, n := range networks {
		known := EngineNetwork{ID: n.id, Name: "net-" + n.id, Ours: true, OurIPAM: true}
		for _, p := range slices.Concat(n.v4, n.v6) {
			known.Ranges = append(known.Ranges, netip.MustParsePrefix(p.cidr))
		}
		e.view.Networks = append(e.view.Networks, known)
	}
}

// runs makes the engine know an endpoint by its container.
func (e *fakeEngine) runs(endpoints ...*endpoint) {
	for _, p := range endpoints {
		e.view.Endpoints = append(e.view.Endpoints, EngineEndpoint{ID: p.id})
		e.on[p.net.id] = append(e.on[p.net.id], EngineEndpoint{ID: p.id, Addresses: []netip.Addr{netip.MustParseAddr(p.ip4)}})
	}
}

func (e *fakeEngine) forgets(n *network) {
	e.view.Networks = slices.DeleteFunc(e.view.Networks, func(has EngineNetwork) bool { return has.ID == n.id })
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
	c.engine = &fakeEngine{view: EngineView{ID: "one"}, on: map[string][]EngineEndpoint{}}
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
	return strings.Join(all, ", ")
}

func (c *clocked) wants(want string) {
	c.t.Helper()
	if got := c.findings(); got != want {
		c.t.Errorf("found %q, want %q", got, want)
	}
}

func v4Network(cidr string) *network { return &network{v4: []*pool{{cidr: cidr}}} }

// What Docker has is left alone, however often it is looked at.
func TestNothingIsForgotten(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	n := c.create(dualNetwork())
	e := c.run(&endpoint{net: n, published: []m{{"Proto": 6, "Port": 80, "HostPort": 8080}}})
	c.engine.has(n)
	c.engine.runs(e)
	before := len(strings.Split(c.dump(), "\n"))
	for range 3 {
		if next := c.compare(time.Hour); !next.IsZero() {
			t.Errorf("it wants to compare again at %s", next)
		}
	}
	if c.engine.inspected != 0 {
		t.Errorf("%d networks were asked for though nothing is missing", c.engine.inspected)
	}
	c.wants("")
	if after := len(strings.Split(c.dump(), "\n")); after != before {
		t.Errorf("%d objects of %d", after, before)
	}
	c.stop(e)
	c.remove(n)
	c.clean()
}

// A network and a container that were removed while nobody listened go: not at once, not after one look, and not while the engine
// does not answer.
func TestForgottenGoesAfterItsGrace(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	n := c.create(dualNetwork())
	stays := c.create(v4Network("10.77.0.0/24"))
	e := c.run(&endpoint{net: n, published: []m{{"Proto": 6, "Port": 80, "HostPort": 8080}}})
	c.engine.has(n, stays)
	c.engine.runs(e)
	c.compare(0)
	// They go in the engine, and the container's interface with it.
	c.again()
	c.engine.forgets(n)
	c.engine.view.Endpoints = nil
	clear(c.binder.plugged)
	full := c.dump()
	next := c.compare(0)
	if want := c.time.Add(time.Minute); !next.Equal(want) {
		t.Errorf("looks again at %s, want %s", next, want)
	}
	c.compare(59 * time.Second)
	c.engine.err = errors.New("away")
	c.time = c.time.Add(time.Hour)
	if _, err := c.memory.Compare(t.Context()); err == nil {
		t.Error("an engine that fails is no error")
	}
	if now := c.dump(); now != full {
		t.Fatalf("something went too early:\n%s", now)
	}
	c.engine.err = nil
	c.compare(0)
	c.wants("")
	c.remove(stays)
	c.clean()
}

// A restart begins anew: one look after it removes nothing.
func TestRestartForgetsTheSuspects(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	n := c.create(v4Network("10.77.0.0/24"))
	c.engine.has(n)
	c.compare(0)
	c.engine.forgets(n)
	c.compare(0)
	c.again()
	c.compare(time.Hour)
	c.wants("network")
	c.compare(time.Minute)
	c.clean()
}

// An endpoint whose container is gone goes alone; one whose interface a container has stays, with its network.
func TestForgottenEndpoint(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	n := c.create(v4Network("10.77.0.0/24"))
	gone, runs, alive := c.run(&endpoint{net: n}), c.run(&endpoint{net: n}), c.run(&endpoint{net: n})
	c.engine.has(n)
	c.engine.runs(runs)
	delete(c.binder.plugged, c.portOf(gone.id).ID)
	c.wants("endpoint, endpoint kept connected")
	if c.engine.inspected != 1 {
		t.Errorf("the network was asked for %d times", c.engine.inspected)
	}
	c.compare(0)
	c.compare(time.Minute)
	c.wants("endpoint kept connected")
	if _, found, err := c.driver.port(t.Context(), gone.id); found || err != nil {
		t.Errorf("the endpoint is there: %v", err)
	}
	// Nor does it go with its network, nor when somebody wants all removed now.
	c.engine.forgets(n)
	c.engine.view.Endpoints = nil
	c.compare(0)
	c.compare(time.Hour)
	done, err := c.memory.ForgetNow(t.Context(), true, "")
	c.must(err)
	if len(done) != 0 {
		t.Errorf("removed %v", done)
	}
	for _, e := range []*endpoint{runs, alive} {
		if _, found, err := c.driver.port(t.Context(), e.id); !found || err != nil {
			t.Errorf("endpoint %s is gone: %v", e.id, err)
		}
	}
}

// An endpoint that only its network tells of, because its container is being removed, is no suspect.
func TestEndpointWithoutContainer(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	n := c.create(v4Network("10.77.0.0/24"))
	e := c.run(&endpoint{net: n})
	c.engine.has(n)
	c.engine.runs(e)
	c.engine.view.Endpoints = nil
	c.wants("")
}

// An address that was given to nobody goes; one that an endpoint has stays; one that is asked for again in between stays.
func TestForgottenAddress(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	n := c.create(v4Network("10.77.0.0/24"))
	c.engine.has(n)
	c.compare(0)
	e := &endpoint{net: n}
	c.take(e)
	c.wants("address")
	c.compare(0)
	c.ok("NetworkDriver.CreateEndpoint", e.createBody())
	c.engine.runs(e)
	c.compare(time.Minute)
	c.wants("")
	lost := &endpoint{net: n}
	c.take(lost)
	c.compare(0)
	c.compare(time.Minute)
	c.wants("")
	c.stop(e)
	c.remove(n)
	c.clean()
}

// Changing what is suspected begins its grace anew.
func TestAddressTakenAgain(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	n := c.create(v4Network("10.77.0.0/24"))
	c.engine.has(n)
	e := &endpoint{net: n}
	c.take(e)
	found, err := c.driver.Forgotten(t.Context(), c.engine)
	c.must(err)
	c.ok("NetworkDriver.CreateEndpoint", e.createBody())
	if err := c.driver.Forget(t.Context(), found.Forgotten[0]); !errors.As(err, &stayed{}) {
		t.Errorf("error %v", err)
	}
	c.portOf(e.id)
}

// A pool whose request was answered to nobody goes; one that was just given does not, nor one that a network of another driver has.
func TestForgottenPool(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	lost := &pool{cidr: "10.77.0.0/24"}
	c.requestPool(lost, false)
	c.again() // killed before it answered
	used := &pool{cidr: "10.78.0.0/24"}
	c.requestPool(used, false)
	c.requestGateway(used)
	c.engine.view.Networks = []EngineNetwork{{ID: newID(), OurIPAM: true, Ranges: []netip.Prefix{netip.MustParsePrefix(used.cidr)}}}
	given := &pool{cidr: "10.79.0.0/24"}
	c.requestPool(given, false)
	c.wants("pool, pool")
	c.compare(0)
	c.compare(time.Minute)
	c.wants("pool")
	if err := c.driver.Forget(t.Context(), Forgotten{Noun: NounPool, ID: sdn.ID(given.id)}); !errors.As(err, &stayed{}) {
		t.Errorf("a pool that was just given: %v", err)
	}
	for _, p := range []*pool{used, given} {
		c.ok("IpamDriver.ReleasePool", m{"PoolID": p.id})
	}
	c.clean()
}

// A pool that a network was made of meanwhile stays, and so does its network.
func TestPoolBecomesANetwork(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	n := v4Network("10.77.0.0/24")
	body := c.request(n)
	found, err := c.driver.Forgotten(t.Context(), c.engine)
	c.must(err)
	c.ok("NetworkDriver.CreateNetwork", body)
	if err := c.driver.Forget(t.Context(), found.Forgotten[0]); !errors.As(err, &stayed{}) {
		t.Errorf("error %v", err)
	}
	c.remove(n)
	c.clean()
}

// The addresses and the range of a network of another driver are kept while it has them.
func TestForgottenHidden(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	p := &pool{cidr: "10.77.0.0/24"}
	c.requestPool(p, false)
	c.requestGateway(p)
	take := func() string {
		return bareAddress(c.box, c.ok("IpamDriver.RequestAddress", m{"PoolID": p.id, "Options": m{optMAC: fmt.Sprintf("02:00:00:00:00:%02x", len(c.dump())%250)}})["Address"])
	}
	has, lost := take(), take()
	bridge := EngineNetwork{ID: newID(), OurIPAM: true, Ranges: []netip.Prefix{netip.MustParsePrefix(p.cidr)}}
	c.engine.view.Networks = []EngineNetwork{bridge}
	c.engine.on[bridge.ID] = []EngineEndpoint{{ID: "e", Addresses: []netip.Addr{netip.MustParseAddr(has)}}}
	c.again()
	c.compare(0)
	c.compare(time.Minute)
	c.wants("")
	if text := c.dump(); !strings.Contains(text, has) || strings.Contains(text, lost+" ") {
		t.Errorf("%s is to stay and %s to go:\n%s", has, lost, text)
	}
	c.engine.view.Networks = nil
	c.compare(0)
	c.compare(time.Minute)
	c.clean()
}

// Host ports that were published for an endpoint that has gone since.
func TestForgottenPublication(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	n := c.create(v4Network("10.77.0.0/24"))
	e := c.run(&endpoint{net: n, published: []m{{"Proto": 6, "Port": 80, "HostPort": 8080}}})
	c.engine.has(n)
	c.must(c.provider.DeletePorts(t.Context(), []sdn.ID{c.portOf(e.id).ID}))
	clear(c.binder.plugged)
	c.wants("publication")
	c.compare(0)
	c.compare(time.Minute)
	c.remove(n)
	c.clean()
}

// What another engine had, or nobody was seen to have, stays until somebody says that it is gone for good.
func TestAnotherEngine(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	n, never := c.create(v4Network("10.77.0.0/24")), c.create(v4Network("10.78.0.0/24"))
	e := c.run(&endpoint{net: n})
	c.engine.has(n)
	c.engine.runs(e)
	c.compare(0)
	bare := &pool{cidr: "10.79.0.0/24"}
	c.requestPool(bare, false)
	c.requestGateway(bare)
	clear(c.binder.plugged)
	c.again()
	other := &fakeEngine{view: EngineView{ID: "two"}, on: map[string][]EngineEndpoint{}}
	c.engine = other
	c.again()
	full := c.dump()
	c.compare(0)
	c.compare(time.Hour)
	c.compare(time.Hour)
	if now := c.dump(); now != full {
		t.Errorf("another engine has removed something:\n%s", now)
	}
	c.wants("endpoint kept, network kept, network kept, pool kept")
	if _, err := c.memory.ForgetNow(t.Context(), true, "two"); err == nil {
		t.Error("the engine that answers is forgotten")
	}
	forget := func(engine string) {
		t.Helper()
		done, err := c.memory.ForgetNow(t.Context(), false, engine)
		c.must(err)
		for _, r := range done {
			if r.Err != nil {
				t.Error(r, r.Err)
			}
		}
	}
	forget("one")
	if text := c.dump(); strings.Contains(text, n.id) || !strings.Contains(text, never.id) {
		t.Errorf("after forgetting one:\n%s", text)
	}
	forget(unknownEngine)
	c.clean()
}

// An engine that is killed in CreateNetwork never has the network, so none was ever seen to have it. It goes with its range, where
// nothing else can have it.
func TestKilledInCreateNetwork(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	has := c.create(v4Network("10.77.0.0/24"))
	c.engine.has(has)
	c.create(dualNetwork())
	c.again()
	c.wants("network")
	c.compare(0)
	c.compare(30 * time.Second)
	c.wants("network")
	c.compare(time.Minute)
	c.wants("")
	c.remove(has)
	c.clean()
}

// It is not taken for lost while it may just be being made, however short the grace is.
func TestNetworkBeingCreated(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	c.memory.grace = time.Second
	has := c.create(v4Network("10.77.0.0/24"))
	c.engine.has(has)
	c.create(v4Network("10.78.0.0/24"))
	c.compare(0)
	if next := c.compare(50 * time.Second); next.Before(c.time) || next.After(c.time.Add(20*time.Second)) {
		t.Errorf("looks again %s later", next.Sub(c.time))
	}
	c.wants("network")
	if done, err := c.memory.ForgetNow(t.Context(), true, ""); err != nil || len(done) > 0 {
		t.Errorf("removed %v, %v", done, err)
	}
	c.compare(time.Minute)
	c.wants("")
	c.remove(has)
	c.clean()
}

// What may be somebody else's stays, though no engine was seen to have it.
func TestNetworkThatNobodyHas(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		do   func(c *clocked, seen, lost *network)
		want string
	}{
		{"as it was made", func(*clocked, *network, *network) {}, "network"},
		{"the engine has no network of ours", func(c *clocked, seen, _ *network) { c.engine.forgets(seen) }, "network kept, network kept"},
		{"the engine was seen to have one", func(c *clocked, seen, _ *network) {
			c.must(c.driver.Seen(c.t.Context(), "one", seen.id))
			c.engine.forgets(seen)
		}, "network, network"},
		{"an endpoint is on it", func(c *clocked, _, lost *network) {
			c.run(&endpoint{net: lost})
			clear(c.binder.plugged)
		}, "endpoint kept, network kept"},
		{"an endpoint was on it", func(c *clocked, _, lost *network) { c.stop(c.run(&endpoint{net: lost})) }, "network kept"},
		{"an address was taken on it", func(c *clocked, _, lost *network) { c.take(&endpoint{net: lost}) }, "network kept"},
		{"another one like it was used", func(c *clocked, _, _ *network) { c.stop(c.run(&endpoint{net: c.create(v4Network("10.79.0.0/24"))})) }, "network kept, network kept"},
		{"another engine had a network", func(c *clocked, _, _ *network) {
			c.must(c.driver.Seen(c.t.Context(), "two", c.create(v4Network("10.79.0.0/24")).id))
		}, "network kept, network kept"},
		{"another engine has a range", func(c *clocked, _, _ *network) {
			p := &pool{cidr: "10.79.0.0/24"}
			c.requestPool(p, false)
			c.again()
			two := &fakeEngine{view: EngineView{ID: "two", Networks: []EngineNetwork{{ID: newID(), OurIPAM: true, Ranges: []netip.Prefix{netip.MustParsePrefix(p.cidr)}}}}}
			found, err := c.driver.Forgotten(c.t.Context(), two)
			c.must(err)
			c.must(c.driver.rememberAll(c.t.Context(), found))
		}, "network kept, pool kept"},
		{"its range is Docker's own", func(c *clocked, _, lost *network) {
			c.remove(lost)
			c.ok("NetworkDriver.CreateNetwork", m{"NetworkID": newID(), "Options": m{optGeneric: m{}}, "IPv6Data": []m{},
				"IPv4Data": []m{{"AddressSpace": "LocalDefault", "Pool": "10.79.0.0/24", "Gateway": "10.79.0.1/24"}}})
		}, "network kept"},
		{"a node of a swarm has it", func(c *clocked, _, lost *network) {
			n, _, err := c.driver.findNetwork(c.t.Context(), lost.id)
			c.must(err)
			c.must(c.driver.changeNetwork(c.t.Context(), n, func(tags []string) []string { return append(tags, tagNode+"elsewhere") }))
		}, "network kept"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := newClocked(t)
			seen, lost := c.create(v4Network("10.77.0.0/24")), c.create(v4Network("10.78.0.0/24"))
			c.engine.has(seen)
			test.do(c, seen, lost)
			c.wants(test.want)
			c.compare(0)
			before := c.dump()
			c.compare(time.Hour)
			if after := c.dump(); (after == before) != strings.Contains(test.want, "kept") {
				t.Errorf("found %q, and then there was:\n%s", test.want, after)
			}
		})
	}
}

// Who uses the network, or is seen to have it, after the comparison is in time: it stays.
func TestUntouchedNetworkIsUsed(t *testing.T) {
	t.Parallel()
	for name, use := range map[string]func(c *clocked, n *network){
		"used": func(c *clocked, n *network) { c.stop(c.run(&endpoint{net: n})) },
		"seen": func(c *clocked, n *network) { c.must(c.driver.Seen(c.t.Context(), "two", n.id)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newClocked(t)
			seen, n := c.create(v4Network("10.77.0.0/24")), c.create(v4Network("10.78.0.0/24"))
			c.engine.has(seen)
			found, err := c.driver.Forgotten(t.Context(), c.engine)
			c.must(err)
			use(c, n)
			before := c.dump()
			if err := c.driver.Forget(t.Context(), found.Forgotten[0]); !errors.As(err, &stayed{}) {
				t.Errorf("error %v", err)
			}
			if after := c.dump(); after != before {
				t.Errorf("before:\n%s\nafter:\n%s", before, after)
			}
		})
	}
}

// That an endpoint was made on a network is noted once, and not where an engine was seen to have it.
func TestUseIsNoted(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	n, seen := c.create(v4Network("10.77.0.0/24")), c.create(v4Network("10.78.0.0/24"))
	c.must(c.driver.Seen(t.Context(), "one", seen.id))
	for _, on := range []*network{n, seen, n} {
		c.run(&endpoint{net: on})
	}
	used, _, err := c.driver.findNetwork(t.Context(), n.id)
	c.must(err)
	if got := tagValues(used.Tags, tagUsed); len(got) != 1 {
		t.Errorf("the first has tags %v", used.Tags)
	}
	other, _, err := c.driver.findNetwork(t.Context(), seen.id)
	c.must(err)
	if got := tagValues(other.Tags, tagUsed); len(got) != 0 {
		t.Errorf("the second has tags %v", other.Tags)
	}
	c.must(c.driver.changeNetwork(t.Context(), used, func(tags []string) []string { return append(without(tagUsed)(tags), tagDeleted) }))
	e := &endpoint{net: n}
	c.take(e)
	c.contains(c.fails("NetworkDriver.CreateEndpoint", e.createBody()), "being deleted")
}

// A network that the engine has is its, whoever had it before.
func TestEngineIsRemembered(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	n := c.create(v4Network("10.77.0.0/24"))
	c.must(c.driver.Seen(t.Context(), "zero", n.id))
	c.must(c.driver.Seen(t.Context(), "zero", newID()))
	if !strings.Contains(c.dump(), tagEngine+"zero") {
		t.Error(c.dump())
	}
	c.engine.has(n)
	c.compare(0)
	if text := c.dump(); !strings.Contains(text, tagEngine+"one") || strings.Contains(text, "zero") {
		t.Error(text)
	}
	c.remove(n)
	c.clean()
}

// A swarm's networks come and go on a node, and what one does not have others may.
func TestSwarmNetworksStay(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	n := v4Network("10.77.0.0/24")
	n.id = "x1w0slzlj5cy1pxqh2hwnebv9"
	c.create(n)
	c.engine.has(n)
	c.compare(0)
	c.engine.view.Swarm = true
	c.take(&endpoint{net: n}) // a service's virtual address, say
	c.wants("")
	c.engine.forgets(n)
	c.wants("network kept")
	c.time = c.time.Add(time.Hour)
	if done, err := c.memory.ForgetNow(t.Context(), true, unknownEngine); err != nil || len(done) > 0 {
		t.Errorf("removed %v, %v", done, err)
	}
	c.engine.view.Swarm = false
	c.wants("network")
	c.engine.view.Swarm = true
	if done, err := c.memory.ForgetNow(t.Context(), false, swarmEngine); err != nil || len(done) != 1 {
		t.Errorf("removed %v, %v", done, err)
	}
	c.clean()
}

// What a swarm's manager or a node has noted on a network counts, whatever its id looks like.
func TestSwarmTagsStay(t *testing.T) {
	t.Parallel()
	for _, tag := range []string{tagSwarm, tagAllocated, tagAllocating + "a", tagNode + "a", tagLeaving + "a"} {
		c := newClocked(t)
		n := c.create(v4Network("10.77.0.0/24"))
		c.engine.has(n)
		c.compare(0)
		has, _, err := c.driver.findNetwork(t.Context(), n.id)
		c.must(err)
		c.must(c.driver.changeNetwork(t.Context(), has, func(tags []string) []string { return append(tags, tag) }))
		c.engine.forgets(n)
		c.wants("network")
		c.engine.view.Swarm = true
		c.wants("network kept")
	}
}

// Without a grace time nothing goes by itself, and all at once on demand; but what was changed just now stays.
func TestForgetOnDemand(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	c.memory.grace = 0
	n := c.create(v4Network("10.77.0.0/24"))
	c.engine.has(n)
	c.compare(0)
	c.engine.forgets(n)
	if next := c.compare(time.Hour); !next.IsZero() {
		t.Errorf("looks again at %s", next)
	}
	c.compare(time.Hour)
	_, suspects, err := c.memory.Report(t.Context())
	c.must(err)
	if len(suspects) != 1 || suspects[0].Since.IsZero() || !suspects[0].Due.IsZero() {
		t.Errorf("report %+v", suspects)
	}
	for _, step := range []struct {
		all  bool
		age  time.Duration
		want int
	}{{false, time.Hour, 0}, {true, -3 * time.Hour, 0}, {true, 4 * time.Hour, 1}} {
		c.time = c.time.Add(step.age)
		done, err := c.memory.ForgetNow(t.Context(), step.all, "")
		c.must(err)
		if len(done) != step.want {
			t.Errorf("%+v removed %v", step, done)
		}
	}
	c.clean()
}

// Something of another host is no affair of this one's engine.
func TestOtherHostsAreLeftAlone(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	n := c.create(v4Network("10.77.0.0/24"))
	c.run(&endpoint{net: n})
	c.take(&endpoint{net: n})
	c.requestPool(&pool{cidr: "10.78.0.0/24"}, false)
	c.config.Host = "another"
	c.again()
	clear(c.binder.plugged)
	c.wants("")
}

func TestForgottenMetrics(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	n := c.create(v4Network("10.77.0.0/24"))
	c.engine.has(n)
	c.compare(0)
	c.engine.forgets(n)
	c.compare(0)
	if got := testutil.ToFloat64(c.driver.metrics.suspects); got != 1 {
		t.Errorf("%v suspects", got)
	}
	c.compare(time.Minute)
	want := "# HELP kuryr_docker_forgotten_total What was removed because Docker had forgotten it, by noun.\n# TYPE kuryr_docker_forgotten_total counter\nkuryr_docker_forgotten_total{noun=\"network\"} 1\n"
	if err := testutil.GatherAndCompare(c.reg, strings.NewReader(want), "kuryr_docker_forgotten_total"); err != nil {
		t.Error(err)
	}
	if got := testutil.ToFloat64(c.driver.metrics.suspects); got != 0 {
		t.Errorf("%v suspects", got)
	}
}

// An engine that fails in the middle, or does not say who it is, is no reason to remove anything.
func TestEngineThatDoesNotKnowItself(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	n := c.create(v4Network("10.77.0.0/24"))
	c.run(&endpoint{net: n})
	c.engine.has(n)
	for _, e := range []Engine{
		&fakeEngine{},
		halfEngine{c.engine},
	} {
		if got, err := c.driver.Forgotten(t.Context(), e); err == nil || len(got.Forgotten) > 0 {
			t.Errorf("%T: %v, %v", e, got, err)
		}
	}
}

// halfEngine looks well and fails when it is asked more.
type halfEngine struct{ *fakeEngine }

func (halfEngine) Endpoints(context.Context, string) ([]EngineEndpoint, bool, error) {
	return nil, false, errors.New("away")
}

// Networks that Docker has by this driver and the SDN does not.
func TestUnknownNetworks(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	c.engine.has(&network{id: newID()})
	got, err := c.driver.Forgotten(t.Context(), c.engine)
	c.must(err)
	if len(got.Unknown) != 1 || len(got.Forgotten) != 0 {
		t.Errorf("%+v", got)
	}
}

// A pool that was lost goes although a network has the same range from another pool.
func TestLostTwin(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	lost := &pool{cidr: "10.77.0.0/24"}
	c.requestPool(lost, false)
	c.requestGateway(lost)
	c.again() // killed, so the engine has no answer and asks anew
	n := c.create(v4Network(lost.cidr))
	c.engine.has(n)
	c.wants("pool")
	c.compare(0)
	c.compare(time.Minute)
	c.wants("")
	c.remove(n)
	c.clean()
}

// Between the comparison and the removal a container may get the interface: everything stays then, and its time begins anew.
func TestConnectedMeanwhile(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	n := c.create(v4Network("10.77.0.0/24"))
	e := c.run(&endpoint{net: n})
	c.engine.has(n)
	c.compare(0)
	c.engine.forgets(n)
	port := c.portOf(e.id)
	plugged := c.binder.plugged[port.ID]
	delete(c.binder.plugged, port.ID)
	found, err := c.driver.Forgotten(t.Context(), c.engine)
	c.must(err)
	c.binder.plugged[port.ID] = plugged
	if len(found.Forgotten) != 2 {
		t.Fatalf("found %v", found.Forgotten)
	}
	for _, f := range found.Forgotten {
		if err := c.driver.Forget(t.Context(), f); !errors.As(err, &stayed{}) {
			t.Errorf("%s: %v", f, err)
		}
	}
	c.portOf(e.id)
	if err := c.driver.Forget(t.Context(), Forgotten{Noun: "cloud"}); err == nil {
		t.Error("a cloud was forgotten")
	}
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

// What cannot be removed is tried again, ever later.
func TestRemovalFails(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	n := c.create(v4Network("10.77.0.0/24"))
	e := c.run(&endpoint{net: n})
	delete(c.binder.plugged, c.portOf(e.id).ID)
	c.engine.has(n)
	failing := &failingBinder{fakeBinder: c.binder}
	c.config.Binder = failing
	c.again()
	c.compare(0)
	wait := time.Minute
	for try, pause := range []time.Duration{2 * time.Minute, 4 * time.Minute, 8 * time.Minute} {
		c.time = c.time.Add(wait)
		next, err := c.memory.Compare(t.Context())
		if err == nil || failing.tried != try+1 || !next.Equal(c.time.Add(pause)) {
			t.Errorf("try %d: %v, tried %d times, next in %s, want %s", try, err, failing.tried, next.Sub(c.time), pause)
		}
		if c.compare(pause - time.Second); failing.tried != try+1 {
			t.Error("tried again too early")
		}
		wait = time.Second
	}
}

package docker

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/docker/engine"
	"github.com/kuryr/kuryr/sdn"
)

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
	c.engine.view.Containers = nil
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
	c.engine.view.Containers = nil
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
	c.engine.view.Containers = nil
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
	c.engine.view.Networks = []engine.Network{{ID: newID(), OurIPAM: true, Subnets: ranges(used.cidr)}}
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
	bridge := engine.Network{ID: newID(), OurIPAM: true, Subnets: ranges(p.cidr)}
	c.engine.view.Networks = []engine.Network{bridge}
	c.engine.on[bridge.ID] = []engine.Endpoint{{ID: "e", Addresses: []netip.Addr{netip.MustParseAddr(has)}}}
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

// A container keeps its interface although its port and what it publishes are gone.
func TestConnectedPublication(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	n := c.create(v4Network("10.77.0.0/24"))
	e := c.run(&endpoint{net: n, published: []m{{"Proto": 6, "Port": 80, "HostPort": 8080}}})
	c.engine.has(n)
	c.must(c.provider.DeletePorts(t.Context(), []sdn.ID{c.portOf(e.id).ID}))
	found, err := c.driver.Forgotten(t.Context(), c.engine)
	c.must(err)
	if len(found.Forgotten) != 1 || found.Forgotten[0].Noun != NounPublication {
		t.Fatalf("found %v", found.Forgotten)
	}
	if err := c.driver.Forget(t.Context(), found.Forgotten[0]); err != nil || c.binder.count() != 1 {
		t.Errorf("%v, %d interfaces", err, c.binder.count())
	}
}

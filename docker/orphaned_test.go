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

// What Docker has is left alone, however often it is listed.
func TestNothingIsOrphaned(t *testing.T) {
	withEngine(t, func(t *testing.T, c *engineBox) {
		n := c.create(dualNetwork())
		e := c.run(&endpoint{net: n, published: []m{{"Proto": 6, "Port": 80, "HostPort": 8080}}})
		c.engine.has(n)
		c.engine.runs(e)
		c.compare(0)
		before := c.dump()
		lists := c.engine.lists.Load()
		for range 3 {
			c.compare(time.Hour)
		}
		if more := c.engine.lists.Load() - lists; more > 3+4 { // three events, and once an hour
			t.Errorf("it was listed %d times", more)
		}
		if c.engine.inspected.Load() != 0 {
			t.Errorf("%d networks were asked for though nothing is missing", c.engine.inspected.Load())
		}
		c.wants("")
		c.unchanged(before)
		c.stop(e)
		c.remove(n)
		c.clean()
	})
}

// A network and a container that were removed while Kuryr was not running are deleted: not by the first
// list, not before the grace period is over, and not while the engine does not answer.
func TestOrphansExpire(t *testing.T) {
	withEngine(t, func(t *testing.T, c *engineBox) {
		n := c.create(dualNetwork())
		stays := c.create(v4Network("10.77.0.0/24"))
		e := c.run(&endpoint{net: n, published: []m{{"Proto": 6, "Port": 80, "HostPort": 8080}}})
		c.engine.has(n, stays)
		c.engine.runs(e)
		c.compare(0)
		time.Sleep(5 * time.Minute) // the start of the endpoint is over
		// They go in the engine, and the container's interface with it.
		c.engine.forgets(n)
		c.engine.stops()
		c.binder.unplugAll()
		full := c.dump()
		c.again()
		c.compare(50 * time.Second)
		if now := c.dump(); now != full {
			t.Fatalf("something was deleted too early:\n%s", now)
		}
		c.engine.change(func(e *fakeEngine) { e.err = errors.New("unavailable") })
		c.compare(time.Hour)
		if now := c.dump(); now != full {
			t.Fatalf("something was deleted while the engine was unavailable:\n%s", now)
		}
		c.engine.change(func(e *fakeEngine) { e.err = nil })
		c.expire()
		c.wants("")
		c.remove(stays)
		c.clean()
	})
}

// A restart begins the grace period again: one list after it deletes nothing.
func TestRestartBeginsGrace(t *testing.T) {
	withEngine(t, func(t *testing.T, c *engineBox) {
		c.unlisted("10.77.0.0/24")
		c.compare(0)
		c.end()
		time.Sleep(time.Hour)
		c.again()
		c.wants("network")
		c.expire()
		c.clean()
	})
}

// An endpoint whose container is gone is deleted. One whose interface a container has stays, with its
// network.
func TestOrphanedEndpoint(t *testing.T) {
	withEngine(t, func(t *testing.T, c *engineBox) {
		n := c.listed("10.77.0.0/24")
		gone, runs, alive := c.run(&endpoint{net: n}), c.run(&endpoint{net: n}), c.run(&endpoint{net: n})
		c.engine.runs(runs)
		time.Sleep(5 * time.Minute)
		c.binder.remove(c.portOf(gone.id).ID)
		c.engine.inspected.Store(0)
		c.wants("endpoint, endpoint used")
		c.expire()
		c.wants("endpoint used")
		if _, found, err := c.driver.endpoints.LookUp(t.Context(), gone.id); found || err != nil {
			t.Errorf("the endpoint is there: %v", err)
		}
		// Nor does it go with its network, nor on demand.
		c.engine.forgets(n)
		c.engine.stops()
		c.expire()
		if purged := c.purge(true, ""); purged != 0 {
			t.Errorf("purged %d", purged)
		}
		for _, e := range []*endpoint{runs, alive} {
			c.portOf(e.id)
		}
		c.binder.unplugAll()
		c.expire()
		c.clean()
	})
}

// The endpoint of a container that does not run, of which only its network tells, is no orphan.
func TestEndpointWithoutContainer(t *testing.T) {
	withEngine(t, func(t *testing.T, c *engineBox) {
		n := c.listed("10.77.0.0/24")
		e := c.run(&endpoint{net: n})
		c.engine.runs(e)
		c.engine.change(func(e *fakeEngine) { e.view.Containers = nil })
		c.binder.unplugAll()
		c.expire()
		c.expire()
		c.wants("")
		c.portOf(e.id)
		if c.engine.inspected.Load() == 0 {
			t.Error("the engine was not asked for the endpoints on the network")
		}
	})
}

// An address that no endpoint has is deleted. One that an endpoint gets stays.
func TestOrphanedAddress(t *testing.T) {
	withEngine(t, func(t *testing.T, c *engineBox) {
		n := c.listed("10.77.0.0/24")
		c.compare(0)
		e := &endpoint{net: n}
		c.take(e)
		c.wants("address")
		c.compare(0)
		c.ok("NetworkDriver.CreateEndpoint", e.createBody())
		c.engine.runs(e)
		c.expire()
		c.wants("")
		c.portOf(e.id)
		c.take(&endpoint{net: n})
		c.expire()
		c.wants("")
		c.stop(e)
		c.remove(n)
		c.clean()
	})
}

// A pool whose answer was lost is deleted. One that was just given stays, and so does one that a
// network of another driver has.
func TestOrphanedPool(t *testing.T) {
	withEngine(t, func(t *testing.T, c *engineBox) {
		has := c.listed("10.70.0.0/24")
		lost := &pool{cidr: "10.77.0.0/24"}
		c.requestPool(lost, false)
		c.again() // killed before it answered
		used := &pool{cidr: "10.78.0.0/24"}
		c.requestPool(used, false)
		c.requestGateway(used)
		c.engine.change(func(e *fakeEngine) {
			e.view.Networks = append(e.view.Networks, engine.Network{ID: newID(), OurIPAM: true, Subnets: ranges(used.cidr)})
		})
		c.compare(time.Minute)
		given := &pool{cidr: "10.79.0.0/24"}
		c.requestPool(given, false)
		c.compare(50 * time.Second)
		c.wants("pool")
		for _, p := range []*pool{used, given} {
			c.ok("IpamDriver.ReleasePool", m{"PoolID": p.id})
		}
		c.remove(has)
		c.clean()
	})
}

// A pool of which a network is created in the grace period stays, and so does its network.
func TestPoolBecomesANetwork(t *testing.T) {
	withEngine(t, func(t *testing.T, c *engineBox) {
		has := c.listed("10.70.0.0/24")
		n := v4Network("10.77.0.0/24")
		body := c.request(n)
		c.compare(0)
		time.Sleep(40 * time.Second)
		c.ok("NetworkDriver.CreateNetwork", body)
		c.engine.has(n)
		c.expire()
		c.expire()
		c.wants("")
		c.remove(n)
		c.remove(has)
		c.clean()
	})
}

// The addresses and the range of a network of another driver stay while it has them.
func TestOrphanedHidden(t *testing.T) {
	withEngine(t, func(t *testing.T, c *engineBox) {
		own := c.listed("10.70.0.0/24")
		p := &pool{cidr: "10.77.0.0/24"}
		c.requestPool(p, false)
		c.requestGateway(p)
		take := func(mac string) string {
			return bareAddress(c.box, c.ok("IpamDriver.RequestAddress", m{"PoolID": p.id, "Options": m{optMAC: mac}})["Address"])
		}
		has, lost := take("02:00:00:00:00:01"), take("02:00:00:00:00:02")
		bridge := engine.Network{ID: newID(), OurIPAM: true, Subnets: ranges(p.cidr)}
		c.engine.change(func(e *fakeEngine) {
			e.view.Networks = append(e.view.Networks, bridge)
			e.on[bridge.ID] = []engine.Endpoint{{ID: "e", Network: bridge.ID, Addresses: []netip.Addr{netip.MustParseAddr(has)}}}
		})
		c.again()
		c.expire()
		c.wants("")
		if text := c.dump(); !strings.Contains(text, has) || strings.Contains(text, lost+" ") {
			t.Errorf("%s must stay and %s must go:\n%s", has, lost, text)
		}
		c.engine.forgets(&network{id: bridge.ID})
		c.expire()
		c.expire()
		c.remove(own)
		c.clean()
	})
}

// An endpoint whose port was deleted in the SDN is deleted with its host ports, unless a container has
// its interface.
func TestOrphanedPublication(t *testing.T) {
	for _, connected := range []bool{false, true} {
		t.Run(fmt.Sprintf("connected %v", connected), func(t *testing.T) {
			withEngine(t, func(t *testing.T, c *engineBox) {
				n := c.listed("10.77.0.0/24")
				e := c.run(&endpoint{net: n, published: []m{{"Proto": 6, "Port": 80, "HostPort": 8080}}})
				time.Sleep(5 * time.Minute)
				c.must(c.provider.DeletePorts(t.Context(), []sdn.ID{c.portOf(e.id).ID}))
				if connected {
					c.wants("endpoint used")
					c.expire()
					if c.binder.count() != 1 {
						t.Error("the container has lost its interface")
					}
					return
				}
				c.binder.unplugAll()
				c.wants("endpoint")
				c.expire()
				c.remove(n)
				c.clean()
			})
		})
	}
}

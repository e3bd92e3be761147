package docker

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// The metrics count what is missing and what was deleted.
func TestOrphanMetrics(t *testing.T) {
	withEngine(t, func(t *testing.T, c *engineBox) {
		c.unlisted("10.77.0.0/24")
		c.compare(0)
		count := func(name string, want int) {
			t.Helper()
			if got, err := testutil.GatherAndCount(c.reg, name); err != nil || got != want {
				t.Errorf("%d of %s, want %d, %v", got, name, want, err)
			}
		}
		count("kuryr_intent_orphans_total", 0)
		count("kuryr_intent_orphan_candidates", 1)
		c.expire()
		count("kuryr_intent_orphans_total", 2) // a network and its pool
	})
}

// A pool whose answer was lost is deleted although a network has the same range of another.
func TestPoolOfSameRange(t *testing.T) {
	withEngine(t, func(t *testing.T, c *engineBox) {
		lost := &pool{cidr: "10.77.0.0/24"}
		c.requestPool(lost, false)
		c.requestGateway(lost)
		time.Sleep(2 * time.Minute) // the same range is refused before
		n := c.create(v4Network(lost.cidr))
		c.engine.has(n)
		c.expire()
		c.wants("")
		c.remove(n)
		c.clean()
	})
}

// A container gets the interface after the first list without its endpoint: the endpoint stays, and so
// does its network.
func TestConnectedMeanwhile(t *testing.T) {
	withEngine(t, func(t *testing.T, c *engineBox) {
		n := c.listed("10.77.0.0/24")
		e := c.run(&endpoint{net: n})
		c.engine.runs(e)
		c.compare(0)
		c.engine.forgets(n)
		c.engine.stops()
		port := c.portOf(e.id)
		plugged := c.binder.interfaceOf(port.ID)
		c.binder.remove(port.ID)
		c.ok("Plugin.Activate", nil) // the engine starts it no more
		c.compare(0)
		c.wants("endpoint, network")
		c.binder.put(port.ID, plugged)
		c.expire()
		c.portOf(e.id)
		c.wants("endpoint used, network used")
		c.binder.remove(port.ID)
		c.expire()
		c.clean()
	})
}

// What cannot be deleted is tried again, after longer and longer waits.
func TestDeletionFails(t *testing.T) {
	withEngine(t, func(t *testing.T, c *engineBox) {
		n := c.listed("10.77.0.0/24")
		e := c.run(&endpoint{net: n})
		failing := &failingBinder{fakeBinder: c.binder}
		c.config.Binder = failing
		c.again()
		c.binder.remove(c.portOf(e.id).ID)
		c.ok("Plugin.Activate", nil)
		c.expire()
		tried := failing.tried.Load()
		if tried == 0 || tried > 10 {
			t.Errorf("tried %d times in a minute", tried)
		}
		time.Sleep(10 * time.Minute)
		if more := failing.tried.Load() - tried; more == 0 || more > 20 {
			t.Errorf("tried %d times in ten minutes", more)
		}
		if rows := c.driver.Intents(); rows["endpoint/"+e.id] == nil {
			t.Error("the endpoint has no row")
		}
	})
}

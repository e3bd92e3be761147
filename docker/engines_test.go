package docker

import (
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/docker/engine"
	"github.com/kuryr/kuryr/internal/reconcile"
)

// What another engine had, or none has listed, stays until its engine is said to be gone.
func TestAnotherEngine(t *testing.T) {
	withEngine(t, func(t *testing.T, c *engineBox) {
		n := c.listed("10.77.0.0/24")
		e := c.run(&endpoint{net: n})
		c.engine.runs(e)
		c.compare(0)
		bare := &pool{cidr: "10.79.0.0/24"}
		c.requestPool(bare, false)
		c.requestGateway(bare)
		c.end()
		time.Sleep(2 * time.Minute) // the engine would have made a network of the range by now
		never := c.create(v4Network("10.78.0.0/24"))
		c.stop(c.run(&endpoint{net: never}))
		c.binder.unplugAll()
		c.again()
		first := c.engine
		c.engine = newFakeEngine("two")
		c.again()
		full := c.dump()
		c.expire()
		c.expire()
		c.unchanged(full)
		c.wants("endpoint kept, network kept, network kept, pool kept")
		if _, err := c.driver.Purge(t.Context(), true, "two"); err == nil {
			t.Error("what the engine has that answers is purged")
		}
		c.purge(false, "one")
		if text := c.dump(); strings.Contains(text, n.id) || !strings.Contains(text, never.id) {
			t.Errorf("after one is gone:\n%s", text)
		}
		c.purge(false, reconcile.UnknownEngine)
		c.clean()
		c.engine = first
	})
}

// Two engines use one Kuryr, and one of them is asked. What the other has stays, also without a
// container that runs, though its network was created at the same time.
func TestTwoEnginesAtOnce(t *testing.T) {
	withEngine(t, func(t *testing.T, c *engineBox) {
		n, theirs := c.create(v4Network("10.77.0.0/24")), c.create(v4Network("10.78.0.0/24"))
		c.engine.has(n)
		c.compare(0) // while their network is new
		e := c.run(&endpoint{net: theirs})
		c.compare(0)
		c.stop(e)
		hidden := &pool{cidr: "10.79.0.0/24"}
		c.requestPool(hidden, false)
		c.requestGateway(hidden)
		c.take(&endpoint{net: &network{v4: []*pool{hidden}}})
		c.compare(0)
		full := c.dump()
		c.expire()
		c.expire()
		c.unchanged(full)
	})
}

// A network that the engine has is its, also if it was not known whose it is.
func TestEngineIsNoted(t *testing.T) {
	withEngine(t, func(t *testing.T, c *engineBox) {
		n := c.create(v4Network("10.77.0.0/24"))
		c.expire()
		c.engine.has(n)
		c.compare(0)
		if text := string(c.driver.Intents()["network/"+n.id]); !strings.Contains(text, `"engine":"one"`) {
			t.Error(text)
		}
		c.engine = newFakeEngine("two") // with the data of the first, as after a restored backup of its host
		c.engine.has(n)
		c.again()
		c.expire()
		c.wants("")
		c.remove(n)
		c.clean()
	})
}

// A swarm's networks come and go on a node, and what one does not have others may.
func TestSwarmNetworksStay(t *testing.T) {
	withEngine(t, func(t *testing.T, c *engineBox) {
		n := v4Network("10.77.0.0/24")
		n.id = "x1w0slzlj5cy1pxqh2hwnebv9"
		c.create(n)
		c.engine.has(n)
		member := func(is bool) { c.engine.change(func(e *fakeEngine) { e.view.Swarm.Member = is }) }
		member(true)
		c.compare(0)
		c.take(&endpoint{net: n}) // of a service, say
		c.expire()
		c.wants("")
		c.engine.forgets(n)
		c.expire()
		c.wants("network kept")
		if purged := c.purge(true, reconcile.UnknownEngine); purged > 0 {
			t.Errorf("purged %d", purged)
		}
		if purged := c.purge(false, SwarmEngine); purged != 1 {
			t.Errorf("purged %d", purged)
		}
		c.expire()
		c.clean()
		again := v4Network("10.77.0.0/24")
		again.id = n.id
		c.create(again)
		c.engine.has(again)
		c.compare(0)
		c.engine.forgets(again)
		c.expire()
		member(false)
		c.expire()
		c.clean()
	})
}

// What another host has does not concern this one's engine.
func TestOtherHostsAreLeftAlone(t *testing.T) {
	withEngine(t, func(t *testing.T, c *engineBox) {
		n := c.create(v4Network("10.77.0.0/24"))
		c.run(&endpoint{net: n})
		c.take(&endpoint{net: n})
		c.requestPool(&pool{cidr: "10.78.0.0/24"}, false)
		full := c.dump()
		c.config.Host, c.config.StateDir = "another", t.TempDir()
		c.again()
		c.binder.unplugAll()
		c.expire()
		c.wants("")
		c.unchanged(full)
	})
}

// An engine that fails, or does not tell its identity, is no reason to delete anything.
func TestEngineWithoutAnswer(t *testing.T) {
	for name, source := range map[string]func(*fakeEngine) engine.Source{
		"no identity": func(*fakeEngine) engine.Source { return newFakeEngine("") },
		"half":        func(e *fakeEngine) engine.Source { return halfEngine{e} },
	} {
		t.Run(name, func(t *testing.T) {
			withEngine(t, func(t *testing.T, c *engineBox) {
				n := c.listed("10.77.0.0/24")
				c.run(&endpoint{net: n})
				c.compare(0)
				c.engine.stops()
				full := c.dump()
				c.end()
				c.config.Registerer, c.config.Engine = nil, source(c.engine)
				c.restart()
				c.runDriver()
				c.expire()
				c.expire()
				if list, err := c.driver.Orphans(t.Context()); err == nil {
					t.Errorf("orphans %v", list)
				}
				if purged, err := c.driver.Purge(t.Context(), true, reconcile.UnknownEngine); err == nil || len(purged) > 0 {
					t.Errorf("purged %v, %v", purged, err)
				}
				c.unchanged(full)
			})
		})
	}
}

// Networks that Docker has by this driver and Kuryr does not.
func TestUnknownNetworks(t *testing.T) {
	withEngine(t, func(t *testing.T, c *engineBox) {
		c.engine.has(&network{id: newID()})
		list, err := c.engine.List(t.Context())
		c.must(err)
		if _, unknown := c.driver.Running(t.Context(), list); len(unknown) != 1 {
			t.Errorf("unknown %+v", unknown)
		}
		c.wants("")
	})
}

// After docker.db was lost, what the engine has is its again, and what it does not have is kept: it can
// be another engine's.
func TestDatabaseLost(t *testing.T) {
	withEngine(t, func(t *testing.T, c *engineBox) {
		n, other := c.create(v4Network("10.77.0.0/24")), c.create(v4Network("10.78.0.0/24"))
		e := c.run(&endpoint{net: n})
		c.engine.has(n, other)
		c.engine.runs(e)
		c.compare(0)
		c.engine.forgets(other)
		c.config.StateDir = t.TempDir()
		c.again()
		full := c.dump()
		c.expire()
		c.wants("network kept")
		c.unchanged(full)
		time.Sleep(time.Minute)
		c.purge(false, reconcile.UnknownEngine)
		if text := c.dump(); strings.Contains(text, other.id) {
			t.Errorf("left:\n%s", text)
		}
		c.stop(e)
		c.remove(n)
		c.clean()
	})
}

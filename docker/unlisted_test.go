package docker

import (
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/docker/engine"
)

// An engine that is killed in CreateNetwork never has the network, so none lists it. It is deleted
// with its range if no other engine can have it.
func TestKilledInCreateNetwork(t *testing.T) {
	withEngine(t, func(t *testing.T, c *engineBox) {
		has := c.listed("10.77.0.0/24")
		c.create(dualNetwork())
		c.again()
		c.wants("network")
		c.compare(30 * time.Second)
		c.wants("network")
		c.expire()
		c.expire() // the pools are judged without their network
		c.wants("")
		c.remove(has)
		c.clean()
	})
}

// It is not deleted while it may just be being created, however short the grace period is.
func TestNetworkBeingCreated(t *testing.T) {
	withEngine(t, func(t *testing.T, c *engineBox) {
		c.config.ForgetAfter = time.Second
		c.again()
		has := c.listed("10.77.0.0/24")
		c.create(v4Network("10.78.0.0/24"))
		c.compare(0)
		c.compare(50 * time.Second)
		c.wants("network")
		if purged := c.purge(true, ""); purged > 0 {
			t.Errorf("purged %d", purged)
		}
		c.expire()
		c.wants("")
		c.remove(has)
		c.clean()
	})
}

// What another engine may have stays, though none has listed it.
func TestUnlistedNetworks(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		do   func(c *engineBox, seen, lost *network)
		want string
	}{
		{"as it was created", func(*engineBox, *network, *network) {}, "network"},
		{
			"the engine has no network of ours",
			func(c *engineBox, seen, _ *network) { c.engine.forgets(seen) },
			"network kept, network kept",
		},
		{"the engine had one", func(c *engineBox, seen, _ *network) {
			c.compare(0)
			c.engine.forgets(seen)
		}, "network, network"},
		{"an endpoint is on it", func(c *engineBox, _, lost *network) {
			c.run(&endpoint{net: lost})
			time.Sleep(3 * time.Minute)
			c.binder.unplugAll()
		}, "endpoint kept, network kept"},
		{
			"an endpoint was on it",
			func(c *engineBox, _, lost *network) { c.stop(c.run(&endpoint{net: lost})) },
			"network kept",
		},
		{"another one like it was used", func(c *engineBox, _, _ *network) {
			c.stop(c.run(&endpoint{net: c.create(v4Network("10.79.0.0/24"))}))
		}, "network kept, network kept"},
		{"another engine had a network", func(c *engineBox, seen, _ *network) {
			n := c.create(v4Network("10.79.0.0/24"))
			c.listedByAnother(func(e *fakeEngine) { e.has(n) })
		}, "network kept, network kept"},
		{"another engine has a range", func(c *engineBox, _, _ *network) {
			p := &pool{cidr: "10.79.0.0/24"}
			c.requestPool(p, false)
			c.listedByAnother(func(e *fakeEngine) {
				e.change(func(e *fakeEngine) {
					e.view.Networks = []engine.Network{{ID: newID(), OurIPAM: true, Subnets: ranges(p.cidr)}}
				})
			})
		}, "network kept, pool kept"},
	} {
		t.Run(test.name, func(t *testing.T) {
			withEngine(t, func(t *testing.T, c *engineBox) {
				seen, lost := c.create(v4Network("10.77.0.0/24")), c.create(v4Network("10.78.0.0/24"))
				c.engine.has(seen)
				test.do(c, seen, lost)
				c.compare(0)
				c.wants(test.want)
				before := c.dump()
				c.compare(time.Hour)
				if after := c.dump(); (after == before) != strings.Contains(test.want, "kept") {
					t.Errorf("found %q, and then there was:\n%s", test.want, after)
				}
			})
		})
	}
}

// listedByAnother has another engine asked for a while.
func (e *engineBox) listedByAnother(change func(*fakeEngine)) {
	e.t.Helper()
	first := e.engine
	e.engine = newFakeEngine("two")
	change(e.engine)
	e.again()
	e.compare(0)
	e.engine = first
	e.again()
}

// A network that is used, or listed by another engine, within the grace period stays.
func TestUnlistedNetworkIsUsed(t *testing.T) {
	for name, use := range map[string]func(c *engineBox, n *network){
		"used":   func(c *engineBox, n *network) { c.stop(c.run(&endpoint{net: n})) },
		"listed": func(c *engineBox, n *network) { c.listedByAnother(func(e *fakeEngine) { e.has(n) }) },
	} {
		t.Run(name, func(t *testing.T) {
			withEngine(t, func(t *testing.T, c *engineBox) {
				seen, n := c.create(v4Network("10.77.0.0/24")), c.create(v4Network("10.78.0.0/24"))
				c.engine.has(seen)
				c.compare(50 * time.Second)
				c.wants("network")
				use(c, n)
				before := c.dump()
				c.expire()
				c.expire()
				c.unchanged(before)
			})
		})
	}
}

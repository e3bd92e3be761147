package docker

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/docker/engine"
	"github.com/kuryr/kuryr/docker/identity"
)

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
			two := newFakeEngine("two")
			two.view.Networks = []engine.Network{{ID: newID(), OurIPAM: true, Subnets: ranges(p.cidr)}}
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
			c.must(c.driver.changeNetwork(c.t.Context(), n, func(tags []string) []string { return append(tags, identity.TagNode+"elsewhere") }))
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

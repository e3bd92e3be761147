package docker

import (
	"testing"
)

// A refused endpoint whose addresses the engine never releases leaves no hint behind when the port is gone.
func TestHintsGoWithTheirPort(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(&network{v4: []*pool{{cidr: "10.1.0.0/24"}}})
	first := b.run(&endpoint{net: n})
	second := &endpoint{net: n, id: newID(), ip4: first.ip4, mac: "02:00:00:00:00:77"}
	b.contains(b.fails("NetworkDriver.CreateEndpoint", second.createBody()), "in use")
	if len(b.driver.refusals) != 1 {
		t.Fatalf("refusals: %v", b.driver.refusals)
	}
	b.stop(first)
	b.remove(n)
	b.clean()
}

// What is remembered of released pools of existing subnets goes with their network, and where they never had one, with time.
func TestReleasedPoolsAreForgotten(t *testing.T) {
	t.Parallel()
	b := newBox(t, func(c *Config) { c.Routed = false })
	theirs := b.theirs("net", "10.50.0.0/24")
	gone := b.driver.whereabouts.gone
	for range 3 {
		b.remove(b.create(b.zun(theirs, "10.50.0.0/24", "")))
		if len(gone) != 0 {
			t.Errorf("after the network has gone %v is remembered", gone)
		}
	}
	for range 3 { // as for a network of another driver's
		p := b.zun(theirs, "10.50.0.0/24", "").v4[0]
		b.requestPool(p, false)
		b.ok("IpamDriver.ReleasePool", m{"PoolID": p.id})
		if len(gone) != 1 {
			t.Errorf("%d pools are remembered, want the last", len(gone))
		}
		for id, at := range gone {
			gone[id] = at.Add(-2 * creation)
		}
	}
}

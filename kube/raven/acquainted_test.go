package raven

import (
	"path/filepath"
	"testing"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/local"
)

// empty gives the cluster an SDN that has nothing of it, as one that begins on another node has; the function gives the old one back.
func (c *cluster) empty() (back func()) {
	c.t.Helper()
	other, err := local.Open(c.t.Context(), local.Options{Path: filepath.Join(c.t.TempDir(), "other.db"), Host: "sdn", NoSync: true, PortsPerNetwork: -1})
	c.must(err)
	c.t.Cleanup(func() { _ = other.Close() })
	was := c.sdn
	c.sdn = anyHost{other}
	return func() { c.sdn = was }
}

// unharmed tells that no port is given up.
func (c *cluster) unharmed(want int) {
	c.t.Helper()
	ports := c.ports()
	if len(ports) != want {
		c.t.Errorf("%d ports, not %d", len(ports), want)
	}
	for _, p := range ports {
		if !p.DeletionTimestamp.IsZero() || p.Labels[v1.LabelPortStatus] == string(v1.PortDeleting) {
			c.t.Errorf("port %s is given up", p.Name)
		}
	}
}

// Raven does not start on an SDN that is not its cluster's, makes nothing there, and starts as soon as the right one is back.
func TestStartOnAnEmptySDN(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.addNode("n1", nil)
	c.pod("default", "a", "n1", nil)
	c.settle()
	n := len(c.ports())
	back := c.empty()
	if err := c.begin(); !core.Passing(err) {
		t.Fatalf("it starts, or ends: %v", err)
	}
	routers, err := sdn.All(c.sdn.FindRouters(t.Context(), sdn.RouterQuery{}))
	if err != nil || len(routers) > 0 {
		t.Errorf("%d routers are made, %v", len(routers), err)
	}
	c.unharmed(n)
	back()
	c.start()
	c.settle()
	c.check()
	c.unharmed(n)
}

// An SDN that has lost its store under Raven is told of; no port is given up, however often it is compared.
func TestAuditOfAnEmptySDN(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.addNode("n1", nil)
	c.pod("default", "a", "n1", nil)
	c.settle()
	n := len(c.ports())
	pool := c.networkPool("default")
	back := c.empty()
	c.raven.SDN = faulty{c.sdn, &c.faults}
	for range 3 {
		c.raven.memory.suspects(pool)
		if _, err := (pools{c.raven}).Reconcile(t.Context(), core.Request("", pool)); err == nil {
			t.Error("nothing is tried again")
		}
	}
	c.unharmed(n)
	if !c.events.has(pool, core.EventFailed, "its store is empty or another") {
		t.Errorf("nobody is told: %q", c.events.all)
	}
	back()
	c.raven.SDN = faulty{c.sdn, &c.faults}
	c.settle()
	c.check()
}

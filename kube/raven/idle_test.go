package raven

import (
	"testing"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/pool"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A Raven that takes over goes on counting for how long a port has been idle, where its status tells that, and begins anew where it does not.
func TestIdleTimeGoesOn(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Minute
	for _, row := range []struct {
		name     string
		claimant string
		change   func(*v1.KuryrPort, time.Time) // by hand, before the second Raven
		goes     bool
	}{
		{name: "released by a daemon", goes: true},
		{name: "released by Raven", claimant: v1.ClaimantRaven, goes: true},
		{name: "never a pod's", change: func(p *v1.KuryrPort, _ time.Time) { p.Status = v1.KuryrPortStatus{} }, goes: true},
		{name: "released by an older daemon", change: func(p *v1.KuryrPort, _ time.Time) { p.Status.Released = nil }},
		{name: "released in the future", change: func(p *v1.KuryrPort, now time.Time) { p.Status.Released = &metav1.Time{Time: now.Add(time.Hour)} }},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, func(cfg *Config) { cfg.Pool = pool.Policy{Batch: 1, TTL: ttl} })
			c.addNode("n1", nil)
			n := c.node("n1")
			n.Labels = map[string]string{v1.LabelClaimant: row.claimant}
			c.must(c.api.Update(t.Context(), n))
			c.namespace("blue", nil)
			c.pod("blue", "stays", "n1", nil)
			leaves := c.pod("blue", "leaves", "n1", nil)
			c.settle()
			free := ""
			for _, p := range c.ports() {
				if p.Status.Pod != nil && p.Status.Pod.Name == "leaves" {
					free = p.Name
				}
			}
			c.remove(leaves)
			c.settle()
			if row.change != nil {
				for _, p := range c.ports() {
					if p.Name == free {
						row.change(&p, c.now)
						c.must(c.api.Status().Update(t.Context(), &p))
					}
				}
			}
			there := func() bool {
				for _, p := range c.ports() {
					if p.Name == free {
						return true
					}
				}
				return false
			}
			c.now = c.now.Add(ttl * 6 / 10)
			c.start()
			c.settle()
			if !there() {
				t.Fatal("the port has gone before its time")
			}
			c.now = c.now.Add(ttl * 6 / 10)
			c.settle()
			c.check()
			if there() == row.goes {
				t.Errorf("the port is there: %v", there())
			}
			c.now = c.now.Add(ttl)
			c.settle()
			if there() {
				t.Error("the port stays for ever")
			}
		})
	}
}

// What a look at a pool knows of idle ports does not change under it, as when a port goes.
func TestIdleIsTheCallers(t *testing.T) {
	var m memory
	port := &v1.KuryrPort{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	idle := m.idle("pool", []*v1.KuryrPort{port}, time.Now())
	m.vanished("pool", "p")
	if len(idle) != 1 {
		t.Errorf("the times of %d ports are known, want 1", len(idle))
	}
}

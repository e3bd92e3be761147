package raven

import (
	"reflect"
	"testing"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"k8s.io/apimachinery/pkg/types"
)

// A pod of a node without a daemon that has a port of the pool that was its namespace's gets no second one of the pool that is now, while the cache does not show the first: whether it
// is the same Raven who gave it that, or the one before.
func TestOnePortForAPodOfTwoPools(t *testing.T) {
	t.Parallel()
	for name, next := range map[string]bool{"the same Raven": false, "the next Raven": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, nil)
			c.withoutDaemon("n1")
			c.pod("default", "first", "n1", nil)
			c.settle()
			was := c.networkPool("default")
			pod := c.pod("default", "web", "n1", nil)
			c.tellAll()
			stale := c.ports()
			_, _ = pools{c.raven}.Reconcile(t.Context(), core.Request("", was))
			if c.bound()["web"] == "" {
				t.Fatal("the pod has no port")
			}
			c.annotate("default", map[string]string{v1.AnnotationSecurityGroups: c.group("a")})
			if next {
				c.start()
			}
			behind := c.caches[reflect.TypeFor[*v1.KuryrPort]()]
			for _, p := range stale {
				c.must(behind.Update(c.stripped(&p)))
			}
			// The pool of the new groups is made, and works, before the cache shows what the other pool has given.
			var after string
			for range 40 {
				for _, s := range c.streams {
					for s.of != reflect.TypeFor[*v1.KuryrPort]() && len(s.changes) > 0 {
						c.tell(s)
					}
				}
				for _, d := range c.desks {
					if d.Name == "pools" {
						continue
					}
					for _, r := range d.ready() {
						_ = d.work(t.Context(), r)
					}
				}
				for _, p := range c.pools() {
					if p.Name != was {
						after = p.Name
						_, _ = pools{c.raven}.Reconcile(t.Context(), core.Request("", p.Name))
					}
				}
			}
			if after == "" {
				t.Fatal("the new groups have no pool")
			}
			has := 0
			for _, p := range c.ports() {
				if p.Status.Pod != nil && p.Status.Pod.UID == pod.UID {
					has++
				}
			}
			if has != 1 {
				t.Errorf("the pod has %d ports", has)
			}
			c.start()
			c.settle()
			c.check()
			if c.bound()["web"] == "" {
				t.Error("the pod has no port in the end")
			}
		})
	}
}

// Two pools that are worked on at once give a pod one port; one that has not come to give it lets the other, and where that is not known the API server is asked.
func TestGivers(t *testing.T) {
	t.Parallel()
	var m memory
	const pod = types.UID("pod")
	for range 2 {
		if !m.give(pod, "a") {
			t.Error("a may not give it")
		}
	}
	if m.give(pod, "b") {
		t.Error("a gives it, and b may too")
	}
	m.taken(pod, "b")
	if g, doubt := m.giver(pod); g != "a" || doubt {
		t.Errorf("%q gives it, doubt %v, after another has taken back what was not its", g, doubt)
	}
	m.taken(pod, "a")
	if !m.give(pod, "b") {
		t.Error("a has taken it back, and b may not give it")
	}
	m.doubt(pod, "b")
	if g, doubt := m.giver(pod); g != "" || !doubt {
		t.Errorf("%q gives it, doubt %v: nobody knows", g, doubt)
	}
	m.taken(pod, "")
	if g, doubt := m.giver(pod); g != "" || doubt {
		t.Errorf("%q gives it, doubt %v, after the API server was asked", g, doubt)
	}
}

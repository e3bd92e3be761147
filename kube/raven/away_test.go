package raven

import (
	"fmt"
	"testing"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What is to go while the SDN is away is tried again until it has gone, and its pool says why it is still there.
func TestSDNAwayWhilePortsLeave(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.addNode("n1", nil)
	c.namespace("green", nil)
	c.pod("green", "old", "n1", nil)
	c.settle()
	c.remove(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "green", Name: "old"}})
	c.remove(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "green"}})
	c.faults.away = true
	c.rounds(6)
	left := c.pools()
	if len(left) != 1 {
		t.Fatalf("%d pools are left", len(left))
	}
	if again, err := (pools{c.raven}).Reconcile(t.Context(), core.Request("", left[0].Name)); err == nil && again.RequeueAfter == 0 {
		t.Errorf("%d ports are to go, and nothing is tried again", len(c.ports()))
	}
	if is := left[0].Status.Conditions[0]; is.Reason != v1.ReasonSDN || !c.events.has(left[0].Name, core.EventFailed) {
		t.Errorf("condition %+v, events %q", is, c.events.all)
	}
	c.faults.away = false
	c.settle()
	c.check()
	if len(c.pools()) > 0 {
		t.Errorf("%d pools stay", len(c.pools()))
	}
}

// A pool that has all the ports it may have tries again what else fails.
func TestShortHidesNoFailure(t *testing.T) {
	t.Parallel()
	c := newCluster(t, func(cfg *Config) { cfg.Pool.Minimum, cfg.Pool.Maximum, cfg.Pool.Batch = 1, 2, 1 })
	c.addNode("n1", nil)
	c.namespace("blue", map[string]string{v1.AnnotationAllowFloatingIPs: "new"})
	for i := range 3 {
		c.pod("blue", fmt.Sprint("p", i), "n1", nil)
	}
	c.settle()
	c.faults.problem = func(method string) error {
		if method == "EnsureFloatingIP" {
			return sdn.Unavailable(nil, "floating IP", "not now")
		}
		return nil
	}
	c.pod("blue", "wish", "n1", map[string]string{v1.AnnotationFloatingIP: "new"})
	c.rounds(2)
	if again, err := (pools{c.raven}).Reconcile(t.Context(), core.Request("", c.pools()[0].Name)); err == nil && again.RequeueAfter == 0 {
		t.Error("the floating IP is not tried again")
	}
	c.faults.problem = nil
	c.settle()
	c.check()
}

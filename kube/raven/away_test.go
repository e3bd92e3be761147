package raven

import (
	"errors"
	"fmt"
	"testing"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/pool"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Of errors that are joined each counts: what is waited for beside a failure does not hide it.
func TestAnswers(t *testing.T) {
	t.Parallel()
	away := sdn.Unavailable(errors.New("connection refused"), "sdn", "it is away")
	behind := apierrors.NewConflict(schema.GroupResource{Resource: "kuryrports"}, "p", errors.New("changed"))
	for name, row := range map[string]struct {
		err    error
		fails  bool
		after  time.Duration
		reason string
		told   bool
	}{
		"waiting":             {errors.Join(waiting{"ports"}, nil), false, time.Hour, v1.ReasonPending, false},
		"short":               {errors.Join(nil, short{pool.AtCap, "cap"}), false, time.Hour, v1.ReasonExhausted, true},
		"waiting and short":   {errors.Join(waiting{"ports"}, short{pool.AtCap, "cap"}), false, time.Hour, v1.ReasonExhausted, true},
		"waiting and away":    {errors.Join(waiting{"ports"}, errors.Join(away)), true, 0, v1.ReasonSDN, true},
		"short and away":      {errors.Join(errors.Join(away, nil), short{pool.AtCap, "cap"}), true, 0, v1.ReasonSDN, true},
		"in a bulk":           {errors.Join(waiting{"ports"}, &sdn.BulkError{Errs: []error{nil, away}}), true, 0, v1.ReasonSDN, true},
		"one wrapped":         {fmt.Errorf("leg: %w", waiting{"ports"}), false, time.Hour, v1.ReasonPending, false},
		"behind":              {errors.Join(waiting{"ports"}, behind), false, conflictPause, v1.ReasonInvalid, false},
		"behind and away":     {errors.Join(behind, away), true, 0, v1.ReasonSDN, true},
		"away, asked to wait": {errors.Join(short{pool.AtCap, "cap"}, &sdn.Error{Kind: sdn.KindUnavailable, RetryAfter: time.Minute}), false, time.Minute, v1.ReasonSDN, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			again, err := done(time.Hour, row.err)
			if (err != nil) != row.fails || again.RequeueAfter != row.after {
				t.Errorf("it is tried again after %s, %v", again.RequeueAfter, err)
			}
			if is := reasonOf(row.err); is != row.reason || worthTelling(row.err) != row.told {
				t.Errorf("reason %s, told %v", is, worthTelling(row.err))
			}
		})
	}
}

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
	if again, err := (pools{c.raven}).Reconcile(t.Context(), request("", left[0].Name)); err == nil && again.RequeueAfter == 0 {
		t.Errorf("%d ports are to go, and nothing is tried again", len(c.ports()))
	}
	if is := left[0].Status.Conditions[0]; is.Reason != v1.ReasonSDN || !c.events.has(left[0].Name, eventFailed) {
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
	if again, err := (pools{c.raven}).Reconcile(t.Context(), request("", c.pools()[0].Name)); err == nil && again.RequeueAfter == 0 {
		t.Error("the floating IP is not tried again")
	}
	c.faults.problem = nil
	c.settle()
	c.check()
}

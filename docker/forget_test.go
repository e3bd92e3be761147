package docker

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// Without a grace time nothing goes by itself, and all at once on demand; but what was changed just now stays.
func TestForgetOnDemand(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	c.memory.grace = 0
	n := c.create(v4Network("10.77.0.0/24"))
	c.engine.has(n)
	c.compare(0)
	c.engine.forgets(n)
	if next := c.compare(time.Hour); !next.IsZero() {
		t.Errorf("looks again at %s", next)
	}
	c.compare(time.Hour)
	_, suspects, err := c.memory.Report(t.Context())
	c.must(err)
	if len(suspects) != 1 || suspects[0].Since.IsZero() || !suspects[0].Due.IsZero() {
		t.Errorf("report %+v", suspects)
	}
	for _, step := range []struct {
		all  bool
		age  time.Duration
		want int
	}{{false, time.Hour, 0}, {true, -3 * time.Hour, 0}, {true, 4 * time.Hour, 1}} {
		c.time = c.time.Add(step.age)
		done, err := c.memory.ForgetNow(t.Context(), step.all, "")
		c.must(err)
		if len(done) != step.want {
			t.Errorf("%+v removed %v", step, done)
		}
	}
	c.clean()
}

func TestForgottenMetrics(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	n := c.create(v4Network("10.77.0.0/24"))
	c.engine.has(n)
	c.compare(0)
	c.engine.forgets(n)
	c.compare(0)
	if got := testutil.ToFloat64(c.driver.metrics.suspects); got != 1 {
		t.Errorf("%v suspects", got)
	}
	c.compare(time.Minute)
	want := "# HELP kuryr_docker_forgotten_total What was removed because Docker had forgotten it, by noun.\n# TYPE kuryr_docker_forgotten_total counter\nkuryr_docker_forgotten_total{noun=\"network\"} 1\n"
	if err := testutil.GatherAndCompare(c.reg, strings.NewReader(want), "kuryr_docker_forgotten_total"); err != nil {
		t.Error(err)
	}
	if got := testutil.ToFloat64(c.driver.metrics.suspects); got != 0 {
		t.Errorf("%v suspects", got)
	}
}

// A pool that was lost goes although a network has the same range from another pool.
func TestLostTwin(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	lost := &pool{cidr: "10.77.0.0/24"}
	c.requestPool(lost, false)
	c.requestGateway(lost)
	c.again() // killed, so the engine has no answer and asks anew
	n := c.create(v4Network(lost.cidr))
	c.engine.has(n)
	c.wants("pool")
	c.compare(0)
	c.compare(time.Minute)
	c.wants("")
	c.remove(n)
	c.clean()
}

// Between the comparison and the removal a container may get the interface: everything stays then, and its time begins anew.
func TestConnectedMeanwhile(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	n := c.create(v4Network("10.77.0.0/24"))
	e := c.run(&endpoint{net: n})
	c.engine.has(n)
	c.compare(0)
	c.engine.forgets(n)
	port := c.portOf(e.id)
	plugged := c.binder.plugged[port.ID]
	delete(c.binder.plugged, port.ID)
	found, err := c.driver.Forgotten(t.Context(), c.engine)
	c.must(err)
	c.binder.plugged[port.ID] = plugged
	if len(found.Forgotten) != 2 {
		t.Fatalf("found %v", found.Forgotten)
	}
	for _, f := range found.Forgotten {
		if err := c.driver.Forget(t.Context(), f); !errors.As(err, &stayed{}) {
			t.Errorf("%s: %v", f, err)
		}
	}
	c.portOf(e.id)
	if err := c.driver.Forget(t.Context(), Forgotten{Noun: "cloud"}); err == nil {
		t.Error("a cloud was forgotten")
	}
}

// What cannot be removed is tried again, ever later.
func TestRemovalFails(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	n := c.create(v4Network("10.77.0.0/24"))
	e := c.run(&endpoint{net: n})
	delete(c.binder.plugged, c.portOf(e.id).ID)
	c.engine.has(n)
	failing := &failingBinder{fakeBinder: c.binder}
	c.config.Binder = failing
	c.again()
	c.compare(0)
	wait := time.Minute
	for try, pause := range []time.Duration{2 * time.Minute, 4 * time.Minute, 8 * time.Minute} {
		c.time = c.time.Add(wait)
		next, err := c.memory.Compare(t.Context())
		if err == nil || failing.tried != try+1 || !next.Equal(c.time.Add(pause)) {
			t.Errorf("try %d: %v, tried %d times, next in %s, want %s", try, err, failing.tried, next.Sub(c.time), pause)
		}
		if c.compare(pause - time.Second); failing.tried != try+1 {
			t.Error("tried again too early")
		}
		wait = time.Second
	}
}

package raven

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/pool"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
)

// limited is an SDN with a quota of ports.
type limited struct {
	sdn.Provider
	limit, asked int
}

func (p *limited) Capabilities() sdn.Capabilities {
	can := p.Provider.Capabilities()
	can.Quotas = true
	return can
}

func (p *limited) Usage(context.Context, string) (map[sdn.Noun]sdn.Usage, error) {
	p.asked++
	return map[sdn.Noun]sdn.Usage{sdn.NounPort: {Limit: int64(p.limit)}}, nil
}

// lookAtPools has Raven look at all pools once, and gives the answers.
func (c *cluster) lookAtPools() (answers []ctrl.Result) {
	c.t.Helper()
	c.tellAll()
	for _, p := range c.pools() {
		again, err := (pools{c.raven}).Reconcile(c.t.Context(), core.Request("", p.Name))
		if err != nil && !sdn.IsExhausted(err) {
			c.t.Fatal(err)
		}
		answers = append(answers, again)
	}
	return answers
}

// A quota that is raised is noticed by the pools that wait for it, and one that is lowered when the SDN refuses: it is asked for once in a while, for all pools.
func TestQuotaThatChanges(t *testing.T) {
	t.Parallel()
	c := newCluster(t, func(cfg *Config) { cfg.Pool = pool.Policy{Batch: 1} })
	quota := &limited{Provider: c.sdn, limit: 4} // the cap is 3
	c.sdn = quota
	c.start()
	for i := range 4 {
		node := fmt.Sprint("n", i%2)
		if i < 2 {
			c.addNode(node, nil)
		}
		c.pod("default", fmt.Sprint("p", i), node, nil)
	}
	c.rounds(6)
	if len(c.bound()) != 3 {
		t.Fatalf("%d pods have ports under a quota of 4", len(c.bound()))
	}
	quota.limit, quota.asked = 40, 0
	c.now = c.now.Add(quotaPause)
	waits := false
	for range 3 {
		for _, again := range c.lookAtPools() {
			waits = waits || again.RequeueAfter == quotaPause
		}
	}
	if !waits || quota.asked != 1 {
		t.Errorf("a pool that waits is looked at again: %v; the SDN was asked %d times in a pause", waits, quota.asked)
	}
	c.settle()
	if len(c.bound()) != 4 {
		t.Fatalf("%d pods have ports under a quota of 40", len(c.bound()))
	}

	quota.limit, quota.asked = 4, 0
	c.now = c.now.Add(quotaPause)
	c.faults.problem = func(method string) error {
		if method == "EnsurePorts" {
			return sdn.Exhausted(sdn.NoQuota, "port", "quota")
		}
		return nil
	}
	c.pod("default", "more", "n0", nil)
	c.pod("default", "most", "n1", nil)
	c.lookAtPools()
	c.faults.asked = nil
	for range 3 {
		c.lookAtPools()
	}
	// What was begun stays pending, and is asked for as long as it is wanted.
	if quota.asked != 1 || c.raven.budget.room() != 0 {
		t.Errorf("the SDN was asked %d times for its quota, there is room for %d", quota.asked, c.raven.budget.room())
	}
}

// All pools that wait for the cap are looked at in turn when there is room that none of them takes, however many they are; one that asks just when there is room does not wait.
func TestPoolsThatWaitForTheCap(t *testing.T) {
	t.Parallel()
	c := newCluster(t, func(cfg *Config) { cfg.MaxPorts = 1 })
	r := c.raven
	q := workqueue.NewTypedRateLimitingQueue(r.options().RateLimiter)
	defer q.ShutDown()
	if err := r.poolWakes.Start(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	const many = 3000
	r.budget.take("has", 1)
	for i := range many {
		if r.budget.take(fmt.Sprint("p", i), 1) != 0 || !r.budget.wait(fmt.Sprint("p", i), 0) {
			t.Fatal("there is room")
		}
	}
	(&poolWork{pools: pools{r}, name: "has", pool: &v1.KuryrPortPool{}}).settle()
	deadline := time.AfterFunc(time.Minute, q.ShutDown)
	defer deadline.Stop()
	told := map[string]bool{}
	for len(told) < many {
		request, end := q.Get()
		if end {
			t.Fatalf("%d pools of %d are looked at", len(told), many)
		}
		told[request.Name] = true
		(&poolWork{pools: pools{r}, name: request.Name, pool: &v1.KuryrPortPool{}}).settle()
		q.Done(request)
	}
	if r.budget.wait("late", 0) {
		t.Error("a pool waits that has not seen the room there is")
	}
}

// Of what is given back at a full cap as many pools are told as there is room for, the one that has waited longest first. Who got a port is the last again, who got none keeps his place,
// and who needs none leaves it to the next.
func TestOrderAtTheCap(t *testing.T) {
	t.Parallel()
	b := newBudget(4)
	b.take("has", 4)
	told := func(want ...string) func([]string) {
		return func(got []string) {
			t.Helper()
			if !slices.Equal(got, want) {
				t.Fatalf("%v are told, want %v", got, want)
			}
		}
	}
	for _, p := range []string{"a", "b", "c", "d"} {
		b.take(p, 2)
		b.wait(p, 0) // once is enough
	}
	told("a")(b.set("has", 3))
	told()(b.set("other", 0)) // what is a's to take is nobody else's to be told of
	if n := b.take("a", 2); n != 1 {
		t.Fatalf("a gets %d", n)
	}
	told()(b.set("a", 1)) // and is behind d
	told("b", "c")(b.set("has", 1))
	if n := b.take("b", 2); n != 2 {
		t.Fatalf("b gets %d", n)
	}
	b.take("c", 1)        // gets none
	told()(b.set("b", 2)) // nothing is left
	told()(b.set("c", 0))
	told("c")(b.set("has", 0))
	told("d")(b.set("c", 0)) // c needs none any more
	told("a")(b.late([]string{"d"}))
	told()(b.set("a", 1))
	told()(b.set("b", 1)) // b got all that it wanted: nobody waits
}

// A pool that has failed and pauses keeps no other from what is given back.
func TestPauseAtTheCap(t *testing.T) {
	t.Parallel()
	c := newCluster(t, func(cfg *Config) { cfg.MaxPorts = 1 })
	r := c.raven
	q := workqueue.NewTypedRateLimitingQueue(r.options().RateLimiter)
	defer q.ShutDown()
	if err := r.poolWakes.Start(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	for range 12 {
		q.AddRateLimited(core.Request("", "fails")) // the last time in a minute
	}
	r.budget.take("has", 1)
	r.budget.take("fails", 1)
	r.budget.take("next", 1)
	(&poolWork{pools: pools{r}, name: "has", pool: &v1.KuryrPortPool{}}).settle()
	deadline := time.AfterFunc(time.Minute, q.ShutDown)
	defer deadline.Stop()
	for {
		request, end := q.Get()
		if end {
			t.Fatal("the other pool is not looked at")
		}
		q.Done(request)
		if request.Name == "next" {
			return
		}
	}
}

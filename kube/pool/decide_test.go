package pool

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// ports makes ports of the states, the first idle longest, a minute from one to the next.
func ports(states ...State) []Port {
	var all []Port
	for i, s := range states {
		all = append(all, Port{ID: fmt.Sprintf("p%d", i), State: s, Idle: now.Add(time.Duration(i-len(states)) * time.Minute)})
	}
	return all
}

func many(n int, s State) []State { return slices.Repeat([]State{s}, n) }

func TestDecide(t *testing.T) {
	t.Parallel()
	usual := Policy{Minimum: 2, Batch: 5, TTL: 3 * time.Minute}
	for name, tc := range map[string]struct {
		view View
		want Decision
	}{
		"new":                      {View{Policy: usual, Room: -1}, Decision{Make: []int{5}}},
		"new, and a pod waits":     {View{Policy: usual, Room: -1, Waiting: 1}, Decision{Make: []int{1, 4}}},
		"many wait":                {View{Policy: usual, Room: -1, Waiting: 20}, Decision{Make: []int{1, 21}}},
		"one waits, all are bound": {View{Policy: usual, Room: -1, Waiting: 1, Ports: ports(Bound, Bound)}, Decision{Make: []int{1, 4}}},
		"enough":                   {View{Policy: usual, Room: -1, Ports: ports(Available, Available)}, Decision{}},
		"one is about to be taken": {View{Policy: usual, Room: -1, Waiting: 1, Ports: ports(Available, Available)}, Decision{Make: []int{5}}},
		"being made":               {View{Policy: usual, Room: -1, Pending: 5, Waiting: 3}, Decision{}},
		"idle goes, oldest first":  {View{Policy: usual, Room: -1, Ports: ports(many(6, Available)...)}, Decision{Delete: []string{"p0", "p1", "p2", "p3"}}},
		"idle, not yet all":        {View{Policy: usual, Room: -1, Ports: ports(many(4, Available)...)}, Decision{Delete: []string{"p0", "p1"}}},
		"not yet idle long":        {View{Policy: Policy{Batch: 1, TTL: time.Hour}, Room: -1, Ports: ports(many(2, Available)...)}, Decision{Again: now.Add(58 * time.Minute)}},
		"no TTL":                   {View{Policy: Policy{Batch: 1}, Room: -1, Ports: ports(many(9, Available)...)}, Decision{}},
		"maximum cuts the batch":   {View{Policy: Policy{Minimum: 1, Maximum: 4, Batch: 5}, Room: -1, Ports: ports(Bound, Bound)}, Decision{Make: []int{2}}},
		"at the maximum":           {View{Policy: Policy{Minimum: 1, Maximum: 2, Batch: 5}, Room: -1, Ports: ports(Bound, Bound)}, Decision{Limit: AtMaximum}},
		"above a new maximum":      {View{Policy: Policy{Maximum: 2, Batch: 5}, Room: -1, Ports: ports(Available, Bound, Available, Available)}, Decision{Delete: []string{"p0", "p2"}}},
		"cap":                      {View{Policy: usual, Room: 1, Waiting: 3}, Decision{Make: []int{1}, Limit: AtCap}},
		"no room":                  {View{Policy: usual, Room: 0}, Decision{Limit: AtCap}},
		"drained":                  {View{Policy: usual, Room: -1, Drained: true, Ports: ports(Available, Bound, Available)}, Decision{Delete: []string{"p0", "p2"}}},
		"drained, a pod waits":     {View{Policy: usual, Room: -1, Drained: true, Waiting: 1}, Decision{Make: []int{1}}},
		"unused":                   {View{Policy: usual, Room: -1, Unused: true, Ports: ports(Available, Available, Available)}, Decision{Delete: []string{"p0"}, Again: now.Add(time.Minute)}},
		"unused, kept for ever":    {View{Policy: Policy{Minimum: 1, Batch: 1}, Room: -1, Unused: true, Ports: ports(Available)}, Decision{}},
		"leaving ones count":       {View{Policy: Policy{Minimum: 1, Maximum: 2, Batch: 1}, Room: -1, Ports: ports(Leaving, Leaving)}, Decision{Limit: AtMaximum}},
	} {
		tc.view.Now = now
		if got := Decide(tc.view); !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}

func drawView(t *rapid.T) View {
	maximum := rapid.SampledFrom([]int{0, 0, 3, 10, 40}).Draw(t, "maximum")
	least := rapid.IntRange(0, 8).Draw(t, "minimum")
	if maximum > 0 {
		least = min(least, maximum)
	}
	v := View{
		Policy: Policy{
			Minimum: least, Maximum: maximum, Batch: rapid.IntRange(1, 12).Draw(t, "batch"),
			TTL: time.Duration(rapid.IntRange(0, 20).Draw(t, "ttl")) * time.Minute,
		},
		Waiting: rapid.IntRange(0, 15).Draw(t, "waiting"), Pending: rapid.IntRange(0, 5).Draw(t, "pending"), Room: rapid.IntRange(-1, 30).Draw(t, "room"),
		Drained: rapid.Bool().Draw(t, "drained"), Unused: rapid.Bool().Draw(t, "unused"), Now: now,
	}
	for i := range rapid.IntRange(0, 25).Draw(t, "ports") {
		v.Ports = append(v.Ports, Port{
			ID: fmt.Sprint(i), State: State(rapid.IntRange(0, 2).Draw(t, "state")),
			Idle: now.Add(-time.Duration(rapid.IntRange(0, 40).Draw(t, "idle")) * time.Minute),
		})
	}
	return v
}

func count(v View, s State) (n int) {
	for _, p := range v.Ports {
		if p.State == s {
			n++
		}
	}
	return n
}

// Whatever a pool is like, no decision breaks a limit, takes a port that is needed, or makes and deletes at once.
func TestDecisionsKeepTheRules(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v := drawView(t)
		d := Decide(v)
		made := d.Made()
		if made > 0 && len(d.Delete) > 0 {
			t.Fatalf("makes %v and deletes %v", d.Make, d.Delete)
		}
		if slices.Contains(d.Make, 0) || slices.ContainsFunc(d.Make, func(n int) bool { return n < 0 }) {
			t.Fatalf("calls for %v ports", d.Make)
		}
		if v.Room >= 0 && made > v.Room {
			t.Fatalf("makes %d, there is room for %d", made, v.Room)
		}
		if v.Maximum > 0 && made > 0 && len(v.Ports)+v.Pending+made > v.Maximum {
			t.Fatalf("%d there, %d pending, %d made: above the maximum %d", len(v.Ports), v.Pending, made, v.Maximum)
		}
		if left := count(v, Available) + v.Pending - len(d.Delete); len(d.Delete) > 0 && left < v.Waiting {
			t.Fatalf("leaves %d for %d pods that wait", left, v.Waiting)
		}
		if free := count(v, Available) + v.Pending + made; free < v.Waiting && d.Limit == NoLimit {
			t.Fatalf("%d for %d pods, and no limit told", free, v.Waiting)
		}
		youngest := time.Time{}
		for _, p := range v.Ports {
			if slices.Contains(d.Delete, p.ID) {
				if p.State != Available {
					t.Fatalf("deletes %+v", p)
				}
				if p.Idle.After(youngest) {
					youngest = p.Idle
				}
			}
		}
		for _, p := range v.Ports {
			if len(d.Delete) > 0 && p.State == Available && !slices.Contains(d.Delete, p.ID) && p.Idle.Before(youngest) {
				t.Fatalf("keeps %+v, which is older than what goes", p)
			}
		}
		if !d.Again.IsZero() && !d.Again.After(v.Now) {
			t.Fatalf("comes again at once: %v", d.Again)
		}
	})
}

// A pool that nobody touches comes to rest: after what was decided is done, and after each port's time has ended, nothing more is decided.
func TestDecisionsComeToRest(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v := drawView(t)
		for round := range 100 {
			d := Decide(v)
			if d.Made() == 0 && len(d.Delete) == 0 {
				if d.Again.IsZero() {
					return
				}
				v.Now = d.Again
			}
			for range d.Made() {
				v.Ports = append(v.Ports, Port{ID: fmt.Sprintf("n%d.%d", round, len(v.Ports)), Idle: v.Now})
			}
			if v.Room >= 0 {
				v.Room += len(d.Delete) - d.Made()
			}
			v.Ports = slices.DeleteFunc(v.Ports, func(p Port) bool { return slices.Contains(d.Delete, p.ID) })
		}
		t.Fatalf("no rest in 100 rounds: %+v", v)
	})
}

func TestPolicyWith(t *testing.T) {
	t.Parallel()
	base := Policy{Minimum: 5, Maximum: 0, Batch: 10, TTL: time.Minute}
	got, err := base.With(" minimum=2, ttl=1h ,maximum=7")
	if want := (Policy{Minimum: 2, Maximum: 7, Batch: 10, TTL: time.Hour}); err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	if got, err := base.With(""); err != nil || got != base {
		t.Errorf("nothing said: %+v, %v", got, err)
	}
	for text, says := range map[string]string{
		"minimum=x": "minimum: want a number", "size=3": `"size"`, "batch=0": "batch: want", "ttl=5": "ttl: want a time", "ttl=1ms": "ttl: want a time of at least",
		"maximum=2": "minimum: 5 is above maximum", "minimum=-1": "minimum: want a number from 0", "minimum": "minimum: want a number",
	} {
		if _, err := base.With(text); err == nil || len(err.Error()) < len(says) || err.Error()[:len(says)] != says {
			t.Errorf("%q: %v, want %q…", text, err, says)
		}
	}
}

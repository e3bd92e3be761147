package idlegate

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// waited returns the duration of Wait by the clock of the test.
func waited(ctx context.Context, g *Gate) time.Duration {
	start := time.Now()
	g.Wait(ctx)
	return time.Since(start)
}

func TestWait(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for _, row := range []struct {
		name  string
		calls func(*Gate)
		want  time.Duration
	}{
		{"no call", func(*Gate) {}, 0},
		{"ended call", func(g *Gate) { g.Call()() }, rest},
		{"long call", func(g *Gate) { time.AfterFunc(40*ms, g.Call()) }, 40*ms + rest},
		{"consecutive calls", func(g *Gate) {
			g.Call()()
			time.AfterFunc(rest/2, func() { g.Call()() })
		}, rest/2 + rest},
		{"concurrent calls", func(g *Gate) {
			time.AfterFunc(20*ms, g.Call())
			time.AfterFunc(30*ms, g.Call())
		}, 30*ms + rest},
		{"endless call", func(g *Gate) { g.Call() }, limit},
		{"call that hurries", func(g *Gate) {
			g.Call()
			time.AfterFunc(20*ms, g.Hurry)
		}, 20 * ms},
		{"Hurry without a call", func(g *Gate) {
			g.Hurry()
			time.AfterFunc(20*ms, g.Call())
		}, 20*ms + rest},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var g Gate
				row.calls(&g)
				if got := waited(t.Context(), &g); got != row.want {
					t.Errorf("Wait took %v, want %v", got, row.want)
				}
			})
		})
	}
}

// Endless calls delay the work once, not each part of it.
func TestWithoutEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var g Gate
		first := g.Call()
		if got := waited(t.Context(), &g); got != limit {
			t.Errorf("Wait took %v, want %v", got, limit)
		}
		second := g.Call()
		first()
		if got := waited(t.Context(), &g); got != 0 {
			t.Errorf("second Wait took %v, want 0", got)
		}
		second()
		time.Sleep(2 * rest)
		defer g.Call()()
		if got := waited(t.Context(), &g); got != limit {
			t.Errorf("Wait after idle time took %v, want %v", got, limit)
		}
	})
}

func TestWaitCanceled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var g Gate
		g.Call()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if got := waited(ctx, &g); got != time.Millisecond {
			t.Errorf("Wait took %v, want its context's %v", got, time.Millisecond)
		}
		time.Sleep(limit)
	})
}

func TestNil(t *testing.T) {
	t.Parallel()
	var g *Gate
	defer g.Call()()
	g.Hurry()
	g.Wait(t.Context())
}

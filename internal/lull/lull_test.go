package lull

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// waited is how long Wait takes from now on, by the clock of the test.
func waited(ctx context.Context, l *Lull) time.Duration {
	start := time.Now()
	l.Wait(ctx)
	return time.Since(start)
}

func TestWait(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name  string
		calls func(*Lull)
		want  time.Duration
	}{
		{"no call", func(*Lull) {}, 0},
		{"a call that has ended", func(l *Lull) { l.Call()() }, rest},
		{"a call that takes its time", func(l *Lull) { time.AfterFunc(40*time.Millisecond, l.Call()) }, 40*time.Millisecond + rest},
		{"a call after the other", func(l *Lull) {
			l.Call()()
			time.AfterFunc(rest/2, func() { l.Call()() })
		}, rest/2 + rest},
		{"two calls at once", func(l *Lull) {
			time.AfterFunc(20*time.Millisecond, l.Call())
			time.AfterFunc(30*time.Millisecond, l.Call())
		}, 30*time.Millisecond + rest},
		{"a call that does not end", func(l *Lull) { l.Call() }, limit},
		{"a call that waits for the work", func(l *Lull) {
			l.Call()
			time.AfterFunc(20*time.Millisecond, l.Hurry)
		}, 20 * time.Millisecond},
		{"in a hurry without a call", func(l *Lull) {
			l.Hurry()
			time.AfterFunc(20*time.Millisecond, l.Call())
		}, 20*time.Millisecond + rest},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var l Lull
				row.calls(&l)
				if got := waited(t.Context(), &l); got != row.want {
					t.Errorf("waited for %v, want %v", got, row.want)
				}
			})
		})
	}
}

// Calls that never leave a moment hold the work up once, and not each piece of it anew.
func TestWithoutEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l Lull
		first := l.Call()
		if got := waited(t.Context(), &l); got != limit {
			t.Errorf("waited for %v, want %v", got, limit)
		}
		second := l.Call()
		first()
		if got := waited(t.Context(), &l); got != 0 {
			t.Errorf("waited for %v, though the calls have gone on for long", got)
		}
		second()
		time.Sleep(2 * rest)
		defer l.Call()()
		if got := waited(t.Context(), &l); got != limit {
			t.Errorf("after a moment without calls waited for %v, want %v", got, limit)
		}
	})
}

func TestWaitEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l Lull
		l.Call()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if got := waited(ctx, &l); got != time.Millisecond {
			t.Errorf("waited for %v, though its context has ended", got)
		}
		time.Sleep(limit)
	})
}

// Who has none is held up by nothing.
func TestNone(t *testing.T) {
	t.Parallel()
	var l *Lull
	defer l.Call()()
	l.Hurry()
	l.Wait(t.Context())
}

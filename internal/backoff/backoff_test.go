package backoff

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestNext(t *testing.T) {
	t.Parallel()
	b := Backoff{Min: time.Second, Max: 5 * time.Second}
	for range 2 {
		for _, bound := range []time.Duration{1, 2, 4, 5, 5} {
			bound *= time.Second
			if got := b.Next(); got < bound/2 || got >= bound {
				t.Errorf("wait %v, want from %v to %v", got, bound/2, bound)
			}
		}
		b.Reset()
	}
	if got := b.After(1 << 40); got < b.Max/2 || got >= b.Max {
		t.Errorf("wait %v after many failures, want from %v to %v", got, b.Max/2, b.Max)
	}
	seen := map[time.Duration]bool{}
	for range 100 {
		seen[b.After(3)] = true
	}
	if len(seen) < 50 {
		t.Errorf("%d different waits in 100", len(seen))
	}
}

func TestWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := Backoff{Min: 10 * time.Second, Max: time.Minute}
		start := time.Now()
		if err := b.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d < 5*time.Second || d >= 10*time.Second {
			t.Errorf("waited for %v", d)
		}
		ended := errors.New("ended")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, ended)
		defer cancel()
		start = time.Now()
		if err := b.Wait(ctx); !errors.Is(err, ended) {
			t.Errorf("wait ended with %v", err)
		}
		if d := time.Since(start); d != time.Second {
			t.Errorf("waited for %v after the end of the context", d)
		}
	})
}

// Package backoff spaces out attempts at something that fails. It owns the length of the
// waits and their jitter. It must not know what is attempted or how often.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff is the wait between attempts: its bound is Min at first, doubles with each failure
// up to Max, and the wait is a random time in the upper half below the bound, so that peers
// that failed together do not return together. It is for one goroutine.
type Backoff struct {
	Min, Max time.Duration

	failures int
}

// Next returns the wait before the next attempt.
func (b *Backoff) Next() time.Duration {
	b.failures++
	return b.After(b.failures)
}

// After returns the wait after as many failures in a row, for callers that count them.
func (b *Backoff) After(failures int) time.Duration {
	bound := b.Min
	for n := 1; n < failures && bound < b.Max; n++ {
		bound *= 2
	}
	bound = min(bound, b.Max)
	return bound/2 + rand.N(bound-bound/2)
}

// Reset makes the next wait the shortest again, after a success.
func (b *Backoff) Reset() { b.failures = 0 }

// Wait waits for the time of [Backoff.Next]. Its error is the cause of the context's end.
func (b *Backoff) Wait(ctx context.Context) error { return Sleep(ctx, b.Next()) }

// Sleep waits for d. Its error is the cause of the context's end.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Package idlegate delays background work until no call is in flight: the work and the
// calls would compete for processors and for locks of the kernel. It owns the gate and the
// longest delay. It must not know what the calls or the work are.
package idlegate

import (
	"context"
	"sync"
	"time"
)

// The gate opens when no call has been in flight for rest, in which the caller of the last
// one continues. It opens at the latest when calls have followed one another for limit.
const (
	rest  = 10 * time.Millisecond
	limit = 500 * time.Millisecond
)

// Gate is shared by the calls and the work. The zero Gate is ready, and a nil Gate delays
// nothing.
type Gate struct {
	mu      sync.Mutex
	calls   int           // in flight
	closed  chan struct{} // closed when the gate opens; nil while it is open
	opening *time.Timer   // of rest
	timeout *time.Timer   // of limit
	stays   bool          // open until no call is in flight
}

// Call reports that a call is in flight until done is called, which must be called once.
func (g *Gate) Call() (done func()) {
	if g == nil {
		return func() {}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls++
	if g.opening != nil {
		g.opening.Stop()
	}
	if g.closed == nil && !g.stays {
		closed := make(chan struct{})
		g.closed = closed
		g.timeout = time.AfterFunc(limit, func() { g.expire(closed) })
	}
	return g.done
}

func (g *Gate) done() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.calls--; g.calls > 0 {
		return
	}
	g.opening = time.AfterFunc(rest, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.calls == 0 {
			g.open()
			g.stays = false
		}
	})
}

// expire opens the gate unless it has opened since it was closed with this channel.
func (g *Gate) expire(closed chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed == closed {
		g.open()
		g.stays = true
	}
}

// open opens the gate. The caller holds the lock.
func (g *Gate) open() {
	if g.closed != nil {
		g.timeout.Stop()
		close(g.closed)
		g.closed = nil
	}
}

// Hurry opens the gate until no call is in flight: a call waits for a result of the work.
func (g *Gate) Hurry() {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.calls > 0 {
		g.open()
		g.stays = true
	}
}

// Wait returns when the gate is open or ctx ends.
func (g *Gate) Wait(ctx context.Context) {
	if g == nil {
		return
	}
	g.mu.Lock()
	closed := g.closed
	g.mu.Unlock()
	if closed == nil {
		return
	}
	select {
	case <-closed:
	case <-ctx.Done():
	}
}

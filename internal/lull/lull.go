// Package lull lets work that nobody waits for wait for a moment without calls that somebody waits for: the two would fight for processors, and for locks of the kernel's.
//
// It owns when such a moment is, and how long the work is held up at most. It must not know what the calls or the work are.
package lull

import (
	"context"
	"sync"
	"time"
)

// The bounds of a Lull. The work is let through when there has been no call for rest, in which who was answered goes on; and at the latest when one call has followed the other for limit.
const (
	rest  = 10 * time.Millisecond
	limit = 500 * time.Millisecond
)

// Lull is what calls and the work have in common. Its zero value is ready, and the nil Lull holds nothing up.
type Lull struct {
	mu    sync.Mutex
	calls int           // under way
	held  chan struct{} // closed when the work is let through; nil: nothing is held up
	ends  *time.Timer   // of rest
	late  *time.Timer   // of limit
	free  bool          // until the next moment without calls the work is held up no more
}

// Call says that a call is under way until done is called, which may be called once.
func (l *Lull) Call() (done func()) {
	if l == nil {
		return func() {}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	if l.ends != nil {
		l.ends.Stop()
	}
	if l.held == nil && !l.free {
		held := make(chan struct{})
		l.held = held
		l.late = time.AfterFunc(limit, func() { l.let(held) })
	}
	return l.done
}

func (l *Lull) done() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.calls--; l.calls > 0 {
		return
	}
	l.ends = time.AfterFunc(rest, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.calls == 0 {
			l.open()
			l.free = false
		}
	})
}

// let ends one holding up, unless it has ended.
func (l *Lull) let(held chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held == held {
		l.open()
		l.free = true
	}
}

// open lets the work through. The lock is held.
func (l *Lull) open() {
	if l.held != nil {
		l.late.Stop()
		close(l.held)
		l.held = nil
	}
}

// Hurry lets the work through now, and until the next moment without calls: a call waits for what comes of it.
func (l *Lull) Hurry() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.calls > 0 {
		l.open()
		l.free = true
	}
}

// Wait returns when the work may be done, or ctx ends.
func (l *Lull) Wait(ctx context.Context) {
	if l == nil {
		return
	}
	l.mu.Lock()
	held := l.held
	l.mu.Unlock()
	if held == nil {
		return
	}
	select {
	case <-held:
	case <-ctx.Done():
	}
}

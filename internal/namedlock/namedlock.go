// Package namedlock has mutexes by name, for changes of one thing that must follow one another within this process.
//
// It owns the table of the names that are held. It must not know what the names mean, nor in which order several are to be taken: whoever needs more than
// one at a time says so where they are taken.
package namedlock

import (
	"context"
	"sync"
)

// Locks are mutexes by name, whose waiters give up with their context. A name that nobody holds costs nothing. The zero Locks are ready.
type Locks struct {
	mu   sync.Mutex
	held map[string]*held
}

type held struct {
	turn  chan struct{} // holds one element while somebody has the lock
	users int           // who have it or wait for it
}

// Held tells how many names somebody has or waits for.
func (l *Locks) Held() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.held)
}

// Lock waits for the name. The function it gives lets go. The error is the context's cause.
func (l *Locks) Lock(ctx context.Context, name string) (unlock func(), err error) {
	l.mu.Lock()
	if l.held == nil {
		l.held = map[string]*held{}
	}
	h := l.held[name]
	if h == nil {
		h = &held{turn: make(chan struct{}, 1)}
		l.held[name] = h
	}
	h.users++
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if h.users--; h.users == 0 {
			delete(l.held, name)
		}
	}
	select {
	case h.turn <- struct{}{}:
		return func() { <-h.turn; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}

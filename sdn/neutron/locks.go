package neutron

import (
	"context"
	"sync"

	"github.com/kuryr/kuryr/sdn"
)

// locks are mutexes by name, whose waiters give up with their context. A name that nobody holds costs nothing.
type locks struct {
	mu   sync.Mutex
	held map[string]*held
}

type held struct {
	turn  chan struct{} // holds one element while somebody has the lock
	users int           // who have it or wait for it
}

// lock waits for the name. The function it gives lets go.
func (l *locks) lock(ctx context.Context, name string) (unlock func(), err error) {
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
		return nil, sdn.Unavailable(context.Cause(ctx), "Neutron", "another call for the same object has not ended in time")
	}
}

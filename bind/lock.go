//go:build linux

package bind

import (
	"context"
	"sync"

	"github.com/kuryr/kuryr/sdn"
)

// portLocks is a lock for each port that is being worked on, and nothing for the others.
type portLocks struct {
	mu   sync.Mutex // of the map alone; never held while anybody waits
	held map[sdn.ID]*portLock
}

type portLock struct {
	token chan struct{} // holds one element while the port is locked
	users int           // that hold it or wait for it
}

// lock waits for the port and returns what lets it go, or the context's error.
func (l *portLocks) lock(ctx context.Context, id sdn.ID) (unlock func(), err error) {
	l.mu.Lock()
	if l.held == nil {
		l.held = make(map[sdn.ID]*portLock)
	}
	p := l.held[id]
	if p == nil {
		p = &portLock{token: make(chan struct{}, 1)}
		l.held[id] = p
	}
	p.users++
	l.mu.Unlock()

	select {
	case p.token <- struct{}{}:
		return func() { <-p.token; l.leave(id, p) }, nil
	case <-ctx.Done():
		l.leave(id, p)
		return nil, context.Cause(ctx)
	}
}

func (l *portLocks) leave(id sdn.ID, p *portLock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.users--; p.users == 0 {
		delete(l.held, id)
	}
}

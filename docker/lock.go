package docker

import (
	"context"
	"slices"
	"sync"
)

// locks serialise what is done to one thing, by its name. A name nobody holds costs nothing.
//
// Whoever takes a lock while holding another does so in this order only: "owed/…", "automatic", "network/…", "range/…", "endpoint/…", "pool/…", and
// last one of "port/…" and "router/…".
type locks struct {
	mu   sync.Mutex
	held map[string]*heldLock
}

type heldLock struct {
	token chan struct{} // full while somebody holds the lock
	users int           // who hold it or wait for it
}

// lock takes the locks of all names, always in one order, so that nobody waits for one another in a circle; take all that
// are needed in one call where that can be. It gives up when ctx ends. The function returned lets go.
func (l *locks) lock(ctx context.Context, names ...string) (unlock func(), err error) {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	for i, name := range names {
		if err := l.lockOne(ctx, name); err != nil {
			l.unlock(names[:i])
			return nil, err
		}
	}
	return func() { l.unlock(names) }, nil
}

func (l *locks) lockOne(ctx context.Context, name string) error {
	l.mu.Lock()
	if l.held == nil {
		l.held = map[string]*heldLock{}
	}
	h := l.held[name]
	if h == nil {
		h = &heldLock{token: make(chan struct{}, 1)}
		l.held[name] = h
	}
	h.users++
	l.mu.Unlock()
	select {
	case h.token <- struct{}{}:
		return nil
	case <-ctx.Done():
		l.leave(name, h)
		return ctx.Err()
	}
}

func (l *locks) unlock(names []string) {
	for _, name := range names {
		l.mu.Lock()
		h := l.held[name]
		l.mu.Unlock()
		<-h.token
		l.leave(name, h)
	}
}

func (l *locks) leave(name string, h *heldLock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h.users--; h.users == 0 {
		delete(l.held, name)
	}
}

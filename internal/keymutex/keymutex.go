// Package keymutex provides mutexes by key. It owns the table of the locked keys. It must
// not know what a key means. [Mutex.LockAll] has an order of its own; a caller that locks
// several keys one by one documents their order.
package keymutex

import (
	"context"
	"slices"
	"sync"
)

// Mutex locks keys. An unlocked key needs no memory. The zero Mutex is ready.
type Mutex struct {
	mu   sync.Mutex
	keys map[string]*entry
}

type entry struct {
	locked chan struct{} // holds one element while the key is locked
	users  int           // the holder and the waiters
}

// Held returns the number of keys that are locked or waited for.
func (m *Mutex) Held() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.keys)
}

// Lock waits until the key is unlocked, and locks it until unlock is called. The error is
// the cause of the context's end.
func (m *Mutex) Lock(ctx context.Context, key string) (unlock func(), err error) {
	e := m.enter(key)
	select {
	case e.locked <- struct{}{}:
		return func() { <-e.locked; m.leave(key, e) }, nil
	case <-ctx.Done():
		m.leave(key, e)
		return nil, context.Cause(ctx)
	}
}

// LockAll locks all of the keys, or none. The order is the same for all callers, so that
// they do not wait for one another.
func (m *Mutex) LockAll(ctx context.Context, keys ...string) (unlock func(), err error) {
	var unlocks []func()
	unlock = func() {
		for _, u := range unlocks {
			u()
		}
	}
	for _, key := range slices.Compact(slices.Sorted(slices.Values(keys))) {
		u, err := m.Lock(ctx, key)
		if err != nil {
			unlock()
			return nil, err
		}
		unlocks = append(unlocks, u)
	}
	return unlock, nil
}

func (m *Mutex) enter(key string) *entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.keys[key]
	if e == nil {
		if m.keys == nil {
			m.keys = map[string]*entry{}
		}
		e = &entry{locked: make(chan struct{}, 1)}
		m.keys[key] = e
	}
	e.users++
	return e
}

func (m *Mutex) leave(key string, e *entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e.users--; e.users == 0 {
		delete(m.keys, key)
	}
}

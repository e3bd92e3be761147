//go:build linux

package node

import (
	"context"
	"errors"
	"sync"
)

// errOvertaken is why an ADD ends before its time.
var errOvertaken = errors.New("a DEL for the interface has come meanwhile")

// underway are the ADDs that have not ended, by attachment. A DEL ends those that came before it: nobody wants what they wait for, an empty pool's next port for example,
// and it would wait for them.
type underway struct {
	mu   sync.Mutex
	last int
	adds map[string]map[int]context.CancelCauseFunc
}

// begin is for an ADD, whose context it bounds. done must be called at its end.
func (u *underway) begin(ctx context.Context, attachment string) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.last++
	id := u.last
	if u.adds == nil {
		u.adds = map[string]map[int]context.CancelCauseFunc{}
	}
	if u.adds[attachment] == nil {
		u.adds[attachment] = map[int]context.CancelCauseFunc{}
	}
	u.adds[attachment][id] = cancel
	return ctx, func() {
		cancel(nil)
		u.mu.Lock()
		defer u.mu.Unlock()
		if delete(u.adds[attachment], id); len(u.adds[attachment]) == 0 {
			delete(u.adds, attachment)
		}
	}
}

// overtake is for a DEL.
func (u *underway) overtake(attachment string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, cancel := range u.adds[attachment] {
		cancel(errOvertaken)
	}
}

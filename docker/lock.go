package docker

import (
	"context"
	"slices"

	"github.com/kuryr/kuryr/internal/keymutex"
)

// locks serialise what is done to one thing, by its name.
//
// Whoever takes a lock while holding another does so in this order only: "owed/…", "automatic", "network/…", "range/…", "endpoint/…", "pool/…", and
// last one of "port/…" and "router/…".
type locks struct{ named keymutex.Mutex }

// lock takes the locks of all names, always in one order, so that nobody waits for one another in a circle; take all that
// are needed in one call where that can be. It gives up when ctx ends. The function returned lets go.
func (l *locks) lock(ctx context.Context, names ...string) (unlock func(), err error) {
	var held []func()
	unlock = func() {
		for _, letGo := range held {
			letGo()
		}
	}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		one, err := l.named.Lock(ctx, name)
		if err != nil {
			unlock()
			return nil, err
		}
		held = append(held, one)
	}
	return unlock, nil
}

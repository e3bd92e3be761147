package raven

import (
	"context"
	"sync"
)

// wakes are pools to be looked at of which nothing in Kubernetes has changed: those that wait for the cap. They go into the pools' own queue, which has room for any number and has
// each once; that queue's pauses are theirs, so that pools which in turn give back what they cannot use do not chase one another.
type wakes struct {
	mu    sync.Mutex
	queue queue
}

// Start has pools woken in q. It is the pools' controller that calls it.
func (w *wakes) Start(_ context.Context, q queue) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue = q
	return nil
}

// wake has pools looked at soon. Before the controller has begun there is nothing to do: it begins with all of them.
func (w *wakes) wake(pools ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.queue == nil {
		return
	}
	for _, pool := range pools {
		w.queue.AddRateLimited(request("", pool))
	}
}

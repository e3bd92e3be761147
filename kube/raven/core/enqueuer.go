package core

import (
	"context"
	"sync"

	ctrl "sigs.k8s.io/controller-runtime"
)

// Enqueuer enqueues objects of one kind of which nothing in Kubernetes has changed, such
// as pools that wait for the cap. They go into their controller's own queue, which has
// each of them once. Those that fail keep their backoff there, so that pools which return
// what they cannot use do not wake one another forever.
type Enqueuer struct {
	mu    sync.Mutex
	queue Queue
}

// Start enqueues into q from now on. The controller calls it.
func (w *Enqueuer) Start(_ context.Context, q Queue) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue = q
	return nil
}

// Enqueue enqueues an object, and reports whether it is processed soon: one that has
// failed waits for its backoff. Before the controller starts there is nothing to do, as
// it starts with all of them.
func (w *Enqueuer) Enqueue(r ctrl.Request) (soon bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.queue == nil {
		return true
	}
	if w.queue.NumRequeues(r) > 0 {
		w.queue.AddRateLimited(r)
		return false
	}
	w.queue.Add(r)
	return true
}

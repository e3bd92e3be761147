package raven

import (
	"context"
	"slices"
	"sync"

	ctrl "sigs.k8s.io/controller-runtime"
)

// wakes are objects of one kind to be looked at of which nothing in Kubernetes has changed, such as pools that wait for the cap. They go into their controller's own queue, which has
// room for any number and has each once; the pauses of those that fail are that queue's, so that pools which in turn give back what they cannot use do not chase one another.
type wakes struct {
	mu    sync.Mutex
	queue queue
}

// Start has objects woken in q. It is their controller that calls it.
func (w *wakes) Start(_ context.Context, q queue) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue = q
	return nil
}

// wake has an object looked at soon, and tells whether it is: one that has failed comes when its pause is over. Before the controller has begun there is nothing to do: it begins with all of them.
func (w *wakes) wake(r ctrl.Request) (soon bool) {
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

// wakeCalled has pools looked at that the budget has called. For those that come late others are.
func (r *Raven) wakeCalled(pools []string) {
	for len(pools) > 0 {
		pools = r.budget.late(slices.DeleteFunc(pools, r.wakePool))
	}
}

func (r *Raven) wakePool(name string) (soon bool) { return r.poolWakes.wake(request("", name)) }

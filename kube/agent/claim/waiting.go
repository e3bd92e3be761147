package claim

import (
	"container/list"
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kuryr/kuryr/kube/agent"
)

// waiter is an attachment that waits for a port, in the order in which it came.
type waiter struct {
	ask   agent.Attachment
	topic topic
	place *list.Element
	over  bool          // it has waited for Config.PodWait, and no longer waits for the pod
	why   error         // what it waits for
	done  chan struct{} // closed at the end of the wait: got is set, or why is final
	got   *attachment
}

// waiters wait for topics, each in order. Its methods need the index's lock.
type waiters map[topic]*list.List

func (w waiters) add(n *waiter, t topic, why error) {
	if w[t] == nil {
		w[t] = list.New()
	}
	n.topic, n.why, n.place = t, why, w[t].PushBack(n)
}

// forsake ends the waits for a pod that is being deleted or gone: of those with its name, the ones
// whose UID, "" if the runtime names none, is its own. A kubelet deletes a sandbox only when its ADD
// has ended.
func (w waiters) forsake(pod types.NamespacedName, its func(types.UID) bool) {
	for _, l := range w {
		for e := l.Front(); e != nil; {
			n := e.Value.(*waiter)
			e = e.Next()
			if n.ask.Pod.Namespace == pod.Namespace && n.ask.Pod.Name == pod.Name && its(types.UID(n.ask.Pod.UID)) {
				w.remove(n)
				n.why = errLeaving(pod)
				close(n.done)
			}
		}
	}
}

func (w waiters) remove(n *waiter) {
	if n.place == nil {
		return
	}
	l := w[n.topic]
	if l.Remove(n.place); l.Len() == 0 {
		delete(w, n.topic)
	}
	n.place = nil
}

// wait waits for a port, and for the pod no longer than Config.PodWait.
func (c *Allocator) wait(ctx context.Context, w *waiter) (*attachment, error) {
	timeout := time.NewTimer(c.PodWait)
	defer timeout.Stop()
	c.Idle.Hurry() // Raven fills pools by what is written to the API
	for {
		over := false
		select {
		case <-w.done:
		case <-timeout.C:
			over = true
		case <-ctx.Done():
		}
		c.mu.Lock()
		w.over = w.over || over
		switch {
		case ctx.Err() == nil && w.place == nil, ctx.Err() == nil && w.over && w.topic.of == ofPod:
			c.waiting.remove(w)
			c.mu.Unlock()
			if w.got != nil {
				return w.got, nil
			}
			return nil, w.why
		case ctx.Err() != nil:
			c.waiting.remove(w)
			if w.got != nil {
				c.offer(c.index.detach(w.got))
			}
			c.mu.Unlock()
			return nil, w.why
		}
		c.mu.Unlock()
	}
}

// offer looks at the waiters for a topic, the longest waiting first, while there is something to get.
// The lock is held.
func (c *Allocator) offer(t topic) {
	l := c.waiting[t]
	if l == nil {
		return
	}
	for e := l.Front(); e != nil; {
		w := e.Value.(*waiter)
		e = e.Next()
		if !c.look(w) && t.of == ofPorts && c.index.empty(t.name) {
			return // those behind it get none either
		}
	}
}

// reconsider looks at all waiters for these topics, some of which may wait for another topic now. The
// lock is held.
func (c *Allocator) reconsider(topics []topic) {
	for _, t := range topics {
		l := c.waiting[t]
		if l == nil {
			continue
		}
		for e := l.Front(); e != nil; {
			w := e.Value.(*waiter)
			e = e.Next()
			c.look(w)
		}
	}
}

// look gives a waiter a port, ends its wait with an error, or moves it to another topic. It reports
// whether any of these happened. The lock is held.
func (c *Allocator) look(w *waiter) bool {
	p, pod, next, why := c.index.choose(w.ask)
	switch {
	case p != nil:
		c.waiting.remove(w)
		w.got = c.take(p, pod, w.ask)
		close(w.done)
	case next == topic{}, w.over && next.of == ofPod:
		c.waiting.remove(w)
		w.why = why
		close(w.done)
	case next != w.topic:
		c.waiting.remove(w)
		c.waiting.add(w, next, why)
	default:
		w.why = why
		return false
	}
	return true
}

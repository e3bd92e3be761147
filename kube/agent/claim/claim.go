package claim

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/kube/agent"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/sdn"
)

// This file follows an attachment from its ADD to its DEL: Allocate, Free if the row cannot be
// stored, Ensure, Find, RowOf, Leave, Release.

// Allocate returns the attachment's port: the one that it has, the one made for its pod, that of
// an earlier sandbox of the pod, or a free one of a pool of its namespace's network. If there is
// one, it makes no call of the API server. Otherwise it waits for exactly one, in the order of
// asking, until ctx ends.
//
// Errors: IsExhausted with what is waited for; IsNotFound for a pod that is not known after
// Config.PodWait; IsConflict, Stale, for a pod with another UID, because the container is of an
// earlier pod; IsUnavailable if Raven allocates the node's ports.
func (c *Allocator) Allocate(ctx context.Context, a agent.Attachment) (*agent.Allocation, error) {
	if a.Pod == nil || a.Pod.Name == "" || a.Pod.Namespace == "" {
		return nil, sdn.Invalid("attachment", "K8S_POD_NAME", "only pods have ports of a node's pools")
	}
	if err := grantable(a.Want.Network); err != nil {
		return nil, err
	}
	c.mu.Lock()
	if has := c.index.at(a.Key()); has != nil {
		defer c.mu.Unlock()
		return c.index.again(has, a)
	}
	c.mu.Unlock()
	got, err := c.get(ctx, a)
	if err != nil {
		return nil, err
	}
	failpoint.Here("claim.claim.chosen")
	return got.Port, nil
}

// grantable refuses a network that the caller names. The pools of a pod's namespace have ports of
// that namespace's network only, and a second interface there would not be what a caller such as
// Multus asks for.
func grantable(network string) error {
	if network == "" {
		return nil
	}
	return sdn.Unsupported("attachment", "pods have ports of their namespace's network, not of %q (network)", network)
}

// again returns the port of an attachment that has one.
func (x *index) again(has *attachment, a agent.Attachment) (*agent.Allocation, error) {
	asked := types.NamespacedName{Namespace: a.Pod.Namespace, Name: a.Pod.Name}
	if !has.isOf(a.Pod.UID) || has.podName() != asked {
		return nil, sdn.Conflict(sdn.InUse, "attachment", "K8S_POD_UID",
			"the container %s is of the pod %s with the UID %s", a.Container, has.podName(), has.Port.UID)
	}
	port := *has.Port
	port.Wiring, port.Adopted = x.wiring(has), false
	return &port, nil
}

// get takes a port for the attachment in memory.
func (c *Allocator) get(ctx context.Context, a agent.Attachment) (*attachment, error) {
	select {
	case <-c.ready:
	case <-ctx.Done():
		return nil, sdn.Unavailable(context.Cause(ctx), "API server", "it has not told yet which ports the node has")
	}
	c.mu.Lock()
	if old := c.index.predecessor(a); old != nil {
		got := c.takeOver(old, a)
		c.mu.Unlock()
		return got, nil
	}
	p, pod, t, err := c.index.choose(a)
	switch {
	case p != nil:
		got := c.take(p, pod, a)
		c.mu.Unlock()
		return got, nil
	case t == topic{}:
		c.mu.Unlock()
		return nil, err
	}
	w := &waiter{ask: a, done: make(chan struct{})}
	c.waiting.add(w, t, err)
	c.mu.Unlock()
	return c.wait(ctx, w)
}

// takeOver gives the port of a pod's earlier sandbox to its new one, so that the pod keeps its
// addresses. Ensure deletes the earlier row when the new one is stored, so that no kill leaves
// the port to another pod. The lock is held.
func (c *Allocator) takeOver(old *attachment, a agent.Attachment) *attachment {
	port := *old.Port
	port.Wiring, port.Adopted = c.index.wiring(old), false
	got := &attachment{Intent: agent.Intent{Attachment: a, Port: &port}, from: old}
	c.index.hold(got)
	return got
}

// take gives a free port to an attachment. The lock is held.
func (c *Allocator) take(p *port, pod *pod, a agent.Attachment) *attachment {
	got := &attachment{Intent: agent.Intent{Attachment: a, Port: &agent.Allocation{
		Wiring: p.wiring, Pool: p.object.Spec.Pool, UID: string(pod.uid), Since: time.Now().UTC().Truncate(time.Second),
	}}}
	c.index.hold(got)
	return got
}

// Free implements agent.Source.
func (c *Allocator) Free(i agent.Intent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a := c.index.holder(i); a != nil && !a.stored {
		c.free(a)
		c.told(a)
	}
}

// free ends an allocation in memory. A port that is being taken over returns to the earlier
// attachment. The lock is held.
func (c *Allocator) free(a *attachment) {
	t := c.index.detach(a)
	if a.from != nil {
		c.index.hold(a.from)
		return
	}
	c.offer(t)
}

// Ensure implements agent.Source. The intent is stored, so the API hears of it from now on. If
// Raven allocates the node's ports since Allocate, it may have given the port to a pod.
func (c *Allocator) Ensure(ctx context.Context, i agent.Intent) (agent.Wiring, error) {
	c.mu.Lock()
	a := c.index.holder(i)
	if a == nil {
		c.mu.Unlock()
		return agent.Wiring{}, sdn.Conflict(sdn.InUse, "attachment", "port", "the port %s is another's", i.Port.Wiring.Port.ID)
	}
	from := a.from
	c.mu.Unlock()
	failpoint.Here("claim.claim.written")
	if from != nil {
		if err := c.server.Drop(ctx, from.Attachment); err != nil {
			return agent.Wiring{}, err
		}
		c.mu.Lock()
		a.from = nil
		c.mu.Unlock()
		failpoint.Here("claim.takeover.written")
	}
	if !i.Found {
		if err := c.publish(i); err != nil {
			return agent.Wiring{}, err
		}
		failpoint.Here("claim.claim.published")
	} else if i.Port.Adopted {
		failpoint.Here("claim.adopt.written")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !a.stored && !i.Found {
		if err := c.index.mayClaim(); err != nil {
			return agent.Wiring{}, err
		}
	}
	a.Intent = i
	c.index.attach(a)
	c.told(a)
	w := c.index.wiring(a)
	w.Limits = i.Want.Bandwidth
	return w, nil
}

// told makes the API learn of an attachment that has its port, or no longer has it.
func (c *Allocator) told(a *attachment) {
	c.queue.Add(task{port: a.port()})
	c.queue.Add(task{pod: a.podName()})
}

// Ready implements agent.Prober. It is nil if a pod could have a port, were one free.
func (c *Allocator) Ready(_ context.Context, _, wanted string) error {
	if err := grantable(wanted); err != nil {
		return err
	}
	select {
	case <-c.ready:
	default:
		return sdn.Unavailable(nil, "API server", "it has not told yet which ports the node has")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.index.mayClaim()
}

// mayClaim is nil unless Raven allocates the node's ports.
func (x *index) mayClaim() error {
	if x.raven {
		return sdn.Unavailable(nil, "node",
			"the label %s of the node %s says that Raven claims its ports", v1.LabelClaimant, x.node)
	}
	return nil
}

// Find implements agent.Source. An attachment has no port under the UID of another pod.
func (c *Allocator) Find(_ context.Context, a agent.Attachment) (agent.Wiring, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	has := c.index.find(a)
	if has == nil || has.leaving {
		return agent.Wiring{}, sdn.NotFound("attachment", a.Key())
	}
	return c.index.wiring(has), nil
}

// RowOf implements agent.Source. The row can be of a container that the API did not know.
func (c *Allocator) RowOf(a agent.Attachment) (key string, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if has := c.index.find(a); has != nil {
		return has.Key(), true
	}
	return "", false
}

// Leave implements agent.Source.
func (c *Allocator) Leave(_ context.Context, i agent.Intent) (agent.Wiring, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.index.holder(i)
	if a == nil {
		return agent.Wiring{}, sdn.NotFound("attachment", i.Key())
	}
	a.leaving = true
	failpoint.Here("claim.release.written")
	return c.index.wiring(a), nil
}

// Release implements agent.Source. The node may give the port to another pod immediately, before
// the API server hears of it. Until then the row stays, so that a restarted daemon does not
// believe the API that the container still has the port.
func (c *Allocator) Release(_ context.Context, o reconcile.Object, i agent.Intent) error {
	if i.Port == nil {
		return nil
	}
	c.mu.Lock()
	a := c.index.holder(i)
	published := a != nil && a.from == nil
	c.mu.Unlock()
	if published {
		if err := c.unpublish(a.port()); err != nil {
			return sdn.OfHost(err)
		}
	}
	port := string(i.Port.Wiring.Port.ID)
	c.mu.Lock()
	defer c.mu.Unlock()
	next := c.index.holders[port]
	_, waits := c.index.released[port][o]
	switch {
	case a != nil && !a.stored: // the API never heard of it
		c.free(a)
		c.told(a)
		return nil
	case a != nil:
		in(c.index.released, port)[o] = struct{}{}
		c.free(a)
	case next != nil && next.from != nil && next.from.Key() == i.Key():
		in(c.index.released, port)[o] = struct{}{}
		a, next.from = next.from, nil
		c.index.detach(a)
	case waits:
		return reconcile.ErrWaiting
	default:
		return nil
	}
	c.told(a)
	return reconcile.ErrWaiting
}

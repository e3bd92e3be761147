package claim

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/internal/reconcile"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/node"
	"github.com/kuryr/kuryr/sdn"
)

// Allocate returns the port made for the attachment's pod, a port of a dead sandbox of the pod, or a
// free one of a pool of its namespace's network. With one there, it makes no call of the API
// server. Else it waits for exactly one, in the order of asking, until ctx ends: IsExhausted,
// with what is waited for. A pod that is not known after Config.PodWait is IsNotFound; one that
// has another UID is IsConflict, Stale: the container is of an earlier pod. IsUnavailable if
// Raven claims the node's ports.
func (c *Claimant) Allocate(ctx context.Context, a node.Attachment) (*node.Allocation, error) {
	if a.Pod == nil || a.Pod.Name == "" || a.Pod.Namespace == "" {
		return nil, sdn.Invalid("attachment", "K8S_POD_NAME", "only pods have ports of a node's pools")
	}
	if err := grantable(a.Want.Network); err != nil {
		return nil, err
	}
	c.mu.Lock()
	has := c.index.attached[keyOf(a)]
	c.mu.Unlock()
	if has != nil {
		return c.again(has, a)
	}
	got, err := c.get(ctx, a)
	if err != nil {
		return nil, err
	}
	failpoint.Here("claim.claim.chosen")
	return got.allocation(), nil
}

// grantable refuses a network that the caller names. The pools of a pod's namespace have
// ports of that namespace's network alone, and a second interface there would not be what
// a caller such as Multus asks for.
func grantable(network string) error {
	if network == "" {
		return nil
	}
	return sdn.Unsupported("attachment", "pods have ports of their namespace's network, not of %q (network)", network)
}

// Free takes back in memory what was allocated and is not stored.
func (c *Claimant) Free(i node.Intent) {
	c.mu.Lock()
	a := c.holder(i)
	if a == nil || a.written {
		c.mu.Unlock()
		return
	}
	c.free(a)
	c.mu.Unlock()
	c.told(a)
}

// free ends in memory what has its port. A port that was taken over, and is not yet, goes back.
// The lock is held.
func (c *Claimant) free(a *attachment) {
	t := c.index.detach(a)
	if old := a.from; old != nil && c.index.attached[keyOf(old.Attachment)] == old {
		c.index.hold(old)
		return
	}
	c.offer(t)
}

// holder returns what has the intent's port by that intent; nil is none. The lock is held.
func (c *Claimant) holder(i node.Intent) *attachment {
	if i.Port == nil {
		return nil
	}
	a := c.index.holders[string(i.Port.Wiring.Port.ID)]
	if a == nil || keyOf(a.Attachment) != keyOf(i.Attachment) {
		return nil
	}
	return a
}

// Ensure says that an intent is stored: from now on the API hears of it. Where Raven claims the
// node's ports since the port was allocated, it may have given the port to a pod.
func (c *Claimant) Ensure(ctx context.Context, i node.Intent) (node.Wiring, error) {
	c.mu.Lock()
	a := c.holder(i)
	c.mu.Unlock()
	if a == nil {
		return node.Wiring{}, sdn.Conflict(sdn.InUse, "attachment", "port", "the port %s is another's", i.Port.Wiring.Port.ID)
	}
	failpoint.Here("claim.claim.written")
	if a.from != nil {
		if err := c.server.Drop(ctx, a.from.Attachment); err != nil {
			return node.Wiring{}, err
		}
		c.mu.Lock()
		a.from = nil
		c.mu.Unlock()
		failpoint.Here("claim.inherit.written")
	}
	if !i.Found {
		if err := c.publish(&attachment{record: recordOf(i), wiring: i.Port.Wiring}); err != nil {
			return node.Wiring{}, err
		}
		failpoint.Here("claim.claim.published")
	} else if i.Port.Adopted {
		failpoint.Here("claim.adopt.written")
	}
	c.mu.Lock()
	if !a.written && !i.Found {
		if err := c.index.mayClaim(); err != nil {
			c.mu.Unlock()
			return node.Wiring{}, err
		}
	}
	c.index.unadopt(a)
	a.record = recordOf(i)
	c.index.attach(a)
	w := limited(c.wiring(a), i.Attachment)
	c.mu.Unlock()
	c.told(a)
	return w, nil
}

// limited adds to a wiring what the node keeps the attachment to.
func limited(w node.Wiring, a node.Attachment) node.Wiring {
	w.Limits = a.Want.Bandwidth
	return w
}

// again answers for what has its port.
func (c *Claimant) again(has *attachment, a node.Attachment) (*node.Allocation, error) {
	if !sameUID(has, a.Pod.UID) || podName(has) != (types.NamespacedName{Namespace: a.Pod.Namespace, Name: a.Pod.Name}) {
		return nil, sdn.Conflict(sdn.InUse, "attachment", "K8S_POD_UID", "the container %s is of the pod %s with the UID %s", a.Container, podName(has), has.UID)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	port := has.allocation()
	port.Wiring, port.Adopted = c.wiring(has), false
	return port, nil
}

// sameUID tells whether a runtime that says this UID means the attachment's pod. One that says none means it.
func sameUID(a *attachment, uid string) bool {
	return uid == "" || types.UID(uid) == a.UID || a.Attachment.Pod != nil && uid == a.Attachment.Pod.UID
}

// get takes a port for the attachment, which is not written down yet.
func (c *Claimant) get(ctx context.Context, a node.Attachment) (*attachment, error) {
	select {
	case <-c.ready:
	case <-ctx.Done():
		return nil, sdn.Unavailable(context.Cause(ctx), "API server", "it has not told yet which ports the node has")
	}
	c.mu.Lock()
	if old := c.orphan(a); old != nil {
		got := c.inherit(old, a)
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

// take gives a free port to an attachment, in memory. The lock is held.
func (c *Claimant) take(p *port, pod *pod, a node.Attachment) *attachment {
	got := &attachment{wiring: p.wiring, record: record{
		Attachment: a, UID: pod.uid, Port: p.object.Name, Pool: p.object.Spec.Pool, Since: time.Now().UTC().Truncate(time.Second),
	}}
	c.index.hold(got)
	return got
}

// mayClaim is nil unless the ports of the node are another's to claim.
func (x *index) mayClaim() error {
	if x.raven {
		return sdn.Unavailable(nil, "node", "the label %s of the node %s says that Raven claims its ports", v1.LabelClaimant, x.node)
	}
	return nil
}

// Ready is nil where a pod could have a port if there is one.
func (c *Claimant) Ready(_ context.Context, _, wanted string) error {
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

// told has the API learn of an attachment that has its port, or has it no longer.
func (c *Claimant) told(a *attachment) {
	c.queue.Add(task{port: a.Port})
	c.queue.Add(task{pod: podName(a)})
}

func podName(a *attachment) types.NamespacedName {
	if a.Attachment.Pod == nil {
		return types.NamespacedName{}
	}
	return types.NamespacedName{Namespace: a.Attachment.Pod.Namespace, Name: a.Attachment.Pod.Name}
}

// wiring is what the API tells of an attachment's port now, or told when it was claimed. The lock is held.
func (c *Claimant) wiring(a *attachment) node.Wiring {
	if p := c.index.ports[a.Port]; p != nil && p.broken == nil {
		return p.wiring
	}
	return a.wiring
}

// Find is the port that the attachment has. One that is asked for with the UID of another pod has none: whose it is keeps it, and its interface.
func (c *Claimant) Find(_ context.Context, a node.Attachment) (node.Wiring, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	has := c.index.find(a)
	if has == nil || has.leaving || a.Pod != nil && !sameUID(has, a.Pod.UID) {
		return node.Wiring{}, sdn.NotFound("attachment", a.Key())
	}
	return c.wiring(has), nil
}

// RowOf returns the key of what has a port for the attachment, which can be of a container that
// the API did not know. There is none for the UID of another pod.
func (c *Claimant) RowOf(a node.Attachment) (key string, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	has := c.index.find(a)
	if has == nil || a.Pod != nil && !sameUID(has, a.Pod.UID) {
		return "", false
	}
	return has.Attachment.Key(), true
}

// Leave implements node.Source.
func (c *Claimant) Leave(_ context.Context, i node.Intent) (node.Wiring, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.holder(i)
	if a == nil {
		return node.Wiring{}, sdn.NotFound("attachment", i.Key())
	}
	a.leaving = true
	failpoint.Here("claim.release.written")
	return c.wiring(a), nil
}

// Attachments are all that have a port.
func (c *Claimant) Attachments(context.Context) ([]node.Attachment, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]node.Attachment, 0, len(c.index.attached))
	for _, a := range c.index.attached {
		if !a.leaving {
			all = append(all, a.Attachment)
		}
	}
	return all, nil
}

// Release gives the port back: from here on the node may give its addresses to another pod, before
// the API server hears of it. Until that the row stays, so that a restarted daemon does not
// believe the API that the container still has the port.
func (c *Claimant) Release(_ context.Context, o reconcile.Object, i node.Intent) error {
	if i.Port == nil {
		return nil
	}
	port := string(i.Port.Wiring.Port.ID)
	c.mu.Lock()
	a := c.holder(i)
	had := c.index.attached[keyOf(i.Attachment)]
	c.mu.Unlock()
	if a != nil && a.from == nil {
		if err := c.unpublish(a); err != nil {
			return sdn.OfHost(err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, waits := c.index.owed[port][o]
	switch {
	case a != nil && !a.written: // the API never heard of it
		c.free(a)
	case a != nil:
		in(c.index.owed, port)[o] = struct{}{}
		c.free(a)
		waits = true
	case had != nil && had.Port == port: // another sandbox has taken it over
		in(c.index.owed, port)[o] = struct{}{}
		c.index.detach(had)
		waits = true
	case waits:
		return reconcile.ErrWaiting
	default:
		return nil
	}
	c.told(&attachment{record: recordOf(i)})
	if waits {
		return reconcile.ErrWaiting
	}
	return nil
}

package claim

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kuryr/kuryr/internal/failpoint"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/node"
	"github.com/kuryr/kuryr/sdn"
)

// Claim gives the attachment the port made for its pod, or a free one of a pool of its namespace's network. With one there, it makes no call of the API server. A port of a dead sandbox of the pod is its next one's. Else it waits for exactly one,
// in the order of asking, until ctx ends: IsExhausted, with what is waited for. A pod that is not known after Config.PodWait IsNotFound; one that has another UID
// IsConflict, Stale: the container is of a pod that has gone. IsUnavailable where the node's ports are another's to claim, also by the time that it has one.
func (c *Claimant) Claim(ctx context.Context, a node.Attachment) (node.Wiring, error) {
	if a.Pod == nil || a.Pod.Name == "" || a.Pod.Namespace == "" {
		return node.Wiring{}, sdn.Invalid("attachment", "K8S_POD_NAME", "only pods have ports of a node's pools")
	}
	if err := grantable(a.Want.Network); err != nil {
		return node.Wiring{}, err
	}
	k := keyOf(a)
	unlock, err := c.turn.Lock(ctx, k.name())
	if err != nil {
		return node.Wiring{}, sdn.Unavailable(err, "attachment", "another call for the container %s has not ended", a.Container)
	}
	defer unlock()
	c.mu.Lock()
	has := c.index.attached[k]
	c.mu.Unlock()
	if has != nil {
		return c.again(has, a)
	}
	got, err := c.get(ctx, a)
	if err != nil {
		return node.Wiring{}, err
	}
	failpoint.Here("claim.claim.chosen")
	if err := c.begins(got); err != nil {
		c.untake(got)
		return node.Wiring{}, err
	}
	failpoint.Here("claim.claim.written")
	if err := c.keep(got); err != nil {
		c.untake(got)
		return node.Wiring{}, err
	}
	c.told(got)
	return limited(got.wiring, a), nil
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

// begins publishes the ports of an attachment and writes it down, which a restart publishes them by. Where it inherits it is written down already, and is no longer after an error.
func (c *Claimant) begins(got *attachment) error {
	if err := c.publish(got); err != nil {
		return errors.Join(err, c.journal.drop(keyOf(got.Attachment)))
	}
	failpoint.Here("claim.claim.published")
	if err := c.journal.put(got.record); err != nil {
		return sdn.OfHost(errors.Join(err, c.unpublish(got), c.journal.drop(keyOf(got.Attachment))))
	}
	return nil
}

// keep says that what is written down has its port. Where the ports have become another's to claim since it was taken that one may have given it to a pod: what was
// written is taken back, and the API hears nothing of it.
func (c *Claimant) keep(got *attachment) error {
	c.mu.Lock()
	err := c.index.mayClaim()
	if err == nil {
		c.index.attach(got)
	}
	c.mu.Unlock()
	if err != nil {
		return errors.Join(err, c.unpublish(got), c.journal.drop(keyOf(got.Attachment)))
	}
	return nil
}

// untake ends in memory what was taken and is not kept. Of the one that it inherits from the API has to be told.
func (c *Claimant) untake(got *attachment) {
	c.mu.Lock()
	c.offer(c.index.detach(got))
	c.mu.Unlock()
	c.told(got)
}

// limited adds to a wiring what the node keeps the attachment to.
func limited(w node.Wiring, a node.Attachment) node.Wiring {
	w.Limits = a.Want.Bandwidth
	return w
}

// again answers a Claim for what has its port.
func (c *Claimant) again(has *attachment, a node.Attachment) (node.Wiring, error) {
	if !sameUID(has, a.Pod.UID) || podName(has) != (types.NamespacedName{Namespace: a.Pod.Namespace, Name: a.Pod.Name}) {
		return node.Wiring{}, sdn.Conflict(sdn.InUse, "attachment", "K8S_POD_UID", "the container %s is of the pod %s with the UID %s", a.Container, podName(has), has.UID)
	}
	if a.Namespace != has.Attachment.Namespace || has.Adopted {
		r := has.record
		r.Attachment.Namespace, r.Attachment.Want, r.Adopted = a.Namespace, a.Want, false
		if err := c.publish(&attachment{record: r, wiring: has.wiring}); err != nil {
			return node.Wiring{}, err
		}
		if err := c.journal.put(r); err != nil {
			return node.Wiring{}, sdn.OfHost(err)
		}
		c.mu.Lock()
		delete(c.index.adopted, interfaceOf{has.UID, a.Interface})
		has.record = r
		c.mu.Unlock()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.wiring(has)
	if has.broken != nil && w.Port.MAC == nil {
		return node.Wiring{}, has.broken
	}
	return limited(w, has.Attachment), nil
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
		c.mu.Unlock()
		return c.inherit(ctx, old, a)
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
	got := &attachment{wiring: p.wiring, record: record{Attachment: a, UID: pod.uid, Port: p.object.Spec, Since: time.Now().UTC().Truncate(time.Second)}}
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
	c.queue.Add(task{port: a.Port.ID})
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
	if p := c.index.ports[a.Port.ID]; p != nil && p.broken == nil {
		return p.wiring
	}
	return a.wiring
}

// Find is the port that the attachment has. One that is asked for with the UID of another pod has none: whose it is keeps it, and its interface.
func (c *Claimant) Find(_ context.Context, a node.Attachment) (node.Wiring, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	has := c.index.find(a)
	if has == nil || a.Pod != nil && !sameUID(has, a.Pod.UID) {
		return node.Wiring{}, sdn.NotFound("attachment", a.Container+"/"+a.Interface)
	}
	return c.wiring(has), nil
}

// Attachments are all that have a port.
func (c *Claimant) Attachments(context.Context) ([]node.Attachment, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]node.Attachment, 0, len(c.index.attached))
	for _, a := range c.index.attached {
		all = append(all, a.Attachment)
	}
	return all, nil
}

// Release gives the attachment's port back. It has to be unplugged by then: from here on the node may give its addresses to another pod, before the API server
// hears of it. One for a pod of another UID than the one that has the port does nothing. The error is of the journal alone; nothing was given back then.
func (c *Claimant) Release(ctx context.Context, a node.Attachment) error {
	k := keyOf(a)
	unlock, err := c.turn.Lock(ctx, k.name())
	if err != nil {
		return sdn.Unavailable(err, "attachment", "another call for the container %s has not ended", a.Container)
	}
	defer unlock()
	c.mu.Lock()
	has := c.index.find(a)
	c.mu.Unlock()
	if has != nil && keyOf(has.Attachment) != k {
		return c.Release(ctx, has.Attachment)
	}
	if has == nil || a.Pod != nil && !sameUID(has, a.Pod.UID) {
		return nil
	}
	if err := c.unpublish(has); err != nil {
		return sdn.OfHost(err)
	}
	if err := c.journal.release(has.record); err != nil {
		return sdn.OfHost(err)
	}
	failpoint.Here("claim.release.written")
	c.mu.Lock()
	c.offer(c.index.detach(has))
	c.mu.Unlock()
	c.told(has)
	return nil
}

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
// IsConflict, Stale: the container is of a pod that has gone.
func (c *Claimant) Claim(ctx context.Context, a node.Attachment) (node.Wiring, error) {
	if a.Pod == nil || a.Pod.Name == "" || a.Pod.Namespace == "" {
		return node.Wiring{}, sdn.Invalid("attachment", "K8S_POD_NAME", "only pods have ports of a node's pools")
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
		c.mu.Lock()
		c.offer(c.index.detach(got))
		c.mu.Unlock()
		return node.Wiring{}, err
	}
	failpoint.Here("claim.claim.written")
	c.mu.Lock()
	c.index.attach(got)
	c.mu.Unlock()
	c.told(got)
	return limited(got.wiring, a), nil
}

// begins publishes the ports of an attachment and writes it down, which a restart publishes them by.
func (c *Claimant) begins(got *attachment) error {
	if err := c.publish(got); err != nil {
		return errors.Join(err, c.journal.drop(keyOf(got.Attachment))) // where it inherits it is written down already
	}
	failpoint.Here("claim.claim.published")
	if err := c.journal.put(got.record); err != nil {
		return sdn.OfHost(errors.Join(err, c.unpublish(got)))
	}
	return nil
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
	if err := c.index.mayClaim(); err != nil {
		c.mu.Unlock()
		return nil, err
	}
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

// wait is for a port to come, for the pod no longer than Config.PodWait.
func (c *Claimant) wait(ctx context.Context, w *waiter) (*attachment, error) {
	patience := time.NewTimer(c.PodWait)
	defer patience.Stop()
	for {
		over := false
		select {
		case <-w.done:
		case <-patience.C:
			over = true
		case <-ctx.Done():
		}
		c.mu.Lock()
		switch {
		case ctx.Err() == nil && w.place == nil, ctx.Err() == nil && over && w.topic.of == ofPod:
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

// take gives a free port to an attachment, in memory. The lock is held.
func (c *Claimant) take(p *port, pod *pod, a node.Attachment) *attachment {
	got := &attachment{wiring: p.wiring, record: record{Attachment: a, UID: pod.uid, Port: p.object.Spec, Since: time.Now().UTC().Truncate(time.Second)}}
	c.index.hold(got)
	return got
}

// offer lets those go on who wait for something, the longest waiting first. The lock is held.
func (c *Claimant) offer(t topic) {
	l := c.waiting[t]
	if l == nil {
		return
	}
	for e := l.Front(); e != nil; {
		w := e.Value.(*waiter)
		e = e.Next()
		if !c.look(w) && t.of == ofPorts && c.index.pool(t.name).free.Len() == 0 {
			return // nobody behind it gets one either
		}
	}
}

// reconsider looks at all who wait for these, of whom some may have something else to wait for now. The lock is held.
func (c *Claimant) reconsider(topics []topic) {
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

// look gives a waiter what it waits for, or says that waiting is of no use, or has it wait for something else; false is where it waits on. The lock is held.
func (c *Claimant) look(w *waiter) bool {
	p, pod, next, why := c.index.choose(w.ask)
	switch {
	case p != nil:
		c.waiting.remove(w)
		w.got = c.take(p, pod, w.ask)
		close(w.done)
	case next == topic{}:
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

// mayClaim is nil unless the ports of the node are another's to claim.
func (x *index) mayClaim() error {
	if x.raven {
		return sdn.Unavailable(nil, "node", "the label %s of the node %s says that Raven claims its ports", v1.LabelClaimant, x.node)
	}
	return nil
}

// Ready is nil where a pod could have a port if there is one.
func (c *Claimant) Ready(context.Context, string, string) error {
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

// orphan is an attachment of the pod's interface that the API alone knew of. Its container is gone: a pod has one sandbox at a time. The lock is held.
func (c *Claimant) orphan(a node.Attachment) *attachment {
	if len(c.index.adopted) == 0 {
		return nil
	}
	pod, err := c.index.podOf(a)
	if err != nil {
		return nil
	}
	return c.index.adopted[interfaceOf{pod.uid, a.Interface}]
}

// inherit gives the port of a pod's sandbox of before a reboot to its new one, so that the pod keeps its addresses.
func (c *Claimant) inherit(ctx context.Context, old *attachment, a node.Attachment) (*attachment, error) {
	// In the order of begin: the new one first, so that no kill leaves the port to another pod. Who reads the journal prefers it to what was adopted.
	unlock, err := c.turn.Lock(ctx, keyOf(old.Attachment).name())
	if err != nil {
		return nil, sdn.Unavailable(err, "attachment", "another call for the container %s has not ended", old.Attachment.Container)
	}
	defer unlock()
	c.mu.Lock()
	still := c.index.attached[keyOf(old.Attachment)] == old && old.Adopted
	c.mu.Unlock()
	if !still {
		return c.get(ctx, a)
	}
	r := old.record
	r.Attachment, r.Adopted = a, false
	if err := c.journal.put(r); err != nil {
		return nil, sdn.OfHost(err)
	}
	failpoint.Here("claim.inherit.written")
	if err := c.journal.release(old.record); err != nil {
		return nil, sdn.OfHost(errors.Join(err, c.journal.drop(keyOf(a))))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	got := &attachment{record: r, wiring: c.wiring(old)}
	c.index.holders[r.Port.ID] = got // at once, so that the port is nobody else's in between
	c.index.detach(old)
	return got, nil
}

// adopt writes into the journal whom the API has a port for.
func (c *Claimant) adopt(ctx context.Context, name string) error {
	c.mu.Lock()
	p := c.index.ports[name]
	if p == nil || !c.index.unknown(p) {
		c.mu.Unlock()
		return nil
	}
	pp, spec, wiring, broken := p.object.Status.Pod, p.object.Spec, p.wiring, p.broken
	c.mu.Unlock()
	if broken != nil {
		return nil
	}
	got := &attachment{wiring: wiring, record: record{
		Attachment: node.Attachment{
			Container: containerOf(pp), Interface: pp.Interface, Network: c.Network, Pod: &node.Pod{Namespace: pp.Namespace, Name: pp.Name, UID: string(pp.UID)},
		},
		UID: pp.UID, Port: spec, Since: pp.Since.UTC(), Adopted: true,
	}}
	if pp.Container == "" {
		got.Attachment.Network = "" // GC, which goes by container, must not take it away
	}
	unlock, err := c.turn.Lock(ctx, keyOf(got.Attachment).name())
	if err != nil {
		return err
	}
	defer unlock()
	c.mu.Lock()
	still := c.index.ports[name] == p && c.index.unknown(p) && p.object.Status.Pod.Container == pp.Container
	if still {
		c.index.hold(got)
	}
	c.mu.Unlock()
	if !still {
		return nil
	}
	if err := c.journal.put(got.record); err != nil {
		c.mu.Lock()
		c.offer(c.index.detach(got))
		c.mu.Unlock()
		return err
	}
	failpoint.Here("claim.adopt.written")
	c.mu.Lock()
	c.index.attach(got)
	c.mu.Unlock()
	c.Log.InfoContext(ctx, "the API has a pod for a port of which the journal knew nothing: it keeps it", "port", name, "pod", pp.Namespace+"/"+pp.Name, "container", pp.Container)
	return nil
}

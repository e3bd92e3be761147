package claim

import (
	"context"
	"errors"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/kube/node"
	"github.com/kuryr/kuryr/sdn"
)

// orphan is an attachment of the pod's interface that the API alone knew of. Its container is gone: a pod has one sandbox at a time. The lock is held.
func (c *Claimant) orphan(a node.Attachment) *attachment {
	if len(c.index.adopted) == 0 || c.index.mayClaim() != nil {
		return nil
	}
	pod, err := c.index.podOf(a)
	if err != nil {
		return nil
	}
	return c.index.adopted[interfaceOf{pod.uid, a.Interface}]
}

// Keeps tells whether the attachment is of a sandbox of before a reboot, whose port waits for the pod's next one.
func (c *Claimant) Keeps(a node.Attachment) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	has := c.index.attached[keyOf(a)]
	return has != nil && has.Adopted
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

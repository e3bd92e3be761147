package claim

import (
	"context"

	"github.com/kuryr/kuryr/kube/node"
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
	old := c.index.adopted[interfaceOf{pod.uid, a.Interface}]
	if old == nil || old.leaving || c.index.holders[old.Port] != old {
		return nil
	}
	return old
}

// inherit gives the port of a pod's sandbox of before a reboot to its new one, so that the pod
// keeps its addresses. The earlier row is deleted when the new one is stored, so that no kill
// leaves the port to another pod. The lock is held.
func (c *Claimant) inherit(old *attachment, a node.Attachment) *attachment {
	got := &attachment{record: old.record, wiring: c.wiring(old), from: old}
	got.Attachment, got.Adopted = a, false
	c.index.hold(got)
	return got
}

// adopt makes a row of what the API has a port for.
func (c *Claimant) adopt(ctx context.Context, name string) error {
	c.mu.Lock()
	p := c.index.ports[name]
	if p == nil || p.broken != nil || !c.index.unknown(p) {
		c.mu.Unlock()
		return nil
	}
	pp, pool, got := p.object.Status.Pod, p.object.Spec.Pool, &attachment{wiring: p.wiring}
	c.mu.Unlock()
	got.record = record{
		Attachment: node.Attachment{
			Container: containerOf(pp), Interface: pp.Interface, Network: c.Network, Pod: &node.Pod{Namespace: pp.Namespace, Name: pp.Name, UID: string(pp.UID)},
		},
		UID: pp.UID, Port: name, Pool: pool, Since: pp.Since.UTC(), Adopted: true,
	}
	if pp.Container == "" {
		got.Attachment.Network = "" // GC, which goes by container, must not take it away
	}
	adopted := false
	err := c.server.Adopt(ctx, got.Attachment, func() (node.Intent, bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.index.ports[name] != p || !c.index.unknown(p) || p.object.Status.Pod.Container != pp.Container {
			return node.Intent{}, false
		}
		c.index.hold(got)
		adopted = true
		return node.Intent{Attachment: got.Attachment, Port: got.allocation()}, true
	})
	if err == nil && adopted {
		c.Log.InfoContext(ctx, "port adopted from the API", "port", name, "pod", pp.Namespace+"/"+pp.Name, "container", pp.Container)
	}
	return err
}

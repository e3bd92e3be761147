package raven

import (
	"context"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// publish makes the ports available that are only created. It also fills the status of free
// ports that an older release made, which wrote the label alone.
func (w *poolWork) publish(ctx context.Context) error {
	var g errgroup.Group
	g.SetLimit(objectsAtOnce)
	for _, p := range w.ports {
		if isUnpublished(p) {
			g.Go(func() error { return client.IgnoreNotFound(w.mark(ctx, p, v1.PortAvailable)) })
		}
	}
	return g.Wait()
}

// isUnpublished reports whether a port that no pod has is not yet available by label and status.
func isUnpublished(p *v1.KuryrPort) bool {
	if !p.DeletionTimestamp.IsZero() || p.Status.Pod != nil {
		return false
	}
	label := v1.PortStatus(p.Labels[v1.LabelPortStatus])
	return label == v1.PortCreated || label == v1.PortAvailable && !isWritten(p)
}

// isWritten reports whether the status of a port was written since its creation: until then the
// API server shows created, and an older CRD nothing.
func isWritten(p *v1.KuryrPort) bool {
	return p.Status.PortStatus != "" && p.Status.PortStatus != v1.PortCreated
}

// mark writes where a port is in its life: the status first, then the label, which counts.
func (w *poolWork) mark(ctx context.Context, p *v1.KuryrPort, s v1.PortStatus) error {
	if p.Status.PortStatus != s {
		before := p.DeepCopy()
		if p.Status.PortStatus = s; s == v1.PortAvailable {
			p.Status.SetAvailable(p.CreationTimestamp.Time)
		}
		patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
		if err := w.Client.Status().Patch(ctx, p, patch); err != nil {
			p.Status = before.Status
			return err
		}
		w.memory.wrote(w.name, p, w.Now())
	}
	if v1.PortStatus(p.Labels[v1.LabelPortStatus]) == s {
		return nil
	}
	return w.label(ctx, p, s)
}

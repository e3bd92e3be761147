package raven

import (
	"context"
	"errors"
	"strings"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// restore has ports' specs be what the SDN says, where somebody else than Raven has written them: each change of a spec has a new generation, and Raven writes it once.
func (w *poolWork) restore(ctx context.Context) error {
	var errs []error
	for _, p := range w.ports {
		if edited(p) && p.DeletionTimestamp.IsZero() {
			errs = append(errs, w.restorePort(ctx, p))
		}
	}
	return errors.Join(errs...)
}

// edited tells whether somebody else than Raven has written the port's spec.
func edited(p *v1.KuryrPort) bool { return p.Generation > max(p.Status.ObservedGeneration, 1) }

// respec patches what f changes of a port's spec, and notes that it was Raven, so that restore does not ask the SDN for it. What somebody else had changed before stays to be restored.
func (w *poolWork) respec(ctx context.Context, p *v1.KuryrPort, f func()) error {
	others := edited(p)
	if err := w.change(ctx, p, f); err != nil || others {
		return err
	}
	return w.observe(ctx, p)
}

// observe notes that the spec is as Raven has it.
func (w *poolWork) observe(ctx context.Context, p *v1.KuryrPort) error {
	if p.Status.ObservedGeneration == p.Generation {
		return nil
	}
	before := p.DeepCopy()
	p.Status.ObservedGeneration = p.Generation
	if err := w.Client.Status().Patch(ctx, p, client.MergeFrom(before)); err != nil {
		return err
	}
	w.memory.wrote(w.name, p, w.Now())
	return nil
}

func (w *poolWork) restorePort(ctx context.Context, p *v1.KuryrPort) error {
	var port sdn.Port
	err := w.Call(ctx, func(ctx context.Context) (err error) { port, err = w.SDN.Port(ctx, sdn.ID(p.Spec.ID)); return err })
	if sdn.IsNotFound(err) {
		return w.giveUp(ctx, p)
	}
	if err != nil {
		return err
	}
	if err := w.rejoin(ctx, &port); err != nil {
		return err
	}
	subnets, err := w.SubnetsOf(ctx, port.Network)
	if err != nil {
		return err
	}
	_, uid, _ := strings.Cut(port.Key.Name, podInKey)
	is := w.object(port, subnets, wished{pod: types.UID(uid)}).Spec
	if lack := w.lack(&is); lack != "" {
		w.Warn(p, core.EventFailed, "Restore", "the SDN's port has %s: it is given up", lack)
		return w.giveUp(ctx, p)
	}
	if !equality.Semantic.DeepEqual(is, p.Spec) {
		w.Warn(p, core.EventRefused, "Restore", "the spec was changed: it is as the SDN says again")
		if err := w.change(ctx, p, func() { p.Spec = is }); err != nil {
			return err
		}
	}
	return w.observe(ctx, p)
}

// podInKey stands in the key of a single pod's port between the pool and the pod's UID.
const podInKey = ".pod-"

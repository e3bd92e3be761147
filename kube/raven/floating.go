package raven

import (
	"context"
	"errors"
	"net/netip"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
)

// float gives single pods' ports the floating IPs that they are to have. The port's object says so before there is one.
func (w *poolWork) float(ctx context.Context) error {
	var errs []error
	for _, p := range w.ports {
		wanted := p.Annotations[v1.AnnotationFloatingIP]
		if wanted == "" || p.Spec.Dedicated == "" || p.Annotations[v1.AnnotationFloatingAddress] != "" || !p.DeletionTimestamp.IsZero() {
			continue
		}
		pod := w.pod(p.Spec.Dedicated)
		spec := sdn.FloatingIPSpec{
			Base:    w.Base(v1.KeyKindFloatingIP, string(p.Spec.Dedicated), "kuryr-pod", w.pool.Spec.ProjectID),
			Network: w.ground.Public, Target: sdn.Target{Port: sdn.ID(p.Spec.ID)},
		}
		if wanted != core.NewFloating {
			spec.Address, _ = netip.ParseAddr(wanted) // it was checked; an invalid one is any
		}
		var made sdn.FloatingIP
		err := w.Call(ctx, func(ctx context.Context) (err error) { made, err = w.SDN.EnsureFloatingIP(ctx, spec); return err })
		if err == nil && !made.Address.IsValid() {
			err = sdn.Unavailable(nil, "floating IP", "the SDN returned the one of port %s with no address", p.Name)
		}
		if err != nil {
			if pod != nil {
				w.Warn(pod, core.EventFailed, "FloatingIP", "%s", core.Message(err))
			}
			errs = append(errs, err)
			continue
		}
		errs = append(errs, w.change(ctx, p, func() { p.Annotations[v1.AnnotationFloatingAddress] = made.Address.String() }))
		if pod != nil {
			w.Note(pod, core.EventMade, "FloatingIP", "the pod has the floating IP %s", made.Address)
		}
	}
	return errors.Join(errs...)
}

// sink deletes the floating IP of a single pod's port.
func (w *poolWork) sink(ctx context.Context, p *v1.KuryrPort) error {
	if p.Annotations[v1.AnnotationFloatingIP] == "" {
		return nil
	}
	return w.Call(ctx, func(ctx context.Context) error {
		key := w.Key(v1.KeyKindFloatingIP, string(p.Spec.Dedicated))
		found, ok, err := sdn.First(w.SDN.FindFloatingIPs(ctx, sdn.FloatingIPQuery{Match: sdn.Match{Keys: []sdn.Key{key}}}))
		if err != nil || !ok || found.Target.Port != "" && found.Target.Port != sdn.ID(p.Spec.ID) {
			return err // what leads elsewhere is not the pod's
		}
		return w.SDN.DeleteFloatingIP(ctx, found.ID)
	})
}

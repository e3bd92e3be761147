package raven

import (
	"context"
	"errors"
	"slices"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
)

// audit compares the pool's ports with the SDN's, where it is time: an SDN tells nobody of a port that was deleted behind Raven's back, nor does Kubernetes of one whose object
// was torn out with its finalizer. It asks for the ports of this pool alone. An SDN that has none of them, and not even their network, is not believed.
func (w *poolWork) audit(ctx context.Context) error {
	last, due := w.memory.audited(w.name), false
	if last.IsZero() { // at the start nothing is asked: the first look comes when its time has come
		w.memory.setAudited(w.name, w.Now())
	} else {
		due = w.cfg.Audit > 0 && w.Now().Sub(last) >= w.cfg.Audit
	}
	if len(w.pool.Status.Pending) > 0 { // what is half made would be taken for what nobody knows
		return nil
	}
	if suspected := w.memory.suspect(w.name); !due && !suspected {
		return nil
	}
	if err := w.compare(ctx); err != nil {
		w.memory.suspects(w.name)
		return err
	}
	w.memory.setAudited(w.name, w.Now())
	return nil
}

// compare sets right what the SDN and Kubernetes do not both have. It may be repeated, whatever of it is done.
func (w *poolWork) compare(ctx context.Context) error {
	there := map[sdn.ID]bool{}
	var orphans []sdn.ID
	q := sdn.PortQuery{Devices: []string{w.name}}
	if w.pool.Spec.Trunk != "" { // see inTrunk
		q = sdn.PortQuery{Match: sdn.Match{Tags: []string{w.name}}, Networks: []sdn.ID{sdn.ID(w.pool.Spec.Network)}}
	}
	err := w.Call(ctx, func(ctx context.Context) error {
		for port, err := range w.SDN.FindPorts(ctx, q) {
			if err != nil {
				return err
			}
			there[port.ID] = true
			if !port.Foreign && port.Key.Kind == v1.KeyKindPort && !slices.ContainsFunc(w.ports, func(p *v1.KuryrPort) bool { return p.Name == string(port.ID) }) {
				orphans = append(orphans, port.ID)
			}
		}
		if len(orphans) == 0 {
			return nil
		}
		return w.erase(ctx, orphans)
	})
	if err == nil && len(there) == 0 {
		err = w.recognised(ctx)
	}
	if err != nil {
		return err
	}
	if len(orphans) > 0 {
		w.Warn(w.pool, core.EventFailed, "Audit", "%d ports of the SDN that no KuryrPort stood for are deleted", len(orphans))
	}
	var errs []error
	for _, p := range w.ports {
		if !there[sdn.ID(p.Spec.ID)] && p.DeletionTimestamp.IsZero() {
			w.Warn(p, core.EventFailed, "Audit", "the SDN has the port no more: it is given up")
			errs = append(errs, w.giveUp(ctx, p))
		}
	}
	return errors.Join(append(errs, w.auditTrunk(ctx, there))...)
}

// recognised is nil where the SDN knows the network of the pool's ports.
func (w *poolWork) recognised(ctx context.Context) error {
	var networks []sdn.ID
	for _, p := range w.ports {
		networks = append(networks, sdn.ID(p.Spec.Network.ID))
	}
	slices.Sort(networks)
	known, err := w.knowsOne(ctx, slices.Compact(networks))
	if err != nil || known {
		return err
	}
	return sdn.Unavailable(nil, "SDN", "it knows neither the pool's %d ports nor their network: its store is empty or another; none is given up", len(w.ports))
}

// auditIn is when the next look at the SDN is due; 0 is never.
func (w *poolWork) auditIn() time.Duration {
	if w.cfg.Audit == 0 {
		return 0
	}
	return max(w.memory.audited(w.name).Add(w.cfg.Audit).Sub(w.Now()), time.Second)
}

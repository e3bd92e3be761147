//go:build linux

package agent

import (
	"context"
	"net/netip"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/kube/cni"
	"github.com/kuryr/kuryr/kube/cni/static"
	"github.com/kuryr/kuryr/sdn"
)

// Made is what an intent led to.
type Made struct {
	Wiring     *Wiring        `json:",omitempty"` // the port, if the intent does not have it
	KeptRoutes []netip.Prefix `json:",omitempty"` // bind.Result
}

// port returns the port of a row, if the row knows it.
func (m Made) port(i Intent) (sdn.Port, bool) {
	switch {
	case i.Port != nil:
		return i.Port.Wiring.Port, true
	case m.Wiring != nil:
		return m.Wiring.Port, true
	}
	return sdn.Port{}, false
}

// target provides and plugs the port of an attachment.
type target struct{ *Server }

// Ensure implements reconcile.Target.
func (t target) Ensure(ctx context.Context, _ reconcile.Object, i Intent, last Made) (Made, error) {
	if i.Found && i.Port == nil {
		return last, nil
	}
	w, err := t.source.Ensure(ctx, i)
	switch {
	case sdn.IsUnavailable(err) && i.Port == nil: // the answer may be lost
		return last, reconcile.Unconfirmed(err)
	case err != nil:
		return last, err
	}
	made := Made{}
	if i.Port == nil {
		made.Wiring = &w
	}
	if i.Found {
		return made, nil
	}
	failpoint.Here("agent.add.claimed")
	if i.Args != "" {
		args, err := cni.ParseArgs(i.Args)
		if err != nil {
			return made, err
		}
		if err := static.Matches(w.Port, w.Subnets, args); err != nil {
			return made, err
		}
	}
	if err := t.static.Forget(w.Port.ID); err != nil {
		return made, sdn.OfHost(err)
	}
	r, err := t.binder.Plug(ctx, bind.Interface{
		Port: w.Port, MTU: w.MTU, Subnets: w.Subnets, Namespace: i.Namespace, Name: i.Interface, Limits: w.Limits,
	})
	made.KeptRoutes = r.KeptRoutes
	if err == nil {
		failpoint.Here("agent.add.plugged")
	}
	return made, err
}

// Delete implements reconcile.Target. A port that the row knows is unplugged before the SDN is
// asked, which may be unavailable.
func (t target) Delete(ctx context.Context, o reconcile.Object, i Intent, last Made) error {
	if r, ok := t.rows.Get(o.Key); ok && r.Object != o && i.Port == nil {
		return nil // an SDN's port has no incarnation: it is the present row's
	}
	if i.Port == nil {
		if _, err := t.static.Unbind(ctx, i.Container, i.Interface); err != nil {
			return err
		}
	}
	if last.Wiring != nil {
		if err := t.binder.Unplug(ctx, last.Wiring.Port); err != nil {
			return err
		}
	}
	w, err := t.source.Leave(ctx, i)
	switch {
	case sdn.IsNotFound(err):
	case err != nil:
		return err
	case last.Wiring == nil || last.Wiring.Port.ID != w.Port.ID:
		if err := t.binder.Unplug(ctx, w.Port); err != nil {
			return err
		}
	}
	failpoint.Here("agent.del.unplugged")
	return t.source.Release(ctx, o, i) // also if nothing was found: a create may be incomplete
}

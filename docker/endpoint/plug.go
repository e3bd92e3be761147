package endpoint

import (
	"context"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// PlugSpec is the interface of an endpoint, from Join to Leave.
type PlugSpec struct {
	Port    sdn.Port     // without an id: the row is of an endpoint without a row
	MTU     int          `json:",omitempty"`
	Subnets []sdn.Subnet `json:",omitempty"`
	Sandbox string       `json:",omitempty"` // the path of the container's network namespace
	Exposed []string     `json:",omitempty"` // what Join says that the container exposes, such as 80/tcp
	Call    string       // of the Join: each plugs
}

// PlugLast is what Plug answered.
type PlugLast struct {
	Name string `json:",omitempty"` // of the interface that Docker moves into the container
}

// startPlug forgets interfaces that a start of the kernel has removed.
func startPlug(_ plugRow, rebooted bool) reconcile.Action {
	if rebooted {
		return reconcile.Drop
	}
	return reconcile.Keep
}

// plugTarget makes interfaces of ports.
type plugTarget struct{ *Service }

// Ensure implements reconcile.Target.
func (t plugTarget) Ensure(ctx context.Context, _ reconcile.Object, p PlugSpec, last PlugLast) (PlugLast, error) {
	r, err := t.Binder.Plug(ctx, bind.Interface{Port: p.Port, MTU: p.MTU, Subnets: p.Subnets})
	if err != nil {
		return last, &PlugError{err}
	}
	return PlugLast{Name: r.Name}, nil
}

// Delete implements reconcile.Target.
func (t plugTarget) Delete(ctx context.Context, o reconcile.Object, p PlugSpec, _ PlugLast) error {
	port := p.Port
	if port.ID == "" {
		found := false
		var err error
		if port, found, err = t.LookUp(ctx, o.Key); err != nil {
			return err
		}
		if !found || identity.Elsewhere(port, t.Host) || port.Host == "" {
			return reconcile.ErrAbsent
		}
	}
	return t.unplug(ctx, port)
}

// unplug removes the interface of a port from this host.
func (s *Service) unplug(ctx context.Context, port sdn.Port) error {
	if port.Host != s.Host {
		return nil
	}
	if err := s.Binder.Unplug(ctx, port); err != nil {
		return &PlugError{err}
	}
	return nil
}

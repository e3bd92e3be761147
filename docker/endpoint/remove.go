package endpoint

import (
	"context"
	"errors"
	"time"

	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// unplugTime is how long the removal of an interface may take beyond a call that the SDN did not
// answer in time.
const unplugTime = 10 * time.Second

// Leave answers Leave: it withdraws what the endpoint publishes, which Docker does not always
// revoke, and unplugs its port. While the SDN is unavailable it succeeds, and the rest is repeated.
func (s *Service) Leave(ctx context.Context, id string) error {
	row, known := s.endpoints.Get(id)
	if known {
		s.endStart(id)
	} else if err := s.importUnknown(ctx, id, false); err != nil {
		return err
	}
	port := s.knownPort(id)
	_, plugged := s.plugs.Get(id)
	err := s.plugs.RemoveTree(ctx, id)
	if !plugged { // an endpoint may publish without an interface
		err = s.Unpublish(ctx, id)
	}
	if reconcile.IsPending(err) {
		err = s.release(ctx, id, port, err)
	}
	if err != nil || !known || !row.Spec.Balancer {
		return err
	}
	if _, err := s.allow(ctx, row, nil); err != nil {
		s.Log.WarnContext(ctx, "balancer port keeps its addresses", "endpoint", id, "err", err)
	}
	return nil
}

// Delete answers DeleteEndpoint. While the SDN is unavailable it succeeds, and the rest is
// repeated.
func (s *Service) Delete(ctx context.Context, id string) error { return retried(s.Drop(ctx, id)) }

// Drop deletes an endpoint with all that it has. Its port stays if it was requested with addresses
// that are not released. An error of reconcile.IsPending says that the rest is repeated.
func (s *Service) Drop(ctx context.Context, id string) error {
	if _, known := s.endpoints.Get(id); !known {
		if err := s.importUnknown(ctx, id, true); err != nil {
			return err
		}
	}
	port := s.knownPort(id)
	return s.dropped(ctx, id, port, s.endpoints.RemoveTree(ctx, id))
}

// dropped returns the error of an endpoint's deletion, after what is of this host alone.
func (s *Service) dropped(ctx context.Context, id string, port sdn.Port, err error) error {
	if reconcile.IsPending(err) {
		if failed := s.release(ctx, id, port, err); failed != nil {
			return failed
		}
	}
	return err
}

// DropUnused is Drop of an endpoint that has a port, unless a container has its interface. It reports
// whether one has. The port may be the zero Port if only a row can have it.
func (s *Service) DropUnused(ctx context.Context, id string, port sdn.Port, why string) (connected bool, err error) {
	unused := func(ctx context.Context, port sdn.Port) (bool, error) {
		if port.ID != "" {
			if connected, err = s.connected(ctx, port); err != nil || connected {
				return false, err
			}
		}
		s.Log.WarnContext(ctx, "unused endpoint deleted", "endpoint", id, "why", why)
		return true, nil
	}
	if !s.known(id) {
		if ok, err := unused(ctx, port); err != nil || !ok {
			return connected, err
		}
		return false, s.Drop(ctx, id)
	}
	had := s.knownPort(id)
	err = s.endpoints.RemoveTreeIf(ctx, id, func(ctx context.Context, _ reconcile.Row[Spec, Last]) (bool, error) {
		if known := s.knownPort(id); known.ID != "" {
			port = known
		}
		return unused(ctx, port)
	})
	if port.ID == "" {
		port = had // it was being deleted
	}
	return connected, s.dropped(ctx, id, port, err)
}

// Unpublish deletes what an endpoint publishes and its floating IP, and leaves its interface.
func (s *Service) Unpublish(ctx context.Context, id string) error {
	return errors.Join(s.publications.Remove(ctx, id), s.floating.Remove(ctx, id))
}

// Revoke answers RevokeExternalConnectivity.
func (s *Service) Revoke(ctx context.Context, id string) error {
	if _, known := s.endpoints.Get(id); !known {
		if err := s.importUnknown(ctx, id, false); err != nil {
			return err
		}
	}
	err := s.publications.Remove(ctx, id)
	if reconcile.IsPending(err) {
		err = s.release(ctx, id, sdn.Port{}, err)
	}
	return err
}

// release removes what is of this host alone, after the deletion is stored and the SDN has failed.
func (s *Service) release(ctx context.Context, id string, port sdn.Port, cause error) error {
	if plug := (*PlugError)(nil); errors.As(cause, &plug) {
		return nil // it was tried
	}
	s.Log.WarnContext(ctx, "cleanup queued", "endpoint", id, "err", cause)
	s.Proxy.StopAll(id)
	if port.ID == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unplugTime)
	defer cancel()
	return s.unplug(ctx, port)
}

// known reports whether an endpoint has a row.
func (s *Service) known(id string) bool {
	_, known := s.endpoints.Get(id)
	return known
}

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
	if !s.Known(id) {
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
	s.pending.Store(true)
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

// Finish completes pending deletions that match, as far as the SDN does them. An error is of one that
// is required.
func (s *Service) Finish(ctx context.Context, match func(id string, port sdn.Port) (matches, required bool)) error {
	if !s.pending.Swap(false) { // before the scan: a deletion that fails during it sets it again
		return nil
	}
	var errs []error
	for r := range s.endpoints.Unfinished() {
		if r.Phase != reconcile.Deleting {
			continue
		}
		if now, _ := s.endpoints.Get(r.Key); now.Object != r.Object { // of an earlier endpoint with the id
			continue
		}
		if matches, required := match(r.Key, r.Last.Port); matches {
			if err := s.endpoints.Remove(ctx, r.Key); required {
				errs = append(errs, err)
			}
		}
	}
	if s.endpoints.HasDeleting() || s.plugs.HasDeleting() || s.publications.HasDeleting() || s.floating.HasDeleting() {
		s.pending.Store(true)
	}
	return errors.Join(errs...)
}

// notePending notes that a failed Set may have left a deletion.
func (s *Service) notePending(err error) {
	if reconcile.IsPending(err) {
		s.pending.Store(true)
	}
}

// Released deletes the endpoint that has a port, and that no container has, after the engine has
// released the addresses of the port: the engine was not told that the endpoint was created.
func (s *Service) Released(ctx context.Context, port sdn.ID) error {
	r, ok := s.endpoints.Holder(boundTo(port))
	if !ok {
		return nil
	}
	_, err := s.DropUnused(ctx, r.Key, sdn.Port{}, "its addresses were released")
	return retried(err)
}

// Retry makes pending deletions due now: the SDN has answered.
func (s *Service) Retry() {
	if s.pending.Load() {
		s.endpoints.Retry()
		s.plugs.Retry()
		s.publications.Retry()
		s.floating.Retry()
	}
}

// Pending returns the port of an endpoint that is being deleted, and that matches; "" if there is
// none.
func (s *Service) Pending(match func(port sdn.Port) bool) sdn.ID {
	for r := range s.endpoints.Unfinished() {
		if r.Phase == reconcile.Deleting && match(r.Last.Port) {
			return r.Last.Port.ID
		}
	}
	return ""
}

// Known reports whether an endpoint has a row.
func (s *Service) Known(id string) bool {
	_, known := s.endpoints.Get(id)
	return known
}

// Port returns the port of an endpoint by its row; the zero Port if it is not known.
func (s *Service) Port(id string) sdn.Port { return s.knownPort(id) }

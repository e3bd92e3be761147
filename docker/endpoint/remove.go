package endpoint

import (
	"cmp"
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
	s.endStart(id)
	if err := s.importUnknown(ctx, id, false); err != nil {
		return err
	}
	port := s.knownPort(id)
	_, plugged := s.plugs.Get(id)
	errs := []error{s.plugs.RemoveTree(ctx, id)}
	if !plugged { // an endpoint may publish without an interface
		errs = append(errs, s.publications.Remove(ctx, id), s.floating.Remove(ctx, id))
	}
	if err := s.removed(ctx, id, port, worst(errs)); err != nil || !known || !row.Spec.Balancer {
		return err
	}
	if _, err := s.allow(ctx, row, nil); err != nil {
		s.Log.WarnContext(ctx, "balancer port keeps its addresses", "endpoint", id, "err", err)
	}
	return nil
}

// Delete answers DeleteEndpoint: it deletes an endpoint with all that it has. Its port stays if it was
// requested with addresses that are not released. While the SDN is unavailable it succeeds, and the
// rest is repeated.
func (s *Service) Delete(ctx context.Context, id string) error {
	if err := s.importUnknown(ctx, id, true); err != nil {
		return err
	}
	port := s.knownPort(id)
	return s.removed(ctx, id, port, s.endpoints.RemoveTree(ctx, id))
}

// Revoke answers RevokeExternalConnectivity.
func (s *Service) Revoke(ctx context.Context, id string) error {
	if err := s.importUnknown(ctx, id, false); err != nil {
		return err
	}
	return s.removed(ctx, id, sdn.Port{}, s.publications.Remove(ctx, id))
}

// DropUnused deletes an endpoint because another needs its port, unless it is in use: of a start
// that was cut off, the engine releases the address and does not delete the endpoint. An error of
// reconcile.IsPending says that the port is not free yet.
func (s *Service) DropUnused(ctx context.Context, id string) (used bool, err error) {
	return s.dropUnused(ctx, id, s.knownPort(id))
}

// dropUnused deletes an endpoint with its port as DropUnused does.
func (s *Service) dropUnused(ctx context.Context, id string, p sdn.Port) (used bool, err error) {
	if !s.known(id) {
		if used, err = s.connected(ctx, p); used || err != nil {
			return used, err
		}
	}
	if err := s.importUnknown(ctx, id, true); err != nil {
		return false, err
	}
	err = s.endpoints.RemoveTreeIf(ctx, id, func(ctx context.Context, r endpointRow) (bool, error) {
		stale, err := s.isStale(ctx, r)
		if stale && s.knownPort(id).ID == "" { // the row of a backup may not know it
			used, err = s.connected(ctx, p)
			stale = !used && err == nil
		}
		if used = !stale; stale {
			s.Log.WarnContext(ctx, "unused endpoint deleted", "endpoint", id)
		}
		return stale, err
	})
	return used, cmp.Or(s.removed(ctx, id, p, err), err)
}

// worst returns the error of several deletions. One that was not stored comes before those that
// are pending: nothing repeats it, and the answer must not be a success.
func worst(errs []error) (pending error) {
	for _, err := range errs {
		if err != nil && !reconcile.IsPending(err) {
			return err
		}
		pending = cmp.Or(pending, err)
	}
	return pending
}

// removed returns the error of a deletion: nil if it is stored and will be repeated. Then it removes
// what is of this host alone.
func (s *Service) removed(ctx context.Context, id string, port sdn.Port, err error) error {
	if !reconcile.IsPending(err) {
		return err
	}
	if plug := (*PlugError)(nil); errors.As(err, &plug) {
		return nil // it was tried
	}
	s.Log.WarnContext(ctx, "cleanup queued", "endpoint", id, "err", err)
	s.Proxy.StopAll(id)
	if port.ID == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unplugTime)
	defer cancel()
	return s.unplug(ctx, port)
}

func (s *Service) known(id string) bool {
	_, known := s.endpoints.Get(id)
	return known
}

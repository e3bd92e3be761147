package ipam

import (
	"context"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// pending is the outcome of a Remove for the engine: a deletion that is committed is a success.
func pending(err error) error {
	if reconcile.IsPending(err) {
		return nil
	}
	return err
}

// ReleaseAddress deletes the port of an address, with the last one that it has. Gateways and
// auxiliary addresses have no port.
func (s *Service) ReleaseAddress(ctx context.Context, r *api.ReleaseAddressRequest) (none api.Empty, err error) {
	p, err := s.findPool(ctx, r.PoolID.Pool)
	if isRefusal(err) {
		return none, nil // it is gone, or another's
	}
	if err != nil {
		return none, err
	}
	if r.Address == p.Spec.Gateway || r.Address == s.noted(p.Key).gateway || slices.Contains(p.Spec.Aux, r.Address) {
		return none, nil // it has no port
	}
	sub, ok, err := s.subnetOf(ctx, p, r.Address)
	if sdn.IsUnavailable(err) && !s.hasAddresses(p.Key) {
		return none, nil // a port without a row is looked for in the background
	}
	if err != nil || !ok || r.Address == sub.Gateway {
		return none, err
	}
	row, ok := s.addresses.Holder(addressClaim(sub.ID, r.Address))
	if !ok {
		h, _, err := s.lookUpAddress(ctx, sub, r.Address)
		if err != nil {
			return none, err
		}
		if row, ok = s.rowOf(h.Ref); !ok {
			return none, nil
		}
		if id, _ := s.endpoints.Of(row.Key); id == "" && h.Port.DeviceID != "" {
			return none, nil // an endpoint has it that has no row yet
		}
	}
	unlock, err := s.lockAddress(ctx, row)
	if err != nil {
		return none, err
	}
	defer unlock()
	if err := pending(s.release(ctx, row.Key, r.Address)); err != nil {
		return none, err
	}
	if _, left := s.addresses.Get(row.Key); left {
		return none, nil
	}
	for _, q := range row.Spec.complete(row.Last).Asked {
		s.networks.Emptied(ctx, q.Pool)
	}
	return none, nil
}

// hasAddresses reports whether a pool has addresses with rows.
func (s *Service) hasAddresses(pool string) bool {
	for a := range s.addresses.Rows() {
		if slices.ContainsFunc(a.Spec.Asked, func(q Asked) bool { return q.Pool == pool }) {
			return true
		}
	}
	return false
}

// lockAddress keeps other calls from changing the addresses of a port.
func (s *Service) lockAddress(ctx context.Context, a addressRow) (unlock func(), err error) {
	if a.Spec.MAC != "" {
		return s.locks.Lock(ctx, macClaim(a.Spec.Network, a.Spec.MAC))
	}
	return s.locks.Lock(ctx, kindAddress+"/"+a.Key)
}

// release notes that an address of a port is released. The port keeps its addresses until the
// last is, which follows, and stores the others. A port of which a kill loses that is an orphan.
func (s *Service) release(ctx context.Context, key string, addr netip.Addr) error {
	row, ok := s.addresses.Get(key)
	if !ok {
		return nil
	}
	if row.Phase == reconcile.Deleting {
		return s.addresses.Remove(ctx, key)
	}
	if _, inUse := s.endpoints.Of(key); inUse && row.Last.Existing {
		return nil // the release of an endpoint that was refused because of this one
	}
	freed := append(slices.Clone(row.Last.Freed), addr)
	for _, q := range row.Spec.complete(row.Last).Asked {
		at, _ := addressOn(row.Last.Port, q.Subnet)
		if q.Addr.IsValid() {
			at = q.Addr
		}
		if !slices.Contains(freed, at) {
			s.addresses.Note(key, func(a AddressState) AddressState {
				a.Freed = freed
				return a
			})
			return nil
		}
	}
	return s.addresses.RemoveTree(ctx, key)
}

// ReleasePool deletes the subnet pool of a range. Engines call it before DeleteNetwork: the pool is
// deleted after the network that was made of it.
func (s *Service) ReleasePool(ctx context.Context, r *api.ReleasePoolRequest) (none api.Empty, err error) {
	p, err := s.findPool(ctx, r.PoolID.Pool)
	if isRefusal(err) {
		return none, nil // it is gone, or another's
	}
	if err != nil {
		return none, err
	}
	if _, ok := s.hidden.Get(p.Key); ok {
		if err := pending(s.hidden.RemoveTree(ctx, p.Key)); err != nil {
			return none, err
		}
	}
	return none, pending(s.pools.Remove(ctx, p.Key))
}

// NetworkGone deletes what is left on the pools of a deleted network: the addresses, and those of
// the pools that the engine released.
func (s *Service) NetworkGone(ctx context.Context, nonces []string) error {
	for a := range s.addresses.Rows() {
		if slices.ContainsFunc(a.Spec.Asked, func(q Asked) bool { return slices.Contains(nonces, q.Pool) }) {
			if err := pending(s.addresses.RemoveTree(ctx, a.Key)); err != nil {
				return err
			}
		}
	}
	for _, nonce := range nonces {
		s.Bind(nonce, nil)
		if p, ok := s.pools.Get(nonce); ok && p.Phase == reconcile.Deleting {
			if err := pending(s.pools.Remove(ctx, nonce)); err != nil {
				return err
			}
		}
	}
	return nil
}

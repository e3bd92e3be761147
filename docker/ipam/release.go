package ipam

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// ReleaseAddress deletes the port of an address, with the last one that it has. Gateways and
// auxiliary addresses have no port.
func (s *Service) ReleaseAddress(ctx context.Context, r *api.ReleaseAddressRequest) (none api.Empty, err error) {
	p, err := s.findPool(ctx, r.PoolID.Pool)
	if isRefusal(err) || sdn.IsUnavailable(err) {
		return none, nil // it is gone, or another's; a pool without a row is looked for in the background
	}
	if err != nil {
		return none, err
	}
	if r.Address == p.Spec.Gateway || slices.Contains(p.Spec.Aux, r.Address) {
		return none, nil // it has no port
	}
	sub, ok, err := s.subnetOf(ctx, p, r.Address)
	if sdn.IsUnavailable(err) && !has(s.addresses.ByIndex(p.Key)) {
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
	// Emptied waits for a lock that RequestAddress has while it waits for that of release.
	if err := s.release(ctx, row, r.Address); err != nil {
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

// Refused notes that an endpoint was refused because another has a port. The engine then releases
// the addresses that it had asked of that port for the endpoint, once each. A kill can have lost the
// note of their requests.
func (s *Service) Refused(port sdn.ID, addresses []netip.Prefix) {
	row, ok := s.addresses.Holder(portClaim(port))
	if id, _ := s.endpoints.Of(row.Key); !ok || id == "" {
		return
	}
	s.addresses.Note(row.Key, func(a AddressState) AddressState {
		a.Again = slices.Clone(a.Again)
		for _, p := range addresses {
			if identity.HasAddress(a.Port, p.Addr()) && !slices.Contains(a.Again, p.Addr()) {
				a.Again = append(a.Again, p.Addr())
			}
		}
		return a
	})
}

// release notes that an address of a port is released. The port keeps its addresses until the
// last is, which follows, and stores the others. A port of which a kill loses that is an orphan.
func (s *Service) release(ctx context.Context, row addressRow, addr netip.Addr) error {
	key, lock := row.Key, kindAddress+"/"+row.Key
	if row.Spec.MAC != "" {
		lock = macClaim(row.Spec.Network, row.Spec.MAC)
	}
	unlock, err := s.locks.Lock(ctx, lock)
	if err != nil {
		return err
	}
	defer unlock()
	row, ok := s.addresses.Get(key)
	if !ok {
		return nil
	}
	if row.Phase == reconcile.Deleting {
		return s.Queued(ctx, s.addresses.Remove(ctx, key))
	}
	endpoint, inUse := s.endpoints.Of(key)
	if inUse && row.Last.Existing {
		return nil // the release of an endpoint that was refused because of this one
	}
	// The endpoint that has the port keeps it while others release what they had requested. Without
	// one, the same request can have come twice.
	if i := slices.Index(row.Last.Again, addr); i >= 0 && endpoint != "" {
		s.addresses.Note(key, func(a AddressState) AddressState {
			a.Again = slices.Delete(slices.Clone(a.Again), i, i+1)
			return a
		})
		return nil
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
				a.Again = slices.DeleteFunc(slices.Clone(a.Again), func(has netip.Addr) bool { return has == addr })
				return a
			})
			return nil
		}
	}
	return s.Queued(ctx, s.addresses.RemoveTree(ctx, key))
}

// ReleasePool deletes the subnet pool of a range. Engines call it before DeleteNetwork: the pool is
// deleted after the network that was made of it.
func (s *Service) ReleasePool(ctx context.Context, r *api.ReleasePoolRequest) (none api.Empty, err error) {
	p, err := s.findPool(ctx, r.PoolID.Pool)
	switch {
	case isRefusal(err):
		return none, nil // it is gone, or another's
	case sdn.IsUnavailable(err):
		return none, s.releaseUnknownPool(ctx, r.PoolID.Pool)
	case err != nil:
		return none, err
	}
	unlock, err := s.lockRange(ctx, p.Spec) // a call that changes the pool would make it wanted again
	if err != nil {
		return none, err
	}
	defer unlock()
	if _, ok := s.hidden.Get(p.Key); ok {
		if err := s.Queued(ctx, s.hidden.RemoveTree(ctx, p.Key)); err != nil {
			return none, err
		}
	}
	return none, s.Queued(ctx, s.pools.Remove(ctx, p.Key))
}

// NetworkGone deletes what is left on the pools of a deleted network: the addresses, and those of
// the pools that the engine released.
func (s *Service) NetworkGone(ctx context.Context, nonces []string) error {
	for _, nonce := range nonces {
		for a := range s.addresses.ByIndex(nonce) {
			if err := s.Queued(ctx, s.addresses.RemoveTree(ctx, a.Key)); err != nil {
				return err
			}
		}
	}
	for _, nonce := range nonces {
		if p, ok := s.pools.Get(nonce); ok && p.Phase == reconcile.Deleting {
			if err := s.Queued(ctx, s.pools.Remove(ctx, nonce)); err != nil {
				return err
			}
		}
	}
	return nil
}

// releaseUnknownPool stores the release of a pool that has no row.
func (s *Service) releaseUnknownPool(ctx context.Context, id sdn.ID) error {
	row := poolRow{
		Object: reconcile.Object{Key: s.Names.Nonce()}, Phase: reconcile.Deleting, Done: true,
		Spec: PoolSpec{Unknown: true}, Last: PoolState{ID: id},
	}
	return s.pools.Import(ctx, []poolRow{row})
}

// deleteUnknown deletes a pool of which only the id is known, with the hidden network that it may have.
func (t poolTarget) deleteUnknown(ctx context.Context, o reconcile.Object, id sdn.ID) error {
	p, err := t.SDN.SubnetPool(ctx, id)
	if sdn.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	f, ok := t.foundPool(p)
	if !ok {
		f, err = t.peersPool(ctx, p)
	}
	if isRefusal(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if t.isGlobal(f.Spec) {
		if swarm, err := t.ofSwarm(ctx, id); swarm || err != nil {
			return err
		}
	}
	match := sdn.Match{Owner: t.Names.Owner, Kind: identity.KindHiddenSubnet}
	hidden := sdn.SubnetQuery{Match: match, Pools: []sdn.ID{id}}
	for sub, err := range t.SDN.FindSubnets(ctx, hidden) {
		if err != nil {
			return err
		}
		err := hiddenTarget(t).Delete(ctx, reconcile.Object{}, HiddenSpec{}, HiddenState{Network: sub.Network})
		if err != nil && !errors.Is(err, reconcile.ErrAbsent) {
			return err
		}
	}
	return t.Delete(ctx, o, f.Spec, f.Last)
}

package network

import (
	"context"
	"slices"

	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// With Config.DeleteEmpty a subnet is deleted with its last address, as kuryr-libnetwork's design
// document has it, and the next request for an address makes it again. Only subnets that Kuryr
// made from pools that it made are deleted.

// Hold makes the subnet of a pool again if it was deleted, and keeps it until release is called.
func (s *Service) Hold(ctx context.Context, pool string) (release func(), err error) {
	r, at, ok := s.rangeOfPool(pool)
	if !ok || r.Phase != reconcile.Wanted {
		return func() {}, nil
	}
	if !s.deleteEmpty && !r.Spec.Ranges[at].Absent {
		_, err := s.known(ctx, r)
		return func() {}, err
	}
	release, err = s.locks.Lock(ctx, lockPool+pool)
	if err != nil {
		return nil, err
	}
	if err = s.setAbsent(ctx, pool, false); err == nil {
		r, _, _ = s.rangeOfPool(pool)
		_, err = s.known(ctx, r)
	}
	if err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// Emptied deletes the subnet of a pool if no port has an address of it. The addresses are free in
// any case, so a failure is only logged.
func (s *Service) Emptied(ctx context.Context, pool string) {
	if !s.deleteEmpty {
		return
	}
	if err := s.tidy(ctx, pool); err != nil && !sdn.IsNotFound(err) {
		s.log.WarnContext(ctx, "empty subnet not deleted", "pool", pool, "err", err)
	}
}

func (s *Service) tidy(ctx context.Context, pool string) error {
	unlock, err := s.locks.Lock(ctx, lockPool+pool)
	if err != nil {
		return err
	}
	defer unlock()
	r, at, ok := s.rangeOfPool(pool)
	if !ok || r.Phase != reconcile.Wanted || s.pools.IsReleased(pool) {
		return nil // the whole network is about to be deleted
	}
	g := r.Spec.Ranges[at]
	if g.Absent || g.Standing != "" || g.CutFrom != g.PoolID || r.Spec.Existing != "" {
		return nil
	}
	if r, err = s.known(ctx, r); err != nil {
		return err
	}
	i := slices.IndexFunc(r.Last.Subnets, func(s sdn.Subnet) bool { return s.CIDR == g.CIDR })
	if i < 0 {
		return nil
	}
	for p, err := range s.sdn.FindPorts(ctx, sdn.PortQuery{Subnets: []sdn.ID{r.Last.Subnets[i].ID}}) {
		if err != nil {
			return err
		}
		if p.DeviceOwner != sdn.OwnerRouterInterface {
			return nil
		}
	}
	err = s.setAbsent(ctx, pool, true)
	if sdn.ReasonOf(err) == sdn.InUse {
		return s.restore(ctx, r.Key) // another host took an address
	}
	return err
}

// setAbsent stores whether the subnet of a pool is deleted, and deletes it or makes it again.
func (s *Service) setAbsent(ctx context.Context, pool string, absent bool) error {
	r, _, ok := s.rangeOfPool(pool)
	if !ok {
		return nil
	}
	unlock, err := s.locks.Lock(ctx, lockNetwork+r.Key)
	if err != nil {
		return err
	}
	defer unlock()
	r, at, ok := s.rangeOfPool(pool)
	if !ok || r.Phase != reconcile.Wanted || r.Spec.Ranges[at].Absent == absent {
		return nil
	}
	spec := r.Spec
	spec.Ranges = slices.Clone(spec.Ranges)
	spec.Ranges[at].Absent = absent
	last, err := s.networks.Set(ctx, s.request(r.Key, spec))
	if err != nil {
		return err
	}
	s.bind(spec, last)
	return nil
}

// restore makes a network agree with its spec again.
func (s *Service) restore(ctx context.Context, id string) error {
	unlock, err := s.locks.Lock(ctx, lockNetwork+id)
	if err != nil {
		return err
	}
	defer unlock()
	return s.restoreRow(ctx, id)
}

// restoreRow is restore for a network that is locked, or that has no other callers yet.
func (s *Service) restoreRow(ctx context.Context, id string) error {
	r, ok := s.networks.Get(id)
	if !ok || r.Phase != reconcile.Wanted {
		return nil
	}
	last, err := s.networks.Set(ctx, s.request(id, r.Spec))
	if err == nil {
		s.bind(r.Spec, last)
	}
	return err
}

// known returns a row with what the SDN has of its network, and tells the pools. A crash may have
// lost that, though Docker has the network, or have interrupted a change.
func (s *Service) known(ctx context.Context, r row) (row, error) {
	var err error
	if r.Last.ID == "" || r.Unconfirmed {
		err = s.restore(ctx, r.Key)
		if now, ok := s.networks.Get(r.Key); ok {
			r = now
		}
	}
	if err == nil {
		s.bind(r.Spec, r.Last)
	}
	return r, err
}

// rangeOfPool returns the network of a pool and the index of its range.
func (s *Service) rangeOfPool(pool string) (r row, at int, ok bool) {
	r, ok = s.networks.Holder(claimPool + pool)
	if !ok {
		return r, 0, false
	}
	at = slices.IndexFunc(r.Spec.Ranges, func(g Range) bool { return g.Pool == pool })
	return r, at, at >= 0
}

// tidyAll deletes the empty subnets that a kill, or a time without the setting, has left. Without
// the setting it makes all subnets again.
func (s *Service) tidyAll(ctx context.Context) {
	for r := range s.networks.Rows() {
		for _, g := range r.Spec.Ranges {
			switch {
			case g.Pool == "":
			case s.deleteEmpty:
				s.Emptied(ctx, g.Pool)
			case g.Absent:
				if err := s.setAbsent(ctx, g.Pool, false); err != nil {
					s.log.WarnContext(ctx, "deleted subnet not made again", "pool", g.Pool, "err", err)
				}
			}
		}
	}
}

package network

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// With Config.DeleteEmpty a subnet is deleted with its last address, as
// kuryr-libnetwork's design document has it, and the next request for an address makes it
// again. Only subnets that Kuryr made from pools that it made are deleted.

// Tags of subnets that were deleted while they were empty, for a lost store and for the
// previous version.
const (
	tagEmptied = "kuryr.docker.emptied=" // of a network: a pool; of that pool: NETWORKID/FAMILY.PLACE
	tagRoute   = "kuryr.docker.route="   // of such a pool: DESTINATION=NEXTHOP, a route of the subnet
)

// noteEmptied writes on the pool of a range what is needed to make its subnet again. The
// network names the pool already. An SDN without room for the tags does without.
func (w *work) noteEmptied(ctx context.Context, r Range, s sdn.Subnet) error {
	name := s.Key.Name
	if w.spec.Form != formCompat {
		name = w.o.Key + name[strings.LastIndexByte(name, '/'):]
	}
	tags := []string{tagEmptied + name}
	if s.Gateway.IsValid() {
		tags = append(tags, identity.TagGateway+s.Gateway.String())
	}
	for _, r := range s.HostRoutes {
		tags = append(tags, tagRoute+r.Destination.String()+"="+r.NextHop.String())
	}
	for _, a := range s.Reserved {
		if a != s.Gateway {
			tags = append(tags, identity.TagAux+a.String())
		}
	}
	room := w.SDN.Capabilities().MaxTagLen
	if slices.ContainsFunc(tags, func(tag string) bool { return len(tag) > room }) {
		return nil
	}
	return w.tagEmptied(ctx, r.PoolID, tags...)
}

// forgetEmptied removes the tags of noteEmptied from the pools whose ranges have their
// subnets again. If another has changed a pool, its tags stay until the next Ensure: they
// mean nothing unless the network names the pool.
func (w *work) forgetEmptied(ctx context.Context) error {
	left := slices.Clone(w.last.Emptied)
	for _, r := range w.spec.Ranges {
		at := slices.Index(left, r.PoolID)
		if r.Absent || at < 0 {
			continue
		}
		err := w.tagEmptied(ctx, r.PoolID)
		if sdn.ReasonOf(err) == sdn.Stale {
			continue
		}
		if identity.IgnoreAbsent(err) != nil {
			return err
		}
		left = slices.Delete(left, at, at+1)
	}
	w.last.Emptied = left
	return nil
}

// tagEmptied makes the tags those of noteEmptied on a pool. It reads past caches: the pool's
// other tags are written by docker/ipam.
func (w *work) tagEmptied(ctx context.Context, id sdn.ID, emptied ...string) error {
	p, err := w.SDN.UpdateSubnetPool(ctx, id, sdn.SubnetPoolPatch{})
	if err != nil {
		return err
	}
	others := slices.DeleteFunc(slices.Clone(p.Tags), func(t string) bool {
		return strings.HasPrefix(t, tagEmptied) || strings.HasPrefix(t, tagRoute)
	})
	return w.TagPool(ctx, p, identity.WithAll(others, emptied...))
}

// hold is how many callers need the subnet of a pool.
type hold struct {
	count   int
	emptied bool // Emptied was called since
}

// Hold makes the subnet of a pool again if it was deleted, and keeps it until release is
// called.
func (s *Service) Hold(ctx context.Context, pool string) (release func(), err error) {
	r, at, ok := s.rangeOfPool(pool)
	if !ok || r.Phase != reconcile.Wanted {
		return func() {}, nil
	}
	if !s.DeleteEmpty && !r.Spec.Ranges[at].Absent {
		_, err := s.known(ctx, r)
		return func() {}, err
	}
	unlock, err := s.locks.Lock(ctx, lockPool+pool)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err = s.setAbsent(ctx, pool, false); err == nil {
		r, _, _ = s.rangeOfPool(pool)
		_, err = s.known(ctx, r)
	}
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.holds[pool]
	h.count++
	s.holds[pool] = h
	return func() { s.release(ctx, pool) }, nil
}

func (s *Service) release(ctx context.Context, pool string) {
	s.mu.Lock()
	h := s.holds[pool]
	if h.count--; h.count > 0 {
		s.holds[pool] = h
	} else {
		delete(s.holds, pool)
	}
	s.mu.Unlock()
	if h.count == 0 && h.emptied {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
		defer cancel()
		s.Emptied(ctx, pool)
	}
}

// isHeld reports whether a caller needs the subnet of a pool. The last of them repeats
// Emptied.
func (s *Service) isHeld(pool string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, held := s.holds[pool]
	if held {
		h.emptied = true
		s.holds[pool] = h
	}
	return held
}

// Emptied deletes the subnet of a pool if no port has an address of it. The addresses are
// free in any case, so a failure is only logged.
func (s *Service) Emptied(ctx context.Context, pool string) {
	if !s.DeleteEmpty {
		return
	}
	if err := s.tidy(ctx, pool); err != nil && !sdn.IsNotFound(err) {
		s.Log.WarnContext(ctx, "empty subnet not deleted", "pool", pool, "err", err)
	}
}

func (s *Service) tidy(ctx context.Context, pool string) error {
	unlock, err := s.locks.Lock(ctx, lockPool+pool)
	if err != nil {
		return err
	}
	defer unlock()
	r, at, ok := s.rangeOfPool(pool)
	if !ok || r.Phase != reconcile.Wanted || s.Pools.IsReleased(pool) {
		return nil // the whole network is about to be deleted
	}
	if s.isHeld(pool) {
		return nil
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
	for p, err := range s.SDN.FindPorts(ctx, sdn.PortQuery{Subnets: []sdn.ID{r.Last.Subnets[i].ID}}) {
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

// setAbsent stores whether the subnet of a pool is deleted, and deletes it or makes it
// again.
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
	_, err = s.networks.Set(ctx, s.request(r.Key, spec))
	return err
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
	_, err := s.networks.Set(ctx, s.request(id, r.Spec))
	return err
}

// known returns a row with what the SDN has of its network. A crash may have lost that, though Docker
// has the network, or have interrupted a change.
func (s *Service) known(ctx context.Context, r row) (row, error) {
	if r.Last.ID != "" && !r.Unconfirmed {
		return r, nil
	}
	err := s.restore(ctx, r.Key)
	if now, ok := s.networks.Get(r.Key); ok {
		r = now
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

// Subnets returns the subnets of a pool, as far as the row of its network has them.
func (s *Service) Subnets(pool string) []sdn.Subnet {
	r, at, ok := s.rangeOfPool(pool)
	if !ok || r.Spec.Ranges[at].Absent {
		return nil
	}
	others := func(s sdn.Subnet) bool { return s.CIDR != r.Spec.Ranges[at].CIDR }
	return slices.DeleteFunc(slices.Clone(r.Last.Subnets), others)
}

// PoolAt returns a pool that has a subnet, "" if none has.
func (s *Service) PoolAt(subnet sdn.ID) string {
	for r := range s.networks.Rows() {
		at := slices.IndexFunc(r.Last.Subnets, func(s sdn.Subnet) bool { return s.ID == subnet })
		if at < 0 {
			continue
		}
		for _, g := range r.Spec.Ranges {
			if g.Pool != "" && g.CIDR == r.Last.Subnets[at].CIDR && !g.Absent {
				return g.Pool
			}
		}
	}
	return ""
}

// tidyAll deletes the empty subnets that a kill, or a time without the setting, has left. Without
// the setting it makes all subnets again.
func (s *Service) tidyAll(ctx context.Context) error {
	var errs []error
	for r := range s.networks.Rows() {
		for _, g := range r.Spec.Ranges {
			var err error
			switch {
			case g.Pool == "":
			case s.DeleteEmpty:
				err = identity.IgnoreAbsent(s.tidy(ctx, g.Pool))
			case g.Absent:
				err = s.setAbsent(ctx, g.Pool, false)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("compare subnet of pool %s: %w", g.Pool, err))
			}
		}
	}
	return errors.Join(errs...)
}

package ipam

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// What package swarm needs: the ranges of the global space that no network of a swarm has yet, and
// the addresses of this host's endpoints on a swarm's networks that no manager holds.

func (s *Service) isGlobal(p PoolSpec) bool { return s.Global && p.Space == api.GlobalSpace }

func globalClaim(cidr netip.Prefix) string { return "range/global/" + cidr.String() }

// globalPool makes the pool of a range of the global space, or returns the one of it that no network
// has: a manager that had no answer asks again.
func (s *Service) globalPool(ctx context.Context, spec PoolSpec) (p poolRow, err error) {
	p, found, err := s.bare(ctx, spec.CIDR, func(poolRow) bool { return true })
	switch {
	case err != nil:
		return p, err
	case found:
		p, err = s.setPool(ctx, p.Key, spec)
	default:
		p, err = s.makePool(ctx, spec)
	}
	if reconcile.IsConflict(err) && !reconcile.IsPending(err) {
		err = api.RefuseFor(err, "the range %s is another network's", spec.CIDR)
	}
	return p, err
}

// bare returns the newest pool of a range of the global space that fits and that no network of this
// host has. In the SDN it is looked for if there is no row: the previous version made it, or the
// database was lost.
func (s *Service) bare(
	ctx context.Context, cidr netip.Prefix, fits func(poolRow) bool,
) (best poolRow, found bool, err error) {
	for looked := false; ; looked = true {
		for p := range s.ofRange(cidr) {
			if p.Phase == reconcile.Wanted && s.isBare(p) && fits(p) &&
				(!found || p.Incarnation > best.Incarnation) {
				best, found = p, true
			}
		}
		if found || looked {
			return best, found, nil
		}
		if err := s.lookUpPools(ctx, cidr); err != nil {
			return best, false, err
		}
	}
}

// isBare reports whether no network of this host has a pool of the global space.
func (s *Service) isBare(p poolRow) bool {
	network, _ := s.networks.Of(p.Key)
	return s.isGlobal(p.Spec) && network == ""
}

// Bare returns the newest pool of a range that has the gateway and that no network has.
func (s *Service) Bare(ctx context.Context, cidr netip.Prefix, gateway netip.Addr) (Pool, bool, error) {
	p, found, err := s.bare(ctx, cidr, func(p poolRow) bool {
		return p.Last.ID != "" && (p.Spec.gateway() == gateway || !gateway.IsValid() && !p.Spec.Gateway.IsValid())
	})
	if err != nil || !found {
		return Pool{}, false, err
	}
	return s.poolOf(p), true, nil
}

// Has reports whether a pool has a row.
func (s *Service) Has(pool sdn.ID) bool {
	_, ok := s.pools.Holder(poolClaim(pool))
	return ok
}

// IsBare reports whether a pool has a row and is of a range of the global space that no network of
// this host has.
func (s *Service) IsBare(pool sdn.ID) bool {
	p, ok := s.pools.Holder(poolClaim(pool))
	return ok && s.isBare(p)
}

// Hide makes the hidden network of a pool of the global space, whose addresses a manager allocates.
func (s *Service) Hide(ctx context.Context, pool sdn.ID) (sdn.Subnet, error) {
	p, err := s.wantedPool(ctx, api.PoolID{Pool: pool})
	if err != nil {
		return sdn.Subnet{}, err
	}
	unlock, err := s.lockRange(ctx, p.Spec)
	if err != nil {
		return sdn.Subnet{}, err
	}
	defer unlock()
	return s.hiddenSubnet(ctx, p)
}

// HandOver forgets the rows of a pool that a network of a swarm has, or that a manager releases:
// any manager may do that. The object stays.
func (s *Service) HandOver(ctx context.Context, pool sdn.ID) error {
	p, ok := s.pools.Holder(poolClaim(pool))
	if !ok {
		return nil
	}
	unlock, err := s.lockRange(ctx, p.Spec) // a call that changes the pool would give it a row again
	if err != nil {
		return err
	}
	defer unlock()
	if p, ok = s.pools.Get(p.Key); ok && p.Phase == reconcile.Wanted && !(poolTarget{s}).isTagged(p.Spec, p.Last) {
		// What Run has not written yet: the next manager knows the gateway by it.
		q := reconcile.Request[PoolSpec]{Key: p.Key, Spec: p.Spec, Claims: p.Claims, Existing: true}
		if _, err := s.pools.Set(sdn.Unawaited(ctx), q); err != nil && !errors.Is(err, reconcile.ErrAbsent) {
			return err
		}
	}
	if err := s.hidden.Forget(ctx, p.Key); err != nil {
		return err
	}
	return s.pools.Forget(ctx, p.Key)
}

// ofSwarm reports whether a manager allocates addresses from a pool.
func (s *Service) ofSwarm(ctx context.Context, pool sdn.ID) (bool, error) {
	for sub, err := range s.SDN.FindSubnets(ctx, sdn.SubnetQuery{Pools: []sdn.ID{pool}}) {
		if err != nil || slices.Contains(sub.Tags, identity.TagSwarm) {
			return err == nil, err
		}
	}
	return false, nil
}

// RequestIn takes an address of a swarm's network for an endpoint of this host. owner is the row
// that the address does not outlive; "" if there is none.
func (s *Service) RequestIn(
	ctx context.Context, sub sdn.Subnet, owner string, r *api.RequestAddressRequest,
) (api.RequestAddressResponse, error) {
	q := Asked{Subnet: sub.ID, Addr: r.Address, Shared: r.PoolID.Pool, Owner: owner}
	return s.takeAddress(ctx, poolRow{}, sub, q, r.MAC)
}

// ReleaseIn releases an address of RequestIn, by its pool and by its subnet if that is known. It
// reports false if there is none.
func (s *Service) ReleaseIn(ctx context.Context, pool, subnet sdn.ID, addr netip.Addr) (found bool, err error) {
	row, found := s.addresses.Holder(sharedClaim(pool, addr))
	if !found {
		if row, found = s.addresses.Holder(addressClaim(subnet, addr)); !found {
			return false, nil
		}
	}
	return true, s.release(ctx, row, addr)
}

// isManagers reports whether a swarm's manager made a port, whose Key has no host.
func (s *Service) isManagers(p sdn.Port) bool {
	return s.Global && p.Key.Kind == identity.KindPort && strings.Count(p.Key.Name, "/") == 1
}

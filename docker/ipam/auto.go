package ipam

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/ipprefix"
	"github.com/kuryr/kuryr/sdn"
)

// CheckPools checks the setting of the automatic pools of a family.
func CheckPools(pools []AutoPool, v6 bool) error {
	for _, p := range pools {
		if !p.Prefix.IsValid() || p.Prefix.Masked() != p.Prefix || p.Prefix.Addr().Is6() != v6 {
			return fmt.Errorf("docker: automatic pool %s: must be a prefix of the right family without host bits", p.Prefix)
		}
		if p.Len < p.Prefix.Bits() || p.Len > p.Prefix.Addr().BitLen()-2 {
			return fmt.Errorf("docker: automatic pool %s: no networks of length /%d can be cut from it", p.Prefix, p.Len)
		}
	}
	return nil
}

// automaticPool makes a pool of a range that no route of the host and no other pool overlaps: the
// next one after that chosen last. The engine compares it with what it knows besides, and asks
// again while it holds it.
func (s *Service) automaticPool(ctx context.Context, r *api.RequestPoolRequest) (p poolRow, err error) {
	unlock, err := s.locks.Lock(ctx, "automatic")
	if err != nil {
		return p, err
	}
	defer unlock()
	pools, err := s.poolsFor(r)
	if err != nil {
		return p, err
	}
	routes, err := s.HostRoutes(ctx)
	if err != nil {
		return p, api.RefuseFor(err, "the host's routes could not be read: name a subnet")
	}
	routes = slices.DeleteFunc(slices.Clone(routes), func(p netip.Prefix) bool { return p.Bits() == 0 })
	p, ok, err := s.unansweredPool(ctx, s.pools.Unacked(), func(p poolRow) bool {
		return p.Spec.Space == r.AddressSpace && !p.Spec.Sub.IsValid() && isPart(pools, p.Spec.CIDR) &&
			!slices.ContainsFunc(routes, p.Spec.CIDR.Overlaps)
	})
	if ok || err != nil {
		return p, err
	}
	cidr, ok, err := s.nextPrefix(ctx, pools, s.next[r.V6], routes)
	if !ok && err == nil {
		cidr, err = s.freePrefix(ctx, pools, s.next[r.V6], routes)
	}
	if err != nil {
		return p, err
	}
	p, err = s.makePool(ctx, PoolSpec{Space: r.AddressSpace, CIDR: cidr})
	if err == nil {
		s.next[r.V6] = ipprefix.Last(cidr).Next()
	}
	return p, err
}

// poolsFor returns the automatic pools of a request: those of its family that hold a range of the
// length that it asks for, if it asks for one.
func (s *Service) poolsFor(r *api.RequestPoolRequest) ([]AutoPool, error) {
	all, setting := s.Pools4, "docker.default_pools"
	if r.V6 {
		all, setting = s.Pools6, "docker.default_pools_v6"
	}
	if !r.AnyOfLength.IsValid() {
		return all, nil
	}
	var pools []AutoPool
	largest := 128
	for _, p := range all {
		largest = min(largest, p.Prefix.Bits())
		if p.Prefix.Bits() <= r.AnyOfLength.Bits() {
			pools = append(pools, AutoPool{p.Prefix, r.AnyOfLength.Bits()})
		}
	}
	if len(pools) == 0 {
		return nil, api.Refuse("Pool %s: the largest range of %s is a /%d", r.AnyOfLength, setting, largest)
	}
	return pools, nil
}

// isPart reports whether automatic pools give the range.
func isPart(pools []AutoPool, p netip.Prefix) bool {
	return slices.ContainsFunc(pools, func(a AutoPool) bool { return a.Len == p.Bits() && a.Prefix.Contains(p.Addr()) })
}

// nextPrefix returns the range that begins at an address, if it is free, as it mostly is: the SDN
// is asked for this range alone, and no list of ranges is sorted.
func (s *Service) nextPrefix(
	ctx context.Context, pools []AutoPool, from netip.Addr, routes []netip.Prefix,
) (netip.Prefix, bool, error) {
	i := slices.IndexFunc(pools, func(p AutoPool) bool { return p.Prefix.Contains(from) })
	if i < 0 {
		return netip.Prefix{}, false, nil
	}
	cidr := netip.PrefixFrom(from, pools[i].Len).Masked()
	if slices.ContainsFunc(routes, cidr.Overlaps) || cidr.Addr() != from {
		return cidr, false, nil
	}
	if s.overlapsPool(cidr) {
		return cidr, false, nil
	}
	_, taken, err := sdn.First(s.SDN.FindSubnetPools(ctx, sdn.SubnetPoolQuery{
		Match:    sdn.Match{Owner: s.Names.Owner, Kind: identity.KindPool},
		Overlaps: []netip.Prefix{cidr},
	}))
	return cidr, !taken, err
}

// freePrefix finds a range of automatic pools that overlaps none that is routed or another pool's.
// It begins at an address and comes round once.
func (s *Service) freePrefix(
	ctx context.Context, pools []AutoPool, from netip.Addr, routes []netip.Prefix,
) (netip.Prefix, error) {
	start := slices.IndexFunc(pools, func(p AutoPool) bool { return p.Prefix.Contains(from) })
	if start < 0 {
		start, from = 0, netip.Addr{}
	}
	known := slices.Clone(routes)
	for p := range s.pools.Rows() {
		known = append(known, p.Spec.CIDR)
	}
	search := search{Service: s, known: ipprefix.Widest(known), taken: map[netip.Prefix][]netip.Prefix{}}
	for i := range len(pools) + 1 {
		pool := pools[(start+i)%max(1, len(pools))]
		begin, end := pool.Prefix.Addr(), ipprefix.Last(pool.Prefix)
		switch {
		case i == 0 && from.IsValid():
			begin = from
		case i == len(pools) && from.IsValid():
			end = from.Prev()
		case i == len(pools):
			continue
		}
		cidr, found, err := search.between(ctx, pool, begin, end)
		if found || err != nil {
			return cidr, err
		}
	}
	return netip.Prefix{}, api.Refuse("no automatic range is free: name a subnet")
}

// search is a search for a free range. The SDN is asked once for each automatic pool in which one
// seems free.
type search struct {
	*Service
	known []netip.Prefix                  // of this host, as Widest returns them
	taken map[netip.Prefix][]netip.Prefix // the same with those of all hosts, by automatic pool
}

// between returns the first free range between two addresses of an automatic pool.
func (s search) between(ctx context.Context, pool AutoPool, begin, end netip.Addr) (netip.Prefix, bool, error) {
	candidate, found := firstFree(pool.Len, begin, end, s.known)
	if !found {
		return candidate, false, nil
	}
	taken, asked := s.taken[pool.Prefix]
	if !asked {
		taken = slices.Clone(s.known)
		query := sdn.SubnetPoolQuery{
			Match:    sdn.Match{Owner: s.Names.Owner, Kind: identity.KindPool},
			Overlaps: []netip.Prefix{pool.Prefix},
		}
		for p, err := range s.SDN.FindSubnetPools(ctx, query) {
			if err != nil {
				return candidate, false, err
			}
			taken = append(taken, p.Prefixes...)
		}
		taken = ipprefix.Widest(taken)
		s.taken[pool.Prefix] = taken
	}
	candidate, found = firstFree(pool.Len, candidate.Addr(), end, taken)
	return candidate, found, nil
}

// firstFree returns the first range of a length between two addresses that overlaps none of those
// taken, which are as Widest returns them.
func firstFree(length int, begin, end netip.Addr, taken []netip.Prefix) (netip.Prefix, bool) {
	for next := begin; next.IsValid() && !end.Less(next); {
		candidate := netip.PrefixFrom(next, length).Masked()
		if candidate.Addr().Less(next) { // ranges of another length were given before
			next = ipprefix.Last(candidate).Next()
			continue
		}
		i, _ := slices.BinarySearchFunc(taken, candidate.Addr(), func(p netip.Prefix, a netip.Addr) int {
			if ipprefix.Last(p).Less(a) {
				return -1
			}
			return 1
		})
		if i == len(taken) || !taken[i].Overlaps(candidate) {
			return candidate, true
		}
		blocker := taken[i]
		if blocker.Bits() > length {
			blocker = candidate
		}
		next = ipprefix.Last(blocker).Next()
	}
	return netip.Prefix{}, false
}

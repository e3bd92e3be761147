package docker

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

// automatic is a hint of where free ranges of one family are, so that a choice does not go through all pools. A new process
// knows nothing and finds out.
type automatic struct {
	next netip.Addr // where to look first; invalid: at the beginning
}

// autoPool chooses a range that neither the host routes nor another pool has, the one after that chosen last. The engine compares
// it with what it knows besides and asks again, holding what it got, so a range is never given twice while it is held.
func (d *Driver) autoPool(ctx context.Context, r *api.RequestPoolRequest) (enginePool, error) {
	unlock, err := d.locks.lock(ctx, "automatic")
	if err != nil {
		return enginePool{}, err
	}
	defer unlock()
	pools, err := d.poolsFor(r)
	if err != nil {
		return enginePool{}, err
	}
	routes, err := d.hostRoutes(ctx)
	if err != nil {
		return enginePool{}, refuseFor(err, "the host's routes could not be read: name a subnet")
	}
	routes = slices.DeleteFunc(slices.Clone(routes), func(p netip.Prefix) bool { return p.Bits() == 0 })
	pool, ok, err := d.lost(ctx, func(p enginePool) bool {
		_, routed := overlapping(p.CIDR, routes)
		return p.Space == r.AddressSpace && !p.Sub.IsValid() && !routed && cutFrom(pools, p.CIDR)
	})
	if ok || err != nil {
		return pool, err
	}
	cidr, err := d.freePrefix(ctx, pools, d.automatic[r.V6].next, routes)
	if err != nil {
		return enginePool{}, err
	}
	pool, err = d.makePool(ctx, d.newPoolName(identity.PoolName{Space: r.AddressSpace, CIDR: cidr}))
	if err == nil {
		d.automatic[r.V6].next = ipprefix.Last(cidr).Next()
	}
	return pool, err
}

// poolsFor returns the automatic pools of a request: those of its family that hold a range of the
// length that it asks for, if it asks for one.
func (d *Driver) poolsFor(r *api.RequestPoolRequest) ([]AutoPool, error) {
	if !r.AnyOfLength.IsValid() {
		return d.pools[r.V6], nil
	}
	var pools []AutoPool
	largest := 128
	for _, p := range d.pools[r.V6] {
		largest = min(largest, p.Prefix.Bits())
		if p.Prefix.Bits() <= r.AnyOfLength.Bits() {
			pools = append(pools, AutoPool{p.Prefix, r.AnyOfLength.Bits()})
		}
	}
	if len(pools) == 0 {
		setting := "docker.default_pools"
		if r.V6 {
			setting = "docker.default_pools_v6"
		}
		return nil, refuse("Pool %s: the largest range of %s is a /%d", r.AnyOfLength, setting, largest)
	}
	return pools, nil
}

// cutFrom tells whether a range is one that automatic pools give.
func cutFrom(pools []AutoPool, p netip.Prefix) bool {
	return slices.ContainsFunc(pools, func(a AutoPool) bool { return a.Len == p.Bits() && a.Prefix.Contains(p.Addr()) })
}

// freePrefix finds a range of automatic pools that overlaps none that is routed or another pool's.
// It begins at an address and comes round once.
func (d *Driver) freePrefix(
	ctx context.Context, pools []AutoPool, from netip.Addr, routes []netip.Prefix,
) (netip.Prefix, error) {
	start := slices.IndexFunc(pools, func(p AutoPool) bool { return p.Prefix.Contains(from) })
	if start < 0 {
		start, from = 0, netip.Addr{}
	}
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
		cidr, found, err := d.freeBetween(ctx, pool.Len, begin, end, routes)
		if found || err != nil {
			return cidr, err
		}
	}
	return netip.Prefix{}, refuse("no automatic range is free: name a subnet")
}

// freeBetween is the first free range of a length from begin, where one can begin, to end.
func (d *Driver) freeBetween(ctx context.Context, length int, begin, end netip.Addr, routes []netip.Prefix) (netip.Prefix, bool, error) {
	for next := begin; next.IsValid() && !end.Less(next); {
		candidate := netip.PrefixFrom(next, length).Masked()
		if candidate.Addr().Less(next) { // ranges of another length were given before
			next = ipprefix.Last(candidate).Next()
			continue
		}
		blocker, blocked := overlapping(candidate, routes)
		if !blocked {
			query := sdn.SubnetPoolQuery{Match: sdn.Match{Owner: d.sdn.Installation(), Kind: identity.KindPool}, Overlaps: []netip.Prefix{candidate}}
			pool, found, err := sdn.First(d.sdn.FindSubnetPools(ctx, query))
			if err != nil || !found {
				return candidate, err == nil, err
			}
			blocker, _ = overlapping(candidate, pool.Prefixes)
		}
		if blocker.Bits() > length {
			blocker = candidate
		}
		next = ipprefix.Last(blocker).Next()
	}
	return netip.Prefix{}, false, nil
}

func checkAutoPools(pools []AutoPool, v6 bool) error {
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

func overlapping(p netip.Prefix, taken []netip.Prefix) (netip.Prefix, bool) {
	for _, t := range taken {
		if t.Overlaps(p) {
			return t, true
		}
	}
	return netip.Prefix{}, false
}

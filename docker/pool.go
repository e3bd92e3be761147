package docker

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

// creation is how long the engine may take from RequestPool to CreateNetwork before its range may be asked for again.
const creation = time.Minute

type requestPoolResponse struct {
	PoolID string
	Pool   string
	Data   map[string]string
}

func (d *Driver) requestPool(ctx context.Context, r *requestPoolRequest) (any, error) {
	if !spacePattern.MatchString(r.AddressSpace) {
		return nil, malformed("AddressSpace", "is not one of ours: %q", clip(r.AddressSpace, 60))
	}
	for option := range r.Options {
		if strings.HasPrefix(option, ownPrefix) {
			return nil, refuse("IPAM option %s is not known", clip(option, 100))
		}
	}
	if !d.sdn.Capabilities().SubnetPools {
		return nil, refuse("this SDN has no subnet pools: use the kuryr network driver with another IPAM driver")
	}
	var pool enginePool
	var err error
	if r.pool.IsValid() {
		pool, err = d.namedPool(ctx, r)
	} else {
		pool, err = d.autoPool(ctx, r)
	}
	if err != nil {
		return nil, err
	}
	return requestPoolResponse{PoolID: string(pool.ID), Pool: pool.cidr.String(), Data: map[string]string{}}, nil
}

// namedPool makes a pool of the range asked for.
func (d *Driver) namedPool(ctx context.Context, r *requestPoolRequest) (enginePool, error) {
	unlock, err := d.locks.lock(ctx, "range/"+r.AddressSpace+"/"+r.pool.String())
	if err != nil {
		return enginePool{}, err
	}
	defer unlock()
	bare, err := d.barePools(ctx, []netip.Prefix{r.pool})
	if err != nil {
		return enginePool{}, err
	}
	for _, p := range bare {
		if p.host != d.hostKey || p.space != r.AddressSpace {
			continue
		}
		switch {
		case d.handedLately(p.ID):
			return enginePool{}, refuse("the range %s was just given to another network that is being created; try again in a minute", r.pool)
		case p.untouched() && p.sub == r.sub:
			// Its answer was lost together with an earlier process.
			d.hand(p.ID)
			return p, nil
		}
	}
	return d.makePool(ctx, newPoolName(d.hostKey, r.AddressSpace, r.pool, r.sub))
}

// autoPool chooses a range that neither the host routes nor another pool has. The engine compares it with what it knows
// besides and asks again, holding what it got, so a range is never given twice while it is held.
func (d *Driver) autoPool(ctx context.Context, r *requestPoolRequest) (enginePool, error) {
	unlock, err := d.locks.lock(ctx, "automatic")
	if err != nil {
		return enginePool{}, err
	}
	defer unlock()
	routes, err := d.hostRoutes(ctx)
	if err != nil {
		return enginePool{}, refuseFor(err, "the host's routes could not be read: name a subnet")
	}
	taken := slices.DeleteFunc(slices.Clone(routes), func(p netip.Prefix) bool { return p.Bits() == 0 })
	var lost []enginePool
	for found, err := range d.sdn.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: sdn.Match{Owner: d.sdn.Installation(), Kind: kindPool}}) {
		if err != nil {
			return enginePool{}, err
		}
		p, ok := d.enginePool(found)
		if !ok {
			continue
		}
		_, onRoute := overlapping(p.cidr, taken)
		if !onRoute && p.host == d.hostKey && p.space == r.AddressSpace && p.untouched() && !p.released() &&
			!d.handedLately(p.ID) && !p.sub.IsValid() && cutFrom(d.pools[r.V6], p.cidr) {
			lost = append(lost, p)
		}
		taken = append(taken, p.cidr)
	}
	if lost, err = d.withoutSubnets(ctx, lost); err != nil {
		return enginePool{}, err
	}
	if len(lost) > 0 {
		d.hand(lost[0].ID)
		return lost[0], nil
	}
	cidr, ok := freePrefix(d.pools[r.V6], taken)
	if !ok {
		return enginePool{}, refuse("no automatic range is free: name a subnet")
	}
	return d.makePool(ctx, newPoolName(d.hostKey, r.AddressSpace, cidr, netip.Prefix{}))
}

// cutFrom tells whether a range is one that automatic pools give.
func cutFrom(pools []AutoPool, p netip.Prefix) bool {
	return slices.ContainsFunc(pools, func(a AutoPool) bool { return a.Len == p.Bits() && a.Prefix.Contains(p.Addr()) })
}

func (d *Driver) makePool(ctx context.Context, name poolName) (enginePool, error) {
	pool, err := d.sdn.EnsureSubnetPool(ctx, sdn.SubnetPoolSpec{
		Base:       sdn.Base{Key: d.key(kindPool, name.String()), Name: poolTitle(name.cidr)},
		Prefixes:   []netip.Prefix{name.cidr},
		DefaultLen: name.cidr.Bits(),
		MinLen:     name.cidr.Bits(),
	})
	if err != nil {
		return enginePool{}, err
	}
	failpoint.Here("docker.requestpool.made")
	d.hand(pool.ID)
	return enginePool{pool, name}, nil
}

// barePools are the engines' pools of the ranges that no subnet was cut from. Those that were released and kept only by
// subnets since gone are deleted on the way.
func (d *Driver) barePools(ctx context.Context, ranges []netip.Prefix) ([]enginePool, error) {
	titles := make([]string, len(ranges))
	for i, r := range ranges {
		titles[i] = poolTitle(r)
	}
	match := sdn.Match{Owner: d.sdn.Installation(), Kind: kindPool, Names: titles}
	var pools []enginePool
	for found, err := range d.sdn.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: match}) {
		if err != nil {
			return nil, err
		}
		if p, ok := d.enginePool(found); ok {
			pools = append(pools, p)
		}
	}
	bare, err := d.withoutSubnets(ctx, pools)
	if err != nil {
		return nil, err
	}
	live := bare[:0]
	for _, p := range bare {
		if !p.released() {
			live = append(live, p)
		} else if err := d.dropPool(ctx, p.ID); err != nil {
			return nil, err
		}
	}
	return live, nil
}

// withoutSubnets keeps the pools that no subnet was cut from.
func (d *Driver) withoutSubnets(ctx context.Context, pools []enginePool) ([]enginePool, error) {
	if len(pools) == 0 {
		return nil, nil
	}
	ids := make([]sdn.ID, len(pools))
	for i, p := range pools {
		ids[i] = p.ID
	}
	cut := map[sdn.ID]bool{}
	for s, err := range d.sdn.FindSubnets(ctx, sdn.SubnetQuery{Pools: ids}) {
		if err != nil {
			return nil, err
		}
		cut[s.Pool] = true
	}
	return slices.DeleteFunc(slices.Clone(pools), func(p enginePool) bool { return cut[p.ID] }), nil
}

// releasePool deletes the pool. Engines call it before DeleteNetwork: what still has subnets is marked, and goes with the
// last of them.
func (d *Driver) releasePool(ctx context.Context, r *releasePoolRequest) (any, error) {
	id := sdn.ID(r.PoolID)
	unlock, err := d.locks.lock(ctx, "pool/"+r.PoolID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	found, err := d.sdn.SubnetPool(ctx, id)
	if sdn.IsNotFound(err) {
		return nothing{}, nil
	}
	if err != nil {
		return nil, err
	}
	pool, ok := d.enginePool(found)
	if !ok {
		return nothing{}, nil // somebody else's: used, never deleted
	}
	subnets, err := sdn.All(d.sdn.FindSubnets(ctx, sdn.SubnetQuery{Pools: []sdn.ID{id}}))
	if err != nil {
		return nil, err
	}
	used := false
	for _, s := range subnets {
		used = used || !d.ours(s.Meta, kindHiddenSubnet)
	}
	if used || len(subnets) > 0 {
		if err := d.tagPool(ctx, pool, tagReleased); err != nil {
			return nil, err
		}
		failpoint.Here("docker.releasepool.marked")
	}
	if used {
		return nothing{}, nil
	}
	if len(subnets) > 0 {
		if err := d.deleteHidden(ctx, subnets[0].Network); err != nil {
			return nil, err
		}
		failpoint.Here("docker.releasepool.emptied")
	}
	return nothing{}, d.dropPool(ctx, id)
}

// dropPool deletes a pool of ours that nothing is cut from.
func (d *Driver) dropPool(ctx context.Context, id sdn.ID) error {
	if err := d.sdn.DeleteSubnetPool(ctx, id); err != nil {
		return err
	}
	d.mu.Lock()
	delete(d.handed, id)
	d.mu.Unlock()
	return nil
}

// tagPool adds a tag to a pool, whatever others do to it meanwhile.
func (d *Driver) tagPool(ctx context.Context, pool enginePool, tag string) error {
	return d.changePool(ctx, pool, func(tags []string) ([]string, bool) { return withTag(tags, tag) })
}

func (d *Driver) changePool(ctx context.Context, pool enginePool, change func([]string) ([]string, bool)) error {
	p := pool.SubnetPool
	return retryStale(func(again bool) (err error) {
		if again {
			if p, err = d.sdn.SubnetPool(ctx, p.ID); err != nil {
				return err
			}
		}
		tags, changed := change(p.Tags)
		if !changed {
			return nil
		}
		_, err = d.sdn.UpdateSubnetPool(ctx, p.ID, sdn.SubnetPoolPatch{Patch: sdn.Patch{IfRevision: p.Revision, Tags: &tags}})
		return err
	})
}

// retryStale repeats a conditional change, which must read its object anew when told that it is asked again.
func retryStale(change func(again bool) error) error {
	for try := 0; ; try++ {
		err := change(try > 0)
		if sdn.ReasonOf(err) != sdn.Stale || try == 5 {
			return err
		}
	}
}

func (d *Driver) hand(id sdn.ID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.handed[id] = time.Now()
}

// handedLately tells whether this process gave the pool to the engine so lately that it may be making a network of it.
func (d *Driver) handedLately(id sdn.ID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	at, ok := d.handed[id]
	if ok && time.Since(at) > creation {
		delete(d.handed, id)
		return false
	}
	return ok
}

// claimed says that a network was made of the pools.
func (d *Driver) claimed(pools map[*ipamData]enginePool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range pools {
		delete(d.handed, p.ID)
	}
}

package docker

import (
	"context"
	"slices"

	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/sdn"
)

// lost gives a pool that was made for an engine that never heard of it, and that will do.
func (d *Driver) lost(ctx context.Context, willDo func(enginePool) bool) (enginePool, bool, error) {
	if d.frugal() {
		return enginePool{}, false, nil
	}
	unlock, err := d.locks.lock(ctx, "lost")
	if err != nil {
		return enginePool{}, false, err
	}
	defer unlock()
	if !d.bare.searched {
		if err := d.searchLost(ctx); err != nil {
			return enginePool{}, false, err
		}
	}
	for at := 0; at < len(d.bare.pools); {
		candidate := d.bare.pools[at]
		if !willDo(candidate) {
			at++
			continue
		}
		found, err := d.sdn.SubnetPool(ctx, candidate.ID)
		if err != nil && !sdn.IsNotFound(err) {
			return enginePool{}, false, err
		}
		d.bare.pools = slices.Delete(d.bare.pools, at, at+1)
		pool, ok := d.enginePool(found)
		if err != nil || !ok || !d.lostLooks(pool) {
			continue
		}
		bare, err := d.withoutSubnets(ctx, []enginePool{pool})
		if err != nil {
			return enginePool{}, false, err
		}
		if len(bare) > 0 {
			d.beginPool(ctx, pool.PoolName)
			d.hand(pool)
			return pool, true, nil
		}
	}
	return enginePool{}, false, nil
}

// searchLost looks once, through all pools, for those that an earlier process may not have told the engine of. What this process makes
// it tells, or searches for (searchAgain). Released pools that nothing is cut from any more are deleted on the way.
func (d *Driver) searchLost(ctx context.Context) error {
	var pools []enginePool
	for found, err := range d.sdn.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: sdn.Match{Owner: d.sdn.Installation(), Kind: identity.KindPool}}) {
		if err != nil {
			return err
		}
		if p, ok := d.enginePool(found); ok && p.Host == d.names.Host && (p.released() || d.lostLooks(p)) {
			pools = append(pools, p)
		}
	}
	bare, err := d.withoutSubnets(ctx, pools)
	if err != nil {
		return err
	}
	for _, p := range bare {
		if !p.released() {
			d.bare.pools = append(d.bare.pools, p)
		} else if err := d.dropPool(ctx, p.ID); err != nil {
			return err
		}
	}
	d.bare.searched = true
	return nil
}

// searchAgain has the next request look through all pools once more: one was asked for, and what became of it is not known.
func (d *Driver) searchAgain(ctx context.Context) {
	unlock, err := d.locks.lock(context.WithoutCancel(ctx), "lost")
	if err != nil {
		return // nobody waits for ever: the context does not end
	}
	defer unlock()
	d.bare.searched, d.bare.pools = false, nil
}

// lostLooks tells whether nothing shows that an engine has a pool. Of an existing subnet's there is no telling: its engine leaves no trace.
func (d *Driver) lostLooks(p enginePool) bool {
	return p.Host == d.names.Host && p.untouched() && !p.released() && !d.handedLately(p.ID) && p.subnet() == "" && p.OfPool == ""
}

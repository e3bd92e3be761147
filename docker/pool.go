package docker

import (
	"context"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

func (d *Driver) requestPool(ctx context.Context, r *api.RequestPoolRequest) (any, error) {
	if !d.sdn.Capabilities().SubnetPools {
		return nil, refuse("this SDN has no subnet pools: use the kuryr network driver with another IPAM driver")
	}
	pool, err := d.existingRange(ctx, r)
	if err != nil {
		return nil, err
	}
	if pool.OfSubnet == "" && pool.OfPool == "" {
		name, found, err := d.swarmPool(ctx, r)
		if found {
			return api.RequestPoolResponse{PoolID: name, Pool: r.Pool.String(), Data: map[string]string{}}, nil
		}
		if err != nil {
			return nil, err
		}
	}
	var made enginePool
	if pool.CIDR.IsValid() {
		made, err = d.namedPool(ctx, pool)
	} else {
		made, err = d.autoPool(ctx, r)
	}
	if err != nil {
		return nil, err
	}
	if len(r.Foreign) > 0 {
		d.log.WarnContext(ctx, "IPAM options of a network mean nothing to kuryr", "range", made.CIDR,
			"options", foreignOptions(r.Foreign))
	}
	return api.RequestPoolResponse{PoolID: string(made.ID), Pool: made.CIDR.String(), Data: map[string]string{}}, nil
}

// namedPool makes a pool of the range asked for, whose name has all but the host and the nonce.
func (d *Driver) namedPool(ctx context.Context, asked identity.PoolName) (enginePool, error) {
	unlock, err := d.locks.lock(ctx, "range/"+asked.Space+"/"+asked.CIDR.String())
	if err != nil {
		return enginePool{}, err
	}
	defer unlock()
	if d.beingUsed(asked) {
		return enginePool{}, refuse("the range %s was just given to another network that is being created; try again in a minute", asked.CIDR)
	}
	if asked.OfSubnet == "" && asked.OfPool == "" {
		if p, ok, err := d.lostNamed(ctx, asked); ok || err != nil {
			return p, err
		}
	}
	return d.makePool(ctx, d.newPoolName(asked))
}

// lostNamed is a pool of the range whose answer was lost together with an earlier process, or that a manager asked for that died before
// it made a network.
func (d *Driver) lostNamed(ctx context.Context, asked identity.PoolName) (enginePool, bool, error) {
	if d.scope != Global {
		return d.lost(ctx, func(p enginePool) bool { return p.CIDR == asked.CIDR && p.Space == asked.Space && p.Sub == asked.Sub })
	}
	bare, err := d.barePools(ctx, []netip.Prefix{asked.CIDR})
	if err != nil {
		return enginePool{}, false, err
	}
	for _, p := range bare {
		if p.Host == d.names.Host && p.Space == asked.Space && p.Sub == asked.Sub && (p.untouched() || p.Space == api.GlobalSpace) {
			d.beginPool(ctx, p.PoolName)
			d.hand(p)
			return p, true, nil
		}
	}
	return enginePool{}, false, nil
}

// makePool makes a pool whose name nobody had before.
func (d *Driver) makePool(ctx context.Context, name identity.PoolName) (enginePool, error) {
	spec := sdn.SubnetPoolSpec{
		Base:       sdn.Base{Key: d.names.PoolKey(name), Name: identity.PoolTitle(name.CIDR)},
		Prefixes:   []netip.Prefix{name.CIDR},
		DefaultLen: name.CIDR.Bits(),
		MinLen:     name.CIDR.Bits(),
		New:        true,
	}
	if name.OfSubnet != "" {
		spec.Tags = []string{string(name.OfSubnet)}
	}
	d.beginPool(ctx, name)
	pool, err := d.sdn.EnsureSubnetPool(ctx, spec)
	if err != nil {
		if away(err) { // it may have been made all the same
			d.searchAgain(ctx)
		}
		if !mayLand(err) {
			d.begun.strike(identity.KindPool, name.String())
		}
		return enginePool{}, err
	}
	failpoint.Here("docker.requestpool.made")
	made := enginePool{pool, name}
	d.hand(made)
	if name.OfSubnet != "" {
		d.whereabouts.noteSubnet(pool.ID, name.OfSubnet)
	}
	return made, nil
}

// barePools are the engines' pools of the ranges that no subnet was cut from. Those that were released and kept only by
// subnets since gone are deleted on the way.
func (d *Driver) barePools(ctx context.Context, ranges []netip.Prefix) ([]enginePool, error) {
	titles := make([]string, len(ranges))
	for i, r := range ranges {
		titles[i] = identity.PoolTitle(r)
	}
	match := sdn.Match{Owner: d.sdn.Installation(), Kind: identity.KindPool, Names: titles}
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
	return slices.DeleteFunc(slices.Clone(pools), func(p enginePool) bool { return cut[p.ID] || p.emptied() != "" }), nil
}

// releasePool deletes the pool. Engines call it before DeleteNetwork: what still has subnets is marked, and goes with the
// last of them.
func (d *Driver) releasePool(ctx context.Context, r *api.ReleasePoolRequest) (any, error) {
	if r.PoolID.Node {
		return api.Empty{}, d.releaseNodePool(ctx, r.PoolID.Pool)
	}
	network, err := d.letGo(ctx, r.PoolID)
	if err == nil && network != "" {
		err = d.finishAllocation(ctx, network)
	}
	return api.Empty{}, err
}

// letGo is releasePool up to the network of a swarm that the pool may have been the last hold of.
func (d *Driver) letGo(ctx context.Context, ref api.PoolID) (sdn.ID, error) {
	id := ref.Pool
	unlock, err := d.locks.lock(ctx, "pool/"+string(id))
	if err != nil {
		return "", err
	}
	defer unlock()
	found, err := d.sdn.SubnetPool(ctx, id)
	if sdn.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	pool, ok := d.enginePool(found)
	if !ok {
		if pool, ok, err = d.letGoPeers(ctx, found); err != nil || !ok {
			d.whereabouts.forgetPool(id)
			return "", err // somebody else's: used, never deleted
		}
	}
	d.begun.found(identity.KindPool, pool.Key.Name)
	network, err := d.letGoOurs(ctx, ref, pool)
	if err == nil {
		d.begun.strike(identity.KindPool, pool.Key.Name)
	}
	return network, err
}

// letGoOurs is letGo of a pool that is ours.
func (d *Driver) letGoOurs(ctx context.Context, ref api.PoolID, pool enginePool) (sdn.ID, error) {
	id := ref.Pool
	var subnets []sdn.Subnet
	s, cut, err := d.subnetOf(ctx, id)
	if err != nil {
		return "", err
	}
	if cut && (s.Pool == pool.cutFrom() || d.names.Ours(s.Meta, identity.KindSubnet)) { // and not an existing one, which needs no pool of ours
		subnets = append(subnets, s)
	}
	if ref.Life != "" && len(subnets) > 0 && !d.names.Ours(subnets[0].Meta, identity.KindHiddenSubnet) {
		network, err := d.sdn.Network(ctx, subnets[0].Network)
		if err != nil && !sdn.IsNotFound(err) {
			return "", err
		}
		if err == nil && slices.Contains(network.Tags, identity.TagAllocated) {
			// Either it is freed next, or this is the undoing of another network that was refused the range.
			return "", d.tagPool(ctx, pool, identity.TagLetGo)
		}
	}
	used := false
	for _, s := range subnets {
		used = used || !d.names.Ours(s.Meta, identity.KindHiddenSubnet)
	}
	if len(subnets) == 0 {
		if _, used, err = d.emptiedOwner(ctx, pool); err != nil {
			return "", err
		}
	}
	if used || len(subnets) > 0 {
		if err := d.markReleased(ctx, pool); err != nil {
			return "", err
		}
		d.whereabouts.noteReleased(id)
		failpoint.Here("docker.releasepool.marked")
	}
	if used {
		if len(subnets) > 0 && swarms(subnets[0]) {
			return subnets[0].Network, nil
		}
		return "", nil
	}
	if len(subnets) > 0 {
		if err := d.deleteHidden(ctx, subnets[0].Network); err != nil {
			return "", err
		}
		failpoint.Here("docker.releasepool.emptied")
	}
	if err := d.dropPool(ctx, id); err != nil {
		return "", err
	}
	if pool.subnet() != "" {
		d.whereabouts.noteGone(id)
	}
	return "", nil
}

// markReleased marks a pool as released. Where this host alone writes on it, that is done without a condition, which costs calls.
func (d *Driver) markReleased(ctx context.Context, pool enginePool) error {
	tags, missing := identity.With(pool.Tags, identity.TagReleased)
	if d.scope != Local || !missing {
		return d.tagPool(ctx, pool, identity.TagReleased)
	}
	_, err := d.sdn.UpdateSubnetPool(ctx, pool.ID, sdn.SubnetPoolPatch{Patch: sdn.Patch{Tags: &tags}})
	return err
}

// dropPool deletes a pool of ours that nothing is cut from.
func (d *Driver) dropPool(ctx context.Context, id sdn.ID) error {
	if err := d.sdn.DeleteSubnetPool(ctx, id); err != nil {
		return err
	}
	d.mu.Lock()
	delete(d.handed, id)
	d.mu.Unlock()
	d.whereabouts.forgetPool(id)
	return nil
}

// tagPool adds a tag to a pool, whatever others do to it meanwhile.
func (d *Driver) tagPool(ctx context.Context, pool enginePool, tag string) error {
	return d.changePool(ctx, pool, func(tags []string) ([]string, bool) { return identity.With(tags, tag) })
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
		now, err := d.sdn.UpdateSubnetPool(ctx, p.ID, sdn.SubnetPoolPatch{Patch: sdn.Patch{IfRevision: p.Revision, Tags: &tags}})
		if err == nil {
			d.handedChanged(now)
		}
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

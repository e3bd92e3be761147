package docker

import (
	"context"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/sdn"
)

// What kuryr-libnetwork, the program before this one, made for an engine is found by the tags and names that it gave, and gets our Key:
// from then on it is ours. What it only used stays its owner's, and gets a link. Of what it made, pools may serve many hosts: those of an
// existing network are deleted with the last use of that.

// peersNetwork takes over the network that kuryr-libnetwork made or used for an engine's.
func (d *Driver) peersNetwork(ctx context.Context, id string) (sdn.Network, bool, error) {
	if d.removingTags(id) {
		return sdn.Network{}, false, nil
	}
	found, err := sdn.All(d.sdn.FindNetworks(ctx, sdn.NetworkQuery{Match: sdn.Match{Tags: identity.IDTags(id)}}))
	if err != nil {
		return sdn.Network{}, false, err
	}
	found = slices.DeleteFunc(found, func(n sdn.Network) bool {
		return !n.Foreign || !identity.HasID(n.Tags, id)
	})
	switch {
	case len(found) == 0:
		return sdn.Network{}, false, nil
	case len(found) > 1:
		return sdn.Network{}, false, refuse("%d networks have the tags of network %s: delete those that are not in use", len(found), api.Clip(id, 12))
	}
	n := found[0]
	if identity.PeersNetwork(n, id) {
		n, err = d.adoptNetwork(ctx, id, n)
		return n, err == nil, err
	}
	if d.scope != Local || !d.sdn.Capabilities().SubnetPools {
		return sdn.Network{}, false, refuse("network %s is an existing one, which a swarm cannot use", n.ID)
	}
	l, err := d.ensureLink(ctx, id, n.ID, nil, netip.Prefix{}, nil, false)
	if err != nil {
		return sdn.Network{}, false, err
	}
	n, err = d.linked(ctx, l)
	return n, err == nil, err
}

// adoptNetwork gives Keys to a network that kuryr-libnetwork made, its subnets and their pools. The network's is the last: until then all of
// it is repeated.
func (d *Driver) adoptNetwork(ctx context.Context, id string, n sdn.Network) (sdn.Network, error) {
	subnets, err := sdn.All(d.sdn.FindSubnets(ctx, sdn.SubnetQuery{Networks: []sdn.ID{n.ID}}))
	if err != nil {
		return n, err
	}
	place := map[bool]int{} // by whether IPv6
	for _, s := range subnets {
		key := d.subnetKey(id, s.CIDR, place[s.CIDR.Addr().Is6()])
		place[s.CIDR.Addr().Is6()]++
		if s.Name != identity.SubnetTitle(s.CIDR) || !s.Key.IsZero() || s.Description != "" {
			continue
		}
		if err := d.adoptPoolsOf(ctx, s); err != nil {
			return n, err
		}
		err := retryStale(func(again bool) (err error) {
			if again {
				if s, err = d.sdn.Subnet(ctx, s.ID); err != nil {
					return err
				}
			}
			_, err = d.sdn.UpdateSubnet(ctx, s.ID, sdn.SubnetPatch{Patch: sdn.Patch{IfRevision: s.Revision, Key: &key}})
			return err
		})
		if err != nil {
			return n, err
		}
	}
	key := d.names.GlobalKey(identity.KindNetwork, id)
	var adopted sdn.Network
	err = retryStale(func(again bool) (err error) {
		if again { // an SDN may count a change of a subnet as one of its network
			if n, err = d.sdn.Network(ctx, n.ID); err != nil {
				return err
			}
		}
		adopted, err = d.sdn.UpdateNetwork(ctx, n.ID, sdn.NetworkPatch{Patch: sdn.Patch{IfRevision: n.Revision, Key: &key}})
		return err
	})
	if err == nil {
		d.log.InfoContext(ctx, "a network of kuryr-libnetwork's was taken over", "network", id, "of the SDN", n.ID)
	}
	return adopted, err
}

// adoptPoolsOf gives Keys to the pools that kuryr-libnetwork made for a subnet.
func (d *Driver) adoptPoolsOf(ctx context.Context, s sdn.Subnet) error {
	pools, err := d.poolsOfSubnet(ctx, s)
	if err != nil {
		return err
	}
	for _, p := range pools {
		if !identity.PeersPool(p) {
			continue
		}
		if _, err := d.adoptPool(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// poolsOfSubnet are the pools that a subnet says it belongs to, without those that are gone.
func (d *Driver) poolsOfSubnet(ctx context.Context, s sdn.Subnet) (pools []sdn.SubnetPool, err error) {
	for _, id := range subnetPools(s) {
		p, err := d.sdn.SubnetPool(ctx, id)
		if ignoreAbsent(err) != nil {
			return nil, err
		}
		if err == nil {
			pools = append(pools, p)
		}
	}
	return pools, nil
}

func (d *Driver) adoptPool(ctx context.Context, p sdn.SubnetPool) (enginePool, error) {
	name := d.newPoolName(identity.PoolName{Space: api.LocalSpace, CIDR: p.Prefixes[0]})
	key := d.names.PoolKey(name)
	adopted, err := d.sdn.UpdateSubnetPool(ctx, p.ID, sdn.SubnetPoolPatch{Patch: sdn.Patch{IfRevision: p.Revision, Key: &key}})
	return enginePool{adopted, name}, err
}

// letGoPeers is ReleasePool of a pool that carries no Key of ours: one that kuryr-libnetwork made for a network of its own is taken over,
// and then released like ours. Those of existing networks go with these, others are somebody else's.
func (d *Driver) letGoPeers(ctx context.Context, p sdn.SubnetPool) (pool enginePool, adopted bool, err error) {
	if !identity.PeersPool(p) {
		return pool, false, d.unmarkPool(ctx, p, "")
	}
	s, found, err := d.subnetOf(ctx, p.ID)
	if err != nil {
		return pool, false, err
	}
	if !found { // nothing is made of it
		pool, err = d.adoptPool(ctx, p)
		return pool, err == nil, err
	}
	if s.Pool != p.ID || s.Name != identity.SubnetTitle(s.CIDR) {
		return pool, false, nil
	}
	n, err := d.sdn.Network(ctx, s.Network)
	if err != nil || len(identity.WithPrefix(n.Tags, identity.TagExisting)) > 0 || !identity.IsNetworkTitle(n.Name) {
		return pool, false, err
	}
	pool, err = d.adoptPool(ctx, p)
	return pool, err == nil, err
}

// unmarkPools is unmarkPool of several. They are asked for by their ids alone, so that a cache has them for the search that follows.
func (d *Driver) unmarkPools(ctx context.Context, pools []sdn.ID, going sdn.ID) error {
	if len(pools) == 0 {
		return nil
	}
	found, err := sdn.All(d.sdn.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: sdn.Match{IDs: pools}}))
	if err != nil {
		return err
	}
	for _, p := range found {
		if err := d.unmarkPool(ctx, p, going); err != nil {
			return err
		}
	}
	return nil
}

// unmarkPool takes kuryr-libnetwork's tag from an operator's pool that it used, unless a subnet is of it; those of the network that goes do not
// count. The engine has one id for the pool however many networks are of it, so a release, which may be a repeated one, does not tell which of them goes.
func (d *Driver) unmarkPool(ctx context.Context, p sdn.SubnetPool, going sdn.ID) error {
	if !slices.Contains(p.Tags, identity.TagExistingPool) {
		return nil
	}
	used, err := sdn.All(d.sdn.FindSubnets(ctx, sdn.SubnetQuery{Match: sdn.Match{Tags: []string{string(p.ID)}}}))
	if err != nil || slices.ContainsFunc(used, func(s sdn.Subnet) bool { return s.Network != going }) {
		return err
	}
	err = d.changePool(ctx, enginePool{SubnetPool: p}, func(tags []string) ([]string, bool) {
		return without(identity.TagExistingPool)(tags), slices.Contains(tags, identity.TagExistingPool)
	})
	if sdn.IsDenied(err) || sdn.IsNotFound(err) {
		d.log.WarnContext(ctx, "an existing subnet pool keeps a tag that says it is used", "pool", p.ID, "err", err)
		return nil
	}
	return err
}

// dropPeersPools deletes what kuryr-libnetwork made for the use of subnets of an existing network, if nobody uses that any more.
func (d *Driver) dropPeersPools(ctx context.Context, network sdn.ID, subnets []sdn.Subnet) error {
	now, err := d.sdn.UpdateNetwork(ctx, network, sdn.NetworkPatch{}) // asks anew: another host may use it by now
	if err != nil || len(identity.WithPrefix(now.Tags, identity.TagExisting)) > 0 {
		return err
	}
	for _, s := range subnets {
		if err := d.dropPeersPoolsOf(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// dropPeersPoolsOf deletes such pools of a subnet, and the subnet if it has kuryr-libnetwork's name. What is in use stays.
func (d *Driver) dropPeersPoolsOf(ctx context.Context, s sdn.Subnet) error {
	pools, err := d.poolsOfSubnet(ctx, s)
	if err != nil {
		return err
	}
	for _, p := range pools {
		if !identity.PeersPool(p) {
			if !slices.Contains(p.Tags, identity.TagExistingPool) {
				continue
			}
			if err := d.tagSubnet(ctx, s, without(string(p.ID))); err != nil {
				return err
			}
			if err := d.unmarkPool(ctx, p, ""); err != nil {
				return err
			}
			continue
		}
		if s.Foreign && s.Name == identity.SubnetTitle(s.CIDR) && s.Pool == p.ID {
			err = d.sdn.DeleteSubnet(ctx, s.ID)
		} else {
			err = d.tagSubnet(ctx, s, without(string(p.ID)))
		}
		if err == nil {
			err = d.sdn.DeleteSubnetPool(ctx, p.ID)
		}
		if err != nil && sdn.ReasonOf(err) != sdn.InUse && !sdn.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// mapped is the subnet that stands for a pool that none was cut from: the pool says which, or the subnet does.
func (d *Driver) mapped(ctx context.Context, id sdn.ID) (s sdn.Subnet, found bool, err error) {
	p, err := d.sdn.SubnetPool(ctx, id)
	if err != nil {
		return s, false, ignoreAbsent(err)
	}
	pool, ours := d.enginePool(p)
	if !ours {
		pool = enginePool{SubnetPool: p}
	}
	switch {
	case (ours || identity.PeersPool(p)) && pool.subnet() != "":
		s, err = d.sdn.Subnet(ctx, pool.subnet())
		return s, err == nil, ignoreAbsent(err)
	case pool.OfPool != "":
		// Subnets of one pool never overlap.
		match := sdn.Match{Owner: d.sdn.Installation(), Kind: identity.KindSubnet}
		return sdn.First(d.sdn.FindSubnets(ctx, sdn.SubnetQuery{Match: match, Pools: []sdn.ID{pool.OfPool}, CIDRs: []netip.Prefix{pool.CIDR}}))
	case identity.PeersPool(p) || slices.Contains(p.Tags, identity.TagExistingPool):
		return sdn.First(d.sdn.FindSubnets(ctx, sdn.SubnetQuery{Match: sdn.Match{Tags: []string{string(id)}}}))
	}
	return s, false, nil
}

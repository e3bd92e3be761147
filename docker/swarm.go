package docker

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

// In a swarm the manager allocates a network, its ranges and all addresses (service VIPs among them) in the global address
// space; each node asks for the same again in its local one when it first needs the network. Both mean one network, one
// subnet pool a range and one port an address. The manager's calls and the nodes' come and go in any order, so either side
// has marks of its own: tagAllocated and tagNode on the network, tagHeld on the ports.

func newLife() string { return strings.ReplaceAll(uuid.NewString(), "-", "")[:12] }

// swarmPool is the pool of a range that a swarm's network has already, by the name that suits who asks.
func (d *Driver) swarmPool(ctx context.Context, r *api.RequestPoolRequest) (id string, found bool, err error) {
	if d.scope != Global || !r.Pool.IsValid() || (r.AddressSpace != api.GlobalSpace && r.AddressSpace != api.LocalSpace) {
		return "", false, nil
	}
	subnet, found, err := d.allocatedSubnet(ctx, r.Pool, r.AddressSpace == api.GlobalSpace)
	if err != nil || !found {
		return "", false, err
	}
	if r.AddressSpace == api.LocalSpace {
		return api.PoolID{Pool: subnet.Pool, Node: true}.String(), true, nil
	}
	d.hand(enginePool{SubnetPool: sdn.SubnetPool{Meta: sdn.Meta{ID: subnet.Pool}}})
	return api.PoolID{Pool: subnet.Pool, Life: newLife()}.String(), true, nil
}

// allocatedSubnet is the subnet of a range that a swarm's manager has. Where hidden is true, that of a network of another
// driver, whose addresses alone are ours, is one too.
func (d *Driver) allocatedSubnet(ctx context.Context, cidr netip.Prefix, hidden bool) (sdn.Subnet, bool, error) {
	match := sdn.Match{Owner: d.sdn.Installation(), Kind: identity.KindPool, Names: []string{identity.PoolTitle(cidr)}}
	var ids []sdn.ID
	for found, err := range d.sdn.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: match}) {
		if err != nil {
			return sdn.Subnet{}, false, err
		}
		if p, ok := d.enginePool(found); ok && p.Space == api.GlobalSpace && p.CIDR == cidr {
			ids = append(ids, p.ID)
		}
	}
	if len(ids) == 0 {
		return sdn.Subnet{}, false, nil
	}
	subnets, err := sdn.All(d.sdn.FindSubnets(ctx, sdn.SubnetQuery{Pools: ids}))
	if err != nil {
		return sdn.Subnet{}, false, err
	}
	for _, s := range subnets {
		if !swarms(s) {
			continue
		}
		if d.names.Ours(s.Meta, identity.KindHiddenSubnet) {
			if hidden {
				return s, true, nil
			}
			continue
		}
		network, err := d.sdn.Network(ctx, s.Network)
		if sdn.IsNotFound(err) {
			continue
		}
		if err != nil {
			return sdn.Subnet{}, false, err
		}
		if slices.Contains(network.Tags, identity.TagAllocated) {
			return s, true, nil
		}
	}
	return sdn.Subnet{}, false, nil
}

// swarms tells whether a swarm's manager gives the addresses of a subnet.
func swarms(s sdn.Subnet) bool { return slices.Contains(s.Tags, identity.TagSwarm) }

// allocateNetwork is asked on a swarm's manager, before any node hears of the network. It makes network and subnets, so that
// the manager's addresses are ports of it; the way out is made by the first node, since only nodes are told whether there is
// to be one. What it answers takes the place of the user's options on the nodes. A network whose ranges are not of Kuryr's
// IPAM driver is left to its nodes.
func (d *Driver) allocateNetwork(ctx context.Context, r *api.AllocateNetworkRequest) (any, error) {
	if err := d.allocate(ctx, r); err != nil {
		return nil, err
	}
	return api.AllocateNetworkResponse{Options: r.UserOptions}, nil
}

func (d *Driver) allocate(ctx context.Context, r *api.AllocateNetworkRequest) error {
	names := []string{"network/" + r.NetworkID}
	for _, data := range r.Ranges {
		names = append(names, "range/"+api.GlobalSpace+"/"+data.Pool.String())
	}
	unlock, err := d.locks.lock(ctx, names...)
	if err != nil {
		return err
	}
	defer unlock()
	network, exists, err := d.findNetwork(ctx, r.NetworkID)
	if err != nil {
		return err
	}
	var subnets []sdn.Subnet
	if exists {
		if slices.Contains(network.Tags, identity.TagDeleted) {
			return refuse("network %s is being deleted", r.NetworkID)
		}
		if !slices.Contains(network.Tags, identity.TagAllocated) {
			return nil // a node has made it: its ranges are not of ours
		}
		if subnets, err = sdn.All(d.sdn.FindSubnets(ctx, sdn.SubnetQuery{Networks: []sdn.ID{network.ID}})); err != nil {
			return err
		}
		if strange, ok := strangeRange(subnets, r.Ranges); ok {
			if len(nodes(network)) > 0 {
				return refuse("network %s has the range %s already", r.NetworkID, strange)
			}
			// An earlier try chose another range, and its undoing was lost.
			if err := d.dropFound(ctx, r.NetworkID, network); err != nil {
				return err
			}
			subnets = nil
		}
	}
	pools, err := d.allocationPools(ctx, r, subnets)
	if err != nil || len(pools) == 0 {
		return err
	}
	if len(subnets) < len(pools) {
		if !exists {
			if err := d.lookUpGroups(ctx, r.Options, pools); err != nil {
				return err
			}
		}
		return d.buildAllocation(ctx, r, pools)
	}
	d.claim(ctx, pools)
	return d.changeNetwork(ctx, network, without(d.allocatingTag()))
}

// strangeRange is a range of the subnets that is not wanted.
func strangeRange(subnets []sdn.Subnet, wanted []*api.IPAMData) (netip.Prefix, bool) {
	for _, s := range subnets {
		if !slices.ContainsFunc(wanted, func(data *api.IPAMData) bool { return data.Pool == s.CIDR }) {
			return s.CIDR, true
		}
	}
	return netip.Prefix{}, false
}

// allocationPools are the manager's pools of the network's ranges: those that its subnets are cut from, or bare ones whose
// gateway the manager has taken. There are none where another IPAM driver chose the ranges.
func (d *Driver) allocationPools(ctx context.Context, r *api.AllocateNetworkRequest, subnets []sdn.Subnet) (map[*api.IPAMData]enginePool, error) {
	pools := map[*api.IPAMData]enginePool{}
	var missing []netip.Prefix
	for _, data := range r.Ranges {
		i := slices.IndexFunc(subnets, func(s sdn.Subnet) bool { return s.CIDR == data.Pool })
		if i < 0 {
			missing = append(missing, data.Pool)
			continue
		}
		p, err := d.sdn.SubnetPool(ctx, subnets[i].Pool)
		if err != nil {
			return nil, err
		}
		pools[data], _ = d.enginePool(p)
	}
	if len(missing) == 0 {
		return pools, nil
	}
	bare, err := d.barePools(ctx, missing)
	if err != nil {
		return nil, err
	}
	for _, data := range r.Ranges {
		for _, p := range bare {
			had, ok := pools[data]
			if p.Host == d.names.Host && p.Space == api.GlobalSpace && p.CIDR == data.Pool && p.gateway() == data.Gateway &&
				(!ok || p.Created.After(had.Created)) {
				pools[data] = p
			}
		}
		if _, ok := pools[data]; ok {
			continue
		}
		other, found, err := d.allocatedSubnet(ctx, data.Pool, true)
		if err != nil {
			return nil, err
		}
		if found && d.handedLately(other.Pool) {
			return nil, d.rangeTaken(ctx, data.Pool, other.Network)
		}
		if len(pools) > 0 {
			return nil, refuse("the range %s was not requested from kuryr", data.Pool)
		}
	}
	return pools, nil
}

// rangeTaken names the network that has a range, since a swarm that has left or lost its manager may not know of it any more.
func (d *Driver) rangeTaken(ctx context.Context, cidr netip.Prefix, id sdn.ID) error {
	network, err := d.sdn.Network(ctx, id)
	if err != nil {
		return err
	}
	return refuse("the range %s is another network's: %s", cidr, network.Key.Name)
}

func (d *Driver) buildAllocation(ctx context.Context, r *api.AllocateNetworkRequest, pools map[*api.IPAMData]enginePool) error {
	spec := sdn.NetworkSpec{
		Base: sdn.Base{Key: d.names.GlobalKey(identity.KindNetwork, r.NetworkID), Name: identity.NetworkTitle(r.NetworkID),
			Tags: append(identity.IDTags(r.NetworkID), identity.TagSwarm, identity.TagAllocated, d.allocatingTag())},
		MTU: r.Options.MTU,
	}
	spec.Tags = append(spec.Tags, identity.NetworkOptionTags(r.Options)...)
	for _, data := range r.Ranges {
		pool, ok := pools[data]
		if !ok {
			continue
		}
		data.AuxAddresses = pool.aux()
		s := subnetSpec(d.subnetKey(r.NetworkID, data.Pool, data.Place), data, pool, !r.Options.Routed())
		s.Tags = append(s.Tags, identity.TagSwarm)
		spec.Subnets = append(spec.Subnets, s)
	}
	network, err := d.sdn.EnsureNetwork(ctx, spec)
	if err != nil {
		return err
	}
	failpoint.Here("docker.swarm.allocating")
	d.claim(ctx, pools)
	// From here on the network is the manager's until it frees it. Before, a restart takes it away.
	if err := d.changeNetwork(ctx, network, without(d.allocatingTag())); err != nil {
		return err
	}
	failpoint.Here("docker.swarm.allocated")
	return nil
}

// freeNetwork is asked on the manager when a network is removed. Nodes may still have tasks on it: the last of them takes it
// away then.
func (d *Driver) freeNetwork(ctx context.Context, r *api.NetworkRequest) (any, error) {
	unlock, err := d.locks.lock(ctx, "network/"+r.NetworkID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	network, found, err := d.findNetwork(ctx, r.NetworkID)
	if err != nil || !found || !slices.Contains(network.Tags, identity.TagSwarm) {
		return api.Empty{}, err
	}
	err = d.changeNetwork(ctx, network, func(tags []string) []string {
		return goneIfLast(slices.DeleteFunc(slices.Clone(tags), func(t string) bool { return t == identity.TagAllocated }))
	})
	if err != nil {
		return nil, err
	}
	failpoint.Here("docker.swarm.freed")
	return api.Empty{}, d.dropIfDeleted(ctx, network)
}

// discover ignores the nodes of a swarm: the SDN has its own.
func (*Driver) discover(context.Context, *api.DiscoverRequest) (any, error) {
	return api.Empty{}, nil
}

// finishAllocation takes a network away whose ranges the manager has given back although it never freed it: it was not told
// that the network was made.
func (d *Driver) finishAllocation(ctx context.Context, id sdn.ID) error {
	network, err := d.sdn.Network(ctx, id)
	if sdn.IsNotFound(err) {
		return nil
	}
	if err != nil || !d.names.Ours(network.Meta, identity.KindNetwork) ||
		!slices.Contains(network.Tags, identity.TagAllocated) {
		return err
	}
	unlock, err := d.locks.lock(ctx, "network/"+network.Key.Name)
	if err != nil {
		return err
	}
	defer unlock()
	released, err := d.allReleased(ctx, network)
	if err != nil || !released {
		return err
	}
	err = d.changeNetwork(ctx, network, func(tags []string) []string {
		if len(nodesOf(tags)) > 0 {
			return tags
		}
		return append(slices.DeleteFunc(slices.Clone(tags), func(t string) bool { return t == identity.TagAllocated || t == identity.TagDeleted }), identity.TagDeleted)
	})
	if err != nil {
		return err
	}
	return d.dropIfDeleted(ctx, network)
}

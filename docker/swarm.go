package docker

import (
	"context"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

// In a swarm the manager allocates a network, its ranges and all addresses (service VIPs among them) in the global address
// space; each node asks for the same again in its local one when it first needs the network. Both mean one network, one
// subnet pool a range and one port an address. The manager's calls and the nodes' come and go in any order, so either side
// has marks of its own: tagAllocated and tagNode on the network, tagHeld on the ports.

// optSerial comes with all that a swarm's manager asks of an IPAM driver for its tasks (moby: ipamapi.AllocSerialPrefix).
const optSerial = "com.docker.network.ipam.serial"

// poolRef is a PoolID taken apart. A pool has its own id as PoolID; a node that asks for the range of a swarm's network gets
// another name of the same pool, and so does a manager that asks once more: it was restarted, or another one leads.
type poolRef struct {
	id   sdn.ID
	node bool
	life string // which of a manager's lives asks; "" is the first
}

const (
	nodeSuffix    = "/node"
	managerSuffix = "/manager-"
)

func parsePoolID(s string) poolRef {
	if id, ok := strings.CutSuffix(s, nodeSuffix); ok {
		return poolRef{id: sdn.ID(id), node: true}
	}
	id, life, _ := strings.Cut(s, managerSuffix)
	return poolRef{id: sdn.ID(id), life: life}
}

func newLife() string { return strings.ReplaceAll(uuid.NewString(), "-", "")[:12] }

// again tells whether a manager asks that was not the first to ask for the pool.
func (p poolRef) again() bool { return p.life != "" }

// swarmPool is the pool of a range that a swarm's network has already, by the name that suits who asks.
func (d *Driver) swarmPool(ctx context.Context, r *requestPoolRequest) (id string, found bool, err error) {
	if d.scope != Global || !r.pool.IsValid() || (r.AddressSpace != globalSpace && r.AddressSpace != localSpace) {
		return "", false, nil
	}
	subnet, found, err := d.allocatedSubnet(ctx, r.pool, r.AddressSpace == globalSpace)
	if err != nil || !found {
		return "", false, err
	}
	if r.AddressSpace == localSpace {
		return string(subnet.Pool) + nodeSuffix, true, nil
	}
	d.hand(enginePool{SubnetPool: sdn.SubnetPool{Meta: sdn.Meta{ID: subnet.Pool}}})
	return string(subnet.Pool) + managerSuffix + newLife(), true, nil
}

// allocatedSubnet is the subnet of a range that a swarm's manager has. Where hidden is true, that of a network of another
// driver, whose addresses alone are ours, is one too.
func (d *Driver) allocatedSubnet(ctx context.Context, cidr netip.Prefix, hidden bool) (sdn.Subnet, bool, error) {
	match := sdn.Match{Owner: d.sdn.Installation(), Kind: kindPool, Names: []string{poolTitle(cidr)}}
	var ids []sdn.ID
	for found, err := range d.sdn.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: match}) {
		if err != nil {
			return sdn.Subnet{}, false, err
		}
		if p, ok := d.enginePool(found); ok && p.space == globalSpace && p.cidr == cidr {
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
		if d.ours(s.Meta, kindHiddenSubnet) {
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
		if slices.Contains(network.Tags, tagAllocated) {
			return s, true, nil
		}
	}
	return sdn.Subnet{}, false, nil
}

// swarms tells whether a swarm's manager gives the addresses of a subnet.
func swarms(s sdn.Subnet) bool { return slices.Contains(s.Tags, tagSwarm) }

type allocateNetworkResponse struct{ Options map[string]string }

// allocateNetwork is asked on a swarm's manager, before any node hears of the network. It makes network and subnets, so that
// the manager's addresses are ports of it; the way out is made by the first node, since only nodes are told whether there is
// to be one. What it answers takes the place of the user's options on the nodes. A network whose ranges are not of Kuryr's
// IPAM driver is left to its nodes.
func (d *Driver) allocateNetwork(ctx context.Context, r *allocateNetworkRequest) (any, error) {
	if err := r.network.refuseUnknown(); err != nil {
		return nil, err
	}
	if err := d.allocate(ctx, r); err != nil {
		return nil, err
	}
	if r.Options == nil {
		r.Options = map[string]string{}
	}
	return allocateNetworkResponse{r.Options}, nil
}

func (d *Driver) allocate(ctx context.Context, r *allocateNetworkRequest) error {
	names := []string{"network/" + r.NetworkID}
	for _, data := range r.ranges() {
		names = append(names, "range/"+globalSpace+"/"+data.cidr.String())
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
		if slices.Contains(network.Tags, tagDeleted) {
			return refuse("network %s is being deleted", r.NetworkID)
		}
		if !slices.Contains(network.Tags, tagAllocated) {
			return nil // a node has made it: its ranges are not of ours
		}
		if subnets, err = sdn.All(d.sdn.FindSubnets(ctx, sdn.SubnetQuery{Networks: []sdn.ID{network.ID}})); err != nil {
			return err
		}
		if strange, ok := strangeRange(subnets, r.ranges()); ok {
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
			if err := d.lookUpGroups(ctx, r.network, pools); err != nil {
				return err
			}
		}
		return d.buildAllocation(ctx, r, pools)
	}
	d.claim(ctx, pools)
	return d.changeNetwork(ctx, network, without(d.allocatingTag()))
}

// strangeRange is a range of the subnets that is not wanted.
func strangeRange(subnets []sdn.Subnet, wanted []*ipamData) (netip.Prefix, bool) {
	for _, s := range subnets {
		if !slices.ContainsFunc(wanted, func(data *ipamData) bool { return data.cidr == s.CIDR }) {
			return s.CIDR, true
		}
	}
	return netip.Prefix{}, false
}

// allocationPools are the manager's pools of the network's ranges: those that its subnets are cut from, or bare ones whose
// gateway the manager has taken. There are none where another IPAM driver chose the ranges.
func (d *Driver) allocationPools(ctx context.Context, r *allocateNetworkRequest, subnets []sdn.Subnet) (map[*ipamData]enginePool, error) {
	pools := map[*ipamData]enginePool{}
	var missing []netip.Prefix
	for _, data := range r.ranges() {
		i := slices.IndexFunc(subnets, func(s sdn.Subnet) bool { return s.CIDR == data.cidr })
		if i < 0 {
			missing = append(missing, data.cidr)
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
	for _, data := range r.ranges() {
		for _, p := range bare {
			had, ok := pools[data]
			if p.host == d.hostKey && p.space == globalSpace && p.cidr == data.cidr && p.gateway() == data.gateway &&
				(!ok || p.Created.After(had.Created)) {
				pools[data] = p
			}
		}
		if _, ok := pools[data]; ok {
			continue
		}
		other, found, err := d.allocatedSubnet(ctx, data.cidr, true)
		if err != nil {
			return nil, err
		}
		if found && d.handedLately(other.Pool) {
			return nil, d.rangeTaken(ctx, data.cidr, other.Network)
		}
		if len(pools) > 0 {
			return nil, refuse("the range %s was not requested from kuryr", data.cidr)
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

func (d *Driver) buildAllocation(ctx context.Context, r *allocateNetworkRequest, pools map[*ipamData]enginePool) error {
	spec := sdn.NetworkSpec{
		Base: sdn.Base{Key: d.key(kindNetwork, r.NetworkID), Name: networkName(r.NetworkID),
			Tags: append(idTags(r.NetworkID), tagSwarm, tagAllocated, d.allocatingTag())},
		MTU: r.network.mtu,
	}
	spec.Tags = append(spec.Tags, r.network.tags()...)
	for digit, list := range map[string][]*ipamData{"4": r.IPv4Data, "6": r.IPv6Data} {
		for i, data := range list {
			pool, ok := pools[data]
			if !ok {
				continue
			}
			data.reserved = pool.aux()
			s := subnetSpec(d.subnetKey(r.NetworkID, digit, i), data, pool, !r.network.routed())
			s.Tags = append(s.Tags, tagSwarm)
			spec.Subnets = append(spec.Subnets, s)
		}
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
func (d *Driver) freeNetwork(ctx context.Context, r *networkRequest) (any, error) {
	unlock, err := d.locks.lock(ctx, "network/"+r.NetworkID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	network, found, err := d.findNetwork(ctx, r.NetworkID)
	if err != nil || !found || !slices.Contains(network.Tags, tagSwarm) {
		return nothing{}, err
	}
	err = d.changeNetwork(ctx, network, func(tags []string) []string {
		return goneIfLast(slices.DeleteFunc(slices.Clone(tags), func(t string) bool { return t == tagAllocated }))
	})
	if err != nil {
		return nil, err
	}
	failpoint.Here("docker.swarm.freed")
	return nothing{}, d.dropIfDeleted(ctx, network)
}

// check makes a network's options of the strings that a manager sends.
func (r *allocateNetworkRequest) check() error {
	if err := checkID("NetworkID", r.NetworkID); err != nil {
		return err
	}
	generic, err := json.Marshal(r.Options)
	if err != nil {
		return malformed("Options", "cannot be read: %v", err)
	}
	create := createNetworkRequest{NetworkID: r.NetworkID, Options: options{optGeneric: generic}, IPv4Data: r.IPv4Data, IPv6Data: r.IPv6Data}
	if err := create.check(); err != nil {
		return err
	}
	r.network = create.network
	return nil
}

func (r *allocateNetworkRequest) ranges() []*ipamData { return slices.Concat(r.IPv4Data, r.IPv6Data) }

func (r *createNetworkRequest) ranges() []*ipamData { return slices.Concat(r.IPv4Data, r.IPv6Data) }

// finishAllocation takes a network away whose ranges the manager has given back although it never freed it: it was not told
// that the network was made.
func (d *Driver) finishAllocation(ctx context.Context, id sdn.ID) error {
	network, err := d.sdn.Network(ctx, id)
	if sdn.IsNotFound(err) {
		return nil
	}
	if err != nil || !d.ours(network.Meta, kindNetwork) || !slices.Contains(network.Tags, tagAllocated) {
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
		return append(slices.DeleteFunc(slices.Clone(tags), func(t string) bool { return t == tagAllocated || t == tagDeleted }), tagDeleted)
	})
	if err != nil {
		return err
	}
	return d.dropIfDeleted(ctx, network)
}

package docker

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

// rollback is how long the undoing of a failed CreateNetwork may take beyond the call's own time.
const rollback = 10 * time.Second

// createNetwork makes the network of pools that were requested before, with a router of its own unless told otherwise. A
// repeat finishes what an earlier try left; a failure undoes what this one made, since the engine will forget the network.
func (d *Driver) createNetwork(ctx context.Context, r *createNetworkRequest) (any, error) {
	if err := r.network.refuseUnknown(); err != nil {
		return nil, err
	}
	if r.network.router != "" && r.network.internal {
		return nil, refuse("an internal network has no router: leave out --internal or %s", optRouter)
	}
	err := d.makeNetwork(ctx, r)
	if sdn.IsConflict(err) {
		// What stands in the way may be a network whose creation or deletion was lost with a killed process. The engine has
		// released its ranges by now.
		if left := d.finishReleased(ctx); left != nil {
			d.log.WarnContext(ctx, "what the engine has released is not all gone", "err", left)
		}
		err = d.makeNetwork(ctx, r)
	}
	if err != nil {
		return nil, err
	}
	return nothing{}, nil
}

// makeNetwork makes the network, or nothing.
func (d *Driver) makeNetwork(ctx context.Context, r *createNetworkRequest) error {
	names := []string{"network/" + r.NetworkID}
	for _, data := range slices.Concat(r.IPv4Data, r.IPv6Data) {
		names = append(names, "range/"+data.AddressSpace+"/"+data.cidr.String())
	}
	unlock, err := d.locks.lock(ctx, names...)
	if err != nil {
		return err
	}
	defer unlock()
	key := d.key(kindNetwork, r.NetworkID)
	before, existed, err := sdn.First(d.sdn.FindNetworks(ctx, sdn.NetworkQuery{Match: sdn.Match{Keys: []sdn.Key{key}}}))
	if err != nil {
		return err
	}
	if existed && slices.Contains(before.Tags, tagDeleted) {
		return refuse("network %s is being deleted", r.NetworkID)
	}
	if err := d.buildNetwork(ctx, r, key); err != nil {
		if !existed {
			undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollback)
			defer cancel()
			if left := d.dropNetwork(undo, r.NetworkID); left != nil {
				d.log.ErrorContext(ctx, "a network that could not be made was left behind", "network", r.NetworkID, "err", left)
			}
		}
		return err
	}
	return nil
}

func (d *Driver) buildNetwork(ctx context.Context, r *createNetworkRequest, key sdn.Key) error {
	pools, err := d.poolsOf(ctx, r)
	if err != nil {
		return err
	}
	spec := sdn.NetworkSpec{
		Base: sdn.Base{Key: key, Name: "kuryr-net-" + r.NetworkID[:min(8, len(r.NetworkID))], Tags: networkTags(r, pools)},
		MTU:  r.network.mtu,
	}
	for _, family := range []struct {
		digit string
		list  []*ipamData
	}{{"4", r.IPv4Data}, {"6", r.IPv6Data}} {
		for i, data := range family.list {
			if data.cidr.Bits() == 0 {
				continue // what the engine's "null" IPAM driver says for none
			}
			subnetKey := d.key(kindSubnet, fmt.Sprintf("%s/%s.%d", r.NetworkID, family.digit, i))
			spec.Subnets = append(spec.Subnets, subnetSpec(subnetKey, data, pools[data], r.network.internal))
		}
	}
	network, err := d.sdn.EnsureNetwork(ctx, spec)
	if err != nil {
		return err
	}
	failpoint.Here("docker.createnetwork.made")
	d.claimed(pools)
	if !r.network.internal && len(spec.Subnets) > 0 && d.sdn.Capabilities().Routers {
		if err := d.route(ctx, r.NetworkID, r.network.router, network); err != nil {
			return err
		}
	}
	if !slices.Contains(network.Tags, tagCreating) {
		return nil
	}
	failpoint.Here("docker.createnetwork.routed")
	tags := slices.DeleteFunc(slices.Clone(network.Tags), func(t string) bool { return t == tagCreating })
	_, err = d.sdn.UpdateNetwork(ctx, network.ID, sdn.NetworkPatch{Patch: sdn.Patch{Tags: &tags}})
	return err
}

// networkTags are a network's tags. A network that is lost while it is made is found again by its released pools; one
// without pools needs a tag for that.
func networkTags(r *createNetworkRequest, pools map[*ipamData]enginePool) []string {
	tags := idTags(r.NetworkID)
	if len(pools) == 0 {
		tags = append(tags, tagCreating)
	}
	if r.network.router != "" {
		tags = append(tags, tagRouter+r.network.router)
	}
	if r.network.internal {
		tags = append(tags, tagInternal)
	}
	return tags
}

// subnetSpec is the subnet of one range of a network. The pool's id is "" where another IPAM driver manages the range.
func subnetSpec(key sdn.Key, data *ipamData, pool enginePool, internal bool) sdn.SubnetSpec {
	s := sdn.SubnetSpec{
		Base:     sdn.Base{Key: key, Name: "kuryr-subnet-" + data.cidr.String()},
		CIDR:     data.cidr,
		Pool:     pool.ID,
		Gateway:  sdn.Gateway{Addr: data.gateway},
		Reserved: slices.Clone(data.reserved),
		NoDHCP:   true,
	}
	if pool.ID != "" {
		s.Tags = []string{string(pool.ID)}
	}
	switch {
	case internal:
		// No way out; but the engine may hold an address as the gateway's, and nobody else may get it.
		s.Gateway = sdn.Gateway{None: true}
		if data.gateway.IsValid() {
			s.Reserved = append(s.Reserved, data.gateway)
		}
	case !data.gateway.IsValid() && !firstHost(data.cidr).IsValid():
		s.Gateway = sdn.Gateway{None: true}
	}
	s.Reserved = slices.DeleteFunc(s.Reserved, func(a netip.Addr) bool { return !data.cidr.Contains(a) || a == s.Gateway.Addr })
	slices.SortFunc(s.Reserved, netip.Addr.Compare)
	s.Reserved = slices.Compact(s.Reserved)
	if pool.sub.IsValid() {
		s.Ranges = within(pool.sub, data.cidr)
	}
	return s
}

// poolsOf finds the pools that the network's ranges were requested from. The engine does not tell: they are ours by the
// address space, have the range, were given the gateway, and no subnet was cut from them but, in a repeat, this network's.
func (d *Driver) poolsOf(ctx context.Context, r *createNetworkRequest) (map[*ipamData]enginePool, error) {
	var wanted []*ipamData
	var titles []string
	for _, data := range slices.Concat(r.IPv4Data, r.IPv6Data) {
		if data.cidr.Bits() > 0 && (data.AddressSpace == localSpace || data.AddressSpace == globalSpace || data.AddressSpace == "") {
			wanted = append(wanted, data)
			titles = append(titles, poolTitle(data.cidr))
		}
	}
	if len(wanted) == 0 {
		return nil, nil
	}
	match := sdn.Match{Owner: d.sdn.Installation(), Kind: kindPool, Names: titles}
	found, err := sdn.All(d.sdn.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: match}))
	if err != nil {
		return nil, err
	}
	ids := make([]sdn.ID, len(found))
	for i, p := range found {
		ids[i] = p.ID
	}
	cut := map[sdn.ID]sdn.Subnet{}
	if len(ids) > 0 {
		subnets, err := sdn.All(d.sdn.FindSubnets(ctx, sdn.SubnetQuery{Pools: ids}))
		if err != nil {
			return nil, err
		}
		for _, s := range subnets {
			cut[s.Pool] = s
		}
	}
	pools := map[*ipamData]enginePool{}
	for _, data := range wanted {
		best, score := enginePool{}, -1
		for _, p := range found {
			pool, ok := d.enginePool(p)
			if !ok || pool.cidr != data.cidr || (data.AddressSpace != "" && pool.space != data.AddressSpace) || pool.host != d.hostKey {
				continue
			}
			s, used := cut[p.ID]
			n := d.likeness(pool, data)
			switch {
			case used && !d.cutFor(s, r.NetworkID), !used && pool.released():
				continue
			case used:
				n += 8
			}
			if n > score || n == score && p.Created.After(best.Created) {
				best, score = pool, n
			}
		}
		switch {
		case score >= 0:
			pools[data] = best
		case data.AddressSpace != "":
			return nil, refuse("the range %s was not requested from kuryr, or is another network's", data.cidr)
		}
	}
	return pools, nil
}

// cutFor tells whether a subnet is one of the network's.
func (d *Driver) cutFor(s sdn.Subnet, network string) bool {
	name := s.Key.Name
	return d.ours(s.Meta, kindSubnet) && len(name) > len(network) && name[:len(network)+1] == network+"/"
}

// likeness tells how well a pool fits a range of a network, among pools of that range.
func (d *Driver) likeness(p enginePool, data *ipamData) int {
	n := 0
	if p.gateway() == data.gateway {
		n += 4
	}
	if d.handedLately(p.ID) {
		n += 2
	}
	slices.SortFunc(data.reserved, netip.Addr.Compare)
	inside := slices.DeleteFunc(slices.Clone(data.reserved), func(a netip.Addr) bool { return !p.cidr.Contains(a) })
	aux := p.aux()
	slices.SortFunc(aux, netip.Addr.Compare)
	if slices.Equal(aux, inside) {
		n++
	}
	return n
}

// hiddenSubnet makes the network that an engine's pool needs when another network driver uses it: nothing is ever plugged
// into it, its ports hold addresses.
func (d *Driver) hiddenSubnet(ctx context.Context, pool enginePool) (sdn.Subnet, error) {
	data := &ipamData{cidr: pool.cidr, gateway: pool.gateway(), reserved: pool.aux()}
	subnet := subnetSpec(d.key(kindHiddenSubnet, string(pool.ID)), data, pool, !data.gateway.IsValid())
	_, err := d.sdn.EnsureNetwork(ctx, sdn.NetworkSpec{
		Base:    sdn.Base{Key: d.key(kindHidden, string(pool.ID)), Name: "kuryr-ipam-" + pool.cidr.String()},
		Subnets: []sdn.SubnetSpec{subnet},
	})
	if err != nil {
		return sdn.Subnet{}, err
	}
	s, found, err := d.subnetOf(ctx, pool.ID)
	if err == nil && !found {
		err = sdn.NotFound("subnet", pool.cidr)
	}
	return s, err
}

// deleteHidden deletes a hidden network with the addresses that were never given back.
func (d *Driver) deleteHidden(ctx context.Context, network sdn.ID) error {
	if err := d.dropPorts(ctx, network); err != nil {
		return err
	}
	failpoint.Here("docker.deletehidden.ports")
	return d.sdn.DeleteNetwork(ctx, network)
}

// deleteNetwork takes the network down. The engine ignores a failure and forgets the network, so it is marked first:
// Reconcile finishes what cannot be done now.
func (d *Driver) deleteNetwork(ctx context.Context, r *networkRequest) (any, error) {
	unlock, err := d.locks.lock(ctx, "network/"+r.NetworkID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return nothing{}, d.dropNetwork(ctx, r.NetworkID)
}

func (d *Driver) dropNetwork(ctx context.Context, id string) error {
	keys := []sdn.Key{d.key(kindNetwork, id)}
	network, found, err := sdn.First(d.sdn.FindNetworks(ctx, sdn.NetworkQuery{Match: sdn.Match{Keys: keys}}))
	if err != nil || !found {
		return err
	}
	if tags, missing := withTag(network.Tags, tagDeleted); missing {
		if _, err := d.sdn.UpdateNetwork(ctx, network.ID, sdn.NetworkPatch{Patch: sdn.Patch{Tags: &tags}}); err != nil {
			return err
		}
		failpoint.Here("docker.deletenetwork.marked")
	}
	if err := d.dropPorts(ctx, network.ID); err != nil {
		return err
	}
	failpoint.Here("docker.deletenetwork.ports")
	if err := d.unroute(ctx, id, network); err != nil {
		return err
	}
	failpoint.Here("docker.deletenetwork.router")
	subnets, err := sdn.All(d.sdn.FindSubnets(ctx, sdn.SubnetQuery{Networks: []sdn.ID{network.ID}}))
	if err != nil {
		return err
	}
	var pools []sdn.ID
	var names []string
	for _, s := range subnets {
		if s.Pool != "" {
			pools = append(pools, s.Pool)
			names = append(names, "pool/"+string(s.Pool))
		}
	}
	unlock, err := d.locks.lock(ctx, names...)
	if err != nil {
		return err
	}
	defer unlock()
	if err := d.sdn.DeleteNetwork(ctx, network.ID); err != nil {
		return err
	}
	failpoint.Here("docker.deletenetwork.network")
	if len(pools) == 0 {
		return nil
	}
	return d.dropReleased(ctx, sdn.Match{IDs: pools, Tags: []string{tagReleased}})
}

// dropReleased deletes those of the pools that the engine has released.
func (d *Driver) dropReleased(ctx context.Context, match sdn.Match) error {
	released, err := sdn.All(d.sdn.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: match}))
	if err != nil {
		return err
	}
	for _, p := range released {
		if !d.ours(p.Meta, kindPool) {
			continue
		}
		if err := d.dropPool(ctx, p.ID); err != nil && sdn.ReasonOf(err) != sdn.InUse {
			return err
		}
		failpoint.Here("docker.dropreleased.pool")
	}
	return nil
}

// dropPorts takes the ports of ours from a network that goes: those that the engine has forgotten.
func (d *Driver) dropPorts(ctx context.Context, network sdn.ID) error {
	ports, err := sdn.All(d.sdn.FindPorts(ctx, sdn.PortQuery{Networks: []sdn.ID{network}}))
	if err != nil {
		return err
	}
	var ids []sdn.ID
	for _, p := range ports {
		if !d.ours(p.Meta, kindPort, kindEndpoint) {
			continue
		}
		if p.DeviceID != "" {
			if err := d.dropEndpoint(ctx, p); err != nil {
				return err
			}
			continue
		}
		ids = append(ids, p.ID)
	}
	if len(ids) == 0 {
		return nil
	}
	return d.sdn.DeletePorts(ctx, ids)
}

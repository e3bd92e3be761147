package docker

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

// rollback is how long the undoing of a failed CreateNetwork may take beyond the call's own time.
const rollback = 10 * time.Second

// createNetwork makes the network of pools that were requested before, with a router of its own unless told otherwise. A
// repeat finishes what an earlier try left; a failure undoes what this one made, since the engine will forget the network.
func (d *Driver) createNetwork(ctx context.Context, r *api.CreateNetworkRequest) (any, error) {
	err := d.makeNetwork(ctx, r)
	if sdn.IsConflict(err) {
		// What stands in the way may be a network whose creation or deletion was lost with a killed process. The engine has
		// released its ranges by now.
		if left := d.finishReleased(ctx); left != nil {
			d.log.WarnContext(ctx, "what the engine has released is not all gone", "err", left)
		}
		if len(d.owed.names(func(c owedCall) bool { return c.about.NetworkID == r.NetworkID && c.about.EndpointID == "" })) > 0 {
			return nil, err // what the first try owes would take away what a second makes
		}
		err = d.makeNetwork(ctx, r)
	}
	if err != nil {
		return nil, err
	}
	return api.Empty{}, nil
}

// makeNetwork makes the network, or nothing.
func (d *Driver) makeNetwork(ctx context.Context, r *api.CreateNetworkRequest) error {
	names := []string{"network/" + r.NetworkID}
	for _, data := range r.Ranges {
		names = append(names, "range/"+data.AddressSpace+"/"+data.Pool.String())
	}
	unlock, err := d.locks.lock(ctx, names...)
	if err != nil {
		return err
	}
	defer unlock()
	if isNew, err := d.placeNetwork(ctx, r); err != nil {
		if isNew {
			undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollback)
			defer cancel()
			// The engine never has this network, so it does not ask for its end: Kuryr owes that to itself.
			switch left := d.removeNetwork(undo, r.NetworkID); {
			case left == nil && !mayLand(err):
				d.begun.strike(identity.KindNetwork, r.NetworkID)
			case left != nil && (!away(left) || !d.oweNetwork(undo, r.NetworkID, left)):
				d.log.ErrorContext(ctx, "a network that could not be made was left behind", "network", r.NetworkID, "err", left)
			}
		}
		return err
	} else if isNew && len(r.Options.Foreign) > 0 {
		d.log.WarnContext(ctx, "options of a network mean nothing to kuryr", "network", r.NetworkID, "options", foreignOptions(r.Options.Foreign))
	}
	return nil
}

// foreignOptions returns the text of a log for the names of options without a meaning for Kuryr.
func foreignOptions(names []string) string {
	text := strings.Join(names[:min(len(names), 20)], " ")
	if len(names) > 20 {
		text += " …"
	}
	return api.Line(text)
}

// placeNetwork makes the network, finishes it, or finds the existing one that it is to be. isNew tells that it has begun to make what was not there
// before, and so what a failure has to undo.
func (d *Driver) placeNetwork(ctx context.Context, r *api.CreateNetworkRequest) (isNew bool, err error) {
	switch {
	case d.scope != Local:
		// Other hosts may have made it.
	case r.Options.Existing.Given():
		use, err := d.planUse(ctx, r)
		if err != nil {
			return false, err
		}
		if pools, ok := d.handedFor(r, use.standing); ok {
			return d.useNetwork(ctx, r, use, pools, true)
		}
	case len(r.Options.Existing.Pool) == 0:
		if pools, ok := d.handedFor(r, nil); ok {
			if err := d.lookUpNamed(ctx, r, pools, true); err != nil {
				return false, err
			}
			return true, d.buildNetwork(ctx, r, sdn.Network{}, pools, true)
		}
	}
	before, existed, err := d.findNetwork(ctx, r.NetworkID)
	if err != nil {
		return false, err
	}
	switch {
	case existed && slices.Contains(before.Tags, identity.TagDeleted):
		return false, refuse("network %s is being deleted", r.NetworkID)
	case existed && slices.Contains(before.Tags, identity.TagSwarm):
		return false, d.joinNetwork(ctx, r, before)
	case existed && before.Foreign:
		r.Options.Existing.Network = api.Reference{Option: api.OptNetUUID, ID: before.ID}
	}
	if r.Options.Existing.Given() {
		return d.findAndUse(ctx, r, !existed)
	}
	pools, err := d.poolsOf(ctx, r, nil)
	if err != nil {
		return false, err
	}
	for data, p := range pools {
		if p.subnet() != "" { // RequestPool was told so, CreateNetwork was not
			v6 := data.Pool.Addr().Is6()
			r.Options.Existing.Subnet = map[bool]api.Reference{v6: {Option: api.StemSubnet + ".uuid", ID: p.subnet()}}
			if err := r.Options.Check(); err != nil {
				return false, err
			}
			return d.findAndUse(ctx, r, !existed)
		}
	}
	if err := d.lookUpNamed(ctx, r, pools, !existed); err != nil {
		return false, err
	}
	if err := d.restoreSubnets(ctx, pools); err != nil {
		return false, err
	}
	return !existed, d.buildNetwork(ctx, r, before, pools, false)
}

// lookUpNamed finds what the options of a network name, before anything is made. A network
// that exists was checked when it was made: a repeat succeeds also if a security group was
// deleted since then.
func (d *Driver) lookUpNamed(
	ctx context.Context, r *api.CreateNetworkRequest, pools map[*api.IPAMData]enginePool, isNew bool,
) error {
	if isNew {
		if err := d.lookUpGroups(ctx, r.Options, pools); err != nil {
			return err
		}
	}
	external, err := d.externalNetwork(ctx, r.Options)
	if err != nil {
		return err
	}
	r.Options.External = string(external)
	if r.Options.Router == "" || !d.sdn.Capabilities().Routers {
		return nil
	}
	_, _, err = d.namedRouter(ctx, r.Options.Router)
	return err
}

// buildNetwork makes the network of the pools. isNew says that there is none.
func (d *Driver) buildNetwork(ctx context.Context, r *api.CreateNetworkRequest, before sdn.Network, pools map[*api.IPAMData]enginePool, isNew bool) error {
	spec := sdn.NetworkSpec{
		Base:   sdn.Base{Key: d.names.GlobalKey(identity.KindNetwork, r.NetworkID), Name: identity.NetworkTitle(r.NetworkID), Tags: d.keepNodes(networkTags(r, pools), before)},
		MTU:    r.Options.MTU,
		Shared: r.Options.Existing.Shared != nil && *r.Options.Existing.Shared,
		New:    isNew,
	}
	for _, data := range r.Ranges {
		key := d.subnetKey(r.NetworkID, data.Pool, data.Place)
		spec.Subnets = append(spec.Subnets, subnetSpec(key, data, pools[data], !r.Options.Routed()))
	}
	d.beginNetwork(ctx, r.NetworkID)
	network, err := d.sdn.EnsureNetwork(ctx, spec)
	if err != nil {
		return err
	}
	failpoint.Here("docker.createnetwork.made")
	if err := identity.CheckStored(identity.NetworkOptionTags(r.Options), network.Tags); err != nil {
		return err
	}
	d.claim(ctx, pools)
	d.noteNetwork(r.NetworkID, network.ID, "")
	d.noteCut(r, pools, network)
	if d.wantsRouter(r.Options) && len(spec.Subnets) > 0 {
		if err := d.route(ctx, r.NetworkID, r.Options, network); err != nil {
			return err
		}
	}
	if !slices.Contains(network.Tags, identity.TagCreating) {
		return nil
	}
	failpoint.Here("docker.createnetwork.routed")
	return d.changeNetwork(ctx, network, without(identity.TagCreating))
}

// noteCut remembers the subnet of the one pool of a network that has one; of several the SDN does not tell which is which.
func (d *Driver) noteCut(r *api.CreateNetworkRequest, pools map[*api.IPAMData]enginePool, network sdn.Network) {
	if len(r.Ranges) != 1 || len(network.Subnets) != 1 {
		return
	}
	for _, p := range pools {
		d.whereabouts.noteSubnet(p.ID, network.Subnets[0])
	}
}

// subnetKey is the identity of a network's subnet, by its family and its place among those of the family.
func (d *Driver) subnetKey(network string, cidr netip.Prefix, place int) sdn.Key {
	family := 4
	if cidr.Addr().Is6() {
		family = 6
	}
	return d.names.GlobalKey(identity.KindSubnet, fmt.Sprintf("%s/%d.%d", network, family, place))
}

// networkTags are a network's tags. A network that is lost while it is made is found again by its released pools; one
// without pools needs a tag for that.
func networkTags(r *api.CreateNetworkRequest, pools map[*api.IPAMData]enginePool) []string {
	tags := identity.IDTags(r.NetworkID)
	if len(pools) == 0 {
		tags = append(tags, identity.TagCreating)
	}
	return append(tags, identity.NetworkOptionTags(r.Options)...)
}

// subnetSpec is the subnet of one range of a network. The pool's id is "" where another IPAM driver manages the range.
func subnetSpec(key sdn.Key, data *api.IPAMData, pool enginePool, noGateway bool) sdn.SubnetSpec {
	s := sdn.SubnetSpec{
		Base:       sdn.Base{Key: key, Name: identity.SubnetTitle(data.Pool)},
		CIDR:       data.Pool,
		Pool:       pool.cutFrom(),
		Gateway:    sdn.Gateway{Addr: data.Gateway},
		Reserved:   slices.Clone(data.AuxAddresses),
		HostRoutes: data.Routes,
		NoDHCP:     true,
	}
	if pool.ID != "" {
		s.Tags = []string{string(pool.ID)}
	}
	switch {
	case noGateway:
		// No way out; but the engine may hold an address as the gateway's, and nobody else may get it.
		s.Gateway = sdn.Gateway{None: true}
		if data.Gateway.IsValid() {
			s.Reserved = append(s.Reserved, data.Gateway)
		}
	case !data.Gateway.IsValid() && !identity.FirstHost(data.Pool).IsValid():
		s.Gateway = sdn.Gateway{None: true}
	}
	s.Reserved = slices.DeleteFunc(s.Reserved, func(a netip.Addr) bool { return !data.Pool.Contains(a) || a == s.Gateway.Addr })
	slices.SortFunc(s.Reserved, netip.Addr.Compare)
	s.Reserved = slices.Compact(s.Reserved)
	if pool.Sub.IsValid() {
		s.Ranges = identity.Within(pool.Sub, data.Pool)
	}
	return s
}

// poolsOf finds the pools that the network's ranges were requested from. The engine does not tell: they are ours by the
// address space, have the range, were given the gateway, and no subnet was cut from them but, in a repeat, this network's. Some ranges are
// those of existing subnets.
func (d *Driver) poolsOf(ctx context.Context, r *api.CreateNetworkRequest, standing map[*api.IPAMData]sdn.Subnet) (map[*api.IPAMData]enginePool, error) {
	var wanted []*api.IPAMData
	var titles []string
	for _, data := range r.Ranges {
		if data.AddressSpace == api.LocalSpace || data.AddressSpace == api.GlobalSpace || data.AddressSpace == "" {
			wanted = append(wanted, data)
			titles = append(titles, identity.PoolTitle(data.Pool))
		}
	}
	if len(wanted) == 0 {
		return nil, nil
	}
	match := sdn.Match{Owner: d.sdn.Installation(), Kind: identity.KindPool, Names: titles}
	var found []enginePool
	for p, err := range d.sdn.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: match}) {
		if err != nil {
			return nil, err
		}
		if pool, ok := d.enginePool(p); ok && pool.Host == d.names.Host {
			found = append(found, pool)
		}
	}
	uses, err := d.usesOf(ctx, found)
	if err != nil {
		return nil, err
	}
	pools := map[*api.IPAMData]enginePool{}
	for _, data := range wanted {
		best, score := enginePool{}, -1
		for _, pool := range found {
			if pool.CIDR != data.Pool || (data.AddressSpace != "" && pool.Space != data.AddressSpace) {
				continue
			}
			stands, exists := standing[data]
			if exists && (pool.subnet() != "" && pool.subnet() != stands.ID || pool.OfPool != "") || standing != nil && !exists && pool.subnet() != "" {
				continue
			}
			user, used := uses[pool.ID]
			n := d.likeness(pool, data)
			switch {
			case used && user != r.NetworkID, !used && pool.released(), pool.emptied() != "" && !pool.emptiedOf(r.NetworkID):
				continue
			case used, pool.emptied() != "":
				n += 8
			}
			if n > score || n == score && pool.Created.After(best.Created) {
				best, score = pool, n
			}
		}
		switch {
		case score >= 0:
			pools[data] = best
		case data.AddressSpace != "":
			return nil, refuse("the range %s was not requested from kuryr, or is another network's", data.Pool)
		}
		if err := mayHave(r, data, best, standing); err != nil {
			return nil, err
		}
	}
	return pools, nil
}

// mayHave tells what of a range was asked for in one of the engine's two calls only, and cannot be had so.
func mayHave(r *api.CreateNetworkRequest, data *api.IPAMData, pool enginePool, standing map[*api.IPAMData]sdn.Subnet) error {
	if named, ok := r.Options.Existing.Pool[data.Pool.Addr().Is6()]; ok && pool.ID != "" && pool.OfPool == "" && pool.OfSubnet == "" {
		return refuse("option %s: give it by --ipam-opt too", named.Option)
	}
	if _, stands := standing[data]; stands && pool.ID != "" && pool.OfSubnet == "" && len(pool.aux()) > 0 {
		return refuse("an existing subnet has its owner's allocation pools: leave out --aux-address, or give --ipam-opt %s.uuid=%s too", api.StemSubnet, standing[data].ID)
	}
	return nil
}

// usesOf tells of each pool that has one which of the engine's networks it is of: of those that are not, a name that none has.
func (d *Driver) usesOf(ctx context.Context, pools []enginePool) (map[sdn.ID]string, error) {
	uses := map[sdn.ID]string{}
	var ids []sdn.ID
	linked := false
	for _, p := range pools {
		ids = append(ids, p.cutFrom())
		linked = linked || p.subnet() != ""
	}
	if len(ids) == 0 {
		return uses, nil
	}
	subnets, err := sdn.All(d.sdn.FindSubnets(ctx, sdn.SubnetQuery{Pools: ids}))
	if err != nil {
		return nil, err
	}
	for _, s := range subnets {
		for _, p := range pools {
			if s.Pool != p.cutFrom() || p.OfPool != "" && s.CIDR != p.CIDR {
				continue
			}
			uses[p.ID] = "-"
			if network, _, ok := strings.Cut(s.Key.Name, "/"); ok && d.names.Ours(s.Meta, identity.KindSubnet) {
				uses[p.ID] = network
			}
		}
	}
	if !linked {
		return uses, nil
	}
	links, err := d.allLinks(ctx)
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		for _, id := range l.pools {
			uses[id] = l.id
		}
	}
	return uses, nil
}

// cutFor tells whether a subnet is one of the network's.
func (d *Driver) cutFor(s sdn.Subnet, network string) bool {
	name := s.Key.Name
	return d.names.Ours(s.Meta, identity.KindSubnet) && len(name) > len(network) && name[:len(network)+1] == network+"/"
}

// likeness tells how well a pool fits a range of a network, among pools of that range.
func (d *Driver) likeness(p enginePool, data *api.IPAMData) int {
	n := 0
	if d.gatewayOf(p) == data.Gateway {
		n += 4
	}
	if d.handedLately(p.ID) {
		n += 2
	}
	if p.reserves(data) {
		n++
	}
	return n
}

// reserves tells whether the pool was asked for just the auxiliary addresses of a range.
func (p enginePool) reserves(data *api.IPAMData) bool {
	inside := slices.DeleteFunc(slices.Clone(data.AuxAddresses), func(a netip.Addr) bool { return !p.CIDR.Contains(a) })
	slices.SortFunc(inside, netip.Addr.Compare)
	aux := p.aux()
	slices.SortFunc(aux, netip.Addr.Compare)
	return slices.Equal(aux, inside)
}

// hiddenSubnet makes the network that an engine's pool needs when another network driver uses it: nothing is ever plugged
// into it, its ports hold addresses.
func (d *Driver) hiddenSubnet(ctx context.Context, pool enginePool) (sdn.Subnet, error) {
	if pool.subnet() != "" {
		return sdn.Subnet{}, refuse("subnet %s, which stands for pool %s, is gone", pool.subnet(), pool.ID)
	}
	data := &api.IPAMData{Pool: pool.CIDR, Gateway: d.gatewayOf(pool), AuxAddresses: pool.aux()}
	subnet := subnetSpec(d.names.GlobalKey(identity.KindHiddenSubnet, string(pool.ID)), data, pool, !data.Gateway.IsValid())
	if d.scope == Global && pool.Space == api.GlobalSpace {
		subnet.Tags = append(subnet.Tags, identity.TagSwarm)
	}
	_, err := d.sdn.EnsureNetwork(ctx, sdn.NetworkSpec{
		Base:    sdn.Base{Key: d.names.GlobalKey(identity.KindHidden, string(pool.ID)), Name: identity.HiddenTitle(pool.CIDR)},
		Subnets: []sdn.SubnetSpec{subnet},
	})
	if err != nil {
		return sdn.Subnet{}, err
	}
	d.claimed(pool.ID)
	s, found, err := d.subnetOf(ctx, pool.ID)
	if err == nil && !found {
		err = sdn.NotFound("subnet", pool.CIDR)
	}
	return s, err
}

// deleteHidden deletes a hidden network with the addresses that were never given back.
func (d *Driver) deleteHidden(ctx context.Context, network sdn.ID) error {
	if err := d.dropPorts(ctx, sdn.PortQuery{Networks: []sdn.ID{network}}); err != nil {
		return err
	}
	failpoint.Here("docker.deletehidden.ports")
	return d.sdn.DeleteNetwork(ctx, network)
}

// gwAllocCheck skips the gateways of a network without a way out.
func (*Driver) gwAllocCheck(_ context.Context, r *api.GwAllocCheckRequest) (any, error) {
	none := !r.Options.Routed()
	return api.GwAllocCheckResponse{SkipIPv4: none, SkipIPv6: none}, nil
}

// deleteNetwork takes the network down. The engine ignores a failure and forgets the network, so it is marked first:
// Reconcile finishes what cannot be done now.
func (d *Driver) deleteNetwork(ctx context.Context, r *api.NetworkRequest) (any, error) {
	unlock, err := d.locks.lock(ctx, "network/"+r.NetworkID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return api.Empty{}, d.removeNetwork(ctx, r.NetworkID)
}

// dropFound deletes a network, whoever has it.
func (d *Driver) dropFound(ctx context.Context, id string, network sdn.Network) error {
	d.begun.found(identity.KindNetwork, id)
	err := d.dropMade(ctx, id, network)
	if err == nil {
		d.begun.strike(identity.KindNetwork, id)
	}
	return err
}

func (d *Driver) dropMade(ctx context.Context, id string, network sdn.Network) error {
	if network.Foreign {
		return d.leaveExisting(ctx, id)
	}
	if gone, err := d.dropEmpty(ctx, id, network); gone || err != nil {
		return err
	}
	if tags, missing := identity.With(network.Tags, identity.TagDeleted); missing {
		if _, err := d.sdn.UpdateNetwork(ctx, network.ID, sdn.NetworkPatch{Patch: sdn.Patch{Tags: &tags}}); err != nil {
			return err
		}
		failpoint.Here("docker.deletenetwork.marked")
	}
	if err := d.dropPorts(ctx, sdn.PortQuery{Networks: []sdn.ID{network.ID}}); err != nil {
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
	pools := poolsOfNetwork(network, subnets)
	var names []string
	for _, p := range pools {
		names = append(names, "pool/"+string(p))
	}
	unlock, err := d.locks.lock(ctx, names...)
	if err != nil {
		return err
	}
	defer unlock()
	if err := d.unmarkPools(ctx, pools, network.ID); err != nil {
		return err
	}
	if err := d.sdn.DeleteNetwork(ctx, network.ID); err != nil {
		return err
	}
	failpoint.Here("docker.deletenetwork.network")
	d.whereabouts.noteNetwork(id, "", "")
	if len(pools) == 0 {
		return nil
	}
	if slices.Contains(network.Tags, identity.TagSwarm) {
		if err := d.dropReleased(ctx, sdn.Match{IDs: pools, Tags: []string{identity.TagLetGo}}); err != nil {
			return err
		}
	}
	return d.dropReleased(ctx, sdn.Match{IDs: pools, Tags: []string{identity.TagReleased}})
}

// dropEmpty deletes a network that has no router of Kuryr's and whose pools this process has marked as released, without looking at what
// else is in it: while there is anything, the SDN does not delete it, which tells. The pools' marks stand for the network's own.
func (d *Driver) dropEmpty(ctx context.Context, id string, network sdn.Network) (gone bool, err error) {
	if d.scope != Local || d.routed || len(identity.WithPrefix(network.Tags, identity.TagRouter))+len(identity.WithPrefix(network.Tags, identity.TagExternal))+len(identity.WithPrefix(network.Tags, tagEmptied)) > 0 {
		return false, nil
	}
	pools, known := d.whereabouts.releasedOf(network.Subnets)
	if !known {
		return false, nil
	}
	var names []string
	for _, p := range pools {
		names = append(names, "pool/"+string(p))
	}
	unlock, err := d.locks.lock(ctx, names...)
	if err != nil {
		return false, err
	}
	defer unlock()
	if err := d.sdn.DeleteNetwork(ctx, network.ID); err != nil {
		if sdn.ReasonOf(err) == sdn.InUse {
			err = nil
		}
		return false, err
	}
	failpoint.Here("docker.deletenetwork.empty")
	d.whereabouts.noteNetwork(id, "", "")
	for _, p := range pools {
		if err := d.dropPool(ctx, p); err != nil && sdn.ReasonOf(err) != sdn.InUse {
			return false, err
		}
	}
	return true, nil
}

// dropReleased deletes those of the pools that the engine has released.
func (d *Driver) dropReleased(ctx context.Context, match sdn.Match) error {
	released, err := sdn.All(d.sdn.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: match}))
	if err != nil {
		return err
	}
	for _, p := range released {
		if !d.names.Ours(p.Meta, identity.KindPool) {
			continue
		}
		if err := d.dropPool(ctx, p.ID); err != nil && sdn.ReasonOf(err) != sdn.InUse {
			return err
		}
		failpoint.Here("docker.dropreleased.pool")
	}
	return nil
}

// dropPorts takes the ports of ours from a network or subnet that goes: those that the engine has forgotten.
func (d *Driver) dropPorts(ctx context.Context, of sdn.PortQuery) error {
	ports, err := sdn.All(d.sdn.FindPorts(ctx, of))
	if err != nil {
		return err
	}
	var ids []sdn.ID
	for _, p := range ports {
		if !d.names.Ours(p.Meta, identity.KindPort, identity.KindEndpoint) {
			continue
		}
		p.Tags = without(held(p)...)(p.Tags) // the network goes: nobody holds its addresses any more
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
	return d.deletePorts(ctx, ids...)
}

package docker

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	networks "github.com/kuryr/kuryr/docker/network"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

// existingRange reads what a RequestPool asks for, with the existing subnet or pool that its options name. Nothing is changed.
func (d *Driver) existingRange(ctx context.Context, r *api.RequestPoolRequest) (identity.PoolName, error) {
	asked := identity.PoolName{Space: r.AddressSpace, CIDR: r.Pool, Sub: r.SubPool}
	for _, named := range []api.Reference{r.Existing.Subnet[r.V6], r.Existing.Pool[r.V6]} {
		if named.Given() && r.AnyOfLength.IsValid() {
			return asked, refuse("option %s: name the range, not %s", named.Option, r.AnyOfLength)
		}
	}
	if named, ok := r.Existing.Subnet[r.V6]; ok {
		var in []sdn.ID
		if r.Existing.Network.Given() {
			network, err := d.namedNetwork(ctx, r.Existing)
			if err != nil {
				return asked, err
			}
			in = []sdn.ID{network.ID}
		}
		s, err := d.namedSubnet(ctx, named, in)
		if err != nil {
			return asked, err
		}
		switch {
		case d.scope == Global:
			return asked, refuse("option %s: a swarm's networks cannot be made of existing ones", named.Option)
		case s.CIDR.Addr().Is6() != r.V6:
			return asked, refuse("option %s: the range of subnet %s is %s, of the other family", named.Option, s.ID, s.CIDR)
		case r.Pool.IsValid() && r.Pool != s.CIDR:
			return asked, refuse("option %s: the range of subnet %s is %s, not %s", named.Option, s.ID, s.CIDR, r.Pool)
		case r.SubPool.IsValid() && r.SubPool != s.CIDR:
			return asked, refuse("option %s: subnet %s has its owner's allocation pools: leave out --ip-range", named.Option, s.ID)
		}
		asked.CIDR, asked.Sub, asked.OfSubnet = s.CIDR, netip.Prefix{}, s.ID
		return asked, nil
	}
	if named, ok := r.Existing.Pool[r.V6]; ok {
		p, err := d.namedPoolOf(ctx, named)
		if err != nil {
			return asked, err
		}
		if !asked.CIDR.IsValid() {
			if len(p.Prefixes) != 1 {
				return asked, refuse("option %s: pool %s has %d prefixes: name a subnet", named.Option, p.ID, len(p.Prefixes))
			}
			asked.CIDR = p.Prefixes[0].Masked()
		}
		within := func(prefix netip.Prefix) bool {
			return prefix.Bits() <= asked.CIDR.Bits() && prefix.Contains(asked.CIDR.Addr())
		}
		if !slices.ContainsFunc(p.Prefixes, within) {
			return asked, refuse("option %s: %s is in no prefix of pool %s", named.Option, asked.CIDR, p.ID)
		}
		asked.OfPool = p.ID
	}
	return asked, nil
}

// only is the one object that a reference means.
func only[T any](found []T, err error, named api.Reference, noun string) (one T, _ error) {
	switch {
	case err != nil:
		return one, err
	case len(found) == 0:
		return one, refuse("option %s: there is no %s %s", named.Option, noun, api.Clip(named.Name, 100))
	case len(found) > 1:
		return one, refuse("option %s: %d %ss are named %s: name it by its id", named.Option, len(found), noun, api.Clip(named.Name, 100))
	}
	return found[0], nil
}

// byID says which option named what is not there.
func byID[T any](v T, err error, named api.Reference, noun string) (T, error) {
	if sdn.IsNotFound(err) {
		err = refuse("option %s: there is no %s %s", named.Option, noun, named.ID)
	}
	return v, err
}

// namedNetwork is the network that the options name, which must be shared or not as they say.
func (d *Driver) namedNetwork(ctx context.Context, e api.Existing) (n sdn.Network, err error) {
	if named := e.Network; named.ID != "" {
		n, err = d.sdn.Network(ctx, named.ID)
		n, err = byID(n, err, named, "network")
	} else {
		found, failed := sdn.All(d.sdn.FindNetworks(ctx, sdn.NetworkQuery{Match: sdn.Match{Names: []string{named.Name}}}))
		n, err = only(found, failed, named, "network")
	}
	if err == nil && e.Shared != nil && *e.Shared != n.Shared {
		err = refuse("option %s: network %s has the shared flag %t, not %t", api.OptNetShared, n.ID, n.Shared, *e.Shared)
	}
	return n, err
}

// namedSubnet is the subnet that a reference means, of one of the networks where some are given.
func (d *Driver) namedSubnet(ctx context.Context, named api.Reference, in []sdn.ID) (s sdn.Subnet, err error) {
	if named.ID == "" {
		found, err := sdn.All(d.sdn.FindSubnets(ctx, sdn.SubnetQuery{Match: sdn.Match{Names: []string{named.Name}}, Networks: in}))
		return only(found, err, named, "subnet")
	}
	s, err = d.sdn.Subnet(ctx, named.ID)
	if s, err = byID(s, err, named, "subnet"); err == nil && len(in) > 0 && !slices.Contains(in, s.Network) {
		err = refuse("option %s: subnet %s is not in network %s", named.Option, s.ID, in[0])
	}
	return s, err
}

// namedPoolOf is the subnet pool that a reference means.
func (d *Driver) namedPoolOf(ctx context.Context, named api.Reference) (sdn.SubnetPool, error) {
	if named.ID != "" {
		p, err := d.sdn.SubnetPool(ctx, named.ID)
		return byID(p, err, named, "subnet pool")
	}
	found, err := sdn.All(d.sdn.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: sdn.Match{Names: []string{named.Name}}}))
	return only(found, err, named, "subnet pool")
}

// use is an existing network that is to be an engine's, with the subnets of it that are to stand for ranges.
type use struct {
	network  sdn.Network
	standing map[*api.IPAMData]sdn.Subnet
}

// planUse finds out what the options of a CreateNetwork with an existing network mean, and what is wrong with them, before anything is changed.
func (d *Driver) planUse(ctx context.Context, r *api.CreateNetworkRequest) (use, error) {
	if d.scope == Global {
		return use{}, refuse("a swarm's networks cannot be made of existing ones: leave out the options that name them")
	}
	network, subnets, err := d.existingNetwork(ctx, r.Options.Existing)
	if err != nil {
		return use{}, err
	}
	standing, err := d.standing(ctx, r, network, subnets)
	return use{network, standing}, err
}

// findAndUse is CreateNetwork with an existing network where the SDN must be asked for the pools of the ranges. isNew says that there is no link yet.
func (d *Driver) findAndUse(ctx context.Context, r *api.CreateNetworkRequest, isNew bool) (begun bool, err error) {
	u, err := d.planUse(ctx, r)
	if err != nil {
		return false, err
	}
	pools, err := d.poolsOf(ctx, r, u.standing)
	if err != nil {
		return false, err
	}
	return d.useNetwork(ctx, r, u, pools, isNew)
}

// useNetwork is CreateNetwork with an existing network whose ranges have these pools. isNew says that it has no link yet; begun tells that it has begun
// to make one.
func (d *Driver) useNetwork(ctx context.Context, r *api.CreateNetworkRequest, u use, pools map[*api.IPAMData]enginePool, isNew bool) (begun bool, err error) {
	var ids []sdn.ID
	var cidr netip.Prefix
	for _, data := range r.Ranges {
		if p, ok := pools[data]; ok {
			if err := mayHave(r, data, p, u.standing); err != nil {
				return false, err
			}
			ids = append(ids, p.ID)
		}
		if !cidr.IsValid() {
			cidr = data.Pool
		}
	}
	if isNew {
		of := "option " + api.OptGroups
		if _, err := networks.Groups(ctx, d.sdn, r.Options.Groups, u.network.Project, of); err != nil {
			return false, err
		}
	}
	d.beginNetwork(ctx, r.NetworkID)
	l, err := d.ensureLink(ctx, r.NetworkID, u.network.ID, ids, cidr, identity.NetworkOptionTags(r.Options), isNew)
	if err != nil {
		return isNew, err
	}
	return isNew, d.fillLink(ctx, r, l, u, pools)
}

// fillLink makes what a link tells of: subnets that the existing network does not have, and what says that the network is used.
func (d *Driver) fillLink(ctx context.Context, r *api.CreateNetworkRequest, l link, u use, pools map[*api.IPAMData]enginePool) error {
	if err := identity.CheckStored(identity.NetworkOptionTags(r.Options), l.Tags); err != nil {
		return err
	}
	d.noteNetwork(r.NetworkID, "", l.ID)
	failpoint.Here("docker.createnetwork.linked")
	for data, pool := range pools {
		s, ok := u.standing[data]
		if !ok {
			continue
		}
		if pool.subnet() == "" {
			if err := d.tagPool(ctx, pool, string(s.ID)); err != nil {
				return err
			}
		}
		d.whereabouts.noteSubnet(pool.ID, s.ID)
	}
	if err := d.addSubnets(ctx, r, u.network.ID, pools, u.standing); err != nil {
		return err
	}
	failpoint.Here("docker.createnetwork.used")
	d.claim(ctx, pools)
	if identity.PeersWork(u.network, slices.Collect(maps.Values(u.standing))) {
		d.tagFirst(ctx, r.NetworkID, u.network)
	}
	d.addTags(ctx, l)
	return nil
}

// existingNetwork is the network that is to be used, with its subnets. A subnet alone means its network.
func (d *Driver) existingNetwork(ctx context.Context, e api.Existing) (n sdn.Network, subnets []sdn.Subnet, err error) {
	if !e.Network.Given() {
		for _, v6 := range []bool{false, true} {
			named, ok := e.Subnet[v6]
			if !ok {
				continue
			}
			s, err := d.namedSubnet(ctx, named, nil)
			if err != nil {
				return n, nil, err
			}
			e.Network = api.Reference{Option: named.Option, ID: s.Network}
			break
		}
	}
	if n, err = d.namedNetwork(ctx, e); err != nil {
		return n, nil, err
	}
	subnets, err = sdn.All(d.sdn.FindSubnets(ctx, sdn.SubnetQuery{Networks: []sdn.ID{n.ID}}))
	return n, subnets, err
}

// standing are the existing subnets that stand for the ranges asked for. A range that no subnet of the network has is to be added to it.
func (d *Driver) standing(ctx context.Context, r *api.CreateNetworkRequest, network sdn.Network, subnets []sdn.Subnet) (map[*api.IPAMData]sdn.Subnet, error) {
	standing := map[*api.IPAMData]sdn.Subnet{}
	for v6, named := range r.Options.Existing.Subnet {
		asked, err := d.namedSubnet(ctx, named, []sdn.ID{network.ID})
		if err != nil {
			return nil, err
		}
		isIt := func(data *api.IPAMData) bool { return data.Pool == asked.CIDR && asked.CIDR.Addr().Is6() == v6 }
		if !slices.ContainsFunc(r.Ranges, isIt) {
			return nil, refuse("option %s: the range of subnet %s is %s, which was not asked for", named.Option, asked.ID, asked.CIDR)
		}
	}
	for _, data := range r.Ranges {
		for _, s := range subnets {
			switch {
			case s.CIDR == data.Pool && d.cutFor(s, r.NetworkID):
				// A repeat: it was added.
			case s.CIDR == data.Pool:
				standing[data] = s
			case s.CIDR.Overlaps(data.Pool):
				return nil, refuse("the range %s overlaps %s, which network %s has", data.Pool, s.CIDR, network.ID)
			}
		}
		if s, ok := standing[data]; ok {
			if err := fits(s, data); err != nil {
				return nil, err
			}
		}
	}
	return standing, nil
}

// fits tells what of a range cannot be had from an existing subnet, which is not changed for it.
func fits(s sdn.Subnet, data *api.IPAMData) error {
	if data.Gateway.IsValid() && s.Gateway.IsValid() && data.Gateway != s.Gateway {
		return refuse("the gateway of subnet %s is %s, not %s: name it by --gateway", s.ID, s.Gateway, data.Gateway)
	}
	return nil
}

// addSubnets adds those ranges to an existing network that it does not have.
func (d *Driver) addSubnets(ctx context.Context, r *api.CreateNetworkRequest, network sdn.ID, pools map[*api.IPAMData]enginePool, standing map[*api.IPAMData]sdn.Subnet) error {
	for _, data := range r.Ranges {
		if _, stands := standing[data]; stands {
			continue
		}
		spec := subnetSpec(d.subnetKey(r.NetworkID, data.Pool, data.Place), data, pools[data], !r.Options.Routed())
		spec.Network = network
		if _, err := d.sdn.EnsureSubnet(ctx, spec); err != nil {
			return err
		}
	}
	return nil
}

// leaveExisting is DeleteNetwork of an existing network: what is ours in it goes, and the link last, so that it can be repeated.
func (d *Driver) leaveExisting(ctx context.Context, id string) error {
	l, found, err := d.findLink(ctx, id)
	if err != nil || !found {
		return err
	}
	if len(l.pools) == 0 && !slices.Contains(l.Tags, identity.TagDeleted) { // no released pool will tell that it is to go
		if err := d.tagPool(ctx, enginePool{SubnetPool: l.SubnetPool}, identity.TagDeleted); err != nil {
			return err
		}
	}
	subnets, err := sdn.All(d.sdn.FindSubnets(ctx, sdn.SubnetQuery{Networks: []sdn.ID{l.network}}))
	if err != nil {
		return err
	}
	for _, s := range subnets {
		if !d.cutFor(s, id) {
			continue
		}
		if err := d.dropPorts(ctx, sdn.PortQuery{Subnets: []sdn.ID{s.ID}}); err != nil {
			return err
		}
		if err := d.sdn.DeleteSubnet(ctx, s.ID); err != nil {
			return err
		}
		failpoint.Here("docker.deletenetwork.added")
	}
	if err := d.dropLeftPorts(ctx, l, subnets); err != nil {
		return err
	}
	if len(l.pools) > 0 && !d.whereabouts.allGone(l.pools) {
		if err := d.dropReleased(ctx, sdn.Match{IDs: l.pools, Tags: []string{identity.TagReleased}}); err != nil {
			return err
		}
	}
	d.whereabouts.noteNetwork(id, "", "")
	return d.unlink(ctx, l, subnets)
}

// dropLeftPorts takes ports of ours from an existing network with the last of the engines' networks that it is: whose they are no port tells,
// and while another is the same, or an engine has addresses of it by the IPAM driver alone, they may be of that.
func (d *Driver) dropLeftPorts(ctx context.Context, l link, subnets []sdn.Subnet) error {
	left := sdn.PortQuery{Match: sdn.Match{Owner: d.sdn.Installation()}, Networks: []sdn.ID{l.network}}
	if _, found, err := sdn.First(d.sdn.FindPorts(ctx, left)); err != nil || !found {
		return err
	}
	match := sdn.Match{Owner: d.sdn.Installation(), Kind: identity.KindLink}
	for p, err := range d.sdn.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: match}) {
		if err != nil {
			return err
		}
		if network, _, _ := strings.Cut(p.Name, ","); p.ID != l.ID && network == string(l.network) {
			return nil
		}
	}
	match.Kind = identity.KindPool
	for _, s := range subnets {
		match.Names = append(match.Names, identity.PoolTitle(s.CIDR))
	}
	for p, err := range d.sdn.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: match}) {
		if err != nil {
			return err
		}
		pool, ok := d.enginePool(p)
		if ok && !slices.Contains(l.pools, p.ID) && slices.ContainsFunc(subnets, func(s sdn.Subnet) bool { return s.ID == pool.subnet() }) {
			return nil
		}
	}
	return d.dropPorts(ctx, left)
}

package docker

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

// With Config.DeleteEmptySubnets a subnet goes when no endpoint has an address of it any more, as kuryr-libnetwork's design
// document has it, and the next request for an address makes it again alike. What that needs is written on the network and on the
// pool before anything is taken down; a subnet that is going says so itself, so that nobody uses it half gone. Only subnets that
// we made, of pools that we made, ever go, and none that a swarm's manager gives addresses of.

// Tags of subnets that went.
const (
	tagEmptied  = "kuryr.docker.emptied=" // on a pool: whose subnet it was, NETWORKID/FAMILY.INDEX; on a network: a pool whose subnet went
	tagRoute    = "kuryr.docker.route="   // on such a pool: a route of the subnet, DESTINATION=NEXTHOP
	tagEmptying = "kuryr.docker.emptying" // on a subnet: it is going, or not all there again
)

// emptied names the subnet that a pool had, "" where its subnet did not go.
func (p enginePool) emptied() string {
	for _, name := range identity.Values(p.Tags, tagEmptied) {
		return name
	}
	return ""
}

// emptiedOf tells whether the pool's subnet went, and was one of the network.
func (p enginePool) emptiedOf(network string) bool {
	return strings.HasPrefix(p.emptied(), network+"/")
}

// mayGo tells whether a subnet may go while an address is taken from it, or has begun to.
func (d *Driver) mayGo(s sdn.Subnet) bool {
	return d.deleteEmpty && d.names.Ours(s.Meta, identity.KindSubnet) && !swarms(s) || slices.Contains(s.Tags, tagEmptying)
}

// tidySubnets deletes those of the subnets of the addresses that have become empty. The addresses are free whatever comes of it, so a
// failure is only told; the next start tries again.
func (d *Driver) tidySubnets(ctx context.Context, addresses ...sdn.Address) {
	if !d.deleteEmpty {
		return
	}
	for _, a := range addresses {
		subnet, err := d.sdn.Subnet(ctx, a.Subnet)
		if err == nil {
			err = d.tidySubnet(ctx, subnet)
		}
		if err != nil && !sdn.IsNotFound(err) {
			d.log.WarnContext(ctx, "an empty subnet is not gone", "subnet", a.Subnet, "err", err)
		}
	}
}

// tidySubnet deletes a subnet of ours if it is empty; one that was going and is not makes whole.
func (d *Driver) tidySubnet(ctx context.Context, s sdn.Subnet) error {
	if !d.names.Ours(s.Meta, identity.KindSubnet) || s.Pool == "" || swarms(s) {
		return nil
	}
	unlock, err := d.locks.lock(ctx, "pool/"+string(s.Pool))
	if err != nil {
		return err
	}
	defer unlock()
	if s, err = d.sdn.Subnet(ctx, s.ID); err != nil {
		return err
	}
	empty, err := d.empty(ctx, s.ID)
	if err != nil {
		return err
	}
	if !empty || !d.deleteEmpty {
		if slices.Contains(s.Tags, tagEmptying) {
			return d.restoreSubnet(ctx, s.Pool)
		}
		return nil
	}
	found, err := d.sdn.SubnetPool(ctx, s.Pool)
	if err != nil {
		return err
	}
	pool, ok := d.enginePool(found)
	if !ok || pool.released() {
		return nil // an operator's, or all of the network is about to go
	}
	network, err := d.sdn.Network(ctx, s.Network)
	if err != nil || !d.names.Ours(network.Meta, identity.KindNetwork) ||
		slices.Contains(network.Tags, identity.TagDeleted) {
		return err
	}
	if err := d.emptySubnet(ctx, network, pool, s); sdn.ReasonOf(err) != sdn.InUse {
		return err
	}
	// Another host took an address meanwhile: the subnet stays, whole.
	return d.restoreSubnet(ctx, pool.ID)
}

// empty tells whether no port has an address of a subnet but a router's.
func (d *Driver) empty(ctx context.Context, subnet sdn.ID) (bool, error) {
	for p, err := range d.sdn.FindPorts(ctx, sdn.PortQuery{Subnets: []sdn.ID{subnet}}) {
		if err != nil {
			return false, err
		}
		if p.DeviceOwner != sdn.OwnerRouterInterface {
			return false, nil
		}
	}
	return true, nil
}

// emptySubnet takes a subnet down, in steps that can all be repeated.
func (d *Driver) emptySubnet(ctx context.Context, network sdn.Network, pool enginePool, s sdn.Subnet) error {
	if err := d.noteEmptied(ctx, network, pool.ID); err != nil {
		return err
	}
	failpoint.Here("docker.empty.noted")
	if err := d.changePool(ctx, pool, func(tags []string) ([]string, bool) { return rememberSubnet(tags, s) }); err != nil {
		return err
	}
	failpoint.Here("docker.empty.remembered")
	if tags, missing := identity.With(s.Tags, tagEmptying); missing {
		if _, err := d.sdn.UpdateSubnet(ctx, s.ID, sdn.SubnetPatch{Patch: sdn.Patch{Tags: &tags}}); err != nil {
			return err
		}
		failpoint.Here("docker.empty.marked")
	}
	if d.sdn.Capabilities().Routers {
		router, found, err := sdn.First(d.sdn.FindRouters(ctx, sdn.RouterQuery{Subnets: []sdn.ID{s.ID}}))
		if err != nil {
			return err
		}
		if found {
			if err := d.sdn.DetachSubnet(ctx, router.ID, s.ID); err != nil {
				return err
			}
			failpoint.Here("docker.empty.detached")
		}
	}
	if err := d.sdn.DeleteSubnet(ctx, s.ID); err != nil {
		return err
	}
	failpoint.Here("docker.empty.deleted")
	return nil
}

// noteEmptied writes on a network that it has the pool, which its subnets will not tell.
func (d *Driver) noteEmptied(ctx context.Context, network sdn.Network, pool sdn.ID) error {
	return d.changeNetwork(ctx, network, func(tags []string) []string {
		tags, _ = identity.With(tags, tagEmptied+string(pool))
		return tags
	})
}

// rememberSubnet gives a pool's tags with all that the pool and the network do not tell of the subnet already.
func rememberSubnet(tags []string, s sdn.Subnet) ([]string, bool) {
	with := forgetSubnet(tags)
	if s.Gateway.IsValid() {
		with = slices.DeleteFunc(with, func(t string) bool { return strings.HasPrefix(t, identity.TagGateway) })
		with = append(with, identity.TagGateway+s.Gateway.String())
	}
	with = append(with, tagEmptied+s.Key.Name)
	for _, r := range s.HostRoutes {
		with = append(with, tagRoute+r.Destination.String()+"="+r.NextHop.String())
	}
	for _, a := range s.Reserved {
		if a != s.Gateway && !slices.Contains(with, identity.TagGateway+a.String()) {
			with, _ = identity.With(with, identity.TagAux+a.String())
		}
	}
	return with, len(with) != len(tags) || !identity.HasAll(tags, with)
}

// forgetSubnet gives a pool's tags without those that only a subnet that went needs.
func forgetSubnet(tags []string) []string {
	return slices.DeleteFunc(slices.Clone(tags), func(t string) bool {
		return strings.HasPrefix(t, tagEmptied) || strings.HasPrefix(t, tagRoute)
	})
}

// rememberedRoutes reads the routes of a subnet that went.
func (p enginePool) rememberedRoutes() []sdn.HostRoute {
	var routes []sdn.HostRoute
	for _, v := range identity.Values(p.Tags, tagRoute) {
		to, via, _ := strings.Cut(v, "=")
		destination, err := netip.ParsePrefix(to)
		hop, wrong := netip.ParseAddr(via)
		if err == nil && wrong == nil {
			routes = append(routes, sdn.HostRoute{Destination: destination, NextHop: hop})
		}
	}
	return routes
}

// restored is the subnet of a pool, made whole again if it went, and whether there is one; whoever calls holds the pool's lock.
func (d *Driver) restored(ctx context.Context, pool sdn.ID) (s sdn.Subnet, found bool, err error) {
	s, found, err = d.subnetOf(ctx, pool)
	if err != nil || found && !slices.Contains(s.Tags, tagEmptying) {
		return s, found, err
	}
	if err := d.restoreSubnet(ctx, pool); err != nil {
		return s, false, err
	}
	return d.subnetOf(ctx, pool)
}

// restoreSubnet makes a subnet that went as it was, and its router's leg, or finishes what an earlier try left; whoever calls
// holds the pool's lock. A pool that remembers no subnet is left alone.
func (d *Driver) restoreSubnet(ctx context.Context, id sdn.ID) error {
	found, err := d.sdn.SubnetPool(ctx, id)
	if sdn.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	pool, ok := d.enginePool(found)
	switch {
	case !ok || pool.emptied() == "":
		return nil
	case pool.released():
		return refuse("pool %s was released", pool.ID)
	}
	network, options, err := d.emptiedNetwork(ctx, pool)
	if err != nil {
		return err
	}
	data := &api.IPAMData{Pool: pool.CIDR, Gateway: pool.gateway(), AuxAddresses: pool.aux(), Routes: pool.rememberedRoutes()}
	spec := subnetSpec(d.names.GlobalKey(identity.KindSubnet, pool.emptied()), data, pool, !options.Routed())
	spec.Network = network.ID
	whole := spec.Tags
	spec.Tags = append(slices.Clone(whole), tagEmptying)
	subnet, err := d.sdn.EnsureSubnet(ctx, spec)
	if err != nil {
		return err
	}
	failpoint.Here("docker.restore.made")
	if d.wantsRouter(options) {
		network.Subnets = []sdn.ID{subnet.ID} // the network's others may be going at this moment
		if err := d.route(ctx, network.Key.Name, options, network); err != nil {
			return err
		}
		failpoint.Here("docker.restore.routed")
	}
	if _, err := d.sdn.UpdateSubnet(ctx, subnet.ID, sdn.SubnetPatch{Patch: sdn.Patch{Tags: &whole}}); err != nil {
		return err
	}
	failpoint.Here("docker.restore.whole")
	return d.changePool(ctx, pool, func(tags []string) ([]string, bool) {
		left := forgetSubnet(tags)
		return left, len(left) < len(tags)
	})
}

// restoreSubnets makes whole what went of the pools of a network, before a repeated CreateNetwork looks at it.
func (d *Driver) restoreSubnets(ctx context.Context, pools map[*api.IPAMData]enginePool) error {
	for _, p := range pools {
		if p.emptied() == "" {
			continue
		}
		unlock, err := d.locks.lock(ctx, "pool/"+string(p.ID))
		if err != nil {
			return err
		}
		err = d.restoreSubnet(ctx, p.ID)
		unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// emptiedNetwork is the network that a pool's subnet was of, and what its creator asked for.
func (d *Driver) emptiedNetwork(ctx context.Context, pool enginePool) (n sdn.Network, o api.NetworkOptions, err error) {
	n, found, err := d.emptiedOwner(ctx, pool)
	if err == nil && (!found || slices.Contains(n.Tags, identity.TagDeleted)) {
		err = refuse("the network of pool %s is gone, or going", pool.ID)
	}
	if err != nil {
		return n, o, err
	}
	o.Internal, o.NoGateway = slices.Contains(n.Tags, identity.TagInternal), slices.Contains(n.Tags, identity.TagNoGateway)
	for _, name := range identity.Values(n.Tags, identity.TagRouter) {
		o.Router = name
	}
	for _, id := range identity.Values(n.Tags, identity.TagExternal) {
		o.External = id
	}
	return n, o, nil
}

// emptiedOwner is the network that a pool's subnet was of, and whether it is there still.
func (d *Driver) emptiedOwner(ctx context.Context, pool enginePool) (sdn.Network, bool, error) {
	id, _, ok := strings.Cut(pool.emptied(), "/")
	if !ok {
		return sdn.Network{}, false, nil
	}
	return d.findNetwork(ctx, id)
}

// poolsOfNetwork are the pools that a network has subnets of, or had until they went.
func poolsOfNetwork(n sdn.Network, subnets []sdn.Subnet) []sdn.ID {
	var ids []sdn.ID
	for _, s := range subnets {
		ids = append(ids, subnetPools(s)...)
	}
	for _, id := range identity.Values(n.Tags, tagEmptied) {
		ids = append(ids, sdn.ID(id))
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// subnetPools are the engine's pools of a subnet. One that is cut from an operator's pool names the engine's by a tag.
func subnetPools(s sdn.Subnet) []sdn.ID {
	if ids := identity.IDs(s.Tags); len(ids) > 0 {
		return ids
	}
	if s.Pool == "" {
		return nil
	}
	return []sdn.ID{s.Pool}
}

// finishEmpty deletes the empty subnets that a kill, or a time without the setting, has left, or makes those whole that were going
// when the setting was taken away.
func (d *Driver) finishEmpty(ctx context.Context) error {
	match := sdn.Match{Owner: d.sdn.Installation(), Kind: identity.KindSubnet}
	if !d.deleteEmpty {
		match.Tags = []string{tagEmptying}
	}
	var errs []error
	subnets, err := sdn.All(d.sdn.FindSubnets(ctx, sdn.SubnetQuery{Match: match}))
	errs = append(errs, err)
	for _, s := range subnets {
		if err := d.tidySubnet(ctx, s); !sdn.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

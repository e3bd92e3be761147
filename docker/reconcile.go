package docker

import (
	"context"
	"errors"
	"slices"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/sdn"
)

// Reconcile finishes what was marked for going and is still there: networks the engine deleted or was never told of, pools
// and addresses it released. Run does it once at start; calls may be served meanwhile. What cannot be finished stays marked and is told in the
// error; the rest is done nevertheless.
func (d *Driver) Reconcile(ctx context.Context) error {
	owner := d.sdn.Installation()
	errs := []error{d.endpoints.RestoreHostPorts(ctx), d.endpoints.DropGone(ctx)}
	for _, tag := range []string{identity.TagDeleted, identity.TagCreating, d.allocatingTag(), d.leavingTag()} {
		match := sdn.Match{Owner: owner, Kind: identity.KindNetwork, Tags: []string{tag}}
		networks, err := sdn.All(d.sdn.FindNetworks(ctx, sdn.NetworkQuery{Match: match}))
		errs = append(errs, err)
		for _, n := range networks {
			errs = append(errs, d.finishNetwork(ctx, n, tag))
		}
	}
	errs = append(errs, d.finishLinks(ctx), d.finishReleased(ctx))
	ports, err := sdn.All(d.sdn.FindPorts(ctx, sdn.PortQuery{Match: sdn.Match{Owner: owner, Kind: identity.KindPort}, Hosts: []string{d.host}}))
	errs = append(errs, err)
	for _, p := range ports {
		if p.DeviceID != "" && len(p.Addresses) > 0 && len(unfreed(p)) == 0 {
			errs = append(errs, d.finishPort(ctx, p))
		}
	}
	errs = append(errs, d.finishEmpty(ctx))
	return errors.Join(errs...)
}

// finishReleased finishes the pools that the engine has released, and the networks that have no others.
func (d *Driver) finishReleased(ctx context.Context) error {
	match := sdn.Match{Owner: d.sdn.Installation(), Kind: identity.KindPool, Tags: []string{identity.TagReleased}}
	pools, err := sdn.All(d.sdn.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: match}))
	errs := []error{err}
	for _, p := range pools {
		if name, ok := identity.ParsePoolName(p.Key.Name); ok && (name.Host == d.names.Host || name.Space == api.GlobalSpace && d.scope == Global) {
			errs = append(errs, d.finishPool(ctx, p))
		}
	}
	return errors.Join(errs...)
}

// finishNetwork deletes a network that has the tag, unless a call that had it in hand has taken the tag off.
func (d *Driver) finishNetwork(ctx context.Context, n sdn.Network, tag string) error {
	unlock, err := d.locks.lock(ctx, "network/"+n.Key.Name)
	if err != nil {
		return err
	}
	defer unlock()
	now, err := d.sdn.Network(ctx, n.ID)
	if sdn.IsNotFound(err) || err == nil && !slices.Contains(now.Tags, tag) {
		return nil
	}
	if err != nil {
		return err
	}
	if tag == identity.TagDeleted || tag == d.allocatingTag() {
		return d.dropFound(ctx, now.Key.Name, now)
	}
	return d.removeNetwork(ctx, n.Key.Name)
}

// finishPool deletes a released pool. Engines release the pools of a network right before they delete it: one whose pools
// are all released is a network whose DeleteNetwork never came.
func (d *Driver) finishPool(ctx context.Context, pool sdn.SubnetPool) error {
	subnet, found, err := d.subnetOf(ctx, pool.ID)
	if err != nil {
		return err
	}
	var network sdn.Network
	if found && !d.names.Ours(subnet.Meta, identity.KindHiddenSubnet) {
		network, err = d.sdn.Network(ctx, subnet.Network)
		if sdn.IsNotFound(err) || err == nil && !d.names.Ours(network.Meta, identity.KindNetwork) {
			return nil
		}
	} else {
		name, _ := d.enginePool(pool)
		if network, found, err = d.emptiedOwner(ctx, name); err == nil && !found {
			_, err := d.letGo(ctx, api.PoolID{Pool: pool.ID})
			return err
		}
	}
	if err != nil {
		return err
	}
	if slices.Contains(network.Tags, identity.TagAllocated) {
		return d.finishAllocation(ctx, network.ID)
	}
	released, err := d.allReleased(ctx, network)
	if err != nil || !released {
		return err
	}
	// An engine does not delete a network that containers are on. Whatever led here, theirs are not cut off.
	for port, err := range d.sdn.FindPorts(ctx, sdn.PortQuery{Networks: []sdn.ID{network.ID}}) {
		if err != nil {
			return err
		}
		if d.names.Ours(port.Meta, identity.KindPort, identity.KindEndpoint) && port.DeviceID != "" &&
			len(unfreed(port)) > 0 {
			d.log.WarnContext(ctx, "a network whose ranges were released still has an endpoint", "network", network.Key.Name, "endpoint", port.DeviceID)
			return nil
		}
	}
	unlock, err := d.locks.lock(ctx, "network/"+network.Key.Name)
	if err != nil {
		return err
	}
	defer unlock()
	if network, err = d.sdn.Network(ctx, network.ID); sdn.IsNotFound(err) {
		return nil
	} else if err != nil {
		return err
	}
	return d.dropFound(ctx, network.Key.Name, network)
}

// allReleased tells whether the engine has released every range of a network.
func (d *Driver) allReleased(ctx context.Context, network sdn.Network) (bool, error) {
	subnets, err := sdn.All(d.sdn.FindSubnets(ctx, sdn.SubnetQuery{Networks: []sdn.ID{network.ID}}))
	if err != nil {
		return false, err
	}
	ids := poolsOfNetwork(network, subnets)
	if len(ids) == 0 || slices.ContainsFunc(subnets, func(s sdn.Subnet) bool { return s.Pool == "" }) {
		return false, nil
	}
	released, err := sdn.All(d.sdn.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: sdn.Match{IDs: ids, Tags: []string{identity.TagReleased}}}))
	return len(released) == len(ids), err
}

// finishPort removes an endpoint whose addresses are all released.
func (d *Driver) finishPort(ctx context.Context, port sdn.Port) error {
	unlock, err := d.locks.lock(ctx, "endpoint/"+port.DeviceID)
	if err != nil {
		return err
	}
	defer unlock()
	return d.dropEndpoint(ctx, port)
}

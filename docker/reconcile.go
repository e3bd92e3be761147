package docker

import (
	"context"
	"errors"
	"slices"

	"github.com/kuryr/kuryr/sdn"
)

// Reconcile finishes what was marked for going and is still there: networks the engine deleted or was never told of, pools
// and addresses it released. Run it once at start; calls may be served meanwhile. What cannot be finished stays marked and is told in the
// error; the rest is done nevertheless.
func (d *Driver) Reconcile(ctx context.Context) error {
	owner := d.sdn.Installation()
	var errs []error
	for _, tag := range []string{tagDeleted, tagCreating} {
		match := sdn.Match{Owner: owner, Kind: kindNetwork, Tags: []string{tag}}
		networks, err := sdn.All(d.sdn.FindNetworks(ctx, sdn.NetworkQuery{Match: match}))
		errs = append(errs, err)
		for _, n := range networks {
			errs = append(errs, d.finishNetwork(ctx, n, tag))
		}
	}
	errs = append(errs, d.finishReleased(ctx))
	ports, err := sdn.All(d.sdn.FindPorts(ctx, sdn.PortQuery{Match: sdn.Match{Owner: owner, Kind: kindPort}, Hosts: []string{d.host}}))
	errs = append(errs, err)
	for _, p := range ports {
		if p.DeviceID != "" && len(p.Addresses) > 0 && len(unfreed(p)) == 0 {
			errs = append(errs, d.finishPort(ctx, p))
		}
	}
	return errors.Join(errs...)
}

// finishReleased finishes the pools that the engine has released, and the networks that have no others.
func (d *Driver) finishReleased(ctx context.Context) error {
	match := sdn.Match{Owner: d.sdn.Installation(), Kind: kindPool, Tags: []string{tagReleased}}
	pools, err := sdn.All(d.sdn.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: match}))
	errs := []error{err}
	for _, p := range pools {
		if name, ok := parsePoolName(p.Key.Name); ok && name.host == d.hostKey {
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
	return d.dropNetwork(ctx, n.Key.Name)
}

// finishPool deletes a released pool. Engines release the pools of a network right before they delete it: one whose pools
// are all released is a network whose DeleteNetwork never came.
func (d *Driver) finishPool(ctx context.Context, pool sdn.SubnetPool) error {
	subnet, found, err := d.subnetOf(ctx, pool.ID)
	if err != nil {
		return err
	}
	if !found || d.ours(subnet.Meta, kindHiddenSubnet) {
		_, err := d.releasePool(ctx, &releasePoolRequest{PoolID: string(pool.ID)})
		return err
	}
	network, err := d.sdn.Network(ctx, subnet.Network)
	if sdn.IsNotFound(err) || err == nil && !d.ours(network.Meta, kindNetwork) {
		return nil
	}
	if err != nil {
		return err
	}
	subnets, err := sdn.All(d.sdn.FindSubnets(ctx, sdn.SubnetQuery{Networks: []sdn.ID{network.ID}}))
	if err != nil {
		return err
	}
	var ids []sdn.ID
	for _, s := range subnets {
		ids = append(ids, s.Pool)
	}
	released, err := sdn.All(d.sdn.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: sdn.Match{IDs: ids, Tags: []string{tagReleased}}}))
	if err != nil || len(released) < len(ids) {
		return err
	}
	// An engine does not delete a network that containers are on. Whatever led here, theirs are not cut off.
	for port, err := range d.sdn.FindPorts(ctx, sdn.PortQuery{Networks: []sdn.ID{network.ID}}) {
		if err != nil {
			return err
		}
		if d.ours(port.Meta, kindPort, kindEndpoint) && port.DeviceID != "" && len(unfreed(port)) > 0 {
			d.log.WarnContext(ctx, "a network whose ranges were released still has an endpoint", "network", network.Key.Name, "endpoint", port.DeviceID)
			return nil
		}
	}
	_, err = d.deleteNetwork(ctx, &networkRequest{network.Key.Name})
	return err
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

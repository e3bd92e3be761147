package docker

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

// releaseAddress gives an address back. Gateways, auxiliary addresses and what is not there any more have no port.
func (d *Driver) releaseAddress(ctx context.Context, r *api.ReleaseAddressRequest) (any, error) {
	subnet, found, err := d.subnetOf(ctx, r.PoolID.Pool)
	if err != nil || !found {
		return api.Empty{}, err
	}
	if r.Address == subnet.Gateway {
		return api.Empty{}, nil
	}
	if d.wasReturned(sdn.Address{Subnet: subnet.ID, Addr: r.Address}) {
		return api.Empty{}, nil
	}
	query := sdn.PortQuery{Subnets: []sdn.ID{subnet.ID}, Addresses: []netip.Addr{r.Address}}
	port, found, err := sdn.First(d.sdn.FindPorts(ctx, query))
	if err != nil || !found || givenSince(ctx, port) {
		return api.Empty{}, err
	}
	if d.names.Attached(port, d.host) {
		err := d.releaseLent(ctx, port, r.Address)
		d.wasReturned(sdn.Address{Subnet: subnet.ID, Addr: r.Address}) // by this very release
		return api.Empty{}, err
	}
	if !d.names.Ours(port.Meta, identity.KindPort) && (!identity.PeersPort(port) || !d.ownPort(port)) {
		return api.Empty{}, d.endpoints.Released(ctx, port.ID)
	}
	if swarms(subnet) {
		return api.Empty{}, d.releaseHeld(ctx, port, r)
	}
	if identity.Elsewhere(port, d.host) {
		return api.Empty{}, nil
	}
	if port.DeviceID != "" {
		if d.wasRefused(port.ID, r.Address) {
			return api.Empty{}, nil
		}
		// An SDN without revisions would lose one of two releases of the port.
		unlock, err := d.locks.lock(ctx, "endpoint/"+port.DeviceID)
		if err != nil {
			return nil, err
		}
		defer unlock()
	}
	err = retryStale(func(again bool) (err error) {
		if again {
			if port, err = d.sdn.Port(ctx, port.ID); sdn.IsNotFound(err) {
				return nil
			} else if err != nil {
				return err
			}
		}
		return d.freeAddress(ctx, port, r.Address)
	})
	if err == nil {
		d.tidySubnets(ctx, port.Addresses...)
	}
	return api.Empty{}, err
}

// releaseLent gives back a port whose endpoint was not made to its end, or whose DeleteEndpoint was lost.
func (d *Driver) releaseLent(ctx context.Context, port sdn.Port, addr netip.Addr) error {
	if d.wasRefused(port.ID, addr) {
		return nil
	}
	id := identity.EndpointOf(port)
	return retryStale(func(bool) error {
		port, err := d.sdn.Port(ctx, port.ID)
		if sdn.IsNotFound(err) || err == nil && (!d.names.Attached(port, d.host) ||
			identity.EndpointOf(port) != id) {
			return nil
		}
		if err != nil {
			return err
		}
		_, err = d.dropUnused(ctx, port, "its addresses were released")
		return err
	})
}

// freeAddress takes an address from a port, and the port from the network with its last one. A port that an endpoint still
// has is one whose CreateEndpoint was answered to nobody or whose DeleteEndpoint was lost: it keeps its addresses until all
// are released, and goes then.
func (d *Driver) freeAddress(ctx context.Context, port sdn.Port, addr netip.Addr) error {
	patch := sdn.PortPatch{Patch: sdn.Patch{IfRevision: port.Revision}}
	if port.DeviceID == "" {
		left := slices.DeleteFunc(slices.Clone(port.Addresses), func(a sdn.Address) bool { return a.Addr == addr })
		if len(left) == 0 {
			err := d.sdn.DeletePort(ctx, port.ID, port.Revision)
			if err != nil {
				return err
			}
			d.forgetPorts(port.ID)
			return d.endpoints.Released(ctx, port.ID)
		}
		patch.Addresses = &left
		_, err := d.sdn.UpdatePort(ctx, port.ID, patch)
		return err
	}
	if tags, missing := identity.With(port.Tags, identity.TagFreed+addr.String()); missing {
		patch.Tags = &tags
		updated, err := d.sdn.UpdatePort(ctx, port.ID, patch)
		if err != nil {
			return err
		}
		port = updated
		failpoint.Here("docker.releaseaddress.marked")
	}
	if len(unfreed(port)) > 0 {
		return nil
	}
	return d.dropEndpoint(ctx, port)
}

// unfreed are the addresses of a port that the engine has not released.
func unfreed(port sdn.Port) []sdn.Address {
	freed := identity.Values(port.Tags, identity.TagFreed)
	return slices.DeleteFunc(slices.Clone(port.Addresses), func(a sdn.Address) bool { return slices.Contains(freed, a.Addr.String()) })
}

// deletePorts deletes ports, and what is remembered of them here.
func (d *Driver) deletePorts(ctx context.Context, ids ...sdn.ID) error {
	if err := d.sdn.DeletePorts(ctx, ids); err != nil {
		return err
	}
	d.forgetPorts(ids...)
	var errs []error
	for _, id := range ids {
		errs = append(errs, d.endpoints.Released(ctx, id))
	}
	return errors.Join(errs...)
}

// forgetPorts lets go of the hints about ports that are no more.
func (d *Driver) forgetPorts(ids ...sdn.ID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, id := range ids {
		delete(d.answered, id)
		delete(d.refusals, id)
		delete(d.made, d.madeAs[id])
		delete(d.madeAs, id)
	}
}

// refused remembers that the engine will release addresses that are another endpoint's: those of a CreateEndpoint that was
// refused because of it.
func (d *Driver) refused(port sdn.Port, addresses []netip.Prefix) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range addresses {
		if slices.ContainsFunc(port.Addresses, func(has sdn.Address) bool { return has.Addr == a.Addr() }) {
			if d.refusals[port.ID] == nil {
				d.refusals[port.ID] = map[netip.Addr]int{}
			}
			d.refusals[port.ID][a.Addr()]++
		}
	}
}

// wasRefused tells whether a release is the one that follows a refusal.
func (d *Driver) wasRefused(port sdn.ID, addr netip.Addr) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	byAddr := d.refusals[port]
	if byAddr[addr] == 0 {
		return false
	}
	if byAddr[addr]--; byAddr[addr] == 0 {
		delete(byAddr, addr)
	}
	if len(byAddr) == 0 {
		delete(d.refusals, port)
	}
	return true
}

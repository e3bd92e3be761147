package docker

import (
	"context"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

// releaseAddress gives an address back. Gateways, auxiliary addresses and what is not there any more have no port.
func (d *Driver) releaseAddress(ctx context.Context, r *releaseAddressRequest) (any, error) {
	subnet, found, err := d.subnetOf(ctx, sdn.ID(r.PoolID))
	if err != nil || !found {
		return nothing{}, err
	}
	query := sdn.PortQuery{Subnets: []sdn.ID{subnet.ID}, Addresses: []netip.Addr{r.addr}}
	port, found, err := sdn.First(d.sdn.FindPorts(ctx, query))
	if err != nil || !found || !d.ours(port.Meta, kindPort) {
		return nothing{}, err
	}
	if port.DeviceID != "" {
		if d.wasRefused(port.ID, r.addr) {
			return nothing{}, nil
		}
		unlock, err := d.locks.lock(ctx, "endpoint/"+port.DeviceID)
		if err != nil {
			return nil, err
		}
		defer unlock()
	}
	return nothing{}, retryStale(func(again bool) (err error) {
		if again {
			if port, err = d.sdn.Port(ctx, port.ID); sdn.IsNotFound(err) {
				return nil
			} else if err != nil {
				return err
			}
		}
		return d.freeAddress(ctx, port, r.addr)
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
			return d.sdn.DeletePort(ctx, port.ID, port.Revision)
		}
		patch.Addresses = &left
		_, err := d.sdn.UpdatePort(ctx, port.ID, patch)
		return err
	}
	if tags, missing := withTag(port.Tags, tagFreed+addr.String()); missing {
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
	freed := tagValues(port.Tags, tagFreed)
	return slices.DeleteFunc(slices.Clone(port.Addresses), func(a sdn.Address) bool { return slices.Contains(freed, a.Addr.String()) })
}

// dropEndpoint takes away all that an endpoint has, the port last.
func (d *Driver) dropEndpoint(ctx context.Context, port sdn.Port) error {
	if err := d.unpublish(ctx, port.DeviceID); err != nil {
		return err
	}
	if err := d.unplug(ctx, port); err != nil {
		return err
	}
	failpoint.Here("docker.dropendpoint.unplugged")
	return d.sdn.DeletePorts(ctx, []sdn.ID{port.ID})
}

// refusedAddress is an address that a second endpoint was refused because a first one has it.
type refusedAddress struct {
	port sdn.ID
	addr netip.Addr
}

// refused remembers that the engine will release addresses that are another endpoint's: those of a CreateEndpoint that was
// refused because of it.
func (d *Driver) refused(port sdn.Port, addresses []netip.Prefix) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range addresses {
		if slices.ContainsFunc(port.Addresses, func(has sdn.Address) bool { return has.Addr == a.Addr() }) {
			d.refusals[refusedAddress{port.ID, a.Addr()}]++
		}
	}
}

// wasRefused tells whether a release is the one that follows a refusal.
func (d *Driver) wasRefused(port sdn.ID, addr netip.Addr) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := refusedAddress{port, addr}
	n := d.refusals[key]
	switch n {
	case 0:
		return false
	case 1:
		delete(d.refusals, key)
	default:
		d.refusals[key] = n - 1
	}
	return true
}

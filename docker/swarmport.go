package docker

import (
	"context"
	"net"
	"net/netip"
	"slices"

	"github.com/google/uuid"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

// held are the tags of a port by which a swarm's manager has it.
func held(p sdn.Port) []string {
	var tags []string
	for _, life := range identity.Values(p.Tags, identity.TagHeld) {
		tags = append(tags, identity.TagHeld+life)
	}
	return tags
}

// managerAddress is an address that a swarm's manager takes, for a task or as a service's VIP. A manager that was restarted
// takes all again that it had: those are its own already. One that takes the same twice in one life means two.
func (d *Driver) managerAddress(ctx context.Context, s sdn.Subnet, r *api.RequestAddressRequest, life string) (any, error) {
	mark := identity.TagHeld + life
	if r.Address.IsValid() {
		port, found, err := d.portAt(ctx, s, r.Address)
		if err != nil {
			return nil, err
		}
		if found {
			return d.holdAgain(ctx, s, port, r.Address, mark)
		}
	}
	port, answer, err := d.takeAddress(ctx, s, r, mark)
	if err != nil {
		return nil, err
	}
	d.give(port.ID)
	return answer, nil
}

func (d *Driver) portAt(ctx context.Context, s sdn.Subnet, a netip.Addr) (sdn.Port, bool, error) {
	return sdn.First(d.sdn.FindPorts(ctx, sdn.PortQuery{Subnets: []sdn.ID{s.ID}, Addresses: []netip.Addr{a}}))
}

// holdAgain gives a manager the address that it had in an earlier life, or was not told that it has.
func (d *Driver) holdAgain(ctx context.Context, s sdn.Subnet, port sdn.Port, a netip.Addr, mark string) (any, error) {
	err := retryStale(func(again bool) (err error) {
		if again {
			if port, err = d.sdn.Port(ctx, port.ID); err != nil {
				return err
			}
		}
		has := held(port)
		switch {
		case !d.names.Ours(port.Meta, identity.KindPort, identity.KindEndpoint),
			slices.Contains(has, mark) && d.given(port.ID),
			len(has) == 0 && port.DeviceID != "":
			return refuse("address %s is in use", a)
		}
		tags := append(without(has...)(port.Tags), mark)
		_, err = d.sdn.UpdatePort(ctx, port.ID, sdn.PortPatch{Patch: sdn.Patch{IfRevision: port.Revision, Tags: &tags}})
		return err
	})
	if err != nil {
		return nil, err
	}
	failpoint.Here("docker.swarm.held")
	d.give(port.ID)
	return api.NewRequestAddressResponse(a, s.CIDR.Bits()), nil
}

// nodeAddress is an address that a node asks for: mostly the one that the manager took for the task, whose port waits.
func (d *Driver) nodeAddress(ctx context.Context, s sdn.Subnet, r *api.RequestAddressRequest) (any, error) {
	if r.Address.IsValid() {
		port, found, err := d.portAt(ctx, s, r.Address)
		if err != nil {
			return nil, err
		}
		if found && len(held(port)) > 0 {
			if port.DeviceID != "" {
				return nil, identity.InUse(port)
			}
			return api.NewRequestAddressResponse(r.Address, s.CIDR.Bits()), nil
		}
	}
	return d.endpointAddress(ctx, s, r)
}

// releaseHeld is a ReleaseAddress in a swarm's network. The manager's and the node's come in either order; a port goes when
// the manager does not hold it and no endpoint has it.
func (d *Driver) releaseHeld(ctx context.Context, port sdn.Port, r *api.ReleaseAddressRequest) error {
	if r.PoolID.Node {
		return d.releaseByNode(ctx, port, r.Address)
	}
	return retryStale(func(again bool) (err error) {
		if again {
			if port, err = d.sdn.Port(ctx, port.ID); sdn.IsNotFound(err) {
				return nil
			} else if err != nil {
				return err
			}
		}
		mine := held(port)
		switch {
		case len(mine) == 0:
			return nil // released before; what is left is the node's
		case port.DeviceID == "":
			err = d.freeAddress(ctx, port, r.Address)
		default:
			tags := without(mine...)(port.Tags)
			_, err = d.sdn.UpdatePort(ctx, port.ID, sdn.PortPatch{Patch: sdn.Patch{IfRevision: port.Revision, Tags: &tags}})
		}
		if err == nil {
			d.takeBack(port.ID)
		}
		return err
	})
}

// releaseByNode: what the manager holds stays, but an endpoint that still has it is one whose DeleteEndpoint was lost.
func (d *Driver) releaseByNode(ctx context.Context, port sdn.Port, addr netip.Addr) error {
	if port.DeviceID != "" && (port.Host != d.host || d.wasRefused(port.ID, addr)) {
		return nil
	}
	if port.DeviceID != "" {
		unlock, err := d.locks.lock(ctx, "endpoint/"+port.DeviceID)
		if err != nil {
			return err
		}
		defer unlock()
	}
	return retryStale(func(again bool) (err error) {
		if again {
			device := port.DeviceID
			port, err = d.sdn.Port(ctx, port.ID)
			if sdn.IsNotFound(err) || err == nil && port.DeviceID != device && port.DeviceID != "" {
				return nil
			}
			if err != nil {
				return err
			}
		}
		if len(held(port)) == 0 {
			return d.freeAddress(ctx, port, addr)
		}
		if port.DeviceID == "" {
			return nil
		}
		return d.dropEndpoint(ctx, port)
	})
}

// yieldMAC takes a MAC from a port that waits for its manager's release and has it of an endpoint that is no more.
func (d *Driver) yieldMAC(ctx context.Context, network sdn.ID, mac net.HardwareAddr) (yielded bool, err error) {
	query := sdn.PortQuery{Networks: []sdn.ID{network}, MACs: []net.HardwareAddr{mac}}
	port, found, err := sdn.First(d.sdn.FindPorts(ctx, query))
	if err != nil || !found || port.DeviceID != "" || len(held(port)) == 0 {
		return false, err
	}
	random := uuid.New()
	other := net.HardwareAddr(random[10:16])
	other[0] = other[0]&^1 | 2
	_, err = d.sdn.UpdatePort(ctx, port.ID, sdn.PortPatch{Patch: sdn.Patch{IfRevision: port.Revision}, MAC: other})
	return err == nil, err
}

// give, given and takeBack keep which ports this process has answered a manager with: a hint, not state.
func (d *Driver) give(port sdn.ID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answered[port] = true
}

func (d *Driver) given(port sdn.ID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.answered[port]
}

func (d *Driver) takeBack(port sdn.ID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.answered, port)
}

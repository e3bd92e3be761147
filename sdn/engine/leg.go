package engine

import (
	"context"
	"slices"

	"github.com/kuryr/kuryr/sdn"
)

// A router's leg on a subnet is a port of the SDN's own. It is made with the leg, or was a caller's
// before; either goes with the leg.

// AttachPort makes a port the router's leg on the subnets it has addresses of. From then on it is
// the SDN's own: it has no groups, counts against no quota, and goes when the router leaves the
// last of its subnets.
func (e *Engine) AttachPort(ctx context.Context, router, port sdn.ID) error {
	return e.changeRouter(ctx, router, func(t *tx, r *RouterRow) error {
		row, err := Ports.Need(t.Tx, port)
		if err != nil {
			return err
		}
		switch {
		case slices.ContainsFunc(r.Interfaces, func(leg sdn.RouterInterface) bool { return leg.Port == port }):
			return nil
		case row.Own:
			return inUse("port", port, "it is the SDN's own (%s)", row.DeviceOwner)
		case row.Host != "" || row.DeviceID != "":
			return inUse("port", port, "it is of the device %q", row.DeviceID)
		case len(row.Addresses) == 0:
			return sdn.Invalid("router", "port", "%s has no address", port)
		}
		if err := t.checkNotInTrunk(row); err != nil {
			return err
		}
		if err := t.checkLeft(port, row.Addresses); err != nil {
			return err
		}
		n, err := Networks.Need(t.Tx, row.Network)
		if err != nil {
			return err
		}
		for _, a := range row.Addresses {
			if err := t.addLeg(r, n, sdn.RouterInterface{Subnet: a.Subnet, Addr: a.Addr, Port: port}); err != nil {
				return err
			}
		}
		n.Ports--
		if err := t.joinRouter(n); err != nil {
			return err
		}
		if err := t.count(Ports.Noun, row.Project, -1); err != nil {
			return err
		}
		row.Own, row.DeviceID, row.DeviceOwner = true, string(r.ID), sdn.OwnerRouterInterface
		row.NoPortSecurity, row.Groups, row.QoSPolicy, row.AllowedPairs = true, nil, "", nil
		if err := Ports.put(t, row); err != nil {
			return err
		}
		return Routers.put(t, r)
	})
}

// DetachPort takes the leg away that is the port, from all its subnets in one transaction.
func (e *Engine) DetachPort(ctx context.Context, router, port sdn.ID) error {
	return e.detach(ctx, router, func(leg sdn.RouterInterface) bool { return leg.Port == port })
}

// detach takes a router's selected legs away, or none of them.
func (e *Engine) detach(ctx context.Context, router sdn.ID, selects func(sdn.RouterInterface) bool) error {
	return e.release(ctx, func(t *tx) error {
		r, err := Routers.Get(t.Tx, router)
		if err != nil || r == nil || !slices.ContainsFunc(r.Interfaces, selects) {
			return err
		}
		for i, leg := range r.Interfaces {
			if !selects(leg) {
				continue
			}
			if err := t.checkDetach(r, i); err != nil {
				return err
			}
		}
		left := []sdn.ID{}
		for i := slices.IndexFunc(r.Interfaces, selects); i >= 0; i = slices.IndexFunc(r.Interfaces, selects) {
			if err := t.dropLeg(r, i); err != nil {
				return err
			}
			left = append(left, r.Networks[i])
			r.Interfaces = slices.Delete(r.Interfaces, i, i+1)
			r.Networks = slices.Delete(r.Networks, i, i+1)
		}
		if err := Routers.put(t, r); err != nil {
			return err
		}
		slices.Sort(left)
		for _, network := range slices.Compact(left) {
			if slices.Contains(r.Networks, network) {
				continue
			}
			if err := t.settleApart(network); err != nil {
				return err
			}
		}
		return nil
	})
}

// addLeg writes a leg into r, unless the router cannot be there.
func (t *tx) addLeg(r *RouterRow, n *NetworkRow, leg sdn.RouterInterface) error {
	s, err := Subnets.Need(t.Tx, leg.Subnet)
	if err != nil {
		return err
	}
	if err := t.checkAttach(r, n, s); err != nil {
		return err
	}
	r.Interfaces = append(r.Interfaces, leg)
	r.Networks = append(r.Networks, n.ID)
	return t.checkRouterScopes(r)
}

// joinRouter writes a network that is to be on a router, where it has no domain of its own.
func (t *tx) joinRouter(n *NetworkRow) error {
	n.Own = false
	return Networks.write(t, n)
}

// dropLeg gives back what leg i holds: its port, or the address alone where the port is a leg on other subnets too.
func (t *tx) dropLeg(r *RouterRow, i int) error {
	leg := r.Interfaces[i]
	for other, l := range r.Interfaces {
		if other == i || l.Port != leg.Port {
			continue
		}
		row, err := Ports.Need(t.Tx, leg.Port)
		if err != nil {
			return err
		}
		gone := sdn.Address{Subnet: leg.Subnet, Addr: leg.Addr}
		row.Addresses = slices.DeleteFunc(row.Addresses, func(a sdn.Address) bool { return a == gone })
		if err := t.giveBack([]sdn.Address{gone}); err != nil {
			return err
		}
		return Ports.put(t, row)
	}
	return t.dropOwnPort(leg.Port)
}

package docker

import (
	"context"
	"net/netip"
	"slices"

	"github.com/google/uuid"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

// A container can have a floating IP of its own (api.OptFloatingIP). It comes with Join, which every endpoint gets, and not with
// ProgramExternalConnectivity, which only that of a container's default gateway gets; it goes with Leave, or whatever takes the endpoint away.
// The port's tag tells that there is one. One that was there before is its user's: it leads to the port meanwhile, and nowhere after.

// checkFloating refuses what cannot be before anything is made. A floating IP that leads to the endpoint's port already is left as it is, and the
// option means nothing more.
func (d *Driver) checkFloating(ctx context.Context, ports []sdn.Port, o *api.EndpointOptions) error {
	if o.FloatingIP == "" {
		return nil
	}
	if can := d.sdn.Capabilities(); !can.FloatingIPs || !can.Routers {
		return refuse("option %s: this SDN has no floating IPs", api.OptFloatingIP)
	}
	if o.FloatingIP == api.FloatingAuto {
		return nil
	}
	found, err := d.floatingIP(ctx, o.FloatingIP, func(f sdn.FloatingIP) bool {
		return slices.ContainsFunc(ports, func(p sdn.Port) bool { return p.ID == f.Target.Port })
	})
	switch {
	case err != nil:
		return err
	case found == nil && uuid.Validate(o.FloatingIP) == nil:
		return refuse("option %s: there is no floating IP %s", api.OptFloatingIP, o.FloatingIP)
	case found == nil || found.Target.Port == "" && found.Key.IsZero():
		return nil
	}
	for _, p := range ports {
		if found.Target.Port == p.ID {
			if found.Key.IsZero() && !slices.Contains(p.Tags, identity.TagFloating+o.FloatingIP) {
				o.FloatingIP = ""
			}
			return nil
		}
	}
	return refuse("option %s: floating IP %s is in use", api.OptFloatingIP, found.Address)
}

// float makes or takes the floating IP that a port's user asked for, and leads it to the port.
func (d *Driver) float(ctx context.Context, port sdn.Port) error {
	for _, asked := range identity.Values(port.Tags, identity.TagFloating) {
		if err := d.floatTo(ctx, port, asked); err != nil {
			return err
		}
		failpoint.Here("docker.join.floating")
	}
	return nil
}

func (d *Driver) floatTo(ctx context.Context, port sdn.Port, asked string) error {
	target, ok := floatingTarget(port, asked)
	if !ok {
		return refuse("option %s: the endpoint has no address that %s can lead to", api.OptFloatingIP, asked)
	}
	spec := sdn.FloatingIPSpec{Base: sdn.Base{Key: d.names.GlobalKey(identity.KindFloating, identity.EndpointOf(port))}, Target: target}
	if asked != api.FloatingAuto {
		found, err := d.floatingIP(ctx, asked, func(f sdn.FloatingIP) bool { return f.Target.Port == port.ID })
		if err != nil {
			return err
		}
		switch {
		case found == nil && uuid.Validate(asked) == nil:
			return refuse("option %s: there is no floating IP %s", api.OptFloatingIP, asked)
		case found != nil && found.Key != spec.Key:
			return d.takeFloating(ctx, *found, target)
		}
		spec.Address, _ = netip.ParseAddr(asked)
		if found != nil {
			spec.Address = found.Address
		}
	}
	var err error
	if spec.Network, err = d.outside(ctx, port, target); err != nil {
		return err
	}
	_, err = d.sdn.EnsureFloatingIP(ctx, spec)
	switch {
	case sdn.ReasonOf(err) == sdn.AddressInUse:
		return refuseFor(err, "option %s: address %s is in use", api.OptFloatingIP, asked)
	case sdn.IsDenied(err) && asked != api.FloatingAuto:
		return refuseFor(err, "option %s: the SDN does not let Kuryr choose a floating IP's address: let somebody who may make it, and give its id", api.OptFloatingIP)
	}
	return err
}

// floatingTarget is the address of a port that a floating IP leads to: the first of the family of the one that is asked for, else of IPv4.
func floatingTarget(port sdn.Port, asked string) (sdn.Target, bool) {
	address, err := netip.ParseAddr(asked)
	v6 := err == nil && address.Is6()
	for _, a := range port.Addresses {
		if a.Addr.Is6() == v6 {
			return sdn.Target{Port: port.ID, Addr: a.Addr}, true
		}
	}
	return sdn.Target{}, false
}

// floatingIP is the one that an address or an id means, nil if there is none. Where networks of the outside have overlapping ranges, an address may be
// that of several: then the one is meant that has is true of, and if it is not of exactly one, none is chosen.
func (d *Driver) floatingIP(ctx context.Context, asked string, has func(sdn.FloatingIP) bool) (*sdn.FloatingIP, error) {
	found, err := d.floatingIPs(ctx, asked)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	if len(found) == 1 {
		return &found[0], nil
	}
	if i := slices.IndexFunc(found, has); i >= 0 && !slices.ContainsFunc(found[i+1:], has) {
		return &found[i], nil
	}
	return nil, refuse("option %s: several floating IPs have the address %s, such as %s and %s: give the id of the one that is meant", api.OptFloatingIP, asked, found[0].ID, found[1].ID)
}

// floatingIPs are all that an address or an id means.
func (d *Driver) floatingIPs(ctx context.Context, asked string) ([]sdn.FloatingIP, error) {
	query := sdn.FloatingIPQuery{Match: sdn.Match{IDs: []sdn.ID{sdn.ID(asked)}}}
	if address, err := netip.ParseAddr(asked); err == nil {
		query = sdn.FloatingIPQuery{Addresses: []netip.Addr{address}}
	}
	return sdn.All(d.sdn.FindFloatingIPs(ctx, query))
}

// takeFloating leads a floating IP that was there before to a port, unless it leads elsewhere.
func (d *Driver) takeFloating(ctx context.Context, f sdn.FloatingIP, target sdn.Target) error {
	if !f.Key.IsZero() || f.Target.Port != "" && f.Target.Port != target.Port {
		return refuse("option %s: floating IP %s is in use", api.OptFloatingIP, f.Address)
	}
	if f.Target == target {
		return nil
	}
	_, err := d.sdn.UpdateFloatingIP(ctx, f.ID, sdn.FloatingIPPatch{Patch: sdn.Patch{IfRevision: f.Revision}, Target: &target})
	if sdn.ReasonOf(err) == sdn.Stale {
		return refuseFor(err, "option %s: floating IP %s was taken by another", api.OptFloatingIP, f.Address)
	}
	return err
}

// outside is the external network that the router of an address leads to.
func (d *Driver) outside(ctx context.Context, port sdn.Port, target sdn.Target) (sdn.ID, error) {
	for _, a := range port.Addresses {
		if a.Addr != target.Addr {
			continue
		}
		for router, err := range d.sdn.FindRouters(ctx, sdn.RouterQuery{Subnets: []sdn.ID{a.Subnet}}) {
			if err != nil {
				return "", err
			}
			if router.Gateway != nil && router.Gateway.Network != "" {
				return router.Gateway.Network, nil
			}
		}
	}
	return "", refuse("option %s: no router leads from the network to the outside", api.OptFloatingIP)
}

// letFloat takes back what float gave: what it made goes, what was there before leads nowhere again.
func (d *Driver) letFloat(ctx context.Context, port sdn.Port) error {
	if len(identity.Values(port.Tags, identity.TagFloating)) == 0 || port.Host != d.host {
		return nil
	}
	own := d.names.GlobalKey(identity.KindFloating, identity.EndpointOf(port))
	found, err := sdn.All(d.sdn.FindFloatingIPs(ctx, sdn.FloatingIPQuery{Ports: []sdn.ID{port.ID}}))
	if err != nil {
		return err
	}
	for _, f := range found {
		switch {
		case f.Key == own:
			err = d.sdn.DeleteFloatingIP(ctx, f.ID)
		case f.Key.IsZero() && meant(port, f):
			_, err = d.sdn.UpdateFloatingIP(ctx, f.ID, sdn.FloatingIPPatch{Patch: sdn.Patch{IfRevision: f.Revision}, Target: &sdn.Target{}})
		}
		if err != nil && !sdn.IsNotFound(err) {
			return err
		}
		failpoint.Here("docker.leave.floating")
	}
	return nil
}

// dropFloating deletes the floating IP that was made for an endpoint whose port is gone.
func (d *Driver) dropFloating(ctx context.Context, endpoint string) error {
	if !d.sdn.Capabilities().FloatingIPs {
		return nil
	}
	query := sdn.FloatingIPQuery{Match: sdn.Match{Keys: []sdn.Key{d.names.GlobalKey(identity.KindFloating, endpoint)}}}
	found, there, err := sdn.First(d.sdn.FindFloatingIPs(ctx, query))
	if err != nil || !there {
		return err
	}
	return d.sdn.DeleteFloatingIP(ctx, found.ID)
}

// meant tells whether a floating IP is the one that a port's user asked for.
func meant(port sdn.Port, f sdn.FloatingIP) bool {
	for _, asked := range identity.Values(port.Tags, identity.TagFloating) {
		if asked == string(f.ID) || asked == f.Address.String() {
			return true
		}
	}
	return false
}

package neutron

import (
	"context"
	"net/netip"
	"net/url"

	l3 "github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/layer3/routers"
	"github.com/kuryr/kuryr/sdn"
)

// legKind is the kind of the Keys of ports that are made to become a router's leg at an address of its own.
const legKind = "router-leg"

func (p *Provider) legKey(router, subnet sdn.ID) sdn.Key {
	return sdn.Key{Owner: p.config.Installation, Kind: legKind, Name: string(router) + "/" + string(subnet)}
}

// AttachSubnet gives a router a leg on a subnet. It asks for what is to be and looks for the leg only where that is refused: Neutron answers 400
// where the router has one already, and 409 where another call is giving it one.
func (p *Provider) AttachSubnet(ctx context.Context, router, subnet sdn.ID, addr netip.Addr) error {
	if router == "" {
		return sdn.NotFound("router", router)
	}
	if subnet == "" {
		return sdn.NotFound("subnet", subnet)
	}
	// Of several calls that give one router the same leg Neutron may answer some after minutes only.
	unlock, err := p.locks.lock(ctx, "leg of "+string(router)+" on "+string(subnet))
	if err != nil {
		return err
	}
	defer unlock()
	if addr.IsValid() {
		s, err := p.Subnet(ctx, subnet)
		if err != nil {
			return err
		}
		if addr != s.Gateway {
			return p.attachAt(ctx, router, s, addr)
		}
	}
	err = p.addLeg(ctx, router, l3.AddInterfaceOpts{SubnetID: string(subnet)})
	if err == nil || sdn.IsNotFound(err) || sdn.IsDenied(err) {
		return err
	}
	return p.attached(ctx, router, subnet, addr, err)
}

// addLeg gives a router a leg. While another call is at the same leg, which is not to be seen yet, it is asked for again: Neutron says then that it is there.
func (p *Provider) addLeg(ctx context.Context, router sdn.ID, leg l3.AddInterfaceOpts) error {
	for n := 1; ; n++ {
		id := url.PathEscape(string(router))
		err := p.client.typed(l3.AddInterface(once(ctx), p.client.api(), id, leg).Err)
		if sdn.ReasonOf(err) != sdn.Stale || n == maxRaces || !p.client.backoff(ctx, n, err) {
			return err
		}
	}
}

// attached judges a refusal to attach, or a lost answer, by what there is.
func (p *Provider) attached(ctx context.Context, router, subnet sdn.ID, addr netip.Addr, refusal error) error {
	leg, err := p.legOn(ctx, router, subnet)
	if err != nil {
		return refusal
	}
	if leg.Subnet != "" {
		if addr.IsValid() && addr != leg.Addr {
			return immutable("router", string(router), "addr", leg.Addr, addr)
		}
		return nil
	}
	if !sdn.IsInvalid(refusal) {
		return refusal
	}
	// Neutron's 400 is one error for all that is wrong. A subnet that cannot be attached for want of a gateway is the caller's
	// mistake; else it stands in the way of another leg.
	s, err := p.Subnet(ctx, subnet)
	if err != nil {
		return err
	}
	if !addr.IsValid() && !s.Gateway.IsValid() {
		return sdn.Invalid("router", "addr", "is missing, and %v has no gateway address", s.CIDR)
	}
	return conflictOf(refusal, sdn.Exists, "subnet")
}

// conflictOf says again as a conflict what Neutron called a bad request.
func conflictOf(refusal error, reason sdn.Reason, field string) error {
	return &sdn.Error{Kind: sdn.KindConflict, Reason: reason, Noun: "router", Field: field, Detail: "the subnet cannot be attached", Err: refusal}
}

// legOn gives a router's leg on a subnet; the zero one is none.
func (p *Provider) legOn(ctx context.Context, router, subnet sdn.ID) (sdn.RouterInterface, error) {
	legs, err := p.legs(ctx, []string{string(router)})
	if err != nil {
		return sdn.RouterInterface{}, err
	}
	for _, leg := range legs[string(router)] {
		if leg.Subnet == subnet {
			return leg, nil
		}
	}
	return sdn.RouterInterface{}, nil
}

// legLooks is how often one looks at a port that another call has made to become a leg: eight seconds in all, in which that call asks for the leg.
const legLooks = 6

// attachAt gives a router a leg at an address that is not the subnet's gateway. Neutron wants a port for that, which becomes the leg and goes with it. Who
// made the port gives it to the router, and nobody else does: a Neutron that is asked twice at once takes from the port what the first has written there, and keeps
// a leg that it no longer shows. Others wait for that leg.
func (p *Provider) attachAt(ctx context.Context, router sdn.ID, s sdn.Subnet, addr netip.Addr) error {
	want := fixedIP{Subnet: s.ID, Addr: addr.String()}
	for range maxRaces {
		r, err := p.Router(ctx, router)
		if err != nil {
			return err
		}
		for _, leg := range r.Interfaces {
			if leg.Subnet == s.ID {
				if leg.Addr != addr {
					return immutable("router", string(router), "addr", leg.Addr, addr)
				}
				return nil
			}
		}
		base := sdn.Base{Key: p.legKey(router, s.ID), Project: r.Project}
		port, made, err := ensure(ctx, p, legPorts, base, before, func(ctx context.Context) (*legWire, error) {
			body := p.body(base)
			body["network_id"] = s.Network
			body["fixed_ips"] = []fixedIP{want}
			return legPorts.create(ctx, p.client, body)
		})
		if err != nil {
			return inField(err, "addr")
		}
		if made {
			err = p.becomeLeg(ctx, router, s.ID, addr, port)
			if !sdn.IsNotFound(err) {
				return err
			}
			continue // somebody took the port for one that was left, or the router is gone
		}
		if err := p.awaitLeg(ctx, port); err != nil {
			return err
		}
	}
	return sdn.Unavailable(nil, "router", "several are giving it a leg on subnet %s at once: ask again", s.ID)
}

// becomeLeg makes a router's leg of a port that this call has made.
func (p *Provider) becomeLeg(ctx context.Context, router, subnet sdn.ID, addr netip.Addr, port *legWire) error {
	err := p.addLeg(ctx, router, l3.AddInterfaceOpts{PortID: port.ID})
	if err == nil || sdn.IsNotFound(err) {
		return err
	}
	if err = p.attached(ctx, router, subnet, addr, err); err != nil && !sdn.IsUnavailable(err) && sdn.ReasonOf(err) != sdn.Stale {
		if errDrop := p.dropLegPort(ctx, port, 0); errDrop != nil {
			p.log.Warn("a port that was to become a router's leg is left", "port", port.ID, "router", router, "error", errDrop)
		}
	}
	return err
}

// awaitLeg waits until something has become of a port that another call has made to become a leg. Where nothing does, that call did not come to its end: the
// port is removed as it is, and may be made anew.
func (p *Provider) awaitLeg(ctx context.Context, port *legWire) error {
	for n := 1; n <= legLooks; n++ {
		if !p.client.backoff(ctx, n, nil) {
			return sdn.Unavailable(context.Cause(ctx), "router", "another call is giving it this leg: ask again")
		}
		now, err := legPorts.read(ctx, p.client, sdn.ID(port.ID))
		switch {
		case sdn.IsNotFound(err):
			return nil
		case err != nil:
			return err
		case now.Revision != port.Revision:
			return nil
		}
	}
	return p.dropLegPort(ctx, port, int64(port.Revision))
}

// dropLegPort deletes a port that was to become a leg, if it still has the revision, where one is given. Neutron refuses it for one that has become a leg.
func (p *Provider) dropLegPort(ctx context.Context, port *legWire, ifRevision int64) error {
	if err := legPorts.erase(ctx, p.client, sdn.ID(port.ID), ifRevision); !sdn.IsConflict(err) {
		return err
	}
	return nil
}

// DetachSubnet takes a router's leg on a subnet away. Neutron deletes the leg's port with it, also one that was made for it.
func (p *Provider) DetachSubnet(ctx context.Context, router, subnet sdn.ID) error {
	if router == "" || subnet == "" {
		return nil
	}
	leg := l3.RemoveInterfaceOpts{SubnetID: string(subnet)}
	id := url.PathEscape(string(router))
	err := p.client.typed(l3.RemoveInterface(ctx, p.client.api(), id, leg).Err)
	if !sdn.IsNotFound(err) {
		return err
	}
	// No leg, but perhaps a port that was to become one, of a call that did not come to its end.
	for port, err := range legPorts.find(ctx, p.client, url.Values{"description": {p.legKey(router, subnet).String()}}) {
		if err != nil {
			return err
		}
		if !p.owner.has(port.Project) {
			continue
		}
		if err := p.dropLegPort(ctx, port, 0); err != nil {
			return err
		}
	}
	return nil
}

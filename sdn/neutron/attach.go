package neutron

import (
	"context"
	"net/http"
	"net/netip"
	"net/url"
	"slices"

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
	err = p.addLeg(ctx, router, map[string]any{"subnet_id": subnet})
	if err == nil || sdn.IsNotFound(err) || sdn.IsDenied(err) {
		return err
	}
	return p.attached(ctx, router, subnet, addr, err)
}

// addLeg gives a router a leg. While another call is at the same leg, which is not to be seen yet, it is asked for again: Neutron says then that it is there.
func (p *Provider) addLeg(ctx context.Context, router sdn.ID, leg map[string]any) error {
	for n := 1; ; n++ {
		err := p.client.act(ctx, routers.at(router, "add_router_interface"), leg, nil)
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

// attachAt gives a router a leg at an address that is not the subnet's gateway. Neutron wants a port for that, which becomes the leg and goes with it. Two
// that do so at once make one port, for an address is one port's; who finds the other's finishes it.
func (p *Provider) attachAt(ctx context.Context, router sdn.ID, s sdn.Subnet, addr netip.Addr) error {
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
	key := p.legKey(router, s.ID)
	port, made, err := ensure(ctx, p, legPorts, key, false, func(ctx context.Context) (*legWire, error) {
		body := p.body(sdn.Base{Key: key, Project: r.Project})
		body["network_id"] = s.Network
		body["fixed_ips"] = []fixedIP{{Subnet: s.ID, Addr: addr.String()}}
		return legPorts.create(ctx, p.client, body)
	})
	if err != nil {
		return inField(err, "addr")
	}
	if !slices.Contains(port.Addresses, fixedIP{Subnet: s.ID, Addr: addr.String()}) {
		// Left by a call for another address that did not come to its end.
		if err := p.dropLegPort(ctx, port); err != nil {
			return err
		}
		return sdn.Unavailable(nil, "router", "a leg at another address was left half made; it is removed now: ask again")
	}
	if port.isLegOf(router) {
		return nil
	}
	err = p.addLeg(ctx, router, map[string]any{"port_id": port.ID})
	if err == nil {
		return nil
	}
	if err = p.attached(ctx, router, s.ID, addr, err); err != nil && made && !sdn.IsUnavailable(err) && sdn.ReasonOf(err) != sdn.Stale {
		if errDrop := p.dropLegPort(ctx, port); errDrop != nil {
			p.log.Warn("a port that was to become a router's leg is left", "port", port.ID, "router", router, "error", errDrop)
		}
	}
	return err
}

// dropLegPort deletes a port that was to become a leg. Neutron refuses it for one that has become a leg.
func (p *Provider) dropLegPort(ctx context.Context, port *legWire) error {
	if err := legPorts.erase(ctx, p.client, sdn.ID(port.ID), 0); !sdn.IsConflict(err) {
		return err
	}
	return nil
}

// DetachSubnet takes a router's leg on a subnet away. Neutron deletes the leg's port with it, also one that was made for it.
func (p *Provider) DetachSubnet(ctx context.Context, router, subnet sdn.ID) error {
	if router == "" || subnet == "" {
		return nil
	}
	err := p.client.do(ctx, http.MethodPut, routers.at(router, "remove_router_interface"), 0, map[string]any{"subnet_id": subnet}, nil)
	if !sdn.IsNotFound(err) {
		return err
	}
	// No leg, but perhaps a port that was to become one, of a call that did not come to its end.
	for port, err := range legPorts.find(ctx, p.client, url.Values{"description": {p.legKey(router, subnet).String()}}) {
		if err != nil {
			return err
		}
		if err := p.dropLegPort(ctx, port); err != nil {
			return err
		}
	}
	return nil
}

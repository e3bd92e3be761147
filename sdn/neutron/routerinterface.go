package neutron

import (
	"context"
	"net/netip"
	"net/url"

	l3 "github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/layer3/routers"
	"github.com/kuryr/kuryr/sdn"
)

// interfaceOwners are the device owners of a router's interfaces: of a plain router, of a distributed
// one and of a highly available one.
var interfaceOwners = []string{
	sdn.OwnerRouterInterface, "network:router_interface_distributed",
	"network:ha_router_replicated_interface",
}

// interfaceKind is the kind of the Keys of ports that are created for an address of their own, to
// become a router's interface.
const interfaceKind = "router-leg"

func (p *Provider) interfaceKey(router, subnet sdn.ID) sdn.Key {
	return sdn.Key{
		Owner: p.config.Installation, Kind: interfaceKind, Name: string(router) + "/" + string(subnet),
	}
}

// interfaces streams the ports with the filter that are routers' interfaces.
func (p *Provider) interfaces(
	ctx context.Context, filter url.Values, each func(port *portPart),
) error {
	filter["device_owner"] = interfaceOwners
	filter["fields"] = []string{"id", "device_id", "device_owner", "fixed_ips"}
	for w, err := range portParts.find(ctx, p, filter) {
		if err != nil {
			return err
		}
		each(w)
	}
	return nil
}

// interfacesOf returns routers' interfaces by router, by one request for a hundred routers.
func (p *Provider) interfacesOf(
	ctx context.Context, ids ...string,
) (map[string][]sdn.RouterInterface, error) {
	out := map[string][]sdn.RouterInterface{}
	if len(ids) == 0 {
		return out, nil
	}
	err := p.interfaces(ctx, url.Values{"device_id": ids}, func(w *portPart) {
		for _, a := range decodeAddresses(w.Addresses) {
			out[w.Device] = append(out[w.Device], sdn.RouterInterface{
				Subnet: a.Subnet, Addr: a.Addr, Port: sdn.ID(w.ID),
			})
		}
	})
	return out, err
}

// routersOn returns the ids of the routers that have an interface on one of the subnets.
func (p *Provider) routersOn(ctx context.Context, subnets []sdn.ID) (ids []string, err error) {
	filter := url.Values{}
	for _, s := range subnets {
		filter.Add("fixed_ips", "subnet_id="+string(s))
	}
	err = p.interfaces(ctx, filter, func(w *portPart) { ids = append(ids, w.Device) })
	return asSet(ids), err
}

// interfaceOn returns a router's interface on a subnet, the zero value if there is none.
func (p *Provider) interfaceOn(
	ctx context.Context, router, subnet sdn.ID,
) (sdn.RouterInterface, error) {
	all, err := p.interfacesOf(ctx, string(router))
	for _, i := range all[string(router)] {
		if i.Subnet == subnet {
			return i, err
		}
	}
	return sdn.RouterInterface{}, err
}

// AttachSubnet adds an interface to a router. It looks for the interface only if Neutron refuses the
// request: by 400 if the router has one already, by 409 if another call is adding it.
func (p *Provider) AttachSubnet(
	ctx context.Context, router, subnet sdn.ID, addr netip.Addr,
) error {
	if router == "" {
		return sdn.NotFound("router", router)
	}
	if subnet == "" {
		return sdn.NotFound("subnet", subnet)
	}
	// Neutron may answer some of several calls for one interface after minutes only.
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
	err = p.addInterface(ctx, router, l3.AddInterfaceOpts{SubnetID: string(subnet)})
	if err == nil || sdn.IsNotFound(err) || sdn.IsDenied(err) {
		return err
	}
	return p.attached(ctx, router, subnet, addr, err)
}

// addInterface repeats its request while another call is adding the same interface, which cannot be
// seen yet: afterwards Neutron says that it exists.
func (p *Provider) addInterface(
	ctx context.Context, router sdn.ID, opts l3.AddInterfaceOpts,
) error {
	for n := 1; ; n++ {
		id := url.PathEscape(string(router))
		err := p.client.typed(l3.AddInterface(once(ctx), p.client.api(), id, opts).Err)
		if sdn.ReasonOf(err) != sdn.Stale || n == maxRaces || !p.client.backoff(ctx, n, err) {
			return err
		}
	}
}

// attached judges a refusal to attach, or a lost answer, by what there is.
func (p *Provider) attached(
	ctx context.Context, router, subnet sdn.ID, addr netip.Addr, refusal error,
) error {
	has, err := p.interfaceOn(ctx, router, subnet)
	if err != nil {
		return refusal
	}
	if has.Subnet != "" {
		return sameAddr(router, has, addr)
	}
	if !sdn.IsInvalid(refusal) {
		return refusal
	}
	// Neutron's 400 is one error for all that is wrong. A subnet without a gateway needs an address;
	// any other overlaps another interface's.
	s, err := p.Subnet(ctx, subnet)
	if err != nil {
		return err
	}
	if !addr.IsValid() && !s.Gateway.IsValid() {
		return sdn.Invalid("router", "addr", "is missing, and %v has no gateway address", s.CIDR)
	}
	return &sdn.Error{
		Kind: sdn.KindConflict, Reason: sdn.Exists, Noun: "router", Field: "subnet",
		Detail: "the subnet cannot be attached", Err: refusal,
	}
}

// sameAddr refuses another address than that of an interface that exists.
func sameAddr(router sdn.ID, has sdn.RouterInterface, addr netip.Addr) error {
	if addr.IsValid() && addr != has.Addr {
		return immutable("router", string(router), "addr", has.Addr, addr)
	}
	return nil
}

// interfaceLooks is how often a call looks at a port that another has created for the same interface:
// in eight seconds that call requests the interface.
const interfaceLooks = 6

// attachAt adds an interface at an address that is not the subnet's gateway. Neutron needs a port for
// that, which becomes the interface and is deleted with it. Only the creator of the port adds it to
// the router: if two requests do, Neutron removes from the port what the first has written there,
// and keeps an interface that it no longer shows. Other calls wait for the interface.
func (p *Provider) attachAt(
	ctx context.Context, router sdn.ID, s sdn.Subnet, addr netip.Addr,
) error {
	for range maxRaces {
		r, err := p.Router(ctx, router)
		if err != nil {
			return err
		}
		for _, has := range r.Interfaces {
			if has.Subnet == s.ID {
				return sameAddr(router, has, addr)
			}
		}
		base := sdn.Base{Key: p.interfaceKey(router, s.ID), Project: r.Project}
		create := func(ctx context.Context) (*portPart, error) {
			body := p.body(base)
			body["network_id"] = s.Network
			body["fixed_ips"] = []fixedIP{{Subnet: s.ID, Addr: addr.String()}}
			return portParts.create(ctx, p, body)
		}
		port, made, err := ensure(ctx, p, portParts, base, before, create)
		if err != nil {
			return inField(err, "addr")
		}
		if !made {
			if err := p.awaitInterface(ctx, port); err != nil {
				return err
			}
			continue
		}
		err = p.becomeInterface(ctx, router, s.ID, addr, port)
		if !sdn.IsNotFound(err) {
			return err
		}
		// Another call has deleted the port as a remnant, or the router is gone.
	}
	return sdn.Unavailable(nil, "router",
		"several calls add its interface on subnet %s: ask again", s.ID)
}

// becomeInterface makes a port that this call has created an interface of the router.
func (p *Provider) becomeInterface(
	ctx context.Context, router, subnet sdn.ID, addr netip.Addr, port *portPart,
) error {
	err := p.addInterface(ctx, router, l3.AddInterfaceOpts{PortID: port.ID})
	if err == nil || sdn.IsNotFound(err) {
		return err
	}
	err = p.attached(ctx, router, subnet, addr, err)
	if err == nil || sdn.IsUnavailable(err) || sdn.ReasonOf(err) == sdn.Stale {
		return err
	}
	if errDrop := p.dropUnused(ctx, port, 0); errDrop != nil {
		p.log.Warn("port for a router's interface is left", "port", port.ID, "router", router,
			"err", errDrop)
	}
	return err
}

// awaitInterface waits until a port that another call has created changes. If it does not, that call
// has ended: the port is deleted, and may be created again.
func (p *Provider) awaitInterface(ctx context.Context, port *portPart) error {
	for n := 1; n <= interfaceLooks; n++ {
		if !p.client.backoff(ctx, n, nil) {
			return sdn.Unavailable(context.Cause(ctx), "router",
				"another call adds this interface: ask again")
		}
		now, err := portParts.read(ctx, p, sdn.ID(port.ID))
		if err != nil || now.Revision != port.Revision {
			return ignoreAbsent(err)
		}
	}
	return p.dropUnused(ctx, port, int64(port.Revision))
}

// dropUnused deletes a port for an interface at a revision; 0 is any. Neutron refuses to delete one
// that has become an interface.
func (p *Provider) dropUnused(ctx context.Context, port *portPart, ifRevision int64) error {
	err := portParts.erase(ctx, p, sdn.ID(port.ID), ifRevision)
	if sdn.IsConflict(err) {
		return nil
	}
	return err
}

// DetachSubnet removes a router's interface on a subnet. Neutron deletes the interface's port too.
func (p *Provider) DetachSubnet(ctx context.Context, router, subnet sdn.ID) error {
	if router == "" || subnet == "" {
		return nil
	}
	opts := l3.RemoveInterfaceOpts{SubnetID: string(subnet)}
	id := url.PathEscape(string(router))
	err := p.client.typed(l3.RemoveInterface(ctx, p.client.api(), id, opts).Err)
	if !sdn.IsNotFound(err) {
		return err
	}
	// There may be a port of a call that ended before it was an interface.
	key := url.Values{"description": {p.interfaceKey(router, subnet).String()}}
	for port, err := range portParts.find(ctx, p, key) {
		if err != nil {
			return err
		}
		if !p.owner.has(port.Project) {
			continue
		}
		if err := p.dropUnused(ctx, port, 0); err != nil {
			return err
		}
	}
	return nil
}

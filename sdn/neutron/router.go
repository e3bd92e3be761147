package neutron

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/kuryr/kuryr/internal/sortslice"
	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

// routers: with OVN a change of a router takes Neutron several steps, each of which counts its
// revision up and compares If-Match again. Such a request is answered 412 or 500 whatever the
// revision, and may be half done.
var routers = collection[*routerWire]{
	title: "router", item: "router", items: "routers", path: "/routers", readFirst: true,
}

// routerWire is a router. gophercloud's Router has none of meta, and its calls cannot empty a name.
type routerWire struct {
	meta
	Up      bool         `json:"admin_state_up"`
	Gateway *gatewayWire `json:"external_gateway_info"`
	Routes  []routeWire  `json:"routes"`
}

// gatewayWire is a router's way out. Its port belongs to no project and is invisible to the router's:
// what is known of it is here. gophercloud's GatewayInfo is the same, with a type of its own for
// addresses, which are those of ports here.
type gatewayWire struct {
	Network   string    `json:"network_id"`
	SNAT      *bool     `json:"enable_snat,omitempty"`
	Addresses []fixedIP `json:"external_fixed_ips,omitempty"`
}

func (w *routerWire) decode(o *owner) sdn.Router {
	r := sdn.Router{Meta: w.meta.decode(o), Disabled: !w.Up}
	if w.Gateway != nil {
		r.Gateway = &sdn.ExternalGateway{Network: sdn.ID(w.Gateway.Network), SNAT: w.Gateway.snat(), Addresses: decodeAddresses(w.Gateway.Addresses)}
	}
	for _, route := range w.Routes {
		destination, errPrefix := netip.ParsePrefix(route.DestinationCIDR)
		hop, errHop := netip.ParseAddr(route.NextHop)
		if errPrefix == nil && errHop == nil {
			r.Routes = append(r.Routes, sdn.HostRoute{Destination: destination, NextHop: hop})
		}
	}
	return r
}

// snat is true if Neutron cannot switch it off.
func (w *gatewayWire) snat() bool { return w.SNAT == nil || *w.SNAT }

// Router gets a router, and asks for its interfaces concurrently.
func (p *Provider) Router(ctx context.Context, id sdn.ID) (sdn.Router, error) {
	if id == "" {
		return sdn.Router{}, sdn.NotFound("router", id)
	}
	var w *routerWire
	var all map[string][]sdn.RouterInterface
	var errs [2]error
	var both sync.WaitGroup // the failure of one does not end the other, which may be the breaker's probe
	both.Go(func() { w, errs[0] = routers.read(ctx, p, id) })
	both.Go(func() { all, errs[1] = p.interfacesOf(ctx, string(id)) })
	both.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		return sdn.Router{}, err
	}
	r := w.decode(p.owner)
	r.Interfaces = all[w.ID]
	return r, nil
}

func (p *Provider) withInterfaces(ctx context.Context, w *routerWire) (sdn.Router, error) {
	all, err := p.interfacesOf(ctx, w.ID)
	r := w.decode(p.owner)
	r.Interfaces = all[w.ID]
	return r, err
}

// maxRouters is how many routers FindRouters asks the interfaces of by one request.
const maxRouters = 100

// FindRouters streams routers. It asks for the interfaces of many by one request. For subnets it asks
// first which routers have interfaces on them.
func (p *Provider) FindRouters(
	ctx context.Context, q sdn.RouterQuery,
) iter.Seq2[sdn.Router, error] {
	return func(yield func(sdn.Router, error) bool) {
		filter := p.query(q.Match)
		if len(q.Subnets) > 0 {
			ids, err := p.routersOn(ctx, q.Subnets)
			if err != nil {
				yield(sdn.Router{}, err)
				return
			}
			if len(q.IDs) > 0 {
				ids = slices.DeleteFunc(ids, func(id string) bool {
					return !slices.Contains(q.IDs, sdn.ID(id))
				})
			}
			if len(ids) == 0 {
				return
			}
			filter["id"] = ids
		}
		var some []*routerWire
		flush := func() bool {
			ids := make([]string, len(some))
			for i, w := range some {
				ids[i] = w.ID
			}
			all, err := p.interfacesOf(ctx, ids...)
			if err != nil {
				yield(sdn.Router{}, err)
				return false
			}
			for _, w := range some {
				r := w.decode(p.owner)
				r.Interfaces = all[w.ID]
				if q.Matches(r) && !yield(r, nil) {
					return false
				}
			}
			some = nil
			return true
		}
		for w, err := range routers.find(ctx, p, filter) {
			if err != nil {
				yield(sdn.Router{}, err)
				return
			}
			if some = append(some, w); len(some) == maxRouters && !flush() {
				return
			}
		}
		if len(some) > 0 {
			flush()
		}
	}
}

// checkRouterRoutes refuses what no router can have. Neutron checks that a next hop is on
// one of its subnets.
func checkRouterRoutes(routes []sdn.HostRoute) error {
	for i, r := range routes {
		if r.Connected() {
			return sdn.Invalid("router", fmt.Sprintf("routes[%d].next_hop", i), "a router needs one, not %v", r.NextHop)
		}
	}
	return valid.Routes("router", "routes", routes)
}

// sameRoutes compares sets: Neutron keeps no order.
func sameRoutes(have []routeWire, want []sdn.HostRoute) bool {
	byText := func(a, b routeWire) int {
		return strings.Compare(a.DestinationCIDR+" "+a.NextHop, b.DestinationCIDR+" "+b.NextHop)
	}
	there := slices.Compact(sortslice.Sorted(have, byText))
	wanted := slices.Compact(sortslice.Sorted(routeBodies(want), byText))
	return slices.Equal(there, wanted)
}

func (p *Provider) checkGateway(gw *sdn.ExternalGateway) error {
	switch {
	case gw == nil || isNoGateway(*gw):
		return nil
	case gw.Network == "":
		return sdn.Invalid("router", "gateway.network", "is missing")
	case !gw.SNAT && !p.extensions.has("ext-gw-mode"):
		return sdn.Unsupported("router", "this Neutron always translates what leaves by a gateway: it lacks the extension ext-gw-mode")
	}
	return nil
}

// isNoGateway reports whether gw is the zero one, which removes a gateway.
func isNoGateway(gw sdn.ExternalGateway) bool {
	return gw.Network == "" && !gw.SNAT && gw.Addresses == nil
}

// gatewayChange returns the body that changes a router's gateway, and false if nothing
// differs. It leaves out Neutron's defaults and what exists already: only administrators
// may write them (enable_snat, external_fixed_ips).
func gatewayChange(have *gatewayWire, want sdn.ExternalGateway) (any, bool) {
	if isNoGateway(want) {
		return map[string]any{}, have != nil
	}
	same := have != nil && have.Network == string(want.Network)
	body := gatewayWire{Network: string(want.Network)}
	if !want.SNAT || same && !have.snat() {
		body.SNAT = &want.SNAT
	}
	var there []fixedIP
	if same {
		there = have.Addresses
	}
	lacking := false
	for _, a := range want.Addresses {
		asked := fixedIP{Subnet: a.Subnet}
		if a.Addr.IsValid() {
			asked.Addr = a.Addr.String()
		}
		body.Addresses = append(body.Addresses, asked)
		lacking = lacking || !slices.ContainsFunc(there, func(f fixedIP) bool {
			return (asked.Subnet == "" || asked.Subnet == f.Subnet) && (asked.Addr == "" || asked.Addr == f.Addr)
		})
	}
	if !lacking {
		body.Addresses = nil
	}
	return body, !same || lacking || have.snat() != want.SNAT
}

// EnsureRouter makes, finishes or adopts a router. One that is New takes one request, and tags on
// top.
func (p *Provider) EnsureRouter(ctx context.Context, spec sdn.RouterSpec) (sdn.Router, error) {
	p.owner.note(spec.Project)
	err := errors.Join(valid.Base("router", spec.Base), checkRouterRoutes(spec.Routes),
		p.checkGateway(spec.Gateway))
	if err != nil {
		return sdn.Router{}, err
	}
	create := func(ctx context.Context) (*routerWire, error) {
		body := p.body(spec.Base)
		setNot(body, "admin_state_up", nonZero(spec.Disabled))
		if spec.Gateway != nil && !isNoGateway(*spec.Gateway) {
			body["external_gateway_info"], _ = gatewayChange(nil, *spec.Gateway)
		}
		return routers.create(ctx, p, body)
	}
	w, made, err := ensure(ctx, p, routers, spec.Base, ofNew(spec.New), create)
	if err != nil {
		return sdn.Router{}, inField(err, "gateway")
	}
	body := map[string]any{}
	setNot(body, "admin_state_up", unless(nonZero(spec.Disabled), !w.Up, is))
	if spec.Routes != nil && !sameRoutes(w.Routes, spec.Routes) {
		body["routes"] = routeBodies(spec.Routes)
	}
	untagged := spec.Base
	untagged.Tags = nil // they are written last
	if w, err = finished(ctx, p, routers, w, untagged, body); err != nil {
		return sdn.Router{}, err
	}
	if spec.Gateway != nil && !isNoGateway(*spec.Gateway) {
		if w, err = p.settleGateway(ctx, w, *spec.Gateway); err != nil {
			return sdn.Router{}, err
		}
	}
	if w, err = tagged(ctx, p, routers, w, spec.Tags); err != nil {
		return sdn.Router{}, err
	}
	if made {
		return w.decode(p.owner), nil // without interfaces
	}
	return p.withInterfaces(ctx, w)
}

// settleGateway changes a router's gateway to the wanted one. It may take two changes:
// the default of enable_snat is a setting of the Neutron, which shows only afterwards.
func (p *Provider) settleGateway(ctx context.Context, w *routerWire, want sdn.ExternalGateway) (*routerWire, error) {
	for range 2 {
		body, change := gatewayChange(w.Gateway, want)
		if !change {
			break
		}
		var err error
		if w, err = routers.update(ctx, p, sdn.ID(w.ID), 0, map[string]any{"external_gateway_info": body}); err != nil {
			return w, inField(err, "gateway")
		}
	}
	return w, nil
}

// UpdateRouter changes a router. For another gateway it reads the router first, as
// gatewayChange needs.
func (p *Provider) UpdateRouter(ctx context.Context, id sdn.ID, change sdn.RouterPatch) (sdn.Router, error) {
	body := map[string]any{}
	setNot(body, "admin_state_up", change.Disabled)
	if change.Routes != nil {
		if err := checkRouterRoutes(*change.Routes); err != nil {
			return sdn.Router{}, err
		}
		body["routes"] = routeBodies(*change.Routes)
	}
	if change.Gateway != nil {
		if err := p.checkGateway(change.Gateway); err != nil {
			return sdn.Router{}, err
		}
		now, err := routers.read(ctx, p, id)
		if err != nil {
			return sdn.Router{}, err
		}
		if gw, differs := gatewayChange(now.Gateway, *change.Gateway); differs {
			body["external_gateway_info"] = gw
		}
	}
	w, err := patch(ctx, p, routers, id, change.Patch, body)
	if err != nil {
		return sdn.Router{}, inField(err, "gateway")
	}
	if change.Gateway != nil {
		if w, err = p.settleGateway(ctx, w, *change.Gateway); err != nil {
			return sdn.Router{}, err
		}
	}
	return p.withInterfaces(ctx, w)
}

// DeleteRouter deletes a router with its gateway.
func (p *Provider) DeleteRouter(ctx context.Context, id sdn.ID) error {
	return routers.erase(ctx, p, id, 0)
}

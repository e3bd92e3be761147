package engine

import (
	"context"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

func (e *Engine) showRouter(b Tx, r *RouterRow) (sdn.Router, error) {
	e.fillMeta(&r.Meta)
	r.Unreached = e.realm.Unreached(r.ID)
	if r.Gateway == nil || !r.Withheld() || !e.realm.Supports().Routes {
		return r.Router, nil
	}
	for _, leg := range r.Interfaces {
		s, err := Subnets.Need(b, leg.Subnet)
		if err != nil {
			return r.Router, err
		}
		r.Unreached = append(r.Unreached, sdn.Unreached{Prefix: s.CIDR, Reason: sdn.UnreachedProject})
	}
	return r.Router, nil
}

// EnsureRouter makes, finishes or adopts a router.
func (e *Engine) EnsureRouter(ctx context.Context, spec sdn.RouterSpec) (out sdn.Router, err error) {
	if err := valid.Base("router", spec.Base); err != nil {
		return out, err
	}
	if err := valid.Routes("router", "routes", spec.Routes); err != nil {
		return out, err
	}
	var id sdn.ID
	err = e.update(ctx, func(t *tx) error {
		r, err := Routers.ensured(t, spec.Base)
		if err != nil {
			return err
		}
		changed := r == nil
		if r == nil {
			r = &RouterRow{Router: sdn.Router{Meta: newMeta(spec.Base)}}
		} else {
			if changed, err = adopt("router", &r.Meta, spec.Base); err != nil {
				return err
			}
		}
		id = r.ID
		changed = set(&r.Disabled, spec.Disabled) || changed
		if setRoutes := spec.Routes != nil && !slices.Equal(spec.Routes, r.Routes); setRoutes {
			if err := t.checkNextHops(r, spec.Routes); err != nil {
				return err
			}
			r.Routes, changed = spec.Routes, true
		}
		if spec.Gateway != nil {
			also, err := t.setGateway(r, spec.Gateway)
			if err != nil {
				return err
			}
			if err := t.checkRouterScopes(r); err != nil {
				return err
			}
			changed = also || changed
		}
		if !changed {
			return nil
		}
		return Routers.put(t, r)
	})
	if err != nil {
		return out, err
	}
	return e.Router(ctx, id)
}

// checkNextHops wants next hops to be on the router's subnets, and not the router itself.
func (t *tx) checkNextHops(r *RouterRow, routes []sdn.HostRoute) error {
	for i, route := range routes {
		field := fmt.Sprintf("routes[%d].next_hop", i)
		on := false
		for _, leg := range r.Interfaces {
			s, err := Subnets.Need(t.Tx, leg.Subnet)
			if err != nil {
				return err
			}
			if route.NextHop == leg.Addr {
				return sdn.Invalid("router", field, "%v is the router itself", route.NextHop)
			}
			if !s.CIDR.Contains(route.NextHop) {
				continue
			}
			on = true
			if !usable(s.CIDR).contains(route.NextHop) { // the kernel refuses such a route
				return sdn.Invalid("router", field, "%v is the network or broadcast address of %v", route.NextHop, s.CIDR)
			}
		}
		if !on {
			return sdn.Invalid("router", field, "%v is on no subnet of the router", route.NextHop)
		}
	}
	return nil
}

// Router gets a router.
func (e *Engine) Router(ctx context.Context, id sdn.ID) (sdn.Router, error) {
	return get(ctx, e, Routers, id, e.showRouter)
}

// FindRouters streams routers.
func (e *Engine) FindRouters(ctx context.Context, q sdn.RouterQuery) iter.Seq2[sdn.Router, error] {
	var bySubnet []scan
	for _, s := range q.Subnets {
		ids := []sdn.ID{}
		err := e.view(func(b Tx) error {
			if id := Routers.ID(b, "subnet", string(s)); id != "" {
				ids = append(ids, id)
			}
			return nil
		})
		if err != nil {
			return broken[sdn.Router](err)
		}
		bySubnet = append(bySubnet, scan{ids: ids})
	}
	scans, err := e.scansOf(ctx, Routers.Noun, q.Match, bySubnet, byProject(q.Match))
	if err != nil {
		return broken[sdn.Router](err)
	}
	return search(ctx, e, Routers, scans, e.showRouter, q.Matches)
}

// changeRouter runs f on a router in a transaction.
func (e *Engine) changeRouter(ctx context.Context, id sdn.ID, f func(*tx, *RouterRow) error) error {
	return e.update(ctx, func(t *tx) error {
		r, err := Routers.Need(t.Tx, id)
		if err != nil {
			return err
		}
		Routers.touch(t, r)
		return f(t, r)
	})
}

// UpdateRouter changes a router.
func (e *Engine) UpdateRouter(ctx context.Context, id sdn.ID, change sdn.RouterPatch) (out sdn.Router, err error) {
	if err := valid.Patch("router", change.Patch); err != nil {
		return out, err
	}
	if change.Routes != nil {
		if err := valid.Routes("router", "routes", *change.Routes); err != nil {
			return out, err
		}
	}
	err = e.changeRouter(ctx, id, func(t *tx, r *RouterRow) error {
		if err := Routers.patch(t, &r.Meta, change.Patch); err != nil {
			return err
		}
		if change.Routes != nil {
			if err := t.checkNextHops(r, *change.Routes); err != nil {
				return err
			}
			r.Routes = *change.Routes
		}
		if change.Disabled != nil {
			r.Disabled = *change.Disabled
		}
		switch {
		case change.Gateway == nil:
		case !isGateway(*change.Gateway):
			if FloatingIPs.any(t.Tx, "router", string(id)) {
				return inUse("router", id, "floating IPs use its gateway")
			}
			if err := t.dropGateway(r); err != nil {
				return err
			}
		default:
			if _, err := t.setGateway(r, change.Gateway); err != nil {
				return err
			}
			if err := t.checkRouterScopes(r); err != nil {
				return err
			}
		}
		return Routers.put(t, r)
	})
	if err != nil {
		return out, err
	}
	return e.Router(ctx, id)
}

// isGateway tells whether gw is not the zero one, which is none.
func isGateway(gw sdn.ExternalGateway) bool {
	return gw.Network != "" || gw.SNAT || gw.Addresses != nil
}

// AttachSubnet gives the router a leg on a subnet.
func (e *Engine) AttachSubnet(ctx context.Context, router, subnet sdn.ID, addr netip.Addr) error {
	return e.changeRouter(ctx, router, func(t *tx, r *RouterRow) error {
		s, err := Subnets.Need(t.Tx, subnet)
		if err != nil {
			return err
		}
		if i := slices.IndexFunc(r.Interfaces, func(leg sdn.RouterInterface) bool { return leg.Subnet == subnet }); i >= 0 {
			if addr.IsValid() && addr != r.Interfaces[i].Addr {
				return immutable("router", router, "addr", r.Interfaces[i].Addr, addr)
			}
			return nil
		}
		if addr == (netip.Addr{}) {
			addr = s.Gateway
		}
		if !addr.IsValid() {
			return sdn.Invalid("router", "addr", "is missing, and %v has no gateway address", s.CIDR)
		}
		n, err := Networks.Need(t.Tx, s.Network)
		if err != nil {
			return err
		}
		if err := t.checkAttach(r, n, s); err != nil {
			return err
		}
		if err := t.joinRouter(n); err != nil {
			return err
		}
		leg, err := t.ownPort(n, sdn.OwnerRouterInterface, router, []sdn.Address{{Subnet: subnet, Addr: addr}}, r.Project)
		if err != nil {
			return err
		}
		r.Interfaces = append(r.Interfaces, sdn.RouterInterface{Subnet: subnet, Addr: addr, Port: leg.ID})
		r.Networks = append(r.Networks, n.ID)
		if err := t.checkRouterScopes(r); err != nil {
			return err
		}
		return Routers.put(t, r)
	})
}

// checkAttach tells why network n's subnet s cannot be on router r.
func (t *tx) checkAttach(r *RouterRow, n *NetworkRow, s *subnetRow) error {
	holder := Routers.ID(t.Tx, "network", string(n.ID))
	switch {
	case n.External:
		return sdn.Invalid("router", "subnet", "%v is of an external network: set the router's gateway instead", s.CIDR)
	case holder != "" && holder != r.ID:
		return inUse("network", n.ID, "it is on another router")
	}
	for _, leg := range r.Interfaces {
		other, err := Subnets.Need(t.Tx, leg.Subnet)
		if err != nil {
			return err
		}
		if other.CIDR.Overlaps(s.CIDR) {
			return sdn.Conflict(sdn.Exists, "router", "subnet", "%v overlaps %v, which the router is on", s.CIDR, other.CIDR)
		}
	}
	return nil
}

// DetachSubnet takes a leg away.
func (e *Engine) DetachSubnet(ctx context.Context, router, subnet sdn.ID) error {
	return e.detach(ctx, router, func(leg sdn.RouterInterface) bool { return leg.Subnet == subnet })
}

// settleApart gives a network that left its router a domain of its own, if it has plugged ports that need one.
func (t *tx) settleApart(network sdn.ID) error {
	n, err := Networks.Need(t.Tx, network)
	if err != nil || n.Bound == 0 {
		return err
	}
	n.Own = true
	return Networks.write(t, n)
}

// checkDetach tells why leg i cannot go.
func (t *tx) checkDetach(r *RouterRow, i int) error {
	s, err := Subnets.Need(t.Tx, r.Interfaces[i].Subnet)
	if err != nil {
		return err
	}
	if FloatingIPs.any(t.Tx, "subnet", string(s.ID)) || Forwards.any(t.Tx, "subnet", string(s.ID)) {
		return inUse("router", r.ID, "floating IPs lead to %v", s.CIDR)
	}
	for _, route := range r.Routes {
		if s.CIDR.Contains(route.NextHop) {
			return inUse("router", r.ID, "its route to %v goes by %v", route.Destination, route.NextHop)
		}
	}
	return nil
}

// setGateway makes r's gateway be gw. Its addresses are of the built-in external network, whatever
// external network is asked for.
func (t *tx) setGateway(r *RouterRow, gw *sdn.ExternalGateway) (changed bool, err error) {
	if gw.Network == "" {
		return false, sdn.Invalid("router", "gateway.network", "is missing")
	}
	n, err := Networks.Need(t.Tx, gw.Network)
	if err != nil {
		return false, err
	}
	if !n.External {
		return false, sdn.Invalid("router", "gateway.network", "%s is no external network", gw.Network)
	}
	want := sdn.ExternalGateway{Network: gw.Network, SNAT: gw.SNAT}
	if r.Gateway != nil && hasAddresses(r.Gateway.Addresses, gw.Addresses) {
		if r.Gateway.Network == gw.Network && r.Gateway.SNAT == gw.SNAT {
			return false, nil
		}
		want.Addresses = r.Gateway.Addresses
		r.Gateway = &want
		return true, nil
	}
	if err := t.dropGateway(r); err != nil {
		return false, err
	}
	uplink, err := Networks.Need(t.Tx, t.e.external)
	if err != nil {
		return false, err
	}
	t.hostLink = r.Project == ""
	holder, err := t.ownPort(uplink, sdn.OwnerRouterGateway, r.ID, gw.Addresses, "")
	t.hostLink = false
	if err != nil {
		return false, err
	}
	want.Addresses = holder.Addresses
	r.Gateway, r.Uplink = &want, holder.ID
	return true, nil
}

// hasAddresses tells whether have holds everything asked for.
func hasAddresses(have, asked []sdn.Address) bool {
	for _, a := range asked {
		if !slices.ContainsFunc(have, func(h sdn.Address) bool {
			return (a.Subnet == "" || a.Subnet == h.Subnet) && (!a.Addr.IsValid() || a.Addr == h.Addr)
		}) {
			return false
		}
	}
	return true
}

func (t *tx) dropGateway(r *RouterRow) error {
	if err := t.dropOwnPort(r.Uplink); err != nil {
		return err
	}
	r.Gateway, r.Uplink = nil, ""
	return nil
}

// DeleteRouter deletes a router without legs.
func (e *Engine) DeleteRouter(ctx context.Context, id sdn.ID) error {
	return e.release(ctx, func(t *tx) error { return t.deleteRouter(id) })
}

func (t *tx) deleteRouter(id sdn.ID) error {
	r, err := Routers.Get(t.Tx, id)
	if err != nil || r == nil {
		return err
	}
	if len(r.Interfaces) > 0 {
		return inUse("router", id, "it is on %d subnets", len(r.Interfaces))
	}
	if err := t.dropGateway(r); err != nil {
		return err
	}
	return Routers.del(t, id)
}

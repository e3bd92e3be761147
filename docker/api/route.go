package api

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// maxRoutes is the number of routes of a network (Neutron: max_subnet_host_routes).
const maxRoutes = 20

// onLink is the next hop of a destination on the link itself.
const onLink = "link"

// routes parses routes such as "10.9.0.0/16=10.1.0.5,192.0.2.0/24=link".
func (d *decoder) routes(field, text string) []sdn.HostRoute {
	var routes []sdn.HostRoute
	for _, part := range split(text) {
		route := d.route(field, part)
		if d.err != nil {
			return nil
		}
		same := func(r sdn.HostRoute) bool { return r.Destination == route.Destination }
		d.check(!slices.ContainsFunc(routes, same), field, "%s is given twice", route.Destination)
		routes = append(routes, route)
		d.check(len(routes) <= maxRoutes, field, "has more than %d routes", maxRoutes)
	}
	return routes
}

func (d *decoder) route(field, text string) (route sdn.HostRoute) {
	to, via, ok := strings.Cut(text, "=")
	d.check(ok, field, "must be DESTINATION=NEXTHOP or DESTINATION=%s, separated by commas or "+
		"spaces, not %q", onLink, Clip(text, 60))
	destination, err := netip.ParsePrefix(to)
	d.check(err == nil && !destination.Addr().Is4In6(), field,
		"the destination must be a range such as 10.9.0.0/16, not %q", Clip(to, 60))
	d.checkHostBits(field, destination)
	if via == onLink {
		hop := netip.IPv4Unspecified()
		if destination.Addr().Is6() {
			hop = netip.IPv6Unspecified()
		}
		return sdn.HostRoute{Destination: destination, NextHop: hop}
	}
	hop, err := netip.ParseAddr(via)
	bad := hop.Zone() != "" || hop.Is4In6() || hop.IsUnspecified() || hop.IsMulticast() ||
		hop.IsLoopback()
	d.check(err == nil && !bad, field, "the next hop of %s must be an address or %q, not %q",
		destination, onLink, Clip(via, 60))
	d.check(hop.Is6() == destination.Addr().Is6(), field,
		"the next hop %s is not of the family of %s", hop, destination)
	return sdn.HostRoute{Destination: destination, NextHop: hop}
}

func (d *decoder) checkHostBits(field string, p netip.Prefix) {
	d.check(p == p.Masked(), field, "%s has host bits; did you mean %s?", p, p.Masked())
}

// placeRoutes adds each route to the ranges of its family whose containers can use it: those that
// contain the next hop, or all if the next hop is on the link. Docker does not start a container
// whose next hop is unreachable.
func (r *CreateNetworkRequest) placeRoutes() error {
	for _, route := range r.Options.Routes {
		found, placed := false, false
		for _, data := range r.Ranges {
			if data.Pool.Addr().Is6() != route.Destination.Addr().Is6() {
				continue
			}
			found = true
			if data.Pool == route.Destination {
				return Refuse("option %s: %s is the network's own range", OptRoutes, route.Destination)
			}
			if data.Pool.Contains(route.NextHop) || r.onLink(route) {
				data.Routes, placed = append(data.Routes, route), true
			}
		}
		switch {
		case !found:
			return Refuse("option %s: the network has no range of the family of %s",
				OptRoutes, route.Destination)
		case !placed:
			return Refuse("option %s: the next hop %s is neither in a range of the network nor in a "+
				"destination on the link", OptRoutes, route.NextHop)
		case route.Destination.Bits() == 0 && r.Options.Routed():
			return Refuse("option %s: %s is the route of the gateway: use --gateway, or %s=%s",
				OptRoutes, route.Destination, OptGateway, GatewayNone)
		}
	}
	return nil
}

// onLink reports whether the next hop of a route is on the link, whatever the ranges are.
func (r *CreateNetworkRequest) onLink(route sdn.HostRoute) bool {
	return route.Connected() || route.NextHop.Is6() && route.NextHop.IsLinkLocalUnicast() ||
		slices.ContainsFunc(r.Options.Routes, func(other sdn.HostRoute) bool {
			return other.Connected() && other.Destination.Contains(route.NextHop)
		})
}

// StaticRoute is a route of a container in a JoinResponse.
type StaticRoute struct {
	Destination string // a range
	RouteType   int    // 0: by NextHop; 1: on the link
	NextHop     string `json:",omitempty"` // an address
}

// NewStaticRoute converts a route.
func NewStaticRoute(r sdn.HostRoute) StaticRoute {
	if r.Connected() {
		return StaticRoute{Destination: r.Destination.String(), RouteType: 1}
	}
	return StaticRoute{Destination: r.Destination.String(), NextHop: r.NextHop.String()}
}

package docker

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// maxRoutes is how many routes a network may be given (Neutron: max_subnet_host_routes).
const maxRoutes = 20

// onLink is the next hop, in a user's words, of a destination that is on the link itself.
const onLink = "link"

// parseRoutes reads "10.9.0.0/16=10.1.0.5,192.0.2.0/24=link".
func parseRoutes(field, text string) ([]sdn.HostRoute, error) {
	var routes []sdn.HostRoute
	for _, part := range listed(text) {
		to, via, ok := strings.Cut(part, "=")
		if !ok {
			return nil, malformed(field, "must be DESTINATION=NEXTHOP or DESTINATION=%s, separated by commas or spaces, not %q", onLink, clip(part, 60))
		}
		route, err := parseRoute(field, to, via)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(routes, func(r sdn.HostRoute) bool { return r.Destination == route.Destination }) {
			return nil, malformed(field, "%s is there twice", route.Destination)
		}
		if routes = append(routes, route); len(routes) > maxRoutes {
			return nil, malformed(field, "has more than %d routes", maxRoutes)
		}
	}
	return routes, nil
}

// listed cuts a list at its commas, or at spaces: docker's --driver-opt takes no comma without quotes. What is empty stays, to be refused.
func listed(text string) []string {
	var list []string
	for _, part := range strings.Split(text, ",") {
		if words := strings.Fields(part); len(words) > 0 {
			list = append(list, words...)
		} else {
			list = append(list, "")
		}
	}
	return list
}

func parseRoute(field, to, via string) (sdn.HostRoute, error) {
	destination, err := netip.ParsePrefix(to)
	if err != nil || destination.Addr().Is4In6() {
		return sdn.HostRoute{}, malformed(field, "the destination %q is no range such as 10.9.0.0/16", clip(to, 60))
	}
	if destination != destination.Masked() {
		return sdn.HostRoute{}, malformed(field, "%s has bits beyond its length; did you mean %s?", destination, destination.Masked())
	}
	if via == onLink {
		hop := netip.IPv4Unspecified()
		if destination.Addr().Is6() {
			hop = netip.IPv6Unspecified()
		}
		return sdn.HostRoute{Destination: destination, NextHop: hop}, nil
	}
	hop, err := netip.ParseAddr(via)
	switch {
	case err != nil || hop.Zone() != "" || hop.Is4In6() || hop.IsUnspecified() || hop.IsMulticast() || hop.IsLoopback():
		return sdn.HostRoute{}, malformed(field, "the next hop %q of %s is neither an address nor %q", clip(via, 60), destination, onLink)
	case hop.Is6() != destination.Addr().Is6():
		return sdn.HostRoute{}, malformed(field, "the next hop %s is not of the family of %s", hop, destination)
	}
	return sdn.HostRoute{Destination: destination, NextHop: hop}, nil
}

// placeRoutes gives each route to the ranges of its family whose containers can use it: one by way of a next hop to the range
// that the hop is in. The engine refuses to start a container whose next hop is not on the link.
func (r *createNetworkRequest) placeRoutes() error {
	for _, route := range r.network.routes {
		ranges := r.IPv4Data
		if route.Destination.Addr().Is6() {
			ranges = r.IPv6Data
		}
		ranges = slices.DeleteFunc(slices.Clone(ranges), func(data *ipamData) bool { return data.cidr.Bits() == 0 })
		on, placed := r.reachedBy(route), false
		for _, data := range ranges {
			if data.cidr == route.Destination {
				return refuse("option %s: %s is the network's own range", optRoutes, route.Destination)
			}
			if on || data.cidr.Contains(route.NextHop) {
				data.routes, placed = append(data.routes, route), true
			}
		}
		switch {
		case len(ranges) == 0:
			return refuse("option %s: the network has no range of the family of %s", optRoutes, route.Destination)
		case !placed:
			return refuse("option %s: the next hop %s is neither in a range of the network nor in a destination on the link", optRoutes, route.NextHop)
		case route.Destination.Bits() == 0 && !r.network.noGateway && !r.network.internal:
			return refuse("option %s: %s is the gateway's: give it by --gateway, or leave the gateway out by %s=%s",
				optRoutes, route.Destination, optGateway, gatewayNone)
		}
	}
	return nil
}

// reachedBy tells whether the route needs no range of the network to get to its next hop.
func (r *createNetworkRequest) reachedBy(route sdn.HostRoute) bool {
	return route.Connected() || route.NextHop.Is6() && route.NextHop.IsLinkLocalUnicast() ||
		slices.ContainsFunc(r.network.routes, func(other sdn.HostRoute) bool {
			return other.Connected() && other.Destination.Contains(route.NextHop)
		})
}

// The types of a static route (moby: libnetwork/types).
const (
	byNextHop = 0
	connected = 1
)

func joinRoute(r sdn.HostRoute) staticRoute {
	if r.Connected() {
		return staticRoute{Destination: r.Destination.String(), RouteType: connected}
	}
	return staticRoute{Destination: r.Destination.String(), RouteType: byNextHop, NextHop: r.NextHop.String()}
}

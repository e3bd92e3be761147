package doctor

import (
	"fmt"
	"net/netip"
)

// Route is a route of the host.
type Route struct {
	To   netip.Prefix
	Link string
	Own  bool // by a link of Kuryr's
}

// Unreached is a range behind a router that the host does not lead to.
type Unreached struct{ Range, Router, Reason string }

// RouteFacts are the host's routes and Kuryr's ranges.
type RouteFacts struct {
	Uplinks   []netip.Prefix // of the links between routers and the host
	Host      []Route
	Err       error // the host's could not be read
	Unreached []Unreached
}

// Routes judges whether ranges of Kuryr's and of others are in one another's way.
func Routes(r RouteFacts) []Finding {
	f := findings{check: "routes"}
	if r.Err != nil {
		f.add(Warning, r.Err.Error(), "run this as root")
	}
	for _, u := range r.Uplinks {
		for _, route := range r.Host {
			if !route.Own && route.To.Bits() > 0 && route.To.Overlaps(u) && route.To.Bits() >= u.Bits() {
				f.add(Problem, fmt.Sprintf(
					"the host routes %s by %s, within the uplink range %s of Kuryr's: containers behind it "+
						"do not reach the outside",
					route.To, route.Link, u,
				),
					"take the route away; or remove all Docker networks of kuryr, `kuryr down --purge`, and "+
						"set sdn.uplink_ranges to what is free")
			}
		}
	}
	for _, u := range r.Unreached {
		f.add(
			Warning, fmt.Sprintf("the host does not reach %s of router %s: %s", u.Range, u.Router, u.Reason),
			"give one of the two networks another range, if the host is to reach both",
		)
	}
	return f.orOK("no range is in another's way")
}

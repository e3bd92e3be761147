//go:build linux

package doctor

import (
	"context"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/hostroutes"
)

// ownLink begins the names of Kuryr's links in the host.
const ownLink = "kr"

// GatherRoutes reads the host's routes.
func GatherRoutes(ctx context.Context) ([]Route, error) {
	list, err := hostroutes.Routes(ctx)
	var all []Route
	for _, r := range list {
		all = append(all, Route{To: r.To, Link: r.Link, Own: strings.HasPrefix(r.Link, ownLink)})
	}
	return all, err
}

// waysOut are the links of IPv4 default routes.
func waysOut(routes []Route) []string {
	var names []string
	for _, r := range routes {
		if r.To.Bits() == 0 && r.To.Addr().Is4() && r.Link != "" && !slices.Contains(names, r.Link) {
			names = append(names, r.Link)
		}
	}
	return names
}

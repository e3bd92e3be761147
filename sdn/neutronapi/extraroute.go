package neutronapi

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// maxRoutes is how many static routes a router may have, as with Neutron.
const maxRoutes = 30

// updateRouter changes a router, and names what Neutron names of it.
func (s *server) updateRouter(ctx context.Context, id sdn.ID, p sdn.RouterPatch) (sdn.Router, error) {
	if p.Routes != nil && len(*p.Routes) > maxRoutes {
		return sdn.Router{}, refuse(http.StatusBadRequest, "RoutesExhausted", "Unable to complete operation for %s. The number of routes exceeds the maximum %d.", id, maxRoutes)
	}
	r, err := s.p.UpdateRouter(ctx, id, p)
	var e *sdn.Error
	switch {
	case !errors.As(err, &e):
	case e.Kind == sdn.KindInvalid && strings.HasPrefix(e.Field, "routes"):
		err = refuse(http.StatusBadRequest, "InvalidRoutes", "Invalid format for routes: %s: %s", e.Field, e.Detail)
	case e.Reason == sdn.InUse && p.Gateway != nil && e.Field != "scope":
		err = refuse(http.StatusConflict, "RouterExternalGatewayInUseByFloatingIp",
			"Gateway cannot be updated for router %s, since a gateway to its external network is required by one or more floating IPs.", id)
	}
	return r, err
}

// serveExtraRoutes adds the paths that change a router's routes one by one: {"router": {"routes": […]}}.
func (s *server) serveExtraRoutes() {
	t := s.routers()
	routes := func(of func(have, asked []sdn.HostRoute) []sdn.HostRoute) action[sdn.Router] {
		return action[sdn.Router]{wrapped: true, read: func(b *body) acting[sdn.Router] {
			asked := or(b.extraRoutes("routes"))
			return func(c *call, r sdn.Router, revision int64) (any, error) {
				by := valueChange[sdn.RouterPatch]{ifRevision: revision, change: func(p *sdn.RouterPatch) error {
					routes := of(*p.Routes, asked)
					p.Routes = &routes
					return nil
				}}
				r, err := rewrite(c.ctx(), s, r.ID, by, s.p.Router, func(r sdn.Router) (sdn.RouterPatch, sdn.Meta) {
					return sdn.RouterPatch{Patch: sdn.Patch{IfRevision: r.Revision}, Routes: &r.Routes}, r.Meta
				}, func(ctx context.Context, p sdn.RouterPatch) (sdn.Router, error) { return s.updateRouter(ctx, r.ID, p) })
				return t.answer(c, &r), err
			}
		}}
	}
	t.act(s, "add_extraroutes", routes(addRoutes))
	t.act(s, "remove_extraroutes", routes(removeRoutes))
}

// extraRoutes reads a router's routes; two that are alike are one.
func (b *body) extraRoutes(name string) *[]sdn.HostRoute {
	asked := b.routes(name)
	if asked == nil {
		return nil
	}
	routes := addRoutes(nil, *asked)
	return &routes
}

func addRoutes(have, added []sdn.HostRoute) []sdn.HostRoute {
	out := append([]sdn.HostRoute{}, have...)
	for _, r := range added {
		if !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	return out
}

// removeRoutes takes routes away; one that is not there is not there any more.
func removeRoutes(have, removed []sdn.HostRoute) []sdn.HostRoute {
	return slices.DeleteFunc(append([]sdn.HostRoute{}, have...), func(r sdn.HostRoute) bool { return slices.Contains(removed, r) })
}

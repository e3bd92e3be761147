package network

import (
	"cmp"
	"context"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/sdn"
)

// Routing is how the subnets of a network are routed.
type Routing struct {
	// Routed networks are on a router: their own, or the one that Router names.
	Routed bool   `json:"routed,omitempty"`
	Router string `json:"router,omitempty"`
	// RouterID is set if Router names a router that Kuryr did not make.
	RouterID sdn.ID `json:"routerID,omitempty"`
	External sdn.ID `json:"external,omitempty"` // of its own router; "": that of the SDN
}

// Attach attaches subnets to the router, which is made with the Key if it is missing.
// isNew says that the SDN has no router with the Key. Another host may delete a shared
// router between the two steps if it has no other network: then it is made again, once.
func (r Routing) Attach(
	ctx context.Context, p sdn.Provider, key sdn.Key, subnets []sdn.ID, isNew bool,
) (sdn.Router, error) {
	router, err := r.attach(ctx, p, key, subnets, isNew && r.Router == "")
	if sdn.IsNotFound(err) && r.Router != "" && r.RouterID == "" {
		return r.attach(ctx, p, key, subnets, false)
	}
	return router, err
}

func (r Routing) attach(
	ctx context.Context, p sdn.Provider, key sdn.Key, subnets []sdn.ID, isNew bool,
) (sdn.Router, error) {
	router, err := r.ensure(ctx, p, key, isNew)
	if err != nil {
		return router, err
	}
	for _, id := range subnets {
		if slices.ContainsFunc(router.Interfaces, func(i sdn.RouterInterface) bool { return i.Subnet == id }) {
			continue
		}
		if err := p.AttachSubnet(ctx, router.ID, id, netip.Addr{}); err != nil {
			return router, err
		}
	}
	return router, nil
}

func (r Routing) ensure(ctx context.Context, p sdn.Provider, key sdn.Key, isNew bool) (sdn.Router, error) {
	if r.RouterID != "" {
		return p.Router(ctx, r.RouterID)
	}
	want := sdn.RouterSpec{
		Base: sdn.Base{Key: key, Name: "kuryr-router-" + key.Name[:min(len(key.Name), 64)]}, New: isNew,
	}
	external := cmp.Or(r.External, p.Capabilities().ExternalNetwork)
	if external != "" {
		want.Gateway = &sdn.ExternalGateway{Network: external, SNAT: true}
	}
	return p.EnsureRouter(ctx, want)
}

// routerKey returns the Key of a network's own router, or of the one that networks share.
func (w *work) routerKey() sdn.Key {
	if w.spec.Router != "" {
		return w.Names.GlobalKey(identity.KindSharedRouter, w.spec.Router)
	}
	return w.key(identity.KindRouter, "")
}

// route attaches the subnets of a network to its router. It logs the ranges that the host cannot
// reach: a network works without.
func (w *work) route(ctx context.Context, isNew bool) error {
	var ids []sdn.ID
	for _, r := range w.spec.Ranges {
		if at := w.subnetOf(r); at >= 0 {
			ids = append(ids, w.last.Subnets[at].ID)
		}
	}
	router, err := w.spec.Attach(ctx, w.SDN, w.routerKey(), ids, isNew)
	if router.ID != "" {
		w.last.Router, w.last.RouterOurs = router.ID, w.spec.RouterID == ""
	}
	if err != nil || !isNew || !w.SDN.Capabilities().HostReached { // others do not tell
		return err
	}
	router, err = w.SDN.Router(ctx, w.last.Router)
	for _, u := range router.Unreached {
		w.Log.WarnContext(ctx, "range unreachable from the host", "range", u.Prefix, "reason", u.Reason)
	}
	return err
}

// findRouter fills in the router of a network whose answer was lost.
func (w *work) findRouter(ctx context.Context) error {
	if w.last.Router == "" {
		w.last.Router = w.spec.RouterID
	}
	if w.last.Router != "" {
		return nil
	}
	query := sdn.RouterQuery{Match: identity.ByKey(w.routerKey())}
	r, found, err := sdn.First(w.SDN.FindRouters(ctx, query))
	if found {
		w.last.Router, w.last.RouterOurs = r.ID, true
	}
	return err
}

func (w *work) detach(ctx context.Context, subnet sdn.ID) error {
	if err := w.findRouter(ctx); err != nil || w.last.Router == "" {
		return err
	}
	return identity.IgnoreAbsent(w.SDN.DetachSubnet(ctx, w.last.Router, subnet))
}

// unroute detaches a network from its router and deletes the router if Kuryr made it and
// no other network is on it. routed reports whether there was a router of Kuryr's.
func (w *work) unroute(ctx context.Context) (routed bool, err error) {
	if !w.spec.Routed || !w.SDN.Capabilities().Routers {
		return false, nil
	}
	if err := w.findRouter(ctx); err != nil || w.last.Router == "" {
		return false, err
	}
	for _, s := range w.last.Subnets {
		if err := w.detach(ctx, s.ID); err != nil {
			return false, err
		}
	}
	if !w.last.RouterOurs {
		return false, nil
	}
	err = w.SDN.DeleteRouter(ctx, w.last.Router)
	if sdn.ReasonOf(err) == sdn.InUse {
		err = w.keepRouter(ctx, err)
	}
	return err == nil, err
}

// keepRouter returns nil for a router that cannot be deleted because of networks of
// others.
func (w *work) keepRouter(ctx context.Context, cause error) error {
	if w.spec.Router != "" {
		return nil
	}
	r, err := w.SDN.Router(ctx, w.last.Router)
	if err == nil && len(r.Interfaces) == 0 {
		return cause
	}
	return identity.IgnoreAbsent(err)
}

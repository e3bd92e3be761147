package network

import (
	"cmp"
	"context"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/reconcile"
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
func (t target) routerKey(o reconcile.Object, spec Spec, last Last) sdn.Key {
	if spec.Router != "" {
		return t.Names.GlobalKey(identity.KindSharedRouter, spec.Router)
	}
	return t.key(identity.KindRouter, "", o, spec, last)
}

// route attaches the subnets of a network to its router.
func (t target) route(
	ctx context.Context, o reconcile.Object, spec Spec, last Last, isNew bool,
) (Last, error) {
	var ids []sdn.ID
	for _, r := range spec.Ranges {
		key := t.subnetKey(o, spec, last, r)
		if at := slices.IndexFunc(last.Subnets, func(s sdn.Subnet) bool { return s.Key == key }); at >= 0 {
			ids = append(ids, last.Subnets[at].ID)
		}
	}
	router, err := spec.Attach(ctx, t.SDN, t.routerKey(o, spec, last), ids, isNew)
	if router.ID != "" {
		last.Router, last.RouterOurs = router.ID, spec.RouterID == ""
	}
	if err == nil && isNew {
		err = t.warnUnreached(ctx, last.Router)
	}
	return last, err
}

// findRouter fills in the router of a network whose answer was lost.
func (t target) findRouter(ctx context.Context, o reconcile.Object, spec Spec, last *Last) error {
	if last.Router != "" {
		return nil
	}
	if spec.RouterID != "" {
		last.Router = spec.RouterID
		return nil
	}
	match := sdn.Match{Keys: []sdn.Key{t.routerKey(o, spec, *last)}}
	r, found, err := sdn.First(t.SDN.FindRouters(ctx, sdn.RouterQuery{Match: match}))
	if found {
		last.Router, last.RouterOurs = r.ID, true
	}
	return err
}

func (t target) detach(ctx context.Context, o reconcile.Object, spec Spec, last *Last, subnet sdn.ID) error {
	if err := t.findRouter(ctx, o, spec, last); err != nil || last.Router == "" {
		return err
	}
	return identity.IgnoreAbsent(t.SDN.DetachSubnet(ctx, last.Router, subnet))
}

// unroute detaches a network from its router and deletes the router if Kuryr made it and
// no other network is on it. routed reports whether there was a router of Kuryr's.
func (t target) unroute(
	ctx context.Context, o reconcile.Object, spec Spec, last Last,
) (_ Last, routed bool, err error) {
	if !spec.Routed || !t.SDN.Capabilities().Routers {
		return last, false, nil
	}
	if err := t.findRouter(ctx, o, spec, &last); err != nil || last.Router == "" {
		return last, false, err
	}
	for _, s := range last.Subnets {
		if err := t.detach(ctx, o, spec, &last, s.ID); err != nil {
			return last, false, err
		}
	}
	if !last.RouterOurs {
		return last, false, nil
	}
	err = t.SDN.DeleteRouter(ctx, last.Router)
	if sdn.ReasonOf(err) == sdn.InUse {
		err = t.keepRouter(ctx, spec, last.Router, err)
	}
	return last, err == nil, err
}

// keepRouter returns nil for a router that cannot be deleted because of networks of
// others.
func (t target) keepRouter(ctx context.Context, spec Spec, id sdn.ID, cause error) error {
	if spec.Router != "" {
		return nil
	}
	r, err := t.SDN.Router(ctx, id)
	switch {
	case sdn.IsNotFound(err):
		return nil
	case err != nil:
		return err
	case len(r.Interfaces) > 0:
		return nil
	}
	return cause
}

// warnUnreached logs the ranges that the host cannot reach: a network works without.
func (t target) warnUnreached(ctx context.Context, router sdn.ID) error {
	if !t.SDN.Capabilities().HostReached { // others do not tell
		return nil
	}
	r, err := t.SDN.Router(ctx, router)
	for _, u := range r.Unreached {
		t.Log.WarnContext(ctx, "range unreachable from the host", "range", u.Prefix, "reason", u.Reason)
	}
	return err
}

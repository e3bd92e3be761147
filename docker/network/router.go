package network

import (
	"context"
	"net/netip"
	"slices"

	"github.com/google/uuid"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// routerKey returns the Key of a network's own router, or of the one that networks share.
func (t target) routerKey(o reconcile.Object, spec Spec, last Last) sdn.Key {
	if spec.Router != "" {
		return t.namer.GlobalKey(identity.KindSharedRouter, spec.Router)
	}
	return t.key(identity.KindRouter, "", o, spec, last)
}

// route attaches the subnets of a network to its router, which is made if it is missing. Another
// host may delete a shared router between the two steps if it has no other network: then it is
// made again, once.
func (t target) route(
	ctx context.Context, o reconcile.Object, spec Spec, last Last, first bool,
) (Last, error) {
	last, err := t.attach(ctx, o, spec, last, first)
	if sdn.IsNotFound(err) && spec.Router != "" && spec.RouterID == "" {
		last, err = t.attach(ctx, o, spec, last, false)
	}
	if err == nil && first {
		err = t.warnUnreached(ctx, last.Router)
	}
	return last, err
}

func (t target) attach(
	ctx context.Context, o reconcile.Object, spec Spec, last Last, first bool,
) (Last, error) {
	router, err := t.ensureRouter(ctx, o, spec, last, first)
	if err != nil {
		return last, err
	}
	last.Router, last.RouterOurs = router.ID, spec.RouterID == ""
	for _, r := range spec.Ranges {
		key := t.subnetKey(o, spec, last, r)
		at := slices.IndexFunc(last.Subnets, func(s sdn.Subnet) bool { return s.Key == key })
		if at < 0 || slices.ContainsFunc(router.Interfaces, func(i sdn.RouterInterface) bool {
			return i.Subnet == last.Subnets[at].ID
		}) {
			continue
		}
		if err := t.sdn.AttachSubnet(ctx, router.ID, last.Subnets[at].ID, netip.Addr{}); err != nil {
			return last, err
		}
	}
	return last, nil
}

func (t target) ensureRouter(
	ctx context.Context, o reconcile.Object, spec Spec, last Last, first bool,
) (sdn.Router, error) {
	if spec.RouterID != "" {
		return t.sdn.Router(ctx, spec.RouterID)
	}
	key := t.routerKey(o, spec, last)
	want := sdn.RouterSpec{
		Base: sdn.Base{Key: key, Name: "kuryr-router-" + key.Name[:min(len(key.Name), 64)]},
		New:  first && spec.Router == "",
	}
	external := spec.External
	if external == "" {
		external = t.sdn.Capabilities().ExternalNetwork
	}
	if external != "" {
		want.Gateway = &sdn.ExternalGateway{Network: external, SNAT: true}
	}
	return t.sdn.EnsureRouter(ctx, want)
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
	r, found, err := sdn.First(t.sdn.FindRouters(ctx, sdn.RouterQuery{Match: match}))
	if found {
		last.Router, last.RouterOurs = r.ID, true
	}
	return err
}

func (t target) detach(ctx context.Context, o reconcile.Object, spec Spec, last *Last, subnet sdn.ID) error {
	if err := t.findRouter(ctx, o, spec, last); err != nil || last.Router == "" {
		return err
	}
	return ignoreAbsent(t.sdn.DetachSubnet(ctx, last.Router, subnet))
}

// unroute detaches a network from its router and deletes the router if Kuryr made it and no other
// network is on it. routed reports whether there was a router of Kuryr's.
func (t target) unroute(
	ctx context.Context, o reconcile.Object, spec Spec, last Last,
) (_ Last, routed bool, err error) {
	if !spec.Routed || !t.sdn.Capabilities().Routers {
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
	err = t.sdn.DeleteRouter(ctx, last.Router)
	if sdn.ReasonOf(err) == sdn.InUse {
		err = t.keepRouter(ctx, spec, last.Router, err)
	}
	return last, err == nil, err
}

// keepRouter returns nil for a router that cannot be deleted because of networks of others.
func (t target) keepRouter(ctx context.Context, spec Spec, id sdn.ID, cause error) error {
	if spec.Router != "" {
		return nil
	}
	r, err := t.sdn.Router(ctx, id)
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

// resolveRouter sets what the options name a router and an external network by.
func (s *Service) resolveRouter(ctx context.Context, o api.NetworkOptions, spec *Spec) error {
	if !s.sdn.Capabilities().Routers {
		if o.AsksRouter() {
			return api.Refuse("this SDN has no routers: leave out %s and %s", api.OptRouter, api.OptExternal)
		}
		return nil
	}
	spec.Routed = o.Routed() && (s.routed || o.AsksRouter())
	var err error
	if spec.External, err = s.ExternalNetwork(ctx, o.External); err != nil {
		return err
	}
	if spec.Router = o.Router; spec.Router != "" {
		spec.RouterID, err = s.NamedRouter(ctx, o.Router)
	}
	return err
}

// ExternalNetwork returns the external network with a name or an id.
func (s *Service) ExternalNetwork(ctx context.Context, name string) (sdn.ID, error) {
	if name == "" {
		return "", nil
	}
	if uuid.Validate(name) == nil {
		n, err := s.sdn.Network(ctx, sdn.ID(name))
		if err == nil && n.External {
			return n.ID, nil
		}
		if ignoreAbsent(err) != nil {
			return "", err
		}
	}
	external := true
	query := sdn.NetworkQuery{Match: sdn.Match{Names: []string{name}}, External: &external}
	found, err := sdn.All(s.sdn.FindNetworks(ctx, query))
	n, err := only(found, err, api.Reference{Option: api.OptExternal, Name: name}, "external network")
	return n.ID, err
}

// NamedRouter returns the router of others with a name or an id. A name means a router of Kuryr's
// project only: any project can have one of that name. Without one, or if Kuryr has made the
// router already, it returns "".
func (s *Service) NamedRouter(ctx context.Context, name string) (sdn.ID, error) {
	if uuid.Validate(name) == nil {
		r, err := s.sdn.Router(ctx, sdn.ID(name))
		if sdn.IsNotFound(err) {
			err = api.Refuse("option %s: there is no router %s", api.OptRouter, name)
		}
		return r.ID, err
	}
	found, err := sdn.All(s.sdn.FindRouters(ctx, sdn.RouterQuery{Match: sdn.Match{Names: []string{name}}}))
	if err != nil || len(found) == 0 {
		return "", err
	}
	keys := []sdn.Key{s.namer.GlobalKey(identity.KindSharedRouter, name)}
	_, made, err := sdn.First(s.sdn.FindRouters(ctx, sdn.RouterQuery{Match: sdn.Match{Keys: keys}}))
	if err != nil || made {
		return "", err
	}
	project, err := s.pools.Project(ctx)
	if err != nil {
		return "", err
	}
	found = slices.DeleteFunc(found, func(r sdn.Router) bool { return r.Project != project })
	if len(found) == 0 {
		s.log.WarnContext(ctx, "router of another project not used: its id is needed", "router", name)
		return "", nil
	}
	r, err := only(found, nil, api.Reference{Option: api.OptRouter, Name: name}, "router")
	return r.ID, err
}

// warnUnreached logs the ranges that the host cannot reach: a network works without.
func (t target) warnUnreached(ctx context.Context, router sdn.ID) error {
	if !t.sdn.Capabilities().HostReached { // others do not tell
		return nil
	}
	r, err := t.sdn.Router(ctx, router)
	for _, u := range r.Unreached {
		t.log.WarnContext(ctx, "range unreachable from the host", "range", u.Prefix, "reason", u.Reason)
	}
	return err
}

func ignoreAbsent(err error) error {
	if sdn.IsNotFound(err) {
		return nil
	}
	return err
}

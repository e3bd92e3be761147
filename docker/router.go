package docker

import (
	"context"
	"net/netip"
	"slices"

	"github.com/google/uuid"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

// routerKey is the identity of a network's router: its own, or the shared one it was put on.
func (d *Driver) routerKey(network, shared string) sdn.Key {
	if shared != "" {
		return d.names.GlobalKey(identity.KindSharedRouter, shared)
	}
	return d.names.GlobalKey(identity.KindRouter, network)
}

// wantsRouter tells whether a network of these options is to be on a router.
func (d *Driver) wantsRouter(o api.NetworkOptions) bool {
	return o.Routed() && (d.routed || o.AsksRouter()) && d.sdn.Capabilities().Routers
}

// externalNetwork is the network that an option names for the gateway of a network's own router, "" where none does.
func (d *Driver) externalNetwork(ctx context.Context, o api.NetworkOptions) (sdn.ID, error) {
	if !d.sdn.Capabilities().Routers && o.AsksRouter() {
		return "", refuse("this SDN has no routers: leave out %s and %s", api.OptRouter, api.OptExternal)
	}
	if o.External == "" {
		return "", nil
	}
	external := true
	named := api.Reference{Option: api.OptExternal, Name: o.External}
	if uuid.Validate(o.External) == nil {
		n, err := d.sdn.Network(ctx, sdn.ID(o.External))
		if err == nil && n.External {
			return n.ID, nil
		}
		if err != nil && !sdn.IsNotFound(err) {
			return "", err
		}
	}
	found, err := sdn.All(d.sdn.FindNetworks(ctx, sdn.NetworkQuery{Match: sdn.Match{Names: []string{o.External}}, External: &external}))
	n, err := only(found, err, named, "external network")
	return n.ID, err
}

// namedRouter is somebody else's router that an option names, by its id or its name, and whether there is one.
func (d *Driver) namedRouter(ctx context.Context, name string) (sdn.Router, bool, error) {
	if uuid.Validate(name) == nil {
		r, err := d.sdn.Router(ctx, sdn.ID(name))
		if sdn.IsNotFound(err) {
			err = refuse("option %s: there is no router %s", api.OptRouter, name)
		}
		return r, err == nil, err
	}
	found, err := sdn.All(d.sdn.FindRouters(ctx, sdn.RouterQuery{Match: sdn.Match{Names: []string{name}}}))
	if err != nil || len(found) == 0 {
		return sdn.Router{}, false, err
	}
	r, err := only(found, nil, api.Reference{Option: api.OptRouter, Name: name}, "router")
	return r, err == nil, err
}

// route puts a network on its router, which is made when missing, with a way out where there is one. One that an option names and that
// is somebody else's is used as it is.
func (d *Driver) route(ctx context.Context, id string, o api.NetworkOptions, network sdn.Network) error {
	shared := o.Router
	key := d.routerKey(id, shared)
	unlock, err := d.locks.lock(ctx, "router/"+key.Kind+"/"+key.Name)
	if err != nil {
		return err
	}
	defer unlock()
	if shared != "" {
		router, found, err := d.namedRouter(ctx, shared)
		if err != nil {
			return err
		}
		if found {
			return d.attachTo(ctx, router, network)
		}
	}
	spec := sdn.RouterSpec{Base: sdn.Base{Key: key, Name: "kuryr-router-" + clipName(key.Name)}}
	external := sdn.ID(o.External)
	if external == "" {
		external = d.sdn.Capabilities().ExternalNetwork
	}
	if external != "" {
		spec.Gateway = &sdn.ExternalGateway{Network: external, SNAT: true}
	}
	// Another host may delete a shared router between the two steps, if it had no other network: make it again.
	for try := 0; ; try++ {
		router, err := d.attach(ctx, spec, network)
		if err == nil {
			return d.tellUnreached(ctx, router)
		}
		if !sdn.IsNotFound(err) || shared == "" || try == 1 {
			return err
		}
	}
}

func (d *Driver) attach(ctx context.Context, spec sdn.RouterSpec, network sdn.Network) (sdn.ID, error) {
	router, err := d.sdn.EnsureRouter(ctx, spec)
	if err != nil {
		return "", err
	}
	failpoint.Here("docker.createnetwork.router")
	return router.ID, d.attachTo(ctx, router, network)
}

// attachTo gives a router a leg on each of a network's subnets.
func (d *Driver) attachTo(ctx context.Context, router sdn.Router, network sdn.Network) error {
	for _, subnet := range network.Subnets {
		if slices.ContainsFunc(router.Interfaces, func(i sdn.RouterInterface) bool { return i.Subnet == subnet }) {
			continue
		}
		if err := d.sdn.AttachSubnet(ctx, router.ID, subnet, netip.Addr{}); err != nil {
			return err
		}
		failpoint.Here("docker.createnetwork.attached")
	}
	return nil
}

// tellUnreached logs what the SDN could not do although the network works within itself: reach it from the host, mostly.
func (d *Driver) tellUnreached(ctx context.Context, id sdn.ID) error {
	router, err := d.sdn.Router(ctx, id)
	if err != nil {
		return err
	}
	for _, u := range router.Unreached {
		d.log.WarnContext(ctx, "the host cannot reach a network's containers", "range", u.Prefix, "reason", u.Reason)
	}
	return nil
}

// unroute takes a network from the routers that Kuryr put it on, and takes those away that are Kuryr's and have no other network. One that
// its owner attached by hand is his to detach.
func (d *Driver) unroute(ctx context.Context, id string, network sdn.Network) error {
	if !d.sdn.Capabilities().Routers {
		return nil
	}
	shared := ""
	if names := identity.Values(network.Tags, identity.TagRouter); len(names) > 0 {
		shared = names[0]
	}
	key := d.routerKey(id, shared)
	unlock, err := d.locks.lock(ctx, "router/"+key.Kind+"/"+key.Name)
	if err != nil {
		return err
	}
	defer unlock()
	var routers []sdn.Router
	if len(network.Subnets) > 0 {
		if routers, err = sdn.All(d.sdn.FindRouters(ctx, sdn.RouterQuery{Subnets: network.Subnets})); err != nil {
			return err
		}
	}
	kept := false
	for _, router := range routers {
		named := shared != "" && (router.Name == shared || string(router.ID) == shared)
		if router.Key != key && !named {
			continue
		}
		if err := d.detach(ctx, router, network, router.Key == key, shared != ""); err != nil {
			return err
		}
		kept = kept || router.Key == key
	}
	if kept {
		return nil
	}
	// It may have been made and not attached, or detached and not deleted.
	router, found, err := sdn.First(d.sdn.FindRouters(ctx, sdn.RouterQuery{Match: sdn.Match{Keys: []sdn.Key{key}}}))
	if err != nil || !found {
		return err
	}
	return d.detach(ctx, router, network, true, shared != "")
}

// detach takes a router's legs from a network, and the router away if it is ours and has no others.
func (d *Driver) detach(ctx context.Context, router sdn.Router, network sdn.Network, ours, shared bool) error {
	others := false
	for _, leg := range router.Interfaces {
		if !slices.Contains(network.Subnets, leg.Subnet) {
			others = true
			continue
		}
		if err := d.sdn.DetachSubnet(ctx, router.ID, leg.Subnet); err != nil {
			return err
		}
		failpoint.Here("docker.deletenetwork.detached")
	}
	if others || !ours {
		return nil
	}
	err := d.sdn.DeleteRouter(ctx, router.ID)
	if shared && sdn.ReasonOf(err) == sdn.InUse {
		return nil // another host has just put a network on it
	}
	return err
}

func clipName(s string) string { return s[:min(len(s), 64)] }

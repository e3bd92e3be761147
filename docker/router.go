package docker

import (
	"context"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

// routerKey is the identity of a network's router: its own, or the shared one it was put on.
func (d *Driver) routerKey(network, shared string) sdn.Key {
	if shared != "" {
		return d.key(kindSharedRouter, shared)
	}
	return d.key(kindRouter, network)
}

// route puts a network on its router, which is made when missing, with a way out where there is one.
func (d *Driver) route(ctx context.Context, id, shared string, network sdn.Network) error {
	key := d.routerKey(id, shared)
	unlock, err := d.locks.lock(ctx, "router/"+key.Kind+"/"+key.Name)
	if err != nil {
		return err
	}
	defer unlock()
	spec := sdn.RouterSpec{Base: sdn.Base{Key: key, Name: "kuryr-router-" + clipName(key.Name)}}
	if external := d.sdn.Capabilities().ExternalNetwork; external != "" {
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
	for _, subnet := range network.Subnets {
		if slices.ContainsFunc(router.Interfaces, func(i sdn.RouterInterface) bool { return i.Subnet == subnet }) {
			continue
		}
		if err := d.sdn.AttachSubnet(ctx, router.ID, subnet, netip.Addr{}); err != nil {
			return "", err
		}
		failpoint.Here("docker.createnetwork.attached")
	}
	return router.ID, nil
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

// unroute takes a network from its router, and the router away unless other networks are on it.
func (d *Driver) unroute(ctx context.Context, id string, network sdn.Network) error {
	if !d.sdn.Capabilities().Routers {
		return nil
	}
	shared := ""
	if names := tagValues(network.Tags, tagRouter); len(names) > 0 {
		shared = names[0]
	}
	key := d.routerKey(id, shared)
	unlock, err := d.locks.lock(ctx, "router/"+key.Kind+"/"+key.Name)
	if err != nil {
		return err
	}
	defer unlock()
	router, found, err := sdn.First(d.sdn.FindRouters(ctx, sdn.RouterQuery{Match: sdn.Match{Keys: []sdn.Key{key}}}))
	if err != nil || !found {
		return err
	}
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
	if others {
		return nil
	}
	err = d.sdn.DeleteRouter(ctx, router.ID)
	if shared != "" && sdn.ReasonOf(err) == sdn.InUse {
		return nil // another host has just put a network on it
	}
	return err
}

func clipName(s string) string { return s[:min(len(s), 64)] }

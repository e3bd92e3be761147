package swarm

import (
	"context"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/sdn"
)

// routerKey returns the Key of a network's own router, or of the one that networks share.
func (s shared) routerKey(networkID, router string) sdn.Key {
	if router != "" {
		return s.names.GlobalKey(identity.KindSharedRouter, router)
	}
	return s.names.GlobalKey(identity.KindRouter, networkID)
}

// route attaches the subnets of a network to its router, which is made if it is missing.
// Another host may delete a shared router between the two steps if it has no other
// network: then it is made again, once.
func (s shared) route(ctx context.Context, n sdn.Network, spec share) error {
	err := s.attach(ctx, n, spec)
	if sdn.IsNotFound(err) && spec.Router != "" && spec.RouterID == "" {
		err = s.attach(ctx, n, spec)
	}
	return err
}

func (s shared) attach(ctx context.Context, n sdn.Network, spec share) error {
	router, err := s.ensureRouter(ctx, n.Key.Name, spec)
	if err != nil {
		return err
	}
	for _, subnet := range n.Subnets {
		if hasInterface(router, subnet) {
			continue
		}
		if err := s.sdn.AttachSubnet(ctx, router.ID, subnet, netip.Addr{}); err != nil {
			return err
		}
	}
	return nil
}

func (s shared) ensureRouter(ctx context.Context, networkID string, spec share) (sdn.Router, error) {
	if spec.RouterID != "" {
		return s.sdn.Router(ctx, spec.RouterID)
	}
	key := s.routerKey(networkID, spec.Router)
	want := sdn.RouterSpec{Base: sdn.Base{Key: key, Name: "kuryr-router-" + key.Name[:min(len(key.Name), 64)]}}
	external := spec.External
	if external == "" {
		external = s.sdn.Capabilities().ExternalNetwork
	}
	if external != "" {
		want.Gateway = &sdn.ExternalGateway{Network: external, SNAT: true}
	}
	return s.sdn.EnsureRouter(ctx, want)
}

func hasInterface(r sdn.Router, subnet sdn.ID) bool {
	return slices.ContainsFunc(r.Interfaces, func(i sdn.RouterInterface) bool { return i.Subnet == subnet })
}

// unroute detaches a network from the router of its options, and deletes a router of
// Kuryr's that no other network is on. A router that an operator attached stays.
func (s shared) unroute(ctx context.Context, n sdn.Network, subnets []sdn.Subnet) error {
	if !s.sdn.Capabilities().Routers {
		return nil
	}
	name := ""
	if names := identity.Values(n.Tags, identity.TagRouter); len(names) > 0 {
		name = names[0]
	}
	key := s.routerKey(n.Key.Name, name)
	query := sdn.RouterQuery{}
	for _, subnet := range subnets {
		query.Subnets = append(query.Subnets, subnet.ID)
	}
	var routers []sdn.Router
	var err error
	if len(query.Subnets) > 0 {
		if routers, err = sdn.All(s.sdn.FindRouters(ctx, query)); err != nil {
			return err
		}
	}
	found := false
	for _, r := range routers {
		if r.Key == key {
			found = true
		} else if name == "" || r.Name != name && string(r.ID) != name {
			continue
		}
		if err := s.detach(ctx, r, query.Subnets, r.Key == key, name != ""); err != nil {
			return err
		}
	}
	if found {
		return nil
	}
	// It was made and not attached, or detached and not deleted.
	match := sdn.Match{Keys: []sdn.Key{key}}
	r, found, err := sdn.First(s.sdn.FindRouters(ctx, sdn.RouterQuery{Match: match}))
	if err != nil || !found {
		return err
	}
	return s.detach(ctx, r, query.Subnets, true, name != "")
}

func (s shared) detach(ctx context.Context, r sdn.Router, subnets []sdn.ID, ours, isShared bool) error {
	others := false
	for _, leg := range r.Interfaces {
		if !slices.Contains(subnets, leg.Subnet) {
			others = true
			continue
		}
		if err := ignoreAbsent(s.sdn.DetachSubnet(ctx, r.ID, leg.Subnet)); err != nil {
			return err
		}
	}
	if others || !ours {
		return nil
	}
	err := ignoreAbsent(s.sdn.DeleteRouter(ctx, r.ID))
	if isShared && sdn.ReasonOf(err) == sdn.InUse {
		return nil // another host has attached a network
	}
	return err
}

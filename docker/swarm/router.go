package swarm

import (
	"context"
	"slices"

	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/sdn"
)

// routerKey returns the Key of a network's own router, or of the one that networks share.
func (s *Service) routerKey(networkID, router string) sdn.Key {
	if router != "" {
		return s.Names.GlobalKey(identity.KindSharedRouter, router)
	}
	return s.Names.GlobalKey(identity.KindRouter, networkID)
}

// unroute detaches a network from the router of its options, and deletes a router of
// Kuryr's that no other network is on. A router that an operator attached stays.
func (s *Service) unroute(ctx context.Context, n sdn.Network, subnets []sdn.Subnet) error {
	if !s.SDN.Capabilities().Routers {
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
		if routers, err = sdn.All(s.SDN.FindRouters(ctx, query)); err != nil {
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
	r, found, err := sdn.First(s.SDN.FindRouters(ctx, sdn.RouterQuery{Match: match}))
	if err != nil || !found {
		return err
	}
	return s.detach(ctx, r, query.Subnets, true, name != "")
}

func (s *Service) detach(ctx context.Context, r sdn.Router, subnets []sdn.ID, ours, isShared bool) error {
	others := false
	for _, leg := range r.Interfaces {
		if !slices.Contains(subnets, leg.Subnet) {
			others = true
			continue
		}
		if err := identity.IgnoreAbsent(s.SDN.DetachSubnet(ctx, r.ID, leg.Subnet)); err != nil {
			return err
		}
	}
	if others || !ours {
		return nil
	}
	err := identity.IgnoreAbsent(s.SDN.DeleteRouter(ctx, r.ID))
	if isShared && sdn.ReasonOf(err) == sdn.InUse {
		return nil // another host has attached a network
	}
	return err
}

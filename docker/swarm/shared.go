package swarm

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/backoff"
	"github.com/kuryr/kuryr/sdn"
)

// This file reads and changes the objects that the hosts of a swarm share.

func (s *Service) network(ctx context.Context, id string) (sdn.Network, bool, error) {
	keys := []sdn.Key{s.Names.GlobalKey(identity.KindNetwork, id)}
	return sdn.First(s.SDN.FindNetworks(ctx, sdn.NetworkQuery{Match: sdn.Match{Keys: keys}}))
}

func (s *Service) networkBase(id string) sdn.Base {
	return sdn.Base{Key: s.Names.GlobalKey(identity.KindNetwork, id), Name: identity.NetworkTitle(id)}
}

func (s *Service) subnets(ctx context.Context, network sdn.ID) ([]sdn.Subnet, error) {
	return sdn.All(s.SDN.FindSubnets(ctx, sdn.SubnetQuery{Networks: []sdn.ID{network}}))
}

// subnetOf returns the subnet that was allocated from a pool, and whether there is one.
func (s *Service) subnetOf(ctx context.Context, pool sdn.ID) (sdn.Subnet, bool, error) {
	return sdn.First(s.SDN.FindSubnets(ctx, sdn.SubnetQuery{Pools: []sdn.ID{pool}}))
}

// whileStale makes a call of the engine again, until its end, if another host has changed
// an object since it was read: all nodes of a network write its one set of tags. A deletion
// needs no such call: it is pending, and the queue repeats it.
func whileStale(ctx context.Context, call func() error) error {
	wait := backoff.Backoff{Min: 50 * time.Millisecond, Max: 2 * time.Second}
	for {
		err := call()
		if sdn.ReasonOf(err) != sdn.Stale || wait.Wait(ctx) != nil {
			return err
		}
	}
}

func (s *Service) nodeTag() string       { return identity.TagNode + s.Names.Host }
func (s *Service) leavingTag() string    { return identity.TagLeaving + s.Names.Host }
func (s *Service) allocatingTag() string { return identity.TagAllocating + s.Names.Host }

// allocating returns the tags of a network whose manager was not answered.
func allocating(tags []string) []string { return identity.WithPrefix(tags, identity.TagAllocating) }

// nodes returns the hosts whose engines have the network. The previous version marks a
// network that its engine has deleted as leaving until this host's part is gone.
func nodes(tags []string) []string {
	return slices.Concat(identity.Values(tags, identity.TagNode), identity.Values(tags, identity.TagLeaving))
}

func isDeleted(n sdn.Network) bool { return slices.Contains(n.Tags, identity.TagDeleted) }

// giveUp changes the tags by which a manager or a node has a network. The network is
// deleted if none of them has it then.
func (s *Service) giveUp(ctx context.Context, n sdn.Network, tags []string) error {
	if len(nodes(tags)) == 0 && !slices.Contains(tags, identity.TagAllocated) {
		tags = identity.WithAll(tags, identity.TagDeleted)
	}
	n, err := s.TagNetwork(ctx, n, tags)
	if err != nil {
		return identity.IgnoreAbsent(err)
	}
	if !isDeleted(n) {
		return nil
	}
	return s.drop(ctx, n)
}

// hasSwarm reports whether a swarm's manager allocated a network or subnet.
func hasSwarm(m sdn.Meta) bool { return slices.Contains(m.Tags, identity.TagSwarm) }

// heldBy returns the tags of a port by which a manager has its address.
func heldBy(p sdn.Port) []string { return identity.WithPrefix(p.Tags, identity.TagHeld) }

// drop deletes a network that has TagDeleted, with its router and its released pools. The
// pools are found by the network's subnets, so they go last; sweep finds those that a
// kill has left.
func (s *Service) drop(ctx context.Context, n sdn.Network) error {
	if err := s.dropPorts(ctx, n.ID); err != nil {
		return err
	}
	subnets, err := s.subnets(ctx, n.ID)
	if err != nil {
		return err
	}
	if err := s.unroute(ctx, n, subnets); err != nil {
		return err
	}
	if err := identity.IgnoreAbsent(s.SDN.DeleteNetwork(ctx, n.ID)); err != nil {
		return err
	}
	var pools []sdn.ID
	for _, subnet := range subnets {
		if subnet.Pool != "" {
			pools = append(pools, subnet.Pool)
		}
	}
	if len(pools) == 0 {
		return nil
	}
	released, err := s.releasedPools(ctx, sdn.Match{IDs: pools}, identity.TagReleased, identity.TagLetGo)
	if err != nil {
		return err
	}
	return s.dropPools(ctx, released)
}

// dropPorts deletes the ports of a network that Kuryr made: of endpoints that their
// engines have forgotten, and of addresses that the manager has not released.
func (s *Service) dropPorts(ctx context.Context, network sdn.ID) error {
	var ids []sdn.ID
	for p, err := range s.SDN.FindPorts(ctx, sdn.PortQuery{Networks: []sdn.ID{network}}) {
		if err != nil {
			return err
		}
		if !s.Names.Ours(p.Meta, identity.KindPort, identity.KindEndpoint) {
			continue
		}
		if p.DeviceID != "" && p.Host == s.Host {
			if err := s.Binder.Unplug(ctx, p); err != nil {
				return err
			}
		}
		ids = append(ids, p.ID)
	}
	if len(ids) == 0 {
		return nil
	}
	return s.SDN.DeletePorts(ctx, ids)
}

// releasedPools returns the pools of the global space that match and have one of the
// tags.
func (s *Service) releasedPools(ctx context.Context, m sdn.Match, tags ...string) ([]sdn.SubnetPool, error) {
	m.Owner, m.Kind = s.Names.Owner, identity.KindPool
	found, err := sdn.All(s.SDN.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: m}))
	return slices.DeleteFunc(found, func(p sdn.SubnetPool) bool {
		return !s.isGlobal(p) || !slices.ContainsFunc(p.Tags, func(t string) bool { return slices.Contains(tags, t) })
	}), err
}

func (s *Service) isGlobal(p sdn.SubnetPool) bool {
	name, ok := identity.ParsePoolName(p.Key.Name)
	return ok && s.Names.Ours(p.Meta, identity.KindPool) && name.Space == api.GlobalSpace
}

// dropPools deletes pools, but for those that a subnet was allocated from.
func (s *Service) dropPools(ctx context.Context, pools []sdn.SubnetPool) error {
	for _, p := range pools {
		err := identity.IgnoreAbsent(s.SDN.DeleteSubnetPool(ctx, p.ID))
		if err != nil && sdn.ReasonOf(err) != sdn.InUse {
			return err
		}
	}
	return nil
}

// sweep deletes the released pools whose networks are gone.
func (s *Service) sweep(ctx context.Context) error {
	for _, tag := range []string{identity.TagReleased, identity.TagLetGo} {
		pools, err := s.releasedPools(ctx, sdn.Match{Tags: []string{tag}}, tag)
		if err != nil {
			return err
		}
		if pools, err = s.unused(ctx, pools); err != nil {
			return err
		}
		if err := s.dropPools(ctx, pools); err != nil {
			return err
		}
	}
	return nil
}

func (s *Service) unused(ctx context.Context, pools []sdn.SubnetPool) ([]sdn.SubnetPool, error) {
	var ids []sdn.ID
	for _, p := range pools {
		ids = append(ids, p.ID)
	}
	if len(ids) == 0 {
		return nil, nil
	}
	subnets, err := sdn.All(s.SDN.FindSubnets(ctx, sdn.SubnetQuery{Pools: ids}))
	return slices.DeleteFunc(pools, func(p sdn.SubnetPool) bool {
		return slices.ContainsFunc(subnets, func(s sdn.Subnet) bool { return s.Pool == p.ID })
	}), err
}

func (s *Service) networkOf(n sdn.Network) (id string, ok bool) {
	return n.Key.Name, s.Names.Ours(n.Meta, identity.KindNetwork) && !strings.Contains(n.Key.Name, "/")
}

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

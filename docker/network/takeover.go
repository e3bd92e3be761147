package network

import (
	"context"
	"slices"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// byTags describes a network by its tags. It takes over what kuryr-libnetwork made or
// used.
func (l lister) byTags(ctx context.Context, id string) (f found, ok bool, err error) {
	if _, ok := l.tags.Get(id); ok {
		return f, false, nil // its tags are ours, and not deleted yet
	}
	query := sdn.NetworkQuery{Match: sdn.Match{Tags: identity.IDTags(id)}}
	networks, err := sdn.All(l.SDN.FindNetworks(ctx, query))
	if err != nil {
		return f, false, err
	}
	networks = slices.DeleteFunc(networks, func(n sdn.Network) bool { return !identity.HasID(n.Tags, id) })
	for _, n := range networks {
		if l.Names.Ours(n.Meta, identity.KindNetwork) { // its Key has the name of a lost store
			f, err = l.own(ctx, n)
			return f, err == nil, err
		}
	}
	networks = slices.DeleteFunc(networks, func(n sdn.Network) bool { return !n.Foreign })
	switch {
	case len(networks) == 0:
		return f, false, nil
	case len(networks) > 1:
		return f, false, api.Refuse("%d networks have the tags of network %s: delete those that are not in use",
			len(networks), api.Clip(id, 12))
	case identity.PeersNetwork(networks[0], id):
		var n sdn.Network
		if n, err = l.adopt(ctx, id, networks[0]); err == nil {
			f, err = l.own(ctx, n)
		}
	case !l.SDN.Capabilities().SubnetPools:
		err = api.Refuse("this SDN has no subnet pools, which existing networks need")
	default:
		spec := Spec{Existing: networks[0].ID, Form: l.form(row{}, false)}
		f, err = l.existing(ctx, reconcile.Object{Key: id}, spec, Last{}, nil, nil)
	}
	return f, err == nil, err
}

// adopt gives Keys to a network that kuryr-libnetwork made, its subnets and their pools.
// The network's is the last: until then all of it is repeated.
func (s *Service) adopt(ctx context.Context, id string, n sdn.Network) (sdn.Network, error) {
	subnets, err := sdn.All(s.SDN.FindSubnets(ctx, sdn.SubnetQuery{Networks: []sdn.ID{n.ID}}))
	if err != nil {
		return n, err
	}
	place := map[bool]int{}
	for _, subnet := range subnets {
		v6 := subnet.CIDR.Addr().Is6()
		w := &work{s, reconcile.Object{Key: id}, Spec{Form: formCompat}, Last{}}
		key := w.subnetKey(Range{CIDR: subnet.CIDR, Place: place[v6]})
		place[v6]++
		if subnet.Name != identity.SubnetTitle(subnet.CIDR) || !subnet.Key.IsZero() || subnet.Description != "" {
			continue
		}
		if err := s.adoptSubnet(ctx, subnet, key); err != nil {
			return n, err
		}
	}
	key := s.Names.GlobalKey(identity.KindNetwork, id)
	adopted, err := s.SDN.UpdateNetwork(ctx, n.ID, sdn.NetworkPatch{Patch: sdn.Patch{Key: &key}})
	if err == nil {
		s.Log.InfoContext(ctx, "network of kuryr-libnetwork taken over", "network", id, "id", n.ID)
	}
	return adopted, err
}

func (s *Service) adoptSubnet(ctx context.Context, subnet sdn.Subnet, key sdn.Key) error {
	pools, err := existingPools(ctx, s.SDN.SubnetPool, subnetPools(subnet))
	if err != nil {
		return err
	}
	for _, p := range pools {
		if !identity.PeersPool(p) {
			continue
		}
		if err := s.Pools.AdoptPool(ctx, p.ID); err != nil {
			return err
		}
	}
	_, err = s.SDN.UpdateSubnet(ctx, subnet.ID, sdn.SubnetPatch{Patch: sdn.Patch{Key: &key}})
	return err
}

package network

import (
	"context"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/internal/sortslice"
	"github.com/kuryr/kuryr/sdn"
)

// lister is the target of networks. It lists and describes them.
type lister struct {
	*Service
	list *listing // what has been read
}

func (s *Service) lister() lister { return lister{s, &listing{}} }

// List implements reconcile.Lister. A network that cannot be described is left out: a
// later call that names it finds it.
func (l lister) List(ctx context.Context) iter.Seq2[reconcile.Found[Spec, Last], error] {
	return func(yield func(reconcile.Found[Spec, Last], error) bool) {
		known, own, links, err := l.made(ctx)
		for _, o := range known {
			if !yield(reconcile.Found[Spec, Last]{Object: o}, nil) {
				return
			}
		}
		l := l // which reads from memory
		if err == nil {
			l.list, err = l.read(ctx, own, links)
		}
		if err != nil {
			yield(reconcile.Found[Spec, Last]{}, err)
			return
		}
		more := func(id sdn.ID, f found, err error) bool {
			switch {
			case err == nil:
				return yield(f.Found, nil)
			case ctx.Err() != nil, sdn.IsUnavailable(err):
				yield(f.Found, err)
				return false
			}
			l.Log.WarnContext(ctx, "network not imported", "id", id, "err", err)
			return true
		}
		for _, n := range own {
			if f, err := l.own(ctx, n); !more(n.ID, f, err) {
				return
			}
		}
		for _, p := range links {
			if f, err := l.linked(ctx, p); !more(linkedNetwork(p), f, err) {
				return
			}
		}
	}
}

// made returns what this host has made: the objects that have a row, and the networks and
// links that have none.
func (l lister) made(
	ctx context.Context,
) (known []reconcile.Object, own []sdn.Network, links []sdn.SubnetPool, err error) {
	isKnown := func(key sdn.Key) bool {
		o, _ := l.object(key)
		r, ok := l.networks.Get(o.Key)
		if ok = ok && r.Object == o && (r.Done || r.Phase != reconcile.Wanted); ok {
			known = append(known, o)
		}
		return ok
	}
	match := sdn.Match{Owner: l.Names.Owner, Kind: identity.KindNetwork, Tags: []string{l.Names.HostTag()}}
	for n, err := range l.SDN.FindNetworks(ctx, sdn.NetworkQuery{Match: match}) {
		if err != nil {
			return known, nil, nil, err
		}
		if !n.Foreign && !ofSwarm(n.Tags) && !isKnown(n.Key) {
			own = append(own, n)
		}
	}
	if !l.SDN.Capabilities().SubnetPools {
		return known, own, nil, nil
	}
	match.Kind = identity.KindLink
	for p, err := range l.SDN.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: match}) {
		if err != nil {
			return known, nil, nil, err
		}
		if l.Names.Ours(p.Meta, identity.KindLink) && !isKnown(linkedKey(p)) {
			links = append(links, p)
		}
	}
	return known, own, links, nil
}

// linkedKey returns the Key that the network of a link would have, and linkedNetwork its
// id.
func linkedKey(link sdn.SubnetPool) sdn.Key {
	_, name, _ := strings.Cut(link.Key.Name, "/")
	return sdn.Key{Name: name}
}

func linkedNetwork(link sdn.SubnetPool) sdn.ID {
	id, _, _ := strings.Cut(link.Name, ",")
	return sdn.ID(id)
}

// ofSwarm reports whether managers or other nodes may have a network.
func ofSwarm(tags []string) bool {
	return slices.ContainsFunc(tags, func(t string) bool {
		return t == identity.TagSwarm || t == identity.TagAllocated ||
			strings.HasPrefix(t, identity.TagAllocating) || strings.HasPrefix(t, identity.TagNode) ||
			strings.HasPrefix(t, identity.TagLeaving)
	})
}

// listing is what the lister has read of several networks. What it does not have it asks the SDN.
type listing struct {
	networks map[sdn.ID]sdn.Network
	subnets  map[sdn.ID][]sdn.Subnet // by network
	pools    map[sdn.ID]sdn.SubnetPool
	routers  map[sdn.ID][]sdn.Router // by subnet; nil: not read
}

// read reads what networks of Kuryr and existing ones consist of, each noun once.
func (l lister) read(ctx context.Context, own []sdn.Network, links []sdn.SubnetPool) (*listing, error) {
	list := &listing{
		networks: map[sdn.ID]sdn.Network{}, subnets: map[sdn.ID][]sdn.Subnet{}, pools: map[sdn.ID]sdn.SubnetPool{},
	}
	var existing, routed []sdn.ID
	for _, n := range own {
		list.networks[n.ID] = n
	}
	for _, p := range links {
		if id := linkedNetwork(p); !slices.Contains(existing, id) {
			existing = append(existing, id)
		}
	}
	if len(existing) > 0 {
		match := sdn.Match{IDs: existing}
		for n, err := range l.SDN.FindNetworks(ctx, sdn.NetworkQuery{Match: match}) {
			if err != nil {
				return nil, err
			}
			list.networks[n.ID] = n
		}
	}
	if len(list.networks) == 0 {
		return list, nil
	}
	query := sdn.SubnetQuery{Networks: slices.Sorted(maps.Keys(list.networks))}
	for s, err := range l.SDN.FindSubnets(ctx, query) {
		if err != nil {
			return nil, err
		}
		list.subnets[s.Network] = append(list.subnets[s.Network], s)
		if n := list.networks[s.Network]; n.Key.Kind == identity.KindNetwork {
			routed = append(routed, s.ID)
		}
	}
	if l.SDN.Capabilities().SubnetPools {
		match := sdn.Match{Owner: l.Names.Owner, Kind: identity.KindPool}
		for p, err := range l.SDN.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: match}) {
			if err != nil {
				return nil, err
			}
			list.pools[p.ID] = p
		}
	}
	if !l.SDN.Capabilities().Routers || len(routed) == 0 {
		return list, nil
	}
	list.routers = map[sdn.ID][]sdn.Router{}
	for r, err := range l.SDN.FindRouters(ctx, sdn.RouterQuery{Subnets: routed}) {
		if err != nil {
			return nil, err
		}
		for _, i := range r.Interfaces {
			list.routers[i.Subnet] = append(list.routers[i.Subnet], r)
		}
	}
	return list, nil
}

func (l lister) network(ctx context.Context, id sdn.ID) (sdn.Network, error) {
	if n, ok := l.list.networks[id]; ok {
		return n, nil
	}
	return l.SDN.Network(ctx, id)
}

// subnets returns the subnets of a network in the order of a Last.
func (l lister) subnets(ctx context.Context, network sdn.ID) ([]sdn.Subnet, error) {
	if _, ok := l.list.networks[network]; ok {
		return sortslice.Sorted(l.list.subnets[network], byRange), nil
	}
	return l.subnetsOf(ctx, network)
}

func (l lister) pool(ctx context.Context, id sdn.ID) (sdn.SubnetPool, error) {
	if p, ok := l.list.pools[id]; ok {
		return p, nil
	}
	p, err := l.SDN.SubnetPool(ctx, id)
	if err == nil && l.list.pools != nil {
		l.list.pools[id] = p
	}
	return p, err
}

// routersOf returns the routers that subnets are on.
func (l lister) routersOf(ctx context.Context, subnets []sdn.ID) (on []sdn.Router, err error) {
	if l.list.routers == nil {
		return sdn.All(l.SDN.FindRouters(ctx, sdn.RouterQuery{Subnets: subnets}))
	}
	for _, id := range subnets {
		for _, r := range l.list.routers[id] {
			if !slices.ContainsFunc(on, func(o sdn.Router) bool { return o.ID == r.ID }) {
				on = append(on, r)
			}
		}
	}
	return on, nil
}

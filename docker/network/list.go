package network

import (
	"context"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// lister is the target of networks. It lists and describes them.
type lister struct {
	*Service
	sdn sdn.Provider // it reads from
}

func (s *Service) lister() lister { return lister{s, s.SDN} }

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
			l.sdn, err = l.read(ctx, own, links)
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
	for n, err := range l.sdn.FindNetworks(ctx, sdn.NetworkQuery{Match: match}) {
		if err != nil {
			return known, nil, nil, err
		}
		if !n.Foreign && !ofSwarm(n.Tags) && !isKnown(n.Key) {
			own = append(own, n)
		}
	}
	if !l.sdn.Capabilities().SubnetPools {
		return known, own, nil, nil
	}
	match.Kind = identity.KindLink
	for p, err := range l.sdn.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: match}) {
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

// listing answers from memory what the lister asks of each network. What it does not have
// it asks the SDN.
type listing struct {
	sdn.Provider
	networks map[sdn.ID]sdn.Network
	subnets  map[sdn.ID][]sdn.Subnet // by network
	pools    map[sdn.ID]sdn.SubnetPool
	routers  map[sdn.ID][]sdn.Router // by subnet; nil: not read
}

// read reads what networks of Kuryr and existing ones consist of, each noun once.
func (l lister) read(ctx context.Context, own []sdn.Network, links []sdn.SubnetPool) (*listing, error) {
	list := &listing{
		Provider: l.sdn, networks: map[sdn.ID]sdn.Network{}, subnets: map[sdn.ID][]sdn.Subnet{},
		pools: map[sdn.ID]sdn.SubnetPool{},
	}
	var existing []sdn.ID
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
		for n, err := range l.sdn.FindNetworks(ctx, sdn.NetworkQuery{Match: match}) {
			if err != nil {
				return nil, err
			}
			list.networks[n.ID] = n
		}
	}
	if len(list.networks) == 0 {
		return list, nil
	}
	var ids []sdn.ID
	query := sdn.SubnetQuery{Networks: slices.Sorted(maps.Keys(list.networks))}
	for s, err := range l.sdn.FindSubnets(ctx, query) {
		if err != nil {
			return nil, err
		}
		list.subnets[s.Network] = append(list.subnets[s.Network], s)
		if n := list.networks[s.Network]; n.Key.Kind == identity.KindNetwork {
			ids = append(ids, s.ID)
		}
	}
	if l.sdn.Capabilities().SubnetPools {
		match := sdn.Match{Owner: l.Names.Owner, Kind: identity.KindPool}
		for p, err := range l.sdn.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: match}) {
			if err != nil {
				return nil, err
			}
			list.pools[p.ID] = p
		}
	}
	if !l.sdn.Capabilities().Routers || len(ids) == 0 {
		return list, nil
	}
	list.routers = map[sdn.ID][]sdn.Router{}
	for r, err := range l.sdn.FindRouters(ctx, sdn.RouterQuery{Subnets: ids}) {
		if err != nil {
			return nil, err
		}
		for _, i := range r.Interfaces {
			list.routers[i.Subnet] = append(list.routers[i.Subnet], r)
		}
	}
	return list, nil
}

// Network implements sdn.Provider.
func (l *listing) Network(ctx context.Context, id sdn.ID) (sdn.Network, error) {
	if n, ok := l.networks[id]; ok {
		return n, nil
	}
	return l.Provider.Network(ctx, id)
}

// FindSubnets implements sdn.Provider.
func (l *listing) FindSubnets(ctx context.Context, q sdn.SubnetQuery) iter.Seq2[sdn.Subnet, error] {
	if len(q.Networks) == 1 {
		if _, ok := l.networks[q.Networks[0]]; ok {
			return matching(l.subnets[q.Networks[0]], q.Matches)
		}
	}
	return l.Provider.FindSubnets(ctx, q)
}

// SubnetPool implements sdn.Provider.
func (l *listing) SubnetPool(ctx context.Context, id sdn.ID) (sdn.SubnetPool, error) {
	if p, ok := l.pools[id]; ok {
		return p, nil
	}
	p, err := l.Provider.SubnetPool(ctx, id)
	if err == nil {
		l.pools[id] = p
	}
	return p, err
}

// FindRouters implements sdn.Provider.
func (l *listing) FindRouters(ctx context.Context, q sdn.RouterQuery) iter.Seq2[sdn.Router, error] {
	if l.routers == nil || len(q.Subnets) == 0 {
		return l.Provider.FindRouters(ctx, q)
	}
	var on []sdn.Router
	for _, id := range q.Subnets {
		for _, r := range l.routers[id] {
			if !slices.ContainsFunc(on, func(o sdn.Router) bool { return o.ID == r.ID }) {
				on = append(on, r)
			}
		}
	}
	return matching(on, q.Matches)
}

func matching[T any](all []T, matches func(T) bool) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for _, v := range all {
			if matches(v) && !yield(v, nil) {
				return
			}
		}
	}
}

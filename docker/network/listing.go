package network

import (
	"context"
	"iter"
	"maps"
	"slices"

	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/sdn"
)

// listing answers from memory what the lister asks of each network. What it does not have it asks
// the SDN.
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
		match := sdn.Match{Owner: l.namer.Owner, Kind: identity.KindPool}
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

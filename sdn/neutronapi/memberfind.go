package neutronapi

import (
	"context"
	"iter"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// What who is no administrator sees of ports, subnets, networks and subnet pools is its project's, on its project's networks, or shared. That is looked for by several
// searches which are merged, so that a list costs by what is seen and not by what there is. An SDN without an order is asked for all, since searches
// could not be made one there.

// searchesAll tells whether a list is to be one search: an administrator's, one of named objects, or one in an SDN without an order.
func (s *server) searchesAll(caller Caller, m sdn.Match) bool {
	return caller.admin() || len(m.IDs) > 0 || len(m.Keys) > 0 || !s.p.Capabilities().Ordered
}

// ofProject narrows a Match down to a project. It reports false where the project is not among those asked for.
func ofProject(m sdn.Match, project string) (sdn.Match, bool) {
	asked := len(m.Projects) == 0 || slices.Contains(m.Projects, project)
	m.Projects = []string{project}
	return m, asked
}

// findPorts lists ports: of the own project, and on its networks.
func (s *server) findPorts(ctx context.Context, q sdn.PortQuery) iter.Seq2[sdn.Port, error] {
	caller, _ := CallerOf(ctx)
	if s.searchesAll(caller, q.Match) {
		return s.p.FindPorts(ctx, q)
	}
	return func(yield func(sdn.Port, error) bool) {
		on, err := networkIDs(s.p.FindNetworks(ctx, sdn.NetworkQuery{Match: sdn.Match{IDs: q.Networks, Projects: []string{caller.Project}}}))
		if err != nil {
			yield(sdn.Port{}, err)
			return
		}
		var searches []iter.Seq2[sdn.Port, error]
		if m, asked := ofProject(q.Match, caller.Project); asked {
			of := q
			of.Match = m
			searches = append(searches, s.p.FindPorts(ctx, of))
		}
		if len(on) > 0 {
			of := q
			of.Networks = on
			searches = append(searches, s.p.FindPorts(ctx, of))
		}
		merge(func(p sdn.Port) sdn.ID { return p.ID }, searches)(yield)
	}
}

// findSubnets lists subnets: of the own project, on its networks, and on shared ones.
func (s *server) findSubnets(ctx context.Context, q sdn.SubnetQuery) iter.Seq2[sdn.Subnet, error] {
	caller, _ := CallerOf(ctx)
	if s.searchesAll(caller, q.Match) {
		return s.p.FindSubnets(ctx, q)
	}
	return func(yield func(sdn.Subnet, error) bool) {
		is := true
		on, err := networkIDs(
			s.p.FindNetworks(ctx, sdn.NetworkQuery{Match: sdn.Match{IDs: q.Networks, Projects: []string{caller.Project}}}),
			s.p.FindNetworks(ctx, sdn.NetworkQuery{Match: sdn.Match{IDs: q.Networks}, Shared: &is}),
		)
		if err != nil {
			yield(sdn.Subnet{}, err)
			return
		}
		var searches []iter.Seq2[sdn.Subnet, error]
		if m, asked := ofProject(q.Match, caller.Project); asked {
			of := q
			of.Match = m
			searches = append(searches, s.p.FindSubnets(ctx, of))
		}
		if len(on) > 0 {
			of := q
			of.Networks = on
			searches = append(searches, s.p.FindSubnets(ctx, of))
		}
		merge(func(s sdn.Subnet) sdn.ID { return s.ID }, searches)(yield)
	}
}

// findNetworks lists networks: of the own project, shared ones, and external ones.
func (s *server) findNetworks(ctx context.Context, q sdn.NetworkQuery) iter.Seq2[sdn.Network, error] {
	caller, _ := CallerOf(ctx)
	if s.searchesAll(caller, q.Match) {
		return s.p.FindNetworks(ctx, q)
	}
	is, shared, external := true, q, q
	shared.Shared, external.External = &is, &is
	searches := []iter.Seq2[sdn.Network, error]{s.p.FindNetworks(ctx, shared)}
	if q.External == nil || *q.External {
		searches = append(searches, s.p.FindNetworks(ctx, external))
	}
	if m, asked := ofProject(q.Match, caller.Project); asked {
		q.Match = m
		searches = append(searches, s.p.FindNetworks(ctx, q))
	}
	return merge(func(n sdn.Network) sdn.ID { return n.ID }, searches)
}

// findSubnetPools lists subnet pools: of the own project, and shared ones.
func (s *server) findSubnetPools(ctx context.Context, q sdn.SubnetPoolQuery) iter.Seq2[sdn.SubnetPool, error] {
	caller, _ := CallerOf(ctx)
	if s.searchesAll(caller, q.Match) {
		return s.p.FindSubnetPools(ctx, q)
	}
	is, shared := true, q
	shared.Shared = &is
	searches := []iter.Seq2[sdn.SubnetPool, error]{s.p.FindSubnetPools(ctx, shared)}
	if m, asked := ofProject(q.Match, caller.Project); asked {
		q.Match = m
		searches = append(searches, s.p.FindSubnetPools(ctx, q))
	}
	return merge(func(p sdn.SubnetPool) sdn.ID { return p.ID }, searches)
}

// networkIDs gives the ids of networks that searches find.
func networkIDs(searches ...iter.Seq2[sdn.Network, error]) (ids []sdn.ID, err error) {
	for _, search := range searches {
		for n, err := range search {
			if err != nil {
				return nil, err
			}
			ids = append(ids, n.ID)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// merge makes one of searches that are each in the order of ids. What several find comes once.
func merge[T any](id func(T) sdn.ID, searches []iter.Seq2[T, error]) iter.Seq2[T, error] {
	if len(searches) == 0 {
		return func(func(T, error) bool) {}
	}
	all := searches[0]
	for _, other := range searches[1:] {
		all = mergeTwo(id, all, other)
	}
	return all
}

func mergeTwo[T any](id func(T) sdn.ID, a, b iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		next, stop := iter.Pull2(b)
		defer stop()
		second, err, more := next()
		for first, errFirst := range a {
			for errFirst == nil && more && (err != nil || strings.Compare(string(id(second)), string(id(first))) <= 0) {
				if (err != nil || id(second) != id(first)) && !yield(second, err) {
					return
				}
				second, err, more = next()
			}
			if !yield(first, errFirst) {
				return
			}
		}
		for ; more; second, err, more = next() {
			if !yield(second, err) {
				return
			}
		}
	}
}

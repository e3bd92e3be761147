package neutronapi

import (
	"context"
	"iter"
	"maps"
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

// seen lists what the caller sees of a noun: what its project has, and what the further queries find.
func seen[Q, T any](
	ctx context.Context, s *server, q Q, match func(*Q) *sdn.Match, find func(context.Context, Q) iter.Seq2[T, error],
	id func(T) sdn.ID, further func(project string) ([]Q, error),
) iter.Seq2[T, error] {
	caller, _ := CallerOf(ctx)
	if s.searchesAll(caller, *match(&q)) {
		return find(ctx, q)
	}
	return func(yield func(T, error) bool) {
		queries, err := further(caller.Project)
		if err != nil {
			yield(*new(T), err)
			return
		}
		if m, asked := ofProject(*match(&q), caller.Project); asked {
			own := q
			*match(&own) = m
			queries = append(queries, own)
		}
		searches := make([]iter.Seq2[T, error], len(queries))
		for i, query := range queries {
			searches[i] = find(ctx, query)
		}
		merge(id, searches)(yield)
	}
}

// onNetworks returns the ids of a project's networks, and with shared those of shared ones.
func (s *server) onNetworks(ctx context.Context, among []sdn.ID, project string, shared bool) ([]sdn.ID, error) {
	searches := []iter.Seq2[sdn.Network, error]{
		s.p.FindNetworks(ctx, sdn.NetworkQuery{Match: sdn.Match{IDs: among, Projects: []string{project}}}),
	}
	if !shared {
		return networkIDs(searches...)
	}
	searches = append(searches, s.p.FindNetworks(ctx, sdn.NetworkQuery{Match: sdn.Match{IDs: among}, Shared: &shared}))
	ids, err := networkIDs(searches...)
	if err != nil {
		return nil, err
	}
	granted, err := s.grantsOf(ctx, sdn.NounNetwork, project)
	for id, g := range granted {
		if g.shared && (len(among) == 0 || slices.Contains(among, id)) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), err
}

// findPorts lists ports: of the own project, and on its networks.
func (s *server) findPorts(ctx context.Context, q sdn.PortQuery) iter.Seq2[sdn.Port, error] {
	match := func(q *sdn.PortQuery) *sdn.Match { return &q.Match }
	id := func(p sdn.Port) sdn.ID { return p.ID }
	return seen(ctx, s, q, match, s.p.FindPorts, id, func(project string) ([]sdn.PortQuery, error) {
		on, err := s.onNetworks(ctx, q.Networks, project, false)
		if err != nil || len(on) == 0 {
			return nil, err
		}
		of := q
		of.Networks = on
		return []sdn.PortQuery{of}, nil
	})
}

// findSubnets lists subnets: of the own project, on its networks, and on shared ones.
func (s *server) findSubnets(ctx context.Context, q sdn.SubnetQuery) iter.Seq2[sdn.Subnet, error] {
	match := func(q *sdn.SubnetQuery) *sdn.Match { return &q.Match }
	id := func(s sdn.Subnet) sdn.ID { return s.ID }
	return seen(ctx, s, q, match, s.p.FindSubnets, id, func(project string) ([]sdn.SubnetQuery, error) {
		on, err := s.onNetworks(ctx, q.Networks, project, true)
		if err != nil || len(on) == 0 {
			return nil, err
		}
		of := q
		of.Networks = on
		return []sdn.SubnetQuery{of}, nil
	})
}

// findNetworks lists networks: of the own project, shared ones, and external ones.
func (s *server) findNetworks(ctx context.Context, q sdn.NetworkQuery) iter.Seq2[sdn.Network, error] {
	match := func(q *sdn.NetworkQuery) *sdn.Match { return &q.Match }
	id := func(n sdn.Network) sdn.ID { return n.ID }
	return seen(ctx, s, q, match, s.p.FindNetworks, id, func(project string) ([]sdn.NetworkQuery, error) {
		is, shared, external := true, q, q
		shared.Shared, external.External = &is, &is
		queries := []sdn.NetworkQuery{shared}
		if q.External == nil || *q.External {
			queries = append(queries, external)
		}
		return alsoGranted(ctx, s, sdn.NounNetwork, project, q, match, queries)
	})
}

// findSubnetPools lists subnet pools: of the own project, and shared ones.
func (s *server) findSubnetPools(ctx context.Context, q sdn.SubnetPoolQuery) iter.Seq2[sdn.SubnetPool, error] {
	match := func(q *sdn.SubnetPoolQuery) *sdn.Match { return &q.Match }
	id := func(p sdn.SubnetPool) sdn.ID { return p.ID }
	return seen(ctx, s, q, match, s.p.FindSubnetPools, id, func(project string) ([]sdn.SubnetPoolQuery, error) {
		is, shared := true, q
		shared.Shared = &is
		return alsoGranted(ctx, s, sdn.NounSubnetPool, project, q, match, []sdn.SubnetPoolQuery{shared})
	})
}

// seenSecurityGroups lists security groups: of the own project, and those that it was given access to.
func (s *server) seenSecurityGroups(ctx context.Context, q sdn.SecurityGroupQuery) iter.Seq2[sdn.SecurityGroup, error] {
	match := func(q *sdn.SecurityGroupQuery) *sdn.Match { return &q.Match }
	id := func(g sdn.SecurityGroup) sdn.ID { return g.ID }
	return seen(ctx, s, q, match, s.p.FindSecurityGroups, id, func(project string) ([]sdn.SecurityGroupQuery, error) {
		return alsoGranted(ctx, s, sdn.NounSecurityGroup, project, q, match, nil)
	})
}

// findAddressGroups lists address groups likewise.
func (s *server) findAddressGroups(ctx context.Context, q sdn.AddressGroupQuery) iter.Seq2[sdn.AddressGroup, error] {
	match := func(q *sdn.AddressGroupQuery) *sdn.Match { return &q.Match }
	id := func(g sdn.AddressGroup) sdn.ID { return g.ID }
	return seen(ctx, s, q, match, s.p.FindAddressGroups, id, func(project string) ([]sdn.AddressGroupQuery, error) {
		return alsoGranted(ctx, s, sdn.NounAddressGroup, project, q, match, nil)
	})
}

// alsoGranted adds a query of what a project was given access to.
func alsoGranted[Q any](
	ctx context.Context, s *server, noun sdn.Noun, project string, q Q, match func(*Q) *sdn.Match, queries []Q,
) ([]Q, error) {
	granted, err := s.grantsOf(ctx, noun, project)
	if err != nil || len(granted) == 0 {
		return queries, err
	}
	match(&q).IDs = slices.Sorted(maps.Keys(granted))
	return append(queries, q), nil
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

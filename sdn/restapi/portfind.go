package restapi

import (
	"context"
	"iter"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// findPorts lists ports. Who is no administrator sees those of the own project and those on its networks: these are looked for, so that a list costs by what is
// the project's and not by what is others'. An SDN without an order is asked for all, since two searches could not be made one.
func (s *server) findPorts(ctx context.Context, q sdn.PortQuery) iter.Seq2[sdn.Port, error] {
	caller, _ := CallerOf(ctx)
	if caller.admin() || len(q.IDs) > 0 || len(q.Keys) > 0 || !s.p.Capabilities().Ordered {
		return s.p.FindPorts(ctx, q)
	}
	return func(yield func(sdn.Port, error) bool) {
		on, err := s.ownNetworks(ctx, caller.Project, q.Networks)
		if err != nil {
			yield(sdn.Port{}, err)
			return
		}
		none := func(func(sdn.Port, error) bool) {}
		own, others := iter.Seq2[sdn.Port, error](none), iter.Seq2[sdn.Port, error](none)
		if len(q.Projects) == 0 || slices.Contains(q.Projects, caller.Project) {
			of := q
			of.Projects = []string{caller.Project}
			own = s.p.FindPorts(ctx, of)
		}
		if len(on) > 0 {
			of := q
			of.Networks = on
			others = s.p.FindPorts(ctx, of)
		}
		merge(own, others)(yield)
	}
}

// ownNetworks gives the networks of a project, of all or of some.
func (s *server) ownNetworks(ctx context.Context, project string, among []sdn.ID) (own []sdn.ID, err error) {
	for n, err := range s.p.FindNetworks(ctx, sdn.NetworkQuery{Match: sdn.Match{IDs: among, Projects: []string{project}}}) {
		if err != nil {
			return nil, err
		}
		own = append(own, n.ID)
	}
	return own, nil
}

// merge makes one of two searches in the order of ids. What both find comes once.
func merge(a, b iter.Seq2[sdn.Port, error]) iter.Seq2[sdn.Port, error] {
	return func(yield func(sdn.Port, error) bool) {
		next, stop := iter.Pull2(b)
		defer stop()
		second, err, more := next()
		for first, errFirst := range a {
			for errFirst == nil && more && (err != nil || strings.Compare(string(second.ID), string(first.ID)) <= 0) {
				if (err != nil || second.ID != first.ID) && !yield(second, err) {
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

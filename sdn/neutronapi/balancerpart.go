package neutronapi

import (
	"context"
	"iter"
	"slices"

	"github.com/kuryr/kuryr/sdn"
)

// What is below a load balancer (listeners, pools, members, health monitors) has ids and paths of its own with Octavia. Here it is a part of the load balancer's
// value: it is found by Parts, and changed by applying the whole.

// part is an object below a load balancer.
type part[T any] struct {
	value T
	of    sdn.LoadBalancer
}

// meta is what a part has in common with other objects: it is the load balancer's project's.
func (p part[T]) meta(id sdn.ID, name string, tags []string) sdn.Meta {
	base := sdn.Base{Name: name, Project: p.of.Project, Tags: tags}
	return sdn.Meta{ID: id, Base: base, Revision: p.of.Revision, Created: p.of.Created, Updated: p.of.Updated}
}

// need gives the part of an id, out of the load balancer that has it.
func needPart[T any](ctx context.Context, s *server, title string, id sdn.ID, parts func(sdn.LoadBalancer) []part[T], idOf func(T) sdn.ID) (part[T], error) {
	for p, err := range findParts(ctx, s, sdn.LoadBalancerQuery{Parts: []sdn.ID{id}}, parts) {
		if err != nil || idOf(p.value) == id {
			return p, err
		}
	}
	return part[T]{}, sdn.NotFound(title, id)
}

// findParts gives the parts of the load balancers that a query selects.
func findParts[T any](ctx context.Context, s *server, q sdn.LoadBalancerQuery, parts func(sdn.LoadBalancer) []part[T]) iter.Seq2[part[T], error] {
	return func(yield func(part[T], error) bool) {
		for l, err := range s.p.FindLoadBalancers(ctx, q) {
			if err != nil {
				yield(part[T]{}, err)
				return
			}
			for _, p := range parts(l) {
				if !yield(p, nil) {
					return
				}
			}
		}
	}
}

// partQuery takes from a filter what load balancers can be selected by when parts of them are asked for; ids are the parts'.
func partQuery(f *filter) sdn.LoadBalancerQuery {
	f.named = true // parts do not come in the order of their ids
	f.partTags()
	q := sdn.LoadBalancerQuery{Match: sdn.Match{Projects: f.projects()}, Parts: f.ids("id")}
	q.IDs = append(f.ids("loadbalancer_id"), f.ids("load_balancer_id")...)
	if len(q.Parts) > 0 {
		asked := q.Parts
		f.metas = append(f.metas, func(m sdn.Meta) bool { return slices.Contains(asked, m.ID) })
	}
	return q
}

// pool is a pool with the listener that sends to it, "" for one that none sends to.
type pool struct {
	sdn.Pool
	listener sdn.ID
	protocol sdn.Protocol
	proxy    int // version of the PROXY protocol, 0 for none
}

// poolsOf are all pools of a load balancer.
func poolsOf(l sdn.LoadBalancer) []pool {
	var all []pool
	for _, listener := range l.Listeners {
		if listener.WithoutPool {
			continue
		}
		proxy := 0
		if listener.ProxyProtocol {
			proxy = max(listener.ProxyVersion, 1)
		}
		all = append(all, pool{listener.Pool, listener.ID, listener.Protocol, proxy})
	}
	for _, p := range l.Pools {
		all = append(all, pool{p, "", p.Protocol, 0})
	}
	return all
}

// poolAt gives the place of a pool in what is to be applied, and of the listener that sends to it, nil for one that none sends to.
func poolAt(spec *sdn.LoadBalancerSpec, id sdn.ID) (*sdn.Pool, *sdn.Listener) {
	for i := range spec.Listeners {
		if l := &spec.Listeners[i]; !l.WithoutPool && l.Pool.ID == id {
			return &l.Pool, l
		}
	}
	for i := range spec.Pools {
		if spec.Pools[i].ID == id {
			return &spec.Pools[i], nil
		}
	}
	return nil, nil
}

// changePool applies a change to a pool of a load balancer.
func (s *server) changePool(ctx context.Context, of, id sdn.ID, ifRevision int64, change func(*sdn.Pool) error) (sdn.LoadBalancer, error) {
	return s.rewriteBalancer(ctx, of, balancerChange{ifRevision: ifRevision, change: func(spec *sdn.LoadBalancerSpec) error {
		p, _ := poolAt(spec, id)
		if p == nil {
			return sdn.NotFound("pool", id)
		}
		p.Members = slices.Clone(p.Members)
		return change(p)
	}})
}

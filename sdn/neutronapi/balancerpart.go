package neutronapi

import (
	"context"
	"iter"
	"slices"

	"github.com/kuryr/kuryr/sdn"
)

// What is below a load balancer (listeners, pools, members, health monitors) has ids and paths of
// its own in Octavia. Here it is a part of the load balancer's value: it is found by Parts, and
// changed by applying the whole value.

// A part is an object below a load balancer.
type part[V any] struct {
	value    V
	of       sdn.LoadBalancer
	listener *sdn.Listener // that sends to a pool; nil for none
	pool     sdn.ID        // that has a member or a health monitor
}

// A partEdit asks for a new part, or changes one. The load balancer can change while a request is
// served, so the edits are applied to the value that is there then.
type partEdit[V any] struct {
	part[V]    // with the edits so far
	ifRevision int64
	edits      []func(*V)
	// whole changes the rest of the load balancer, after the edits. nil: nothing.
	whole func(*sdn.LoadBalancerSpec, *V) error
	proxy int // of a new pool: the version of the PROXY protocol, 0 for none
}

func (e *partEdit[V]) edit(by func(*V)) {
	by(&e.value)
	e.edits = append(e.edits, by)
}

func (e *partEdit[V]) apply(v *V) {
	for _, by := range e.edits {
		by(v)
	}
}

// edits makes a field's post or put of a function that stores a checked value.
//
//go:noinline
func edits[V, X any](store func(*V, X)) func(into, value any) {
	return func(into, value any) {
		into.(*partEdit[V]).edit(func(v *V) { store(v, value.(X)) })
	}
}

// changeable is an attribute that new parts can have and that can be changed.
//
//go:noinline
func changeable[V, X any](name string, is kind, show func(*part[V]) any, store func(*V, X)) field {
	return field{name: name, is: is, show: via(show), post: edits(store), put: edits(store)}
}

// partCommon is what all parts have.
type partCommon struct {
	id   *sdn.ID
	name *string
	tags *[]string
}

// partFields are the attributes that all parts have. online is the operating status of a part that
// is ready.
func partFields[V any](common func(*V) partCommon, online string) []field {
	return append(statusFields(func(p *part[V]) *sdn.LoadBalancer { return &p.of }, online),
		field{name: "id", show: via(func(p *part[V]) any { return string(*common(&p.value).id) })},
		changeable("name", isOptional, func(p *part[V]) any { return *common(&p.value).name },
			func(v *V, name string) { *common(v).name = name }),
		field{name: "project_id", access: hooked, show: via(func(p *part[V]) any { return p.of.Project })},
		field{name: "tenant_id", access: hooked},
		changeable("tags", kindOf((*body).partTags), func(p *part[V]) any { return *common(&p.value).tags },
			func(v *V, tags []string) { *common(v).tags = tags }),
	)
}

// A partNoun describes one kind of parts.
type partNoun[V any] struct {
	title  string
	common func(*V) partCommon
	all    func(sdn.LoadBalancer) []part[V]
	// at returns the part with an id in what is applied, nil for none. The caller may change it.
	at func(*sdn.LoadBalancerSpec, sdn.ID) *V
}

// table returns what the tables of all parts have.
func (n *partNoun[V]) table(s *server) tableOf[part[V]] {
	return tableOf[part[V]]{&table{
		title: n.title,
		meta: via(func(p *part[V]) sdn.Meta {
			c := n.common(&p.value)
			base := sdn.Base{Name: *c.name, Project: p.of.Project, Tags: *c.tags}
			return sdn.Meta{ID: *c.id, Base: base, Revision: p.of.Revision, Created: p.of.Created, Updated: p.of.Updated}
		}),
		get: getCall{made[part[V]], func(ctx context.Context, id sdn.ID) (any, error) { return pointer(n.get(ctx, s, id)) }},
		find: func(ctx context.Context, f *filter) iter.Seq2[any, error] {
			return pointers(n.find(ctx, s, partQuery(f)))
		},
		beforePut: hookOn(func(_ *call, b *body, now *part[V], e *partEdit[V]) {
			e.part, e.ifRevision = *now, b.ifRevision
			b.ofProject(now.of.Project)
		}),
		update: updates(func(ctx context.Context, id sdn.ID, e partEdit[V]) (part[V], error) {
			l, err := s.rewriteBalancer(ctx, e.of.ID, balancerChange{ifRevision: e.ifRevision, change: func(all *sdn.LoadBalancerSpec) error {
				v := n.at(all, id)
				if v == nil {
					return sdn.NotFound(n.title, id)
				}
				e.apply(v)
				if e.whole != nil {
					return e.whole(all, v)
				}
				return nil
			}})
			if err != nil {
				return part[V]{}, err
			}
			return n.within(l, id)
		}),
	}}
}

// within returns the part with an id.
func (n *partNoun[V]) within(l sdn.LoadBalancer, id sdn.ID) (part[V], error) {
	for _, p := range n.all(l) {
		if *n.common(&p.value).id == id {
			return p, nil
		}
	}
	return part[V]{}, sdn.NotFound(n.title, id)
}

func (n *partNoun[V]) get(ctx context.Context, s *server, id sdn.ID) (part[V], error) {
	l, found, err := sdn.First(s.p.FindLoadBalancers(ctx, sdn.LoadBalancerQuery{Parts: []sdn.ID{id}}))
	switch {
	case err != nil:
		return part[V]{}, err
	case !found:
		return part[V]{}, sdn.NotFound(n.title, id)
	}
	return n.within(l, id)
}

// find returns the parts of the load balancers that a query selects.
func (n *partNoun[V]) find(ctx context.Context, s *server, q sdn.LoadBalancerQuery) iter.Seq2[part[V], error] {
	return func(yield func(part[V], error) bool) {
		for l, err := range s.p.FindLoadBalancers(ctx, q) {
			if err != nil {
				yield(part[V]{}, err)
				return
			}
			for _, p := range n.all(l) {
				if !yield(p, nil) {
					return
				}
			}
		}
	}
}

// add makes a change that adds a part, and returns the part that is reports true for.
func (n *partNoun[V]) add(
	ctx context.Context, s *server, of sdn.ID, change func(*sdn.LoadBalancerSpec) error, is func(*part[V]) bool,
) (part[V], error) {
	l, err := s.rewriteBalancer(ctx, of, balancerChange{change: change})
	if err != nil {
		return part[V]{}, err
	}
	for _, p := range n.all(l) {
		if is(&p) {
			return p, nil
		}
	}
	return part[V]{}, sdn.Conflict(sdn.Stale, n.title, "", "it was taken away at once")
}

// remover makes a table's remove and removeIf of a change that takes a part out of the value.
func (n *partNoun[V]) remover(s *server, drop func(*sdn.LoadBalancerSpec, sdn.ID)) (
	plain func(context.Context, sdn.ID) error, at func(context.Context, sdn.ID, int64) error,
) {
	at = func(ctx context.Context, id sdn.ID, revision int64) error {
		p, err := n.get(ctx, s, id)
		if sdn.IsNotFound(err) {
			return nil
		}
		if err == nil {
			_, err = s.rewriteBalancer(ctx, p.of.ID, balancerChange{ifRevision: revision, change: func(all *sdn.LoadBalancerSpec) error {
				drop(all, id)
				return nil
			}})
		}
		return err
	}
	return func(ctx context.Context, id sdn.ID) error { return at(ctx, id, 0) }, at
}

// partQuery takes from a filter what load balancers can be selected by if parts of them are
// listed. ids are the parts'.
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

// eachPool returns the pools in what is applied, each with the listener that sends to it or nil.
func eachPool(all *sdn.LoadBalancerSpec) iter.Seq2[*sdn.Pool, *sdn.Listener] {
	return func(yield func(*sdn.Pool, *sdn.Listener) bool) {
		for i := range all.Listeners {
			if l := &all.Listeners[i]; !l.WithoutPool && !yield(&l.Pool, l) {
				return
			}
		}
		for i := range all.Pools {
			if !yield(&all.Pools[i], nil) {
				return
			}
		}
	}
}

// poolAt returns a pool in what is applied, and the listener that sends to it.
func poolAt(all *sdn.LoadBalancerSpec, id sdn.ID) (*sdn.Pool, *sdn.Listener) {
	for p, l := range eachPool(all) {
		if p.ID == id {
			return p, l
		}
	}
	return nil, nil
}

// changePool applies a change to a pool of a load balancer. It may change the list of members.
func (s *server) changePool(ctx context.Context, of, id sdn.ID, revision int64, change func(*sdn.Pool)) error {
	_, err := s.rewriteBalancer(ctx, of, balancerChange{ifRevision: revision, change: func(all *sdn.LoadBalancerSpec) error {
		p, _ := poolAt(all, id)
		if p == nil {
			return sdn.NotFound("pool", id)
		}
		p.Members = slices.Clone(p.Members)
		change(p)
		return nil
	}})
	return err
}

package engine

import (
	"cmp"
	"net/netip"
	"reflect"
	"slices"

	"github.com/kuryr/kuryr/internal/sortslice"
	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

// What is below a load balancer is in its row. Whatever is known again in a later value keeps its
// id: listeners by protocol and port, pools by id or by their listener, members by address and port
// in their pool.

// withOthers is the value with the listeners of those who share the load balancer: of who shares it
// only their own listeners are meant, of who has it by its Key all but others'. Who names it by its
// id alone, as an operator does, means all of it, and says whose a listener is.
func withOthers(r *LoadBalancerRow, spec sdn.LoadBalancerSpec) (sdn.LoadBalancerSpec, error) {
	if spec.Key.IsZero() {
		return spec, nil
	}
	spec.Listeners = slices.Clone(spec.Listeners)
	for i := range spec.Listeners {
		spec.Listeners[i].Key = spec.Key
	}
	for _, l := range r.Listeners {
		mine := l.Key == spec.Key || l.Key.IsZero() && (!spec.Shared || spec.Key == r.Key)
		if mine {
			continue
		}
		if slices.ContainsFunc(spec.Listeners, func(o sdn.Listener) bool { return o.Protocol == l.Protocol && o.Port == l.Port }) {
			return spec, sdn.Conflict(sdn.Exists, loadBalancer, "listeners", "port %d is a listener of another that shares the load balancer (%s)", l.Port, cmp.Or(l.Key.String(), l.Name))
		}
		spec.Listeners = append(spec.Listeners, l)
	}
	if spec.Shared {
		spec.Pools = slices.Clone(r.Pools)
	}
	return spec, nil
}

// setParts makes r's listeners and pools be the spec's, in their normal form, and tells whether anything is another.
func setParts(r *LoadBalancerRow, spec sdn.LoadBalancerSpec) (changed bool) {
	old := r.LoadBalancer
	pools := map[sdn.ID]*sdn.Pool{}
	for i := range old.Listeners {
		if l := &old.Listeners[i]; !l.WithoutPool {
			pools[l.Pool.ID] = &l.Pool
		}
	}
	for i := range old.Pools {
		pools[old.Pools[i].ID] = &old.Pools[i]
	}
	asked := map[sdn.ID]bool{} // pools that the spec names: they are nobody's by default
	for _, l := range spec.Listeners {
		asked[l.Pool.ID] = true
	}
	for _, p := range spec.Pools {
		asked[p.ID] = true
	}
	r.Listeners, r.Pools = nil, nil
	for _, l := range spec.Listeners {
		i := slices.IndexFunc(old.Listeners, func(o sdn.Listener) bool { return o.Protocol == l.Protocol && o.Port == l.Port })
		var before *sdn.Pool
		var tags []string
		if l.ID = newID(); i >= 0 {
			l.ID = old.Listeners[i].ID
			if p := &old.Listeners[i].Pool; !old.Listeners[i].WithoutPool && !asked[p.ID] {
				before = p
			}
			tags = old.Listeners[i].Tags
		}
		l.Tags = tagsOr(l.Tags, tags)
		if named := pools[l.Pool.ID]; named != nil {
			before = named
		}
		if !l.WithoutPool {
			l.Pool = mergePool(before, l.Pool)
			l.Pool.Protocol = 0
		}
		l.Sources = sourceSet(l.Sources)
		r.Listeners = append(r.Listeners, l)
	}
	for _, p := range spec.Pools {
		r.Pools = append(r.Pools, mergePool(pools[p.ID], p))
	}
	sortslice.Func(r.Listeners, func(a, b sdn.Listener) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol))
	})
	sortslice.Func(r.Pools, func(a, b sdn.Pool) int { return cmp.Compare(a.ID, b.ID) })
	return !reflect.DeepEqual(r.Listeners, old.Listeners) || !reflect.DeepEqual(r.Pools, old.Pools)
}

// mergePool gives p the ids that it had before; before may be nil.
func mergePool(before *sdn.Pool, p sdn.Pool) sdn.Pool {
	known := map[netip.AddrPort]sdn.Member{}
	var tags []string
	if p.ID = newID(); before != nil {
		p.ID, tags = before.ID, before.Tags
		for _, m := range before.Members {
			known[m.Addr] = m
		}
	}
	p.Tags = tagsOr(p.Tags, tags)
	members := slices.Clone(p.Members)
	for i, m := range members {
		old := known[m.Addr]
		if m.ID = old.ID; m.ID == "" {
			m.ID = newID()
		}
		m.Tags = tagsOr(m.Tags, old.Tags)
		if m.Weight == 0 {
			m.Weight = 1
		}
		members[i] = m
	}
	sortslice.Func(members, func(a, b sdn.Member) int { return a.Addr.Compare(b.Addr) })
	if p.Members = members; len(members) == 0 {
		p.Members = nil
	}
	return p
}

// tagsOr returns tags in order, each once, or what was before where nil says nothing of them.
func tagsOr(tags, before []string) []string {
	if tags == nil {
		return before
	}
	if len(tags) == 0 {
		return nil
	}
	return valid.TagSet(tags)
}

// sourceSet is prefixes in order, each once and without bits beyond its length; nil where there are none.
func sourceSet(list []netip.Prefix) []netip.Prefix {
	var set []netip.Prefix
	for _, p := range list {
		set = append(set, p.Masked())
	}
	sortslice.Func(set, netip.Prefix.Compare)
	return slices.Compact(set)
}

// partNouns are those that are in load balancers' rows.
var partNouns = []sdn.Noun{sdn.NounListener, sdn.NounPool, sdn.NounMember}

// parts counts what is below a load balancer.
func parts(r *LoadBalancerRow) map[sdn.Noun]int64 {
	n := map[sdn.Noun]int64{}
	for _, l := range r.Listeners {
		n[sdn.NounListener]++
		if !l.WithoutPool {
			n[sdn.NounPool]++
		}
		n[sdn.NounMember] += int64(len(l.Pool.Members))
	}
	for _, p := range r.Pools {
		n[sdn.NounPool]++
		n[sdn.NounMember] += int64(len(p.Members))
	}
	return n
}

func (t *tx) countParts(project string, before, after map[sdn.Noun]int64) error {
	for _, noun := range partNouns {
		by := after[noun] - before[noun]
		if by == 0 {
			continue
		}
		if err := t.count(noun, project, by); err != nil {
			return err
		}
		if err := t.tally(noun, by); err != nil {
			return err
		}
	}
	return nil
}

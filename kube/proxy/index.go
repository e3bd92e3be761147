package proxy

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kuryr/kuryr/datapath/lb"
)

// index is what is known of the cluster, and what of it is in the kernel. It is not for several goroutines at once.
type index struct {
	rules    Rules
	node     Node
	services map[types.NamespacedName]*service
	slices   map[types.NamespacedName][]*slice             // by their Services, which may not be there
	of       map[types.NamespacedName]types.NamespacedName // slices' Services

	// Of all Services, also those that the node leaves alone, both ways.
	addresses  map[types.NamespacedName][]netip.Addr
	clusterIPs map[netip.Addr][]types.NamespacedName
	claims     map[netip.Addr][]types.NamespacedName // Services that ask for an address by externalIPs or their status

	dirty map[types.NamespacedName]struct{} // Services to be looked at

	has    map[types.NamespacedName][]lb.Key // what each has, in the kernel or on the way there
	owner  map[lb.Key]types.NamespacedName
	losers map[lb.Key][]types.NamespacedName // who else wants it
	lost   map[types.NamespacedName][]lb.Key // the same by Service
	gone   map[lb.Key]struct{}               // to be removed, unless somebody has it again
	failed map[types.NamespacedName]error    // what the kernel did not take
	cut    map[types.NamespacedName][]string // what was too much for it
}

func newIndex(r Rules, n Node) *index {
	return &index{
		rules: r, node: n,
		services: map[types.NamespacedName]*service{}, slices: map[types.NamespacedName][]*slice{}, of: map[types.NamespacedName]types.NamespacedName{},
		addresses:  map[types.NamespacedName][]netip.Addr{},
		clusterIPs: map[netip.Addr][]types.NamespacedName{}, claims: map[netip.Addr][]types.NamespacedName{},
		dirty: map[types.NamespacedName]struct{}{},
		has:   map[types.NamespacedName][]lb.Key{}, owner: map[lb.Key]types.NamespacedName{},
		losers: map[lb.Key][]types.NamespacedName{}, lost: map[types.NamespacedName][]lb.Key{},
		gone: map[lb.Key]struct{}{}, failed: map[types.NamespacedName]error{}, cut: map[types.NamespacedName][]string{},
	}
}

func (x *index) touch(name types.NamespacedName) { x.dirty[name] = struct{}{} }

func (x *index) touchAll() {
	for name := range x.services {
		x.touch(name)
	}
}

func (x *index) setService(o *corev1.Service) {
	name := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
	x.setClusterIPs(name, clusterIPs(o))
	s := x.rules.service(o)
	if s == nil {
		x.drop(name)
		return
	}
	if was := x.services[name]; was == nil || was.uid != s.uid { // another, which may be younger than who lost to the one before
		for _, k := range x.has[name] {
			for _, loser := range x.losers[k] {
				x.touch(loser)
			}
		}
	}
	x.unclaim(name)
	x.services[name] = s
	for _, a := range s.claimed() {
		x.claims[a] = append(x.claims[a], name)
	}
	x.touch(name)
}

func (x *index) dropService(name types.NamespacedName) {
	x.setClusterIPs(name, nil)
	x.drop(name)
}

// drop removes what the node does for a Service. The Service may still have ClusterIPs.
func (x *index) drop(name types.NamespacedName) {
	if x.services[name] != nil {
		x.unclaim(name)
		delete(x.services, name)
		x.touch(name)
	}
}

func (x *index) unclaim(name types.NamespacedName) {
	if s := x.services[name]; s != nil {
		for _, a := range s.claimed() {
			without(x.claims, a, name)
		}
	}
}

// setClusterIPs notes the ClusterIPs of a Service. A Service that asks for an address which
// becomes or was a ClusterIP is looked at again.
func (x *index) setClusterIPs(name types.NamespacedName, now []netip.Addr) {
	before := x.addresses[name]
	if slices.Equal(before, now) {
		return
	}
	for _, a := range before {
		without(x.clusterIPs, a, name)
	}
	for _, a := range now {
		x.clusterIPs[a] = append(x.clusterIPs[a], name)
	}
	if x.addresses[name] = now; len(now) == 0 {
		delete(x.addresses, name)
	}
	for _, a := range slices.Concat(before, now) {
		for _, claimant := range x.claims[a] {
			x.touch(claimant)
		}
	}
}

// clusterIPOf returns another Service that has the address as its ClusterIP.
func (x *index) clusterIPOf(a netip.Addr, not types.NamespacedName) (types.NamespacedName, bool) {
	for _, owner := range x.clusterIPs[a] {
		if owner != not {
			return owner, true
		}
	}
	return types.NamespacedName{}, false
}

// allowed is a Service without the addresses that are ClusterIPs of others.
func (x *index) allowed(name types.NamespacedName) *service {
	s := x.services[name]
	if s == nil {
		return nil
	}
	others := func(a netip.Addr) bool { _, taken := x.clusterIPOf(a, name); return taken }
	if !slices.ContainsFunc(s.claimed(), others) {
		return s
	}
	narrowed := *s
	narrowed.ingress = slices.DeleteFunc(slices.Clone(s.ingress), others)
	narrowed.external = slices.DeleteFunc(slices.Clone(s.external), others)
	return &narrowed
}

// without removes a Service from those that an address has.
func without(all map[netip.Addr][]types.NamespacedName, a netip.Addr, name types.NamespacedName) {
	left := slices.DeleteFunc(all[a], func(n types.NamespacedName) bool { return n == name })
	if all[a] = left; len(left) == 0 {
		delete(all, a)
	}
}

func (x *index) setSlice(o *discoveryv1.EndpointSlice) {
	name := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
	s := newSlice(o, x.node.Name)
	owner := o.Labels[discoveryv1.LabelServiceName]
	service := types.NamespacedName{Namespace: o.Namespace, Name: owner}
	if was, ok := x.of[name]; ok && (was != service || s == nil) {
		x.dropSlice(name)
	}
	if s == nil || owner == "" {
		return
	}
	x.of[name] = service
	list := x.slices[service]
	if at := slices.IndexFunc(list, func(have *slice) bool { return have.name == s.name }); at >= 0 {
		list[at] = s
	} else {
		x.slices[service] = append(list, s)
	}
	x.touched(service)
}

func (x *index) dropSlice(name types.NamespacedName) {
	service, ok := x.of[name]
	if !ok {
		return
	}
	delete(x.of, name)
	if left := slices.DeleteFunc(x.slices[service], func(s *slice) bool { return s.name == name.Name }); len(left) > 0 {
		x.slices[service] = left
	} else {
		delete(x.slices, service)
	}
	x.touched(service)
}

// touched has a Service whose slices have changed looked at, if the node has anything to do for it.
func (x *index) touched(service types.NamespacedName) {
	if x.services[service] != nil {
		x.touch(service)
	}
}

// setNode takes in what the node is now. Where that changes anything, all is looked at again.
func (x *index) setNode(n Node) {
	if n.Zone == x.node.Zone && n.Leg == x.node.Leg && slices.Equal(n.Addrs, x.node.Addrs) {
		return
	}
	x.node = n
	x.touchAll()
}

// change is what is to be brought into the kernel, and to the health checks.
type change struct {
	looked map[types.NamespacedName]realised // Services that were looked at, without their frontends
	set    map[types.NamespacedName][]lb.Frontend
	remove []lb.Key
}

func (c change) frontends() iter.Seq[lb.Frontend] {
	return func(yield func(lb.Frontend) bool) {
		for _, list := range c.set {
			for _, f := range list {
				if !yield(f) {
					return
				}
			}
		}
	}
}

// plan looks at the Services that are dirty, which are so no more. It says only what has changed: what is owed from before is in it too.
func (x *index) plan() change {
	c := change{looked: map[types.NamespacedName]realised{}, set: map[types.NamespacedName][]lb.Frontend{}}
	set := map[lb.Key]lb.Frontend{}
	for len(x.dirty) > 0 {
		// One look may have others looked at, which then have what this one lost, or lose it. It ends, since an address goes only to who comes before.
		dirty := x.dirty
		x.dirty = map[types.NamespacedName]struct{}{} // a map that was large once costs as much to go through ever after
		for name := range dirty {
			delete(x.dirty, name)
			r := x.rules.realise(x.allowed(name), x.slices[name], x.node)
			x.settle(name, r.frontends, set)
			if x.cut[name] = r.cut; r.cut == nil {
				delete(x.cut, name)
			}
			r.frontends, r.cut = nil, nil
			c.looked[name] = r
		}
	}
	for k := range x.gone {
		if _, taken := x.owner[k]; !taken {
			c.remove = append(c.remove, k)
		}
	}
	x.gone = map[lb.Key]struct{}{}
	for k, f := range set {
		if name, taken := x.owner[k]; taken {
			c.set[name] = append(c.set[name], f)
		}
	}
	return c
}

// done takes in what became of a change: what failed is to be looked at again. With err and nothing that failed by itself, nothing of it may be in the kernel.
func (x *index) done(c change, failed map[types.NamespacedName]error, err error) {
	for name := range c.looked {
		delete(x.failed, name)
		if failed[name] != nil || err != nil && len(failed) == 0 {
			x.touch(name)
		}
		if failed[name] != nil {
			x.failed[name] = failed[name]
		}
	}
	if err != nil && len(failed) == 0 {
		for _, k := range c.remove {
			x.gone[k] = struct{}{}
		}
	}
}

// complaints are what a Service asks for and does not have on this node.
func (x *index) complaints(name types.NamespacedName) (out []string) {
	for _, k := range x.lost[name] {
		out = append(out, fmt.Sprintf("%s is the Service %s's, which is older", k, x.owner[k]))
	}
	if s := x.services[name]; s != nil {
		for _, a := range s.refused {
			out = append(out, fmt.Sprintf("external address %s: not of the ranges that are allowed", a))
		}
		for _, a := range s.refusedIngress {
			out = append(out, fmt.Sprintf("load balancer address %s: not of the ranges that are allowed", a))
		}
		for _, a := range s.claimed() {
			if owner, taken := x.clusterIPOf(a, name); taken {
				out = append(out, fmt.Sprintf("address %s: it is the ClusterIP of the Service %s", a, owner))
			}
		}
	}
	out = append(out, x.cut[name]...)
	if err := x.failed[name]; err != nil {
		out = append(out, err.Error())
	}
	return out
}

// settle gives a Service the keys it wants and no others. A key that several want is the oldest Service's, so that nobody takes an address over by claiming it later.
func (x *index) settle(name types.NamespacedName, want []lb.Frontend, set map[lb.Key]lb.Frontend) {
	x.forgive(name)
	before := x.has[name]
	var has []lb.Key
	for _, f := range want {
		k := f.Key
		other, taken := x.owner[k]
		switch {
		case taken && other != name && !x.before(name, other):
			x.losers[k] = append(x.losers[k], name)
			x.lost[name] = append(x.lost[name], k)
			continue
		case taken && other != name:
			x.touch(other)
			x.has[other] = slices.DeleteFunc(x.has[other], func(o lb.Key) bool { return o == k })
		}
		x.owner[k] = name
		set[k] = f
		has = append(has, k)
	}
	for _, k := range before {
		if x.owner[k] == name && !slices.Contains(has, k) {
			delete(x.owner, k)
			delete(set, k)
			x.gone[k] = struct{}{}
			for _, loser := range x.losers[k] {
				x.touch(loser)
			}
		}
	}
	if x.has[name] = has; len(has) == 0 {
		delete(x.has, name)
	}
}

// forgive forgets what a Service has lost, which it is about to ask for again.
func (x *index) forgive(name types.NamespacedName) {
	for _, k := range x.lost[name] {
		if left := slices.DeleteFunc(x.losers[k], func(n types.NamespacedName) bool { return n == name }); len(left) > 0 {
			x.losers[k] = left
		} else {
			delete(x.losers, k)
		}
	}
	delete(x.lost, name)
}

// before tells whether one Service comes before another. Who is there no more comes last.
func (x *index) before(one, other types.NamespacedName) bool {
	a, b := x.services[one], x.services[other]
	if a == nil || b == nil {
		return a != nil
	}
	return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.uid, b.uid)) < 0
}

package neutronapi

import (
	"context"
	"iter"
	"net/http"
	"slices"
	"strconv"

	"github.com/kuryr/kuryr/sdn"
)

// ref names another object.
type ref struct {
	ID string `json:"id"`
}

// additionalVIP is the address of the other family of a load balancer.
type additionalVIP struct {
	SubnetID  string `json:"subnet_id"`
	IPAddress string `json:"ip_address"`
	PortID    string `json:"port_id"`
}

// backendName is Octavia's name of a provider of load balancers. The SDN's default one has the
// name of the SDN's API.
func backendName(backend string) string {
	if backend == "" {
		return Kuryr
	}
	return backend
}

// balancer is a load balancer with the network of its first VIP.
type balancer struct {
	sdn.LoadBalancer
	network sdn.ID
}

// first is the first VIP.
func (b *balancer) first() sdn.VIP {
	if len(b.VIPs) == 0 {
		return sdn.VIP{}
	}
	return b.VIPs[0]
}

func showVIP(v sdn.VIP) string {
	if !v.Addr.IsValid() {
		return ""
	}
	return v.Addr.String()
}

func showMoreVIPs(b *balancer) any {
	out := []additionalVIP{}
	for i, v := range b.VIPs {
		if i > 0 {
			out = append(out, additionalVIP{string(v.Subnet), showVIP(v), string(v.Port)})
		}
	}
	return out
}

// refs names the objects that a list has.
func refs[T any](all []T, id func(*T) sdn.ID) []ref {
	out := make([]ref, len(all))
	for i := range all {
		out[i] = ref{string(id(&all[i]))}
	}
	return out
}

type (
	balancerChange = valueChange[sdn.LoadBalancerSpec]
	// balancerPatch changes a load balancer. Its Patch is read after the tags.
	balancerPatch struct {
		valuePatch[sdn.LoadBalancerSpec]
		tags *[]string
	}
)

// balancerMeta are the attributes that load balancers show of their Meta.
var balancerMeta = []metaField{
	{"id", func(m sdn.Meta) any { return string(m.ID) }},
	{"name", func(m sdn.Meta) any { return m.Name }},
	{"description", func(m sdn.Meta) any { return describe(m) }},
	{"project_id", func(m sdn.Meta) any { return m.Project }},
	{"tags", func(m sdn.Meta) any { return m.Tags }},
	{"kuryr:revision_number", func(m sdn.Meta) any { return m.Revision }},
}

func (s *server) loadBalancers() tableOf[balancer] {
	type N = balancer
	type S = sdn.LoadBalancerSpec
	type P = balancerPatch
	remove, removeIf := s.checked(sdn.NounLoadBalancer, func(context.Context, sdn.ID) error { return nil }, s.p.DeleteLoadBalancer)
	base := func(x *S) *sdn.Base { return &x.Base }
	t := &table{
		member: "loadbalancer", collection: "loadbalancers", title: "load balancer",
		meta: via(func(n *N) sdn.Meta { return n.Meta }), shows: balancerMeta,
		base: via(base), patch: via(func(p *P) *sdn.Patch { return &p.Patch }),
		fields: append(statusFields(func(n *N) *sdn.LoadBalancer { return &n.LoadBalancer }, online), []field{
			{name: "vip_address", access: hookPost, show: via(func(n *N) any { return showVIP(n.first()) })},
			{name: "vip_subnet_id", access: hookPost, show: via(func(n *N) any { return string(n.first().Subnet) })},
			{name: "vip_network_id", access: hookPost, show: via(func(n *N) any { return string(n.network) })},
			{name: "vip_port_id", is: isUnset(), show: via(func(n *N) any { return string(n.first().Port) }), why: noSuchThing},
			{name: "vip_qos_policy_id", is: isUnset(), show: null, why: noSuchThing},
			{name: "vip_vnic_type", is: isUnset(), why: noSuchThing},
			{name: "vip_sg_ids", is: kindOf((*body).vipGroups), show: via(func(n *N) any { return n.Groups }),
				post: set(func(x *S) *[]sdn.ID { return &x.Groups }),
				put:  store(func(p *P, v any) { p.change = func(x *S) { x.Groups = v.([]sdn.ID) } })},
			{name: "additional_vips", access: hookPost, show: via(showMoreVIPs)},
			{name: "listeners", access: hookPost, show: via(func(n *N) any {
				return refs(n.Listeners, func(l *sdn.Listener) sdn.ID { return l.ID })
			})},
			{name: "pools", access: hookPost, show: via(func(n *N) any {
				return refs(poolsOf(n.LoadBalancer), func(p *part[sdn.Pool]) sdn.ID { return p.value.ID })
			})},
			{name: "provider", is: isOptional, show: via(func(n *N) any { return backendName(n.Backend) }),
				post: store(func(x *S, v any) {
					if provider := v.(string); provider != Kuryr {
						x.Backend = provider
					}
				})},
			{name: "flavor_id", is: isOptional, show: via(func(n *N) any { return some(n.Flavor) }),
				post: set(func(x *S) *string { return &x.Flavor })},
			{name: "availability_zone", is: isOptional, show: via(func(n *N) any { return some(n.Zone) }),
				post: set(func(x *S) *string { return &x.Zone })},
		}...),
		get: getCall{made[N], func(ctx context.Context, id sdn.ID) (any, error) { return pointer(s.loadBalancer(ctx, id)) }},
		find: func(ctx context.Context, f *filter) iter.Seq2[any, error] {
			return pointers(s.findLoadBalancers(ctx, f))
		},
		canDelete:  judged(childless),
		beforePost: hook(func(_ *call, b *body, _ *S) { b.blank("name") }),
		checkPost:  hook(s.checkLoadBalancer),
		beforePut: hookOn(func(_ *call, b *body, _ *N, p *P) {
			b.blank("name")
			b.readOnly("vip_port_id", "vip_vnic_type", "loadbalancer_id")
			p.tags = b.newTags()
		}),
		checkPut: hookOn(func(_ *call, b *body, n *N, p *P) {
			p.Tags = p.tags
			p.clearing = b.clearing("load balancer", n.Meta, p.Patch)
		}),
		create: createCall{made[S], func(ctx context.Context, x any) (any, error) { return pointer(s.createLoadBalancer(ctx, *x.(*S))) }},
		update: updateCall{made[P], func(ctx context.Context, id sdn.ID, change any) (any, error) {
			p := *change.(*P)
			l, err := s.rewriteBalancer(ctx, id, p.of(base))
			return pointer(s.placed(ctx, l, err, nil))
		}},
		remove:   remove,
		removeIf: removeIf,
	}
	return tableOf[N]{t}
}

func (s *server) loadBalancer(ctx context.Context, id sdn.ID) (balancer, error) {
	l, err := s.p.LoadBalancer(ctx, id)
	return s.placed(ctx, l, err, nil)
}

// placed finds the network of a load balancer's first VIP. seen has the networks of subnets that
// are known already.
func (s *server) placed(ctx context.Context, l sdn.LoadBalancer, err error, seen map[sdn.ID]sdn.ID) (balancer, error) {
	out := balancer{LoadBalancer: l}
	subnet := out.first().Subnet
	if err != nil || subnet == "" {
		return out, err
	}
	network, known := seen[subnet]
	if !known {
		found, err := s.p.Subnet(ctx, subnet)
		if err != nil && !sdn.IsNotFound(err) {
			return out, err
		}
		if network = found.Network; seen != nil {
			seen[subnet] = network
		}
	}
	out.network = network
	return out, nil
}

func (s *server) findLoadBalancers(ctx context.Context, f *filter) iter.Seq2[balancer, error] {
	q := sdn.LoadBalancerQuery{
		Match: f.match(), Subnets: f.ids("vip_subnet_id"), Addresses: f.addrs("vip_address"), Ports: f.ids("vip_port_id"),
	}
	seen := map[sdn.ID]sdn.ID{}
	return func(yield func(balancer, error) bool) {
		for l, err := range s.p.FindLoadBalancers(ctx, q) {
			if b, err := s.placed(ctx, l, err, seen); !yield(b, err) {
				return
			}
		}
	}
}

func (s *server) createLoadBalancer(ctx context.Context, spec sdn.LoadBalancerSpec) (balancer, error) {
	find := func(m sdn.Match) iter.Seq2[sdn.LoadBalancer, error] {
		return s.p.FindLoadBalancers(ctx, sdn.LoadBalancerQuery{Match: m})
	}
	l, err := unlessThere(ctx, s, "load balancer", spec.Base, find, func() (sdn.LoadBalancer, error) {
		return s.p.ApplyLoadBalancer(ctx, spec)
	})
	return s.placed(ctx, l, err, nil)
}

// rewriteBalancer applies a change to the present value of a load balancer.
func (s *server) rewriteBalancer(ctx context.Context, id sdn.ID, by balancerChange) (sdn.LoadBalancer, error) {
	return changeValue(ctx, s, sdn.NounLoadBalancer, id, by, s.p.LoadBalancer, func(l sdn.LoadBalancer) (sdn.LoadBalancerSpec, sdn.Meta) {
		return sdn.LoadBalancerSpec{
			ID: l.ID, IfRevision: l.Revision, VIPs: l.VIPs, Listeners: slices.Clone(l.Listeners), Pools: slices.Clone(l.Pools),
			Backend: l.Backend, Flavor: l.Flavor, Zone: l.Zone,
		}, l.Meta
	}, s.p.ApplyLoadBalancer)
}

// childless refuses to delete a load balancer that has listeners or pools, unless the request says
// cascade.
func childless(c *call, b *balancer) (bool, error) {
	cascade := false
	if text := c.URL.Query().Get("cascade"); text != "" {
		var err error
		if cascade, err = strconv.ParseBool(text); err != nil {
			return false, badRequest("Invalid input for field/attribute cascade. Value: '" + text + "'.")
		}
	}
	if !cascade && len(b.Listeners)+len(b.Pools) > 0 && c.owns(b.Meta) {
		return false, refuse(http.StatusBadRequest, "ValidationException", "Validation failure: Cannot delete Load Balancer %s - it has children", b.ID)
	}
	return false, nil
}

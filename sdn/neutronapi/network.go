package neutronapi

import (
	"context"
	"iter"

	"github.com/kuryr/kuryr/sdn"
)

// mostMTU is that of an IP packet, leastMTU what IPv4 asks for.
const leastMTU, mostMTU = 68, 65535

// isMTU takes an MTU. In POST 0 is the SDN's choice.
var isMTU = kindOf(func(b *body, name string) *int {
	least := leastMTU
	if b.post {
		least = 0
	}
	return b.integer(name, least, mostMTU)
})

func (s *server) networks() tableOf[sdn.Network] {
	type N = sdn.Network
	type S = sdn.NetworkSpec
	type P = sdn.NetworkPatch
	t := &table{
		member: "network", collection: "networks", title: "network", noun: sdn.NounNetwork,
		meta: via(func(n *N) sdn.Meta { return n.Meta }), shows: neutronMeta, tags: true,
		base: via(func(x *S) *sdn.Base { return &x.Base }), patch: via(func(p *P) *sdn.Patch { return &p.Patch }),
		fields: []field{
			{name: "mtu", is: isMTU, show: via(func(n *N) any { return n.MTU }),
				post: set(func(x *S) *int { return &x.MTU }), put: change(func(p *P) **int { return &p.MTU })},
			{name: "router:external", is: isBool, access: adminSet, show: via(func(n *N) any { return n.External }),
				post: set(func(x *S) *bool { return &x.External }),
				put:  change(func(p *P) **bool { return &p.External })},
			{name: "shared", is: isBool, access: adminSet, show: via(func(n *N) any { return n.Shared }),
				post: set(func(x *S) *bool { return &x.Shared }),
				put:  change(func(p *P) **bool { return &p.Shared })},
			{name: "port_security_enabled", is: isBool, show: via(func(n *N) any { return !n.NoPortSecurity }),
				post: setNot(func(x *S) *bool { return &x.NoPortSecurity }),
				put:  changeNot(func(p *P) **bool { return &p.NoPortSecurity })},
			{name: "subnets", show: via(func(n *N) any { return n.Subnets })},
			{name: "status", show: via(func(n *N) any { return status(!n.Disabled) })},
			{name: "admin_state_up", is: isBool, show: via(func(n *N) any { return !n.Disabled }),
				post: setNot(func(x *S) *bool { return &x.Disabled }),
				put:  changeNot(func(p *P) **bool { return &p.Disabled })},
			{name: "is_default", is: isBool, access: adminSet, show: via(func(n *N) any { return n.Default }),
				post: set(func(x *S) *bool { return &x.Default }), put: change(func(p *P) **bool { return &p.Default })},
			{name: "qos_policy_id", is: kindOf((*body).policy), show: via(func(n *N) any { return some(string(n.QoSPolicy)) }),
				taken: "the policy of an internal network", why: "the embedded SDN limits ports, and no gateways",
				post: set(func(x *S) *sdn.ID { return &x.QoSPolicy }), put: change(func(p *P) **sdn.ID { return &p.QoSPolicy })},
			{name: "provider:network_type", is: isOptional, access: adminPost | adminShow,
				show: via(func(n *N) any { return some(n.Segment.Type) }),
				post: set(func(x *S) *string { return &x.Segment.Type })},
			{name: "provider:physical_network", is: isOptional, access: adminPost | adminShow,
				show: via(func(n *N) any { return some(n.Segment.Physical) }),
				post: set(func(x *S) *string { return &x.Segment.Physical })},
			{name: "provider:segmentation_id", is: orNull(isInt(0, 1<<24)), access: adminPost | adminShow,
				show: via(func(n *N) any { return some(n.Segment.ID) }),
				post: set(func(x *S) *int { return &x.Segment.ID })},
			{name: "availability_zones", show: empty},
			{name: "availability_zone_hints", is: isTexts, show: empty, why: "this SDN has no availability zones"},
			{name: "ipv4_address_scope", show: via(func(n *N) any { return some(string(n.Scope4)) })},
			{name: "ipv6_address_scope", show: via(func(n *N) any { return some(string(n.Scope6)) })},
		},
		get: getCall{made[N], func(ctx context.Context, id sdn.ID) (any, error) { return pointer(s.p.Network(ctx, id)) }},
		find: func(ctx context.Context, f *filter) iter.Seq2[any, error] {
			return pointers(s.findNetworks(ctx, networkQuery(f)))
		},
		shared: judged((*call).seesNetwork),
		create: createCall{made[S], func(ctx context.Context, x any) (any, error) { return pointer(s.p.EnsureNetwork(ctx, *x.(*S))) }},
		update: updateCall{made[P], func(ctx context.Context, id sdn.ID, p any) (any, error) {
			return pointer(s.p.UpdateNetwork(ctx, id, *p.(*P)))
		}},
		remove: s.p.DeleteNetwork,
	}
	if atomic, ok := s.p.(sdn.AtomicNetworks); ok {
		t.createAll = bulk(atomic.EnsureAllNetworks)
	}
	return tableOf[N]{t}
}

func networkQuery(f *filter) sdn.NetworkQuery {
	return sdn.NetworkQuery{Match: f.match(), External: f.boolean("router:external")}
}

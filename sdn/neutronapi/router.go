package neutronapi

import (
	"context"
	"iter"

	"github.com/kuryr/kuryr/sdn"
)

// gatewayInfo is a router's way out.
type gatewayInfo struct {
	NetworkID  string    `json:"network_id"`
	EnableSNAT bool      `json:"enable_snat"`
	FixedIPs   []fixedIP `json:"external_fixed_ips"`
}

// routerInterface is a router's leg on a subnet.
type routerInterface struct {
	PortID    string `json:"port_id"`
	SubnetID  string `json:"subnet_id"`
	IPAddress string `json:"ip_address"`
}

// unreached is a range that the host cannot lead to the router, and why.
type unreached struct {
	Prefix string `json:"prefix"`
	Reason string `json:"reason"`
}

func (s *server) routers() tableOf[sdn.Router] {
	type N = sdn.Router
	type S = sdn.RouterSpec
	type P = sdn.RouterPatch
	const noHA = "its routers are neither distributed nor highly available"
	isGateway := kindOf(s.gateway)
	t := &table{
		member: "router", collection: "routers", title: "router", noun: sdn.NounRouter,
		meta: via(func(n *N) sdn.Meta { return n.Meta }), shows: neutronMeta, tags: true,
		base: via(func(x *S) *sdn.Base { return &x.Base }), patch: via(func(p *P) *sdn.Patch { return &p.Patch }),
		fields: []field{
			{name: "external_gateway_info", is: isGateway, show: via(showGateway),
				taken: "no `qos_policy_id` in it", why: "the embedded SDN limits ports, and no gateways",
				post: store(func(x *S, v any) {
					if gw := v.(sdn.ExternalGateway); gw.Network != "" {
						x.Gateway = &gw
					}
				}),
				put: change(func(p *P) **sdn.ExternalGateway { return &p.Gateway })},
			// As with Neutron: a new router has no interfaces that routes could lead by.
			{name: "routes", is: kindOf((*body).extraRoutes), show: via(func(n *N) any { return encodeRoutes(n.Routes) }),
				put: change(func(p *P) **[]sdn.HostRoute { return &p.Routes })},
			{name: "interfaces_info", show: via(showInterfaces)},
			{name: "kuryr:unreached", show: via(showUnreached)},
			{name: "status", show: via(func(n *N) any { return status(!n.Disabled) })},
			{name: "admin_state_up", is: isBool, show: via(func(n *N) any { return !n.Disabled }),
				post: setNot(func(x *S) *bool { return &x.Disabled }),
				put:  changeNot(func(p *P) **bool { return &p.Disabled })},
			{name: "ha", is: isBool, access: adminSet | adminShow, show: never, why: noHA},
			{name: "distributed", is: isBool, access: adminSet | adminShow, show: never, why: noHA},
			{name: "flavor_id", is: isNull, show: null, why: "this SDN has no flavors"},
			{name: "availability_zones", show: empty},
			{name: "availability_zone_hints", is: isTexts, show: empty, why: "this SDN has no availability zones"},
		},
		get: getCall{made[N], func(ctx context.Context, id sdn.ID) (any, error) { return pointer(s.p.Router(ctx, id)) }},
		find: func(ctx context.Context, f *filter) iter.Seq2[any, error] {
			return pointers(s.p.FindRouters(ctx, sdn.RouterQuery{Match: f.match()}))
		},
		create: createCall{made[S], func(ctx context.Context, x any) (any, error) { return pointer(s.p.EnsureRouter(ctx, *x.(*S))) }},
		update: updateCall{made[P], func(ctx context.Context, id sdn.ID, p any) (any, error) {
			return pointer(s.updateRouter(ctx, id, *p.(*P)))
		}},
		remove: s.p.DeleteRouter,
	}
	return tableOf[N]{t}
}

func showGateway(r *sdn.Router) any {
	if r.Gateway == nil {
		return nil
	}
	addresses := encodeAddresses(r.Gateway.Addresses)
	return gatewayInfo{NetworkID: string(r.Gateway.Network), EnableSNAT: r.Gateway.SNAT, FixedIPs: addresses}
}

func showInterfaces(r *sdn.Router) any {
	out := make([]routerInterface, len(r.Interfaces))
	for i, leg := range r.Interfaces {
		out[i] = routerInterface{PortID: string(leg.Port), SubnetID: string(leg.Subnet), IPAddress: leg.Addr.String()}
	}
	return out
}

func showUnreached(r *sdn.Router) any {
	out := make([]unreached, len(r.Unreached))
	for i, u := range r.Unreached {
		out[i] = unreached{Prefix: u.Prefix.String(), Reason: u.Reason}
	}
	return out
}

// gateway reads a router's way out, the zero one for none. Its network must be one that the caller sees.
func (s *server) gateway(b *body, name string) *sdn.ExternalGateway {
	if b.null(name) {
		return &sdn.ExternalGateway{}
	}
	info := b.sub(name)
	if info == nil || len(info.values) == 0 {
		return &sdn.ExternalGateway{}
	}
	gw := sdn.ExternalGateway{Network: or(info.id("network_id")), SNAT: true}
	if gw.Network == "" {
		info.invalid("network_id", "Validation of dictionary's keys failed. Expected keys: {'network_id'}")
	}
	verb := "update_"
	if b.post {
		verb = "create_"
	}
	for _, part := range []string{"enable_snat", "external_fixed_ips"} {
		if info.has(part) && !b.caller.admin() {
			info.fail(errAdminsOnly(verb + "router:" + name + ":" + part))
		}
	}
	if snat := info.boolean("enable_snat"); snat != nil {
		gw.SNAT = *snat
	}
	if fixed := objects(info, "external_fixed_ips", func(b *body) sdn.Address {
		out := sdn.Address{Subnet: or(b.id("subnet_id"))}
		if !b.null("ip_address") {
			out.Addr = or(b.addr("ip_address"))
		}
		return out
	}); fixed != nil && len(*fixed) > 0 {
		gw.Addresses = *fixed
	}
	b.took(info)
	if b.err != nil {
		return &gw
	}
	switch n, err := s.networks().need(b.call, gw.Network); {
	case err != nil:
		b.fail(err)
	case !n.External:
		b.fail(badOf("router", "Network %s is not an external network", gw.Network))
	}
	return &gw
}

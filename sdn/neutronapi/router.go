package neutronapi

import (
	"context"
	"iter"

	"github.com/kuryr/kuryr/sdn"
)

// Routers are served below /v2.0/routers.
var Routers = Resource[Router]{"router", "routers"}

// Router is a router in Neutron's JSON.
type Router struct {
	Common
	Gateway      *GatewayInfo `json:"external_gateway_info"`
	Routes       []Route      `json:"routes"`
	Interfaces   []Interface  `json:"interfaces_info"`
	Unreached    []Unreached  `json:"kuryr:unreached"`
	Status       string       `json:"status"`
	AdminStateUp bool         `json:"admin_state_up"`
	HA           bool         `json:"ha"`
	Distributed  bool         `json:"distributed"`
	// The SDN has no such thing.
	FlavorID              *string  `json:"flavor_id"`
	AvailabilityZones     []string `json:"availability_zones"`
	AvailabilityZoneHints []string `json:"availability_zone_hints"`
}

// GatewayInfo is a router's way out.
type GatewayInfo struct {
	NetworkID  string    `json:"network_id"`
	EnableSNAT bool      `json:"enable_snat"`
	FixedIPs   []FixedIP `json:"external_fixed_ips"`
}

// Interface is a router's leg on a subnet.
type Interface struct {
	PortID    string `json:"port_id"`
	SubnetID  string `json:"subnet_id"`
	IPAddress string `json:"ip_address"`
}

// Unreached is a range that the host cannot lead to the router, and why.
type Unreached struct {
	Prefix string `json:"prefix"`
	Reason string `json:"reason"`
}

// EncodeRouter translates a router.
func EncodeRouter(r sdn.Router) Router {
	out := Router{
		Common: encodeMeta(r.Meta), Routes: encodeRoutes(r.Routes), Interfaces: []Interface{}, Unreached: []Unreached{},
		Status: active, AdminStateUp: !r.Disabled, AvailabilityZones: []string{}, AvailabilityZoneHints: []string{},
	}
	if r.Gateway != nil {
		out.Gateway = &GatewayInfo{NetworkID: string(r.Gateway.Network), EnableSNAT: r.Gateway.SNAT, FixedIPs: encodeAddresses(r.Gateway.Addresses)}
	}
	for _, leg := range r.Interfaces {
		out.Interfaces = append(out.Interfaces, Interface{PortID: string(leg.Port), SubnetID: string(leg.Subnet), IPAddress: leg.Addr.String()})
	}
	for _, u := range r.Unreached {
		out.Unreached = append(out.Unreached, Unreached{Prefix: u.Prefix.String(), Reason: u.Reason})
	}
	return out
}

func routerQuery(f *filter) sdn.RouterQuery { return sdn.RouterQuery{Match: f.match()} }

// routerAttributes are attributes of routers that only administrators see.
var routerAttributes = []string{"ha", "distributed"}

func (s *server) routers() *definition[sdn.Router, Router, sdn.RouterSpec, sdn.RouterPatch] {
	p := s.p
	return &definition[sdn.Router, Router, sdn.RouterSpec, sdn.RouterPatch]{
		Resource: Routers, title: "router", kind: sdn.NounRouter, hidden: routerAttributes,
		meta: func(o sdn.Router) sdn.Meta { return o.Meta },
		get:  p.Router,
		find: func(ctx context.Context, f *filter) iter.Seq2[sdn.Router, error] {
			return p.FindRouters(ctx, routerQuery(f))
		},
		encode: EncodeRouter, spec: s.routerSpec, patch: s.routerPatch, create: p.EnsureRouter, update: s.updateRouter, remove: p.DeleteRouter,
		setTags: func(ctx context.Context, id sdn.ID, change sdn.Patch) error {
			_, err := p.UpdateRouter(ctx, id, sdn.RouterPatch{Patch: change})
			return err
		},
	}
}

// absentRouterAttributes reads what the SDN has not, which clients may send as it is anyway.
func (b *body) absentRouterAttributes() {
	b.readOnly("interfaces_info", "kuryr:unreached", "availability_zones")
	for _, name := range routerAttributes {
		b.privileged(name)
		b.only(name, false, "its routers are neither distributed nor highly available")
	}
	if hints := b.texts("availability_zone_hints"); hints != nil && len(*hints) > 0 {
		b.unsupported("availability_zone_hints", "this SDN has no availability zones")
	}
	if !b.null("flavor_id") && b.has("flavor_id") {
		b.take("flavor_id")
		b.unsupported("flavor_id", "this SDN has no flavors")
	}
}

func (s *server) routerSpec(c *call, b *body) sdn.RouterSpec {
	spec := sdn.RouterSpec{Base: b.base(), Gateway: s.gateway(c, b), Disabled: or(not(b.boolean("admin_state_up")))}
	if spec.Gateway != nil && spec.Gateway.Network == "" {
		spec.Gateway = nil
	}
	b.readOnly("routes") // as with Neutron: a router is born without legs to have routes on
	b.absentRouterAttributes()
	return spec
}

func (s *server) routerPatch(c *call, b *body, r sdn.Router) sdn.RouterPatch {
	p := sdn.RouterPatch{Patch: b.changes(r.Meta), Gateway: s.gateway(c, b), Routes: b.extraRoutes(), Disabled: not(b.boolean("admin_state_up"))}
	b.absentRouterAttributes()
	return p
}

// gateway reads a router's way out: nil where nothing is said of it, the zero one where it is to have none. Its network must be one that the caller sees.
func (s *server) gateway(c *call, b *body) *sdn.ExternalGateway {
	const name = "external_gateway_info"
	if b.null(name) {
		return &sdn.ExternalGateway{}
	}
	if !b.has(name) {
		return nil
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
		if info.has(part) && !c.caller.admin() {
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
	switch n, err := s.networks().need(c, gw.Network); {
	case err != nil:
		b.fail(err)
	case !n.External:
		b.fail(badOf("router", "Network %s is not an external network", gw.Network))
	}
	return &gw
}

package restapi

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
		Status: active, AdminStateUp: !r.Disabled,
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

func (s *server) routers() noun[sdn.Router, Router, struct{}, struct{}] {
	p := s.p
	return noun[sdn.Router, Router, struct{}, struct{}]{
		Resource: Routers, title: "router", kind: sdn.NounRouter,
		meta: func(o sdn.Router) sdn.Meta { return o.Meta },
		get:  p.Router,
		find: func(ctx context.Context, f *filter) iter.Seq2[sdn.Router, error] {
			return p.FindRouters(ctx, routerQuery(f))
		},
		encode: EncodeRouter,
	}
}

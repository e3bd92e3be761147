package restapi

import (
	"context"
	"iter"

	"github.com/kuryr/kuryr/sdn"
)

// Subnets are served below /v2.0/subnets.
var Subnets = Resource[Subnet]{"subnet", "subnets"}

// Subnet is a subnet in Neutron's JSON.
type Subnet struct {
	Common
	NetworkID       string           `json:"network_id"`
	CIDR            string           `json:"cidr"`
	IPVersion       int              `json:"ip_version"`
	GatewayIP       *string          `json:"gateway_ip"`
	AllocationPools []AllocationPool `json:"allocation_pools"`
	SubnetPoolID    *string          `json:"subnetpool_id"`
	EnableDHCP      bool             `json:"enable_dhcp"`
	AddressMode     *string          `json:"ipv6_address_mode"`
	RAMode          *string          `json:"ipv6_ra_mode"`
	Nameservers     []string         `json:"dns_nameservers"`
	HostRoutes      []Route          `json:"host_routes"`
	Reserved        []string         `json:"kuryr:reserved_addresses"`
}

// AllocationPool is a range that addresses are allocated from.
type AllocationPool struct {
	Start string `json:"start"`
	End   string `json:"end"`
}

// EncodeSubnet translates a subnet.
func EncodeSubnet(s sdn.Subnet) Subnet {
	out := Subnet{
		Common: encodeMeta(s.Meta), NetworkID: string(s.Network), CIDR: s.CIDR.String(), IPVersion: family(s.CIDR.Addr()),
		GatewayIP: optionalAddr(s.Gateway), AllocationPools: []AllocationPool{}, SubnetPoolID: optional(string(s.Pool)),
		EnableDHCP: !s.NoDHCP, AddressMode: optional(string(s.Mode)), RAMode: optional(string(s.Mode)),
		Nameservers: []string{}, HostRoutes: encodeRoutes(s.HostRoutes), Reserved: []string{},
	}
	for _, r := range s.Ranges {
		out.AllocationPools = append(out.AllocationPools, AllocationPool{Start: r.First.String(), End: r.Last.String()})
	}
	for _, a := range s.Nameservers {
		out.Nameservers = append(out.Nameservers, a.String())
	}
	for _, a := range s.Reserved {
		out.Reserved = append(out.Reserved, a.String())
	}
	return out
}

func subnetQuery(f *filter) sdn.SubnetQuery {
	return sdn.SubnetQuery{Match: f.match(), Networks: f.ids("network_id"), Pools: f.ids("subnetpool_id"), CIDRs: f.prefixes("cidr")}
}

func (s *server) subnets() noun[sdn.Subnet, Subnet, struct{}, struct{}] {
	p := s.p
	return noun[sdn.Subnet, Subnet, struct{}, struct{}]{
		Resource: Subnets, title: "subnet", kind: sdn.NounSubnet,
		meta: func(o sdn.Subnet) sdn.Meta { return o.Meta },
		get:  p.Subnet,
		find: func(ctx context.Context, f *filter) iter.Seq2[sdn.Subnet, error] {
			return p.FindSubnets(ctx, subnetQuery(f))
		},
		encode: EncodeSubnet,
	}
}

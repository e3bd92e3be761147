package neutronapi

import (
	"context"
	"iter"
	"net/http"
	"net/netip"

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
	ServiceTypes    []string         `json:"service_types"`
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
		Nameservers: []string{}, HostRoutes: encodeRoutes(s.HostRoutes), ServiceTypes: []string{}, Reserved: []string{},
	}
	for _, r := range allocationPools(s) {
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

func (s *server) subnets() *definition[sdn.Subnet, Subnet, sdn.SubnetSpec, sdn.SubnetPatch] {
	p := s.p
	n := &definition[sdn.Subnet, Subnet, sdn.SubnetSpec, sdn.SubnetPatch]{
		Resource: Subnets, title: "subnet", kind: sdn.NounSubnet,
		meta: func(s sdn.Subnet) sdn.Meta { return s.Meta },
		get:  p.Subnet,
		find: func(ctx context.Context, f *filter) iter.Seq2[sdn.Subnet, error] {
			return s.findSubnets(ctx, subnetQuery(f))
		},
		encode: EncodeSubnet,
		shared: func(c *call, s sdn.Subnet) (bool, error) { return c.ofNetwork(s.Network, true) },
		spec:   subnetSpec, patch: subnetPatch,
		create: p.EnsureSubnet, update: p.UpdateSubnet, remove: p.DeleteSubnet,
		setTags: func(ctx context.Context, id sdn.ID, change sdn.Patch) error {
			_, err := p.UpdateSubnet(ctx, id, sdn.SubnetPatch{Patch: change})
			return err
		},
	}
	if atomic, ok := p.(sdn.AtomicNetworks); ok {
		n.createAll = bulkOf(atomic.EnsureAllSubnets)
	}
	return n
}

func subnetQuery(f *filter) sdn.SubnetQuery {
	return sdn.SubnetQuery{Match: f.match(), Networks: f.ids("network_id"), Pools: f.ids("subnetpool_id"), CIDRs: f.prefixes("cidr")}
}

func subnetSpec(c *call, b *body) sdn.SubnetSpec {
	b.required("network_id", "ip_version")
	spec := sdn.SubnetSpec{Base: b.base(), Network: sdn.ID(or(b.text("network_id"))), Pool: or(b.id("subnetpool_id")), Gateway: or(b.gateway()),
		NoDHCP: or(not(b.boolean("enable_dhcp"))), Nameservers: or(b.addrs("dns_nameservers")),
		HostRoutes: or(b.routes("host_routes")),
		Reserved:   or(b.addrs("kuryr:reserved_addresses"))}
	ranges := b.ranges()
	spec.Ranges, spec.WithoutRanges = or(ranges), ranges != nil && len(*ranges) == 0
	version := or(b.integer("ip_version", 4, 6))
	if !b.null("cidr") {
		spec.CIDR = b.cidr()
	}
	if !b.null("prefixlen") {
		spec.PrefixLen = or(b.integer("prefixlen", 0, 128))
	}
	if cidr := spec.CIDR; cidr.IsValid() && (version == 4 || version == 6) && family(cidr.Addr()) != version {
		b.mistyped("cidr", "'%s' does not match the ip_version '%d'", cidr, version)
	}
	if version == 5 {
		b.invalid("ip_version", "'5' is not in [4, 6]")
	}
	if spec.Pool == "" && !spec.CIDR.IsValid() && spec.Key.IsZero() && b.err == nil {
		b.fail(badOf("subnets", "a subnetpool must be specified in the absence of a cidr"))
	}
	if spec.Pool == "" && spec.PrefixLen != 0 {
		b.invalid("prefixlen", "there is no subnet pool to take a prefix from")
	}
	spec.Mode = b.mode(version)
	b.absentSubnetAttributes()
	b.checkRanges(spec.CIDR, spec.Ranges)
	b.apart(spec.CIDR, spec.Gateway, spec.Ranges)
	if b.err != nil {
		return spec
	}
	if n, ok := refer(b, spec.Network, c.server.networks().need); ok && !c.owns(n.Meta) {
		b.fail(c.denied("the network is another project's"))
	}
	if spec.Pool != "" {
		if pool, ok := refer(b, spec.Pool, c.server.subnetPools().need); ok {
			b.fits(pool, version, spec.PrefixLen, spec.CIDR)
		}
	}
	return spec
}

func subnetPatch(_ *call, b *body, s sdn.Subnet) sdn.SubnetPatch {
	b.readOnly("network_id", "ip_version", "cidr", "subnetpool_id", "prefixlen", "ipv6_address_mode", "ipv6_ra_mode")
	p := sdn.SubnetPatch{Patch: b.changes(s.Meta), NoDHCP: not(b.boolean("enable_dhcp")), Gateway: b.gateway(), Ranges: b.ranges(),
		Nameservers: b.addrs("dns_nameservers"), HostRoutes: b.routes("host_routes"), Reserved: b.addrs("kuryr:reserved_addresses")}
	b.absentSubnetAttributes()
	gateway, ranges := sdn.Gateway{None: !s.Gateway.IsValid(), Addr: s.Gateway}, s.Ranges
	if p.Gateway != nil {
		gateway = *p.Gateway
	}
	if p.Ranges != nil {
		ranges = *p.Ranges
	}
	b.checkRanges(s.CIDR, or(p.Ranges))
	if p.Gateway != nil || p.Ranges != nil {
		b.apart(s.CIDR, gateway, ranges)
	}
	if p.Ranges != nil && len(*p.Ranges) == 0 {
		p.Ranges, p.WithoutRanges = nil, true
	}
	return p
}

// fits refuses what a subnet pool cannot give.
func (b *body) fits(pool sdn.SubnetPool, version, length int, cidr netip.Prefix) {
	if len(pool.Prefixes) > 0 && family(pool.Prefixes[0].Addr()) != version {
		b.mistyped("ip_version", "'%d' is not that of the subnet pool", version)
	}
	if cidr.IsValid() {
		length = cidr.Bits()
	}
	switch {
	case length != 0 && length < pool.MinLen:
		b.fail(refuse(http.StatusBadRequest, "MinPrefixSubnetAllocationError", "Unable to allocate subnet with prefix length %d, minimum allowed prefix is %d.", length, pool.MinLen))
	case length != 0 && length > pool.MaxLen:
		b.fail(refuse(http.StatusBadRequest, "MaxPrefixSubnetAllocationError", "Unable to allocate subnet with prefix length %d, maximum allowed prefix is %d.", length, pool.MaxLen))
	}
}

// checkRanges refuses ranges that are none, that are not in the subnet, and that overlap.
func (b *body) checkRanges(cidr netip.Prefix, ranges []sdn.AddressRange) {
	for i, r := range ranges {
		switch {
		case !r.First.IsValid() || !r.Last.IsValid() || !cidr.IsValid():
			return
		case r.Last.Less(r.First) || family(r.First) != family(cidr.Addr()):
			b.fail(refuse(http.StatusBadRequest, "InvalidAllocationPool", "The allocation pool %v-%v is not valid.", r.First, r.Last))
		case !cidr.Contains(r.First) || !cidr.Contains(r.Last):
			b.fail(refuse(http.StatusBadRequest, "OutOfBoundsAllocationPool", "The allocation pool %v-%v spans beyond the subnet cidr %v.", r.First, r.Last, cidr))
		}
		for _, other := range ranges[:i] {
			if !other.Last.Less(r.First) && !r.Last.Less(other.First) {
				b.fail(refuse(http.StatusConflict, "OverlappingAllocationPools", "Found overlapping allocation pools: %v-%v %v-%v for subnet %v.", other.First, other.Last, r.First, r.Last, cidr))
			}
		}
	}
}

// apart refuses a gateway within the ranges that ports get their addresses from.
func (b *body) apart(cidr netip.Prefix, gateway sdn.Gateway, ranges []sdn.AddressRange) {
	addr := gateway.Addr
	if !addr.IsValid() && !gateway.None && cidr.IsValid() {
		addr = cidr.Addr().Next()
	}
	for _, r := range ranges {
		if addr.IsValid() && r.First.IsValid() && r.Last.IsValid() && !addr.Less(r.First) && !r.Last.Less(addr) {
			b.fail(refuse(http.StatusConflict, "GatewayConflictWithAllocationPools",
				"Gateway ip %v conflicts with allocation pool %v-%v.", addr, r.First, r.Last))
		}
	}
}

// absentSubnetAttributes reads what the SDN has not, which clients may send as it is anyway.
func (b *body) absentSubnetAttributes() {
	b.only("use_default_subnetpool", false, "no subnet pool is the default one")
	if types := b.texts("service_types"); types != nil && len(*types) > 0 {
		b.unsupported("service_types", "this SDN takes any subnet for any port")
	}
}

// gateway reads gateway_ip: an address, null for none, absent for the SDN's choice.
func (b *body) gateway() *sdn.Gateway {
	if b.null("gateway_ip") {
		return &sdn.Gateway{None: true}
	}
	if addr := b.addr("gateway_ip"); addr != nil {
		return &sdn.Gateway{Addr: *addr}
	}
	return nil
}

func (b *body) ranges() *[]sdn.AddressRange {
	if b.null("allocation_pools") {
		if !b.post {
			b.invalid("allocation_pools", "Invalid data format for IP pool: 'None'")
		}
		return nil
	}
	return objects(b, "allocation_pools", func(b *body) sdn.AddressRange {
		b.needs("start", "end")
		return sdn.AddressRange{First: or(b.addr("start")), Last: or(b.addr("end"))}
	})
}

// routes reads a list of routes.
func (b *body) routes(name string) *[]sdn.HostRoute {
	return objects(b, name, func(b *body) sdn.HostRoute {
		b.needs("destination", "nexthop")
		return sdn.HostRoute{Destination: or(b.prefix("destination")), NextHop: or(b.addr("nexthop"))}
	})
}

// mode reads how hosts get their addresses: two attributes that must agree.
func (b *body) mode(version int) sdn.AddressMode {
	var modes []string
	for _, name := range []string{"ipv6_address_mode", "ipv6_ra_mode"} {
		if b.null(name) {
			continue
		}
		if m := b.oneOf(name, string(sdn.Stateful), string(sdn.Stateless), string(sdn.SLAAC)); m != nil {
			modes = append(modes, *m)
		}
	}
	switch {
	case len(modes) == 0:
		return sdn.Static
	case version == 4:
		b.fail(invalidInput("ipv6_ra_mode or ipv6_address_mode cannot be set for an IPv4 subnet"))
	case len(modes) == 1:
		b.unsupported("ipv6_ra_mode", "both modes, alike, or none")
	case modes[0] != modes[1]:
		b.invalid("ipv6_ra_mode", "it is set to '%s' and ipv6_address_mode to '%s', which is not valid", modes[1], modes[0])
	}
	return sdn.AddressMode(modes[0])
}

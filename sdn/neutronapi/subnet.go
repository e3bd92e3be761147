package neutronapi

import (
	"context"
	"iter"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// allocationPool is a range that addresses are allocated from.
type allocationPool struct {
	Start string `json:"start"`
	End   string `json:"end"`
}

func (s *server) subnets() tableOf[sdn.Subnet] {
	type N = sdn.Subnet
	type S = sdn.SubnetSpec
	type P = sdn.SubnetPatch
	t := &table{
		member: "subnet", collection: "subnets", title: "subnet", noun: sdn.NounSubnet,
		meta: via(func(n *N) sdn.Meta { return n.Meta }), shows: neutronMeta, tags: true,
		base: via(func(x *S) *sdn.Base { return &x.Base }), patch: via(func(p *P) *sdn.Patch { return &p.Patch }),
		fields: []field{
			{name: "network_id", is: isNamedID, access: required, show: via(func(n *N) any { return string(n.Network) }),
				post: set(func(x *S) *sdn.ID { return &x.Network })},
			{name: "cidr", is: orNull(kindOf((*body).cidr)), show: via(func(n *N) any { return n.CIDR.String() }),
				post: set(func(x *S) *netip.Prefix { return &x.CIDR })},
			{name: "prefixlen", is: orNull(isInt(0, 128)), post: set(func(x *S) *int { return &x.PrefixLen })},
			{name: "ip_version", access: required | hookPost, show: via(func(n *N) any { return family(n.CIDR.Addr()) })},
			{name: "gateway_ip", is: kindOf((*body).gateway), show: via(func(n *N) any { return optionalAddr(n.Gateway) }),
				post: set(func(x *S) *sdn.Gateway { return &x.Gateway }),
				put:  change(func(p *P) **sdn.Gateway { return &p.Gateway })},
			{name: "allocation_pools", is: kindOf((*body).ranges), show: via(showPools),
				post: store(func(x *S, v any) {
					x.Ranges = v.([]sdn.AddressRange)
					x.WithoutRanges = len(x.Ranges) == 0
				}),
				put: change(func(p *P) **[]sdn.AddressRange { return &p.Ranges })},
			{name: "subnetpool_id", is: isID, show: via(func(n *N) any { return some(string(n.Pool)) }),
				post: set(func(x *S) *sdn.ID { return &x.Pool })},
			{name: "enable_dhcp", is: isBool, show: via(func(n *N) any { return !n.NoDHCP }),
				post: setNot(func(x *S) *bool { return &x.NoDHCP }),
				put:  changeNot(func(p *P) **bool { return &p.NoDHCP })},
			{name: "ipv6_address_mode", access: hookPost, show: via(func(n *N) any { return some(string(n.Mode)) }),
				taken: alike, why: whyAlike},
			{name: "ipv6_ra_mode", access: hookPost, show: via(func(n *N) any { return some(string(n.Mode)) }),
				taken: alike, why: whyAlike},
			{name: "dns_nameservers", is: isAddrs, show: via(func(n *N) any { return addrTexts(n.Nameservers) }),
				post: set(func(x *S) *[]netip.Addr { return &x.Nameservers }),
				put:  change(func(p *P) **[]netip.Addr { return &p.Nameservers })},
			{name: "host_routes", is: isRoutes, show: via(func(n *N) any { return encodeRoutes(n.HostRoutes) }),
				post: set(func(x *S) *[]sdn.HostRoute { return &x.HostRoutes }),
				put:  change(func(p *P) **[]sdn.HostRoute { return &p.HostRoutes })},
			{name: "service_types", is: kindOf((*body).serviceTypes), show: via(func(n *N) any { return n.ServiceTypes }),
				post: set(func(x *S) *[]string { return &x.ServiceTypes }),
				put:  change(func(p *P) **[]string { return &p.ServiceTypes })},
			{name: "use_default_subnetpool", access: hookPost},
			{name: "kuryr:reserved_addresses", is: isAddrs, show: via(func(n *N) any { return addrTexts(n.Reserved) }),
				post: set(func(x *S) *[]netip.Addr { return &x.Reserved }),
				put:  change(func(p *P) **[]netip.Addr { return &p.Reserved })},
		},
		get: getCall{made[N], func(ctx context.Context, id sdn.ID) (any, error) { return pointer(s.p.Subnet(ctx, id)) }},
		find: func(ctx context.Context, f *filter) iter.Seq2[any, error] {
			return pointers(s.findSubnets(ctx, subnetQuery(f)))
		},
		shared:    judged(func(c *call, n *N) (bool, error) { return c.ofNetwork(n.Network, true) }),
		checkPost: hook(s.checkSubnet),
		checkPut:  hookOn(checkSubnetChange),
		create:    createCall{made[S], func(ctx context.Context, x any) (any, error) { return pointer(s.p.EnsureSubnet(ctx, *x.(*S))) }},
		update: updateCall{made[P], func(ctx context.Context, id sdn.ID, p any) (any, error) {
			return pointer(s.p.UpdateSubnet(ctx, id, *p.(*P)))
		}},
		remove: s.p.DeleteSubnet,
	}
	if atomic, ok := s.p.(sdn.AtomicNetworks); ok {
		t.createAll = bulk(atomic.EnsureAllSubnets)
	}
	return tableOf[N]{t}
}

func showPools(n *sdn.Subnet) any {
	pools := []allocationPool{}
	for _, r := range allocationPools(*n) {
		pools = append(pools, allocationPool{Start: r.First.String(), End: r.Last.String()})
	}
	return pools
}

func subnetQuery(f *filter) sdn.SubnetQuery {
	return sdn.SubnetQuery{Match: f.match(), Networks: f.ids("network_id"), Pools: f.ids("subnetpool_id"), CIDRs: f.prefixes("cidr")}
}

// checkSubnet checks what a new subnet says together.
func (s *server) checkSubnet(c *call, b *body, spec *sdn.SubnetSpec) {
	version := or(b.integer("ip_version", 4, 6))
	if cidr := spec.CIDR; cidr.IsValid() && (version == 4 || version == 6) && family(cidr.Addr()) != version {
		b.mistyped("cidr", "'%s' does not match the ip_version '%d'", cidr, version)
	}
	if version == 5 {
		b.invalid("ip_version", "'5' is not in [4, 6]")
	}
	if or(b.boolean("use_default_subnetpool")) && b.err == nil {
		if spec.Pool != "" {
			b.fail(badOf("subnets", "subnetpool_id and use_default_subnetpool cannot both be specified"))
			return
		}
		var err error
		if spec.Pool, err = s.defaultSubnetPool(c, version); err != nil {
			b.fail(err)
		}
	}
	if spec.Pool == "" && !spec.CIDR.IsValid() && spec.Key.IsZero() && b.err == nil {
		b.fail(badOf("subnets", "a subnetpool must be specified in the absence of a cidr"))
	}
	if spec.Pool == "" && spec.PrefixLen != 0 {
		b.invalid("prefixlen", "there is no subnet pool to take a prefix from")
	}
	spec.Mode = b.mode(version)
	b.checkRanges(spec.CIDR, spec.Ranges)
	b.apart(spec.CIDR, spec.Gateway, spec.Ranges)
	if b.err != nil {
		return
	}
	if n, ok := refer(b, spec.Network, s.networks().need); ok && !c.owns(n.Meta) {
		b.fail(c.denied("the network is another project's"))
	}
	if spec.Pool != "" {
		if pool, ok := refer(b, spec.Pool, s.subnetPools().need); ok {
			b.fits(pool, version, spec.PrefixLen, spec.CIDR)
		}
	}
}

// checkSubnetChange checks what a change of a subnet says together.
func checkSubnetChange(_ *call, b *body, s *sdn.Subnet, p *sdn.SubnetPatch) {
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

// ownerPrefixes are what the device owners begin with that a subnet can be for.
var ownerPrefixes = []string{"network:", "compute:", "trunk:"}

// serviceTypes takes the device owners of the ports that a subnet is for.
func (b *body) serviceTypes(name string) *[]string {
	types := b.texts(name)
	for _, owner := range or(types) {
		if !slices.ContainsFunc(ownerPrefixes, func(p string) bool { return strings.HasPrefix(owner, p) }) {
			b.fail(refuse(http.StatusBadRequest, "InvalidSubnetServiceType",
				"Subnet service type %s does not correspond to a valid device owner.", owner))
		}
	}
	return types
}

// gateway reads gateway_ip: an address, null for none, absent for the SDN's choice.
func (b *body) gateway(name string) *sdn.Gateway {
	if b.null(name) {
		return &sdn.Gateway{None: true}
	}
	if addr := b.addr(name); addr != nil {
		return &sdn.Gateway{Addr: *addr}
	}
	return nil
}

// ranges reads allocation_pools.
func (b *body) ranges(name string) *[]sdn.AddressRange {
	if b.null(name) {
		if !b.post {
			b.invalid(name, "Invalid data format for IP pool: 'None'")
		}
		return nil
	}
	return objects(b, name, func(b *body) sdn.AddressRange {
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

// Of the modes of IPv6 a body has both or none.
const (
	alike    = "the value of the other mode"
	whyAlike = "both modes, alike, or none"
)

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
		b.unsupported("ipv6_ra_mode", whyAlike)
	case modes[0] != modes[1]:
		b.invalid("ipv6_ra_mode", "it is set to '%s' and ipv6_address_mode to '%s', which is not valid", modes[1], modes[0])
	}
	return sdn.AddressMode(modes[0])
}

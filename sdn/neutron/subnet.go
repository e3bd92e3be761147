package neutron

import (
	"context"
	"encoding/json"
	"iter"
	"math"
	"math/big"
	"net/netip"
	"net/url"
	"strconv"

	gc "github.com/gophercloud/gophercloud/v2/openstack/networking/v2/subnets"
	"github.com/kuryr/kuryr/internal/sortslice"
	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

// subnetWire is a subnet as Neutron says it. A null leaves the zero value. gophercloud's Subnet has none
// of meta, and its calls create one subnet per request and cannot empty the allocation pools.
type subnetWire struct {
	meta
	Network     string      `json:"network_id"`
	CIDR        string      `json:"cidr"`
	Pool        string      `json:"subnetpool_id"`
	Gateway     string      `json:"gateway_ip"`
	Ranges      []rangeWire `json:"allocation_pools"`
	Mode        string      `json:"ipv6_address_mode"`
	DHCP        bool        `json:"enable_dhcp"`
	Nameservers []string    `json:"dns_nameservers"`
	HostRoutes  []routeWire `json:"host_routes"`
	Types       []string    `json:"service_types"`
}

var subnets = collection[*subnetWire]{title: "subnet", item: "subnet", items: "subnets", path: "/subnets"}

type (
	rangeWire = gc.AllocationPool
	routeWire = gc.HostRoute
)

// decode leaves out what is no address or prefix.
func (w *subnetWire) decode(o *owner) sdn.Subnet {
	s := sdn.Subnet{
		Meta: w.meta.decode(o), Network: sdn.ID(w.Network), CIDR: w.cidr(), Pool: sdn.ID(w.Pool),
		Gateway: w.gateway(), Ranges: w.ranges(), Mode: sdn.AddressMode(w.Mode), NoDHCP: !w.DHCP,
		WithoutRanges: w.Ranges != nil && len(w.Ranges) == 0, ServiceTypes: w.Types,
	}
	for _, n := range w.Nameservers {
		if a, err := netip.ParseAddr(n); err == nil {
			s.Nameservers = append(s.Nameservers, a)
		}
	}
	for _, r := range w.HostRoutes {
		destination, err := netip.ParsePrefix(r.DestinationCIDR)
		hop, errHop := netip.ParseAddr(r.NextHop)
		if err == nil && errHop == nil {
			s.HostRoutes = append(s.HostRoutes, sdn.HostRoute{Destination: destination, NextHop: hop})
		}
	}
	return s
}

func (w *subnetWire) cidr() netip.Prefix {
	c, _ := netip.ParsePrefix(w.CIDR)
	return c
}

func (w *subnetWire) gateway() netip.Addr {
	a, _ := netip.ParseAddr(w.Gateway)
	return a
}

func (w *subnetWire) ranges() []sdn.AddressRange {
	var out []sdn.AddressRange
	for _, r := range w.Ranges {
		first, err := netip.ParseAddr(r.Start)
		last, errLast := netip.ParseAddr(r.End)
		if err == nil && errLast == nil {
			out = append(out, sdn.AddressRange{First: first, Last: last})
		}
	}
	sortslice.Func(out, func(a, b sdn.AddressRange) int { return a.First.Compare(b.First) })
	return out
}

// subnetBody says all of a subnet, also a gateway at the first address: for IPv6
// Neutron's own choice is the network's address (the routers' anycast address).
func (p *Provider) subnetBody(network sdn.ID, spec sdn.SubnetSpec) map[string]any {
	body := p.body(spec.Base)
	body["network_id"] = string(network)
	set(body, "subnetpool_id", nonZero(spec.Pool))
	if spec.Mode != sdn.Static {
		body["ipv6_address_mode"], body["ipv6_ra_mode"] = string(spec.Mode), string(spec.Mode)
	}
	if spec.Nameservers != nil {
		body["dns_nameservers"] = texts(spec.Nameservers)
	}
	if spec.HostRoutes != nil {
		body["host_routes"] = routeBodies(spec.HostRoutes)
	}
	if len(spec.ServiceTypes) > 0 {
		body["service_types"] = spec.ServiceTypes
	}
	setNot(body, "enable_dhcp", nonZero(noDHCP(spec)))
	if !spec.CIDR.IsValid() {
		// Neutron chooses the range, and with it the gateway. The family is the pool's: completeSubnetBody.
		if spec.PrefixLen != 0 {
			body["prefixlen"] = strconv.Itoa(spec.PrefixLen)
		}
		if spec.Gateway.None {
			body["gateway_ip"] = nil
		}
		return body
	}
	body["cidr"] = spec.CIDR.String()
	body["ip_version"] = version(spec.CIDR)
	gateway := gatewayOf(spec.CIDR, spec.Gateway)
	if spec.Mode != sdn.Static && spec.Gateway == (sdn.Gateway{}) {
		return body // the router's advertisements tell the gateway
	}
	if gateway.IsValid() {
		body["gateway_ip"] = gateway.String()
	} else {
		body["gateway_ip"] = nil
	}
	if spec.CIDR.IsSingleIP() {
		return body // of an IPv6 range of one Neutron refuses every pool, and makes the right one itself
	}
	switch {
	case spec.WithoutRanges:
		body["allocation_pools"] = []rangeWire{}
	case len(spec.Ranges) > 0 || len(spec.Reserved) > 0:
		pools := allocatable(spec.CIDR, gateway, spec.Ranges, spec.Reserved)
		body["allocation_pools"] = rangeBodies(pools)
	}
	return body
}

// serviceTypes is the alias of the extension of subnets for some ports alone.
const serviceTypes = "subnet-service-types"

// checkServiceTypes refuses service types where Neutron lacks them.
func (p *Provider) checkServiceTypes(ctx context.Context, types []string) error {
	if err := p.extensions.learn(ctx, p.client); err != nil {
		return err
	}
	if len(types) == 0 || p.extensions.has(serviceTypes) {
		return nil
	}
	return &sdn.Error{Kind: sdn.KindUnsupported, Noun: "subnet", Field: "service_types",
		Detail: "this Neutron lacks the extension " + serviceTypes}
}

// noDHCP is true also for ranges of one or two addresses, where Neutron serves no DHCP.
func noDHCP(spec sdn.SubnetSpec) bool {
	return spec.NoDHCP || spec.CIDR.IsValid() && spec.CIDR.Bits() >= spec.CIDR.Addr().BitLen()-1
}

func version(p netip.Prefix) int {
	if p.Addr().Is4() {
		return 4
	}
	return 6
}

func gatewayOf(cidr netip.Prefix, g sdn.Gateway) netip.Addr {
	switch {
	case g.None:
		return netip.Addr{}
	case g.Addr.IsValid():
		return g.Addr
	}
	return cidr.Addr().Next()
}

func routeBodies(routes []sdn.HostRoute) []routeWire {
	out := make([]routeWire, len(routes))
	for i, r := range routes {
		out[i] = routeWire{DestinationCIDR: r.Destination.String(), NextHop: r.NextHop.String()}
	}
	return out
}

func rangeBodies(ranges []sdn.AddressRange) []rangeWire {
	out := make([]rangeWire, len(ranges))
	for i, r := range ranges {
		out[i] = rangeWire{Start: r.First.String(), End: r.Last.String()}
	}
	return out
}

// Subnet returns what was read or written less than cacheAge ago, or asks; see
// cacheFresh.
func (p *Provider) Subnet(ctx context.Context, id sdn.ID) (sdn.Subnet, error) {
	w, err := cached(ctx, p, p.cache.subnets, subnets, id)
	return decoded(p.owner, w, err)
}

// FindSubnets asks Neutron, unless the subnets of the given Keys, ids or network are all
// in the cache.
func (p *Provider) FindSubnets(ctx context.Context, q sdn.SubnetQuery) iter.Seq2[sdn.Subnet, error] {
	filter := p.query(q.Match)
	addIDs(filter, "network_id", q.Networks)
	addIDs(filter, "subnetpool_id", q.Pools)
	for _, c := range q.CIDRs {
		filter.Add("cidr", c.String())
	}
	m := q.Match
	if len(q.Networks) == 1 && len(m.IDs) == 0 && len(m.Keys) == 0 {
		if n, ok := p.cache.networks.get(q.Networks[0]); ok {
			for _, id := range n.Subnets {
				m.IDs = append(m.IDs, sdn.ID(id))
			}
		}
	}
	return matchingCached(ctx, p, p.cache.subnets, subnets, filter, m, q.Matches)
}

// EnsureSubnet looks by Key, makes, and looks at the network's subnets again, as Neutron
// lets ranges overlap that are made concurrently. Calls of this process for one network
// come one after another.
func (p *Provider) EnsureSubnet(ctx context.Context, spec sdn.SubnetSpec) (sdn.Subnet, error) {
	p.owner.note(spec.Project)
	if err := checkSubnet(spec); err != nil {
		return sdn.Subnet{}, err
	}
	if len(spec.ServiceTypes) > 0 {
		if err := p.checkServiceTypes(ctx, spec.ServiceTypes); err != nil {
			return sdn.Subnet{}, err
		}
	}
	if spec.Network == "" {
		return sdn.Subnet{}, sdn.NotFound("network", spec.Network)
	}
	made, err := p.ensureSubnets(ctx, spec.Network, []sdn.SubnetSpec{spec}, false)
	if err != nil {
		return sdn.Subnet{}, err
	}
	return made[0].decode(p.owner), nil
}

// UpdateSubnet sends one request; two if the gateway, the ranges or the reserved
// addresses change: Neutron keeps all three in its allocation pools.
func (p *Provider) UpdateSubnet(ctx context.Context, id sdn.ID, change sdn.SubnetPatch) (sdn.Subnet, error) {
	body := map[string]any{}
	if change.Nameservers != nil {
		body["dns_nameservers"] = texts(*change.Nameservers)
	}
	if change.HostRoutes != nil {
		if err := valid.Routes("subnet", "host_routes", *change.HostRoutes); err != nil {
			return sdn.Subnet{}, err
		}
		body["host_routes"] = routeBodies(*change.HostRoutes)
	}
	if change.ServiceTypes != nil {
		if err := p.checkServiceTypes(ctx, *change.ServiceTypes); err != nil {
			return sdn.Subnet{}, err
		}
		if p.extensions.has(serviceTypes) {
			body["service_types"] = append([]string{}, *change.ServiceTypes...)
		}
	}
	setNot(body, "enable_dhcp", change.NoDHCP)
	if change.WithoutRanges {
		if change.Ranges != nil {
			return sdn.Subnet{}, sdn.Invalid("subnet", "ranges", "must be empty without automatic allocation")
		}
		body["allocation_pools"] = []rangeWire{}
	}
	onlyTags := len(body) == 0 && change.Gateway == nil && change.Ranges == nil &&
		change.Reserved == nil
	write := func() (*subnetWire, error) { return p.changeSubnet(ctx, id, change, body) }
	w, err := patchCached(ctx, p, p.cache.subnets, subnets, id, change.Patch, onlyTags, write)
	return decoded(p.owner, w, err)
}

// changeSubnet is UpdateSubnet; body has what needs no look.
func (p *Provider) changeSubnet(ctx context.Context, id sdn.ID, change sdn.SubnetPatch, body map[string]any) (*subnetWire, error) {
	for n := 1; ; n++ {
		asked := change.Patch
		if change.Gateway != nil || change.Ranges != nil || change.Reserved != nil || change.HostRoutes != nil {
			now, err := subnets.read(ctx, p, id)
			if err != nil {
				return nil, err
			}
			if change.HostRoutes != nil {
				if err := valid.RouteFamily(now.cidr(), *change.HostRoutes); err != nil {
					return nil, err
				}
			}
			if err := p.repool(ctx, now, change, body); err != nil {
				return nil, err
			}
			if asked.IfRevision == 0 {
				asked.IfRevision = int64(now.Revision)
			}
		}
		w, err := patch(ctx, p, subnets, id, asked, body)
		if sdn.ReasonOf(err) != sdn.Stale || change.IfRevision != 0 || n == maxRaces {
			return w, err // with the provider's own condition: look again
		}
	}
}

// DeleteSubnet is one request.
func (p *Provider) DeleteSubnet(ctx context.Context, id sdn.ID) error {
	w, known := p.cache.subnets.get(id)
	forget := func() {
		if known {
			p.cache.networks.drop(sdn.ID(w.Network))
		} else {
			p.cache.networks.dropWhere(func(*networkWire) bool { return true })
		}
		p.cache.subnets.drop(id)
	}
	forget()
	err := subnets.erase(ctx, p, id, 0)
	forget()
	return err
}

// SubnetUsage counts the addresses of ports, for a subnet of the credentials' project,
// and for any if they have none. For others it asks for the availability of the network:
// Neutron's policy keeps that for administrators unless it was changed, and it counts
// addresses outside of the ranges too.
func (p *Provider) SubnetUsage(ctx context.Context, id sdn.ID) (sdn.SubnetUsage, error) {
	w, err := subnets.read(ctx, p, id)
	if err != nil {
		return sdn.SubnetUsage{}, err
	}
	s, err := p.client.auth.session(ctx)
	if err != nil {
		return sdn.SubnetUsage{}, err
	}
	if s.project != "" && w.Project != s.project {
		return p.availability(ctx, w)
	}
	ranges := w.ranges()
	used := int64(0)
	filter := url.Values{"fixed_ips": {"subnet_id=" + w.ID}, "fields": {"id", "fixed_ips"}}
	for port, err := range portParts.find(ctx, p, filter) {
		if err != nil {
			return sdn.SubnetUsage{}, err
		}
		for _, a := range decodeAddresses(port.Addresses) {
			if a.Subnet == id && inRanges(ranges, a.Addr) {
				used++
			}
		}
	}
	return usage(count(ranges), big.NewInt(used)), nil
}

// count returns the number of addresses in ranges.
func count(ranges []sdn.AddressRange) *big.Int {
	sum := new(big.Int)
	for _, r := range ranges {
		size := new(big.Int).Sub(new(big.Int).SetBytes(r.Last.AsSlice()), new(big.Int).SetBytes(r.First.AsSlice()))
		sum.Add(sum, size.Add(size, big.NewInt(1)))
	}
	return sum
}

// availability returns what Neutron tells administrators. gophercloud's call reads totals
// as floating-point numbers, which are not exact for IPv6.
func (p *Provider) availability(ctx context.Context, w *subnetWire) (sdn.SubnetUsage, error) {
	answer := envelope[struct {
		Subnets []struct {
			ID    string      `json:"subnet_id"`
			Used  json.Number `json:"used_ips"`
			Total json.Number `json:"total_ips"`
		} `json:"subnet_ip_availability"`
	}]{name: "network_ip_availability"}
	err := p.client.get(ctx, "/network-ip-availabilities/"+url.PathEscape(w.Network), nil, &answer)
	if sdn.IsNotFound(err) || sdn.IsUnsupported(err) {
		// Neutron hides from others than administrators that there is such a thing.
		return sdn.SubnetUsage{}, &sdn.Error{Kind: sdn.KindDenied, Noun: "subnet", ID: w.ID, Detail: "it is another project's, and Neutron tells its administrators only how full it is"}
	}
	if err != nil {
		return sdn.SubnetUsage{}, err
	}
	for _, s := range answer.value.Subnets {
		if s.ID == w.ID {
			return usage(integer(s.Total), integer(s.Used)), nil
		}
	}
	return sdn.SubnetUsage{}, sdn.NotFound("subnet", w.ID)
}

func usage(total, used *big.Int) sdn.SubnetUsage {
	return sdn.SubnetUsage{
		Total: clamp(total), Used: clamp(used), Free: clamp(new(big.Int).Sub(total, used)),
	}
}

func integer(n json.Number) *big.Int {
	i, ok := new(big.Int).SetString(n.String(), 10)
	if !ok {
		return new(big.Int)
	}
	return i
}

func clamp(i *big.Int) int64 {
	if !i.IsInt64() {
		return math.MaxInt64
	}
	return max(i.Int64(), 0)
}

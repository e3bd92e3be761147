package neutronapi

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/sdn"
)

// blank makes texts that are null empty. In Octavia null is the default of an attribute.
func (b *body) blank(names ...string) {
	for _, name := range names {
		if value, given := b.values[name]; given && value == nil {
			b.values[name] = ""
		}
	}
}

// partTags takes the tags of a part of a load balancer.
func (b *body) partTags(string) *[]string {
	tags := b.newTags()
	if tags != nil && len(*tags) > 0 && !b.server.p.Capabilities().LoadBalancer.PartTags {
		b.unsupported("tags", "load balancers have tags here, what is below them has none")
	}
	return tags
}

// ofProject refuses another project for a part than the load balancer's.
func (b *body) ofProject(project string) {
	for _, name := range []string{"project_id", "tenant_id"} {
		if b.null(name) {
			continue
		}
		if p := b.text(name); p != nil && *p != project {
			b.invalid(name, "'%s' is not the load balancer's project", *p)
		}
	}
}

// checkLoadBalancer reads the addresses of a new load balancer, and what is below it.
func (s *server) checkLoadBalancer(c *call, b *body, x *sdn.LoadBalancerSpec) {
	x.VIPs = s.vips(c, b)
	named := map[string]partEdit[sdn.Pool]{}
	for _, p := range or(objects(b, "pools", func(b *body) partEdit[sdn.Pool] { return s.poolIn(b, x.Project) })) {
		if _, twice := named[p.value.Name]; twice || p.value.Name == "" {
			b.invalid("pools", "each pool needs a name of its own here")
		}
		named[p.value.Name] = p
	}
	x.Listeners = or(objects(b, "listeners", func(b *body) sdn.Listener { return s.listenerIn(b, x.Project, named) }))
	b.unique(x.Listeners)
	for _, name := range slices.Sorted(maps.Keys(named)) {
		p := named[name]
		b.free(&p)
		x.Pools = append(x.Pools, p.value)
	}
}

// unique refuses two listeners of one port and protocol.
func (b *body) unique(listeners []sdn.Listener) {
	type at struct {
		protocol sdn.Protocol
		port     uint16
	}
	seen := map[at]bool{}
	for _, l := range listeners {
		if seen[at{l.Protocol, l.Port}] {
			b.fail(errSameListener(l))
		}
		seen[at{l.Protocol, l.Port}] = true
	}
}

// vipGroups takes the security groups of the VIP.
func (b *body) vipGroups(name string) *[]sdn.ID {
	groups := b.ids(name)
	for _, id := range or(groups) {
		_, _ = refer(b, id, b.server.securityGroups().need)
	}
	return groups
}

// vips reads the addresses that clients connect to.
func (s *server) vips(c *call, b *body) []sdn.VIP {
	for _, name := range []string{"vip_address", "vip_subnet_id", "vip_network_id", "additional_vips"} {
		b.null(name)
	}
	said := b.has("vip_subnet_id") || b.has("vip_network_id")
	network := or(b.id("vip_network_id"))
	first := s.vip(c, b, "vip_subnet_id", "vip_address", network)
	if !said {
		b.fail(badRequest("Validation failure: VIP must contain one of: vip_port_id, vip_network_id, vip_subnet_id."))
	}
	all := []sdn.VIP{first}
	more := objects(b, "additional_vips", func(b *body) sdn.VIP {
		b.readOnly("port_id")
		b.needs("subnet_id")
		b.null("ip_address")
		return s.vip(c, b, "subnet_id", "ip_address", "")
	})
	return append(all, or(more)...)
}

// vip reads an address. If only its network is given, the subnet is chosen as in Octavia: the one
// that contains the address, otherwise the first of IPv4.
func (s *server) vip(c *call, b *body, subnetName, addressName string, network sdn.ID) sdn.VIP {
	out := sdn.VIP{Subnet: or(b.id(subnetName))}
	if network != "" && out.Subnet == "" {
		if n, ok := refer(b, network, s.networks().need); ok {
			var want netip.Addr
			if text, is := b.values[addressName].(string); is {
				want, _ = netip.ParseAddr(text)
			}
			id, err := s.subnetFor(c.ctx(), n, want)
			if err != nil {
				b.fail(err)
			}
			out.Subnet = id
		}
	}
	if out.Subnet != "" && b.err == nil {
		subnet, ok := refer(b, out.Subnet, s.subnets().need)
		if ok && network != "" && subnet.Network != network {
			b.invalid(subnetName, "it is not of the network %s", network)
		}
		if ok && b.has(addressName) {
			n, err := c.network(subnet.Network)
			if err != nil {
				b.fail(err)
			}
			b.foreign(n, addressName)
		}
		if ok {
			b.onNetwork(subnet.Network)
		}
	}
	out.Addr = or(b.addr(addressName))
	return out
}

// subnetFor chooses the subnet of a VIP on a network.
func (s *server) subnetFor(ctx context.Context, n sdn.Network, want netip.Addr) (sdn.ID, error) {
	best := sdn.ID("")
	for _, id := range n.Subnets {
		subnet, err := s.p.Subnet(ctx, id)
		if err != nil {
			return "", err
		}
		if want.IsValid() && subnet.CIDR.Contains(want.Unmap()) {
			return id, nil
		}
		if !want.IsValid() && (best == "" || subnet.CIDR.Addr().Is4()) {
			if best = id; subnet.CIDR.Addr().Is4() {
				return id, nil
			}
		}
	}
	if best == "" {
		return "", badRequest("Validation failure: Supplied network does not contain a subnet for the VIP.")
	}
	return best, nil
}

// newTags reads the whole new set of an object's tags. nil leaves them.
func (b *body) newTags() *[]string {
	if b.null("tags") {
		return &[]string{}
	}
	if !b.has("tags") {
		return nil
	}
	as := &body{call: b.call, noun: b.noun, within: b.within, post: true, values: b.values}
	tags := as.tags()
	if as.err != nil {
		b.fail(as.err)
	}
	return &tags
}

package neutronapi

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/sdn"
)

// blank makes texts that are null empty: a null is Octavia's word for what an attribute is at first.
func (b *body) blank(names ...string) {
	for _, name := range names {
		if value, given := b.values[name]; given && value == nil {
			b.values[name] = ""
		}
	}
}

// unset takes attributes that here can only be what they are at first: null, empty or a value of anyway.
func (b *body) unset(anyway []any, names ...string) {
	for _, name := range names {
		value, given := b.take(name)
		if !given || value == nil {
			continue
		}
		empty := value == "" || value == false
		if items, is := value.([]any); is {
			empty = len(items) == 0
		}
		if items, is := value.(map[string]any); is {
			empty = len(items) == 0
		}
		for _, v := range anyway {
			empty = empty || text(value) == v
		}
		if !empty {
			b.unsupported(name, "the load balancers here have no such thing")
		}
	}
}

// partDescription reads the description of what is below a load balancer.
func (b *body) partDescription(into *string) {
	if description := b.description(*into); description != nil {
		*into = *description
	}
}

// enabled refuses to switch something off.
func (b *body) enabled() {
	if !b.null("admin_state_up") {
		b.only("admin_state_up", true, "load balancers and what is below them cannot be switched off")
	}
}

// partTags reads the tags of what is below a load balancer into those it has so far.
func (b *body) partTags(into *[]string) {
	tags := b.newTags()
	if tags == nil {
		return
	}
	if len(*tags) > 0 && !b.server.p.Capabilities().LoadBalancer.PartTags {
		b.unsupported("tags", "load balancers have tags here, what is below them has none")
	}
	*into = *tags
}

// ofProject reads of what is below a load balancer what says only what is so anyway.
func (b *body) ofProject(project string) {
	for _, name := range []string{"project_id", "tenant_id"} {
		if !b.null(name) {
			if p := b.text(name); p != nil && *p != project {
				b.invalid(name, "'%s' is not the load balancer's project", *p)
			}
		}
	}
	b.readOnly("id", "provisioning_status", "operating_status", "created_at", "updated_at", "loadbalancers", "l7policies")
	b.enabled()
}

func (s *server) specLoadBalancer(c *call, b *body) sdn.LoadBalancerSpec {
	b.blank("name", "description", "provider", "flavor_id", "availability_zone")
	out := sdn.LoadBalancerSpec{Base: b.base()}
	b.readOnly("provisioning_status", "operating_status")
	b.enabled()
	b.unset(nil, "vip_qos_policy_id", "vip_vnic_type", "vip_port_id")
	if provider := or(b.text("provider")); provider != Kuryr {
		out.Backend = provider
	}
	out.Flavor, out.Zone = string(or(b.id("flavor_id"))), or(b.text("availability_zone"))
	out.Groups = s.vipGroups(b)
	out.VIPs = s.vips(c, b)
	var named map[string]poolSpec
	if pools := objects(b, "pools", func(b *body) poolSpec { return s.poolIn(b, out.Project) }); pools != nil {
		named = map[string]poolSpec{}
		for _, p := range *pools {
			if _, twice := named[p.Name]; twice || p.Name == "" {
				b.invalid("pools", "each pool needs a name of its own here")
			}
			named[p.Name] = p
		}
	}
	if listeners := objects(b, "listeners", func(b *body) sdn.Listener { return s.listenerIn(b, out.Project, named) }); listeners != nil {
		out.Listeners = *listeners
		b.unique(out.Listeners)
	}
	for _, name := range slices.Sorted(maps.Keys(named)) {
		out.Pools = append(out.Pools, b.free(named[name]))
	}
	return out
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

// vipGroups reads the security groups of the VIP.
func (s *server) vipGroups(b *body) []sdn.ID {
	if b.null("vip_sg_ids") {
		return []sdn.ID{}
	}
	groups := b.ids("vip_sg_ids")
	if groups == nil {
		return nil
	}
	for _, id := range *groups {
		_, _ = refer(b, id, s.securityGroups().need)
	}
	return *groups
}

// vips reads where clients are to connect.
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

// vip reads an address. Of one that a network alone is said of the subnet is chosen as Octavia does: that which has the address, else the first of IPv4.
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

// subnetFor is the subnet of a network that a VIP is of.
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

func (s *server) changeLoadBalancer(_ *call, b *body, l balancer) balancerChange {
	b.blank("name", "description")
	b.readOnly("provisioning_status", "operating_status", "vip_address", "vip_subnet_id", "vip_network_id", "vip_port_id", "additional_vips", "provider", "flavor_id", "listeners", "pools", "loadbalancer_id")
	b.enabled()
	b.unset(nil, "vip_qos_policy_id")
	tags := b.newTags()
	groups := s.vipGroups(b)
	p := b.changes(l.Meta)
	p.Tags = tags
	clearing, both := b.clearing("load balancer", l.Meta, p), groups != nil
	return balancerChange{ifRevision: p.IfRevision, patch: clearing, both: both, change: func(spec *sdn.LoadBalancerSpec) error {
		rebase(&spec.Base, p)
		if tags != nil {
			spec.Tags = *tags
		}
		spec.Groups = groups
		return nil
	}}
}

// newTags reads the whole new set of an object's tags; nil stays.
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

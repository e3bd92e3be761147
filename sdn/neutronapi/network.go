package neutronapi

import (
	"context"
	"iter"

	"github.com/kuryr/kuryr/sdn"
)

// Networks are served below /v2.0/networks.
var Networks = Resource[Network]{"network", "networks"}

// Network is a network in Neutron's JSON.
type Network struct {
	Common
	MTU          int      `json:"mtu"`
	External     bool     `json:"router:external"`
	Shared       bool     `json:"shared"`
	PortSecurity bool     `json:"port_security_enabled"`
	Subnets      []string `json:"subnets"`
	Status       string   `json:"status"`
	AdminStateUp bool     `json:"admin_state_up"`
	IsDefault    bool     `json:"is_default"`
	QoSPolicyID  *string  `json:"qos_policy_id"` // ports have policies, networks none
	// Where the SDN has put it; null where it does not tell. For administrators.
	NetworkType     *string `json:"provider:network_type"`
	PhysicalNetwork *string `json:"provider:physical_network"`
	SegmentationID  *int    `json:"provider:segmentation_id"`
	// The SDN has no such thing.
	AvailabilityZones     []string `json:"availability_zones"`
	AvailabilityZoneHints []string `json:"availability_zone_hints"`
	IPv4AddressScope      *string  `json:"ipv4_address_scope"`
	IPv6AddressScope      *string  `json:"ipv6_address_scope"`
}

// EncodeNetwork translates a network.
func EncodeNetwork(n sdn.Network) Network {
	out := Network{
		Common: encodeMeta(n.Meta), MTU: n.MTU, External: n.External, Shared: n.Shared, PortSecurity: !n.NoPortSecurity,
		Subnets: ids(n.Subnets), Status: active, AdminStateUp: !n.Disabled,
		NetworkType: optional(n.Segment.Type), PhysicalNetwork: optional(n.Segment.Physical),
		AvailabilityZones: []string{}, AvailabilityZoneHints: []string{},
	}
	if n.Segment.ID != 0 {
		out.SegmentationID = &n.Segment.ID
	}
	return out
}

// providerAttributes are where a network is; administrators see and say it.
var providerAttributes = []string{"provider:network_type", "provider:physical_network", "provider:segmentation_id"}

func (s *server) networks() *definition[sdn.Network, Network, sdn.NetworkSpec, sdn.NetworkPatch] {
	p := s.p
	n := &definition[sdn.Network, Network, sdn.NetworkSpec, sdn.NetworkPatch]{
		Resource: Networks, title: "network", kind: sdn.NounNetwork, hidden: providerAttributes,
		meta: func(n sdn.Network) sdn.Meta { return n.Meta },
		get:  p.Network,
		find: func(ctx context.Context, f *filter) iter.Seq2[sdn.Network, error] {
			return s.findNetworks(ctx, networkQuery(f))
		},
		encode: EncodeNetwork,
		shared: func(_ *call, n sdn.Network) (bool, error) { return n.Shared || n.External, nil },
		spec:   networkSpec, patch: networkPatch,
		create: p.EnsureNetwork, update: p.UpdateNetwork, remove: p.DeleteNetwork,
		setTags: func(ctx context.Context, id sdn.ID, change sdn.Patch) error {
			_, err := p.UpdateNetwork(ctx, id, sdn.NetworkPatch{Patch: change})
			return err
		},
	}
	if atomic, ok := p.(sdn.AtomicNetworks); ok {
		n.createAll = bulk(atomic.EnsureAllNetworks)
	}
	return n
}

func networkQuery(f *filter) sdn.NetworkQuery {
	return sdn.NetworkQuery{Match: f.match(), External: f.boolean("router:external")}
}

// mostMTU is that of an IP packet, leastMTU what IPv4 asks for.
const leastMTU, mostMTU = 68, 65535

func networkSpec(_ *call, b *body) sdn.NetworkSpec {
	for _, name := range append([]string{"shared", "router:external"}, providerAttributes...) {
		b.privileged(name)
	}
	spec := sdn.NetworkSpec{
		Base: b.base(), External: or(b.boolean("router:external")), Shared: or(b.boolean("shared")),
		NoPortSecurity: or(not(b.boolean("port_security_enabled"))), Disabled: or(not(b.boolean("admin_state_up"))),
		Segment: sdn.Segment{Type: or(b.optional("provider:network_type")), Physical: or(b.optional("provider:physical_network"))},
	}
	if mtu := b.integer("mtu", 0, mostMTU); mtu != nil && *mtu != 0 {
		spec.MTU = *mtu
	}
	if !b.null("provider:segmentation_id") {
		spec.Segment.ID = or(b.integer("provider:segmentation_id", 0, 1<<24))
	}
	b.absentNetworkAttributes()
	return spec
}

func networkPatch(_ *call, b *body, n sdn.Network) sdn.NetworkPatch {
	for _, name := range []string{"shared", "router:external"} {
		b.privileged(name)
	}
	b.readOnly(providerAttributes...)
	p := sdn.NetworkPatch{
		Patch: b.changes(n.Meta), MTU: b.integer("mtu", leastMTU, mostMTU),
		External: b.boolean("router:external"), Shared: b.boolean("shared"),
		NoPortSecurity: not(b.boolean("port_security_enabled")), Disabled: not(b.boolean("admin_state_up")),
	}
	b.absentNetworkAttributes()
	return p
}

// absentNetworkAttributes reads what the SDN has not, which clients may send as it is anyway.
func (b *body) absentNetworkAttributes() {
	b.readOnly("subnets", "availability_zones", "ipv4_address_scope", "ipv6_address_scope")
	b.only("is_default", false, "this SDN chooses no network by itself")
	if policy := b.id("qos_policy_id"); policy != nil && *policy != "" {
		b.unsupported("qos_policy_id", "ports have policies, networks none")
	}
	if hints := b.texts("availability_zone_hints"); hints != nil && len(*hints) > 0 {
		b.unsupported("availability_zone_hints", "this SDN has no availability zones")
	}
}

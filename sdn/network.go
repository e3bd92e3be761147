package sdn

import (
	"context"
	"iter"
)

// NetworkSpec asks for a network: one layer-2 segment.
type NetworkSpec struct {
	Base
	// MTU in bytes; 0 is what the SDN's data path carries to the outside. More than it can carry at all IsInvalid.
	MTU int
	// External makes a network that routers have their gateways on and floating IPs come from.
	External bool
	// Shared lets other projects use the network.
	Shared bool
	// NoPortSecurity switches anti-spoofing and security groups off for ports that do not say otherwise.
	NoPortSecurity bool
	// Disabled stops all traffic of the network (Neutron: admin_state_up false).
	Disabled bool
	// QoSPolicy limits each port of the network that has no policy of its own; "" is the project's Default
	// policy, if there is one. Of an external network it may be IsUnsupported.
	QoSPolicy ID `json:",omitempty"`
	// Default marks the external network that is offered first. A second one IsInvalid, "default".
	Default bool `json:",omitempty"`
	// Segment places the network on a physical one; the zero Segment leaves that to the SDN. Where the SDN has no physical
	// networks IsUnsupported, where it keeps them for administrators IsDenied.
	Segment Segment
	// Subnets are made with the network, in one step where the SDN can; their Network is filled in. Each needs a Key if the
	// network has one.
	Subnets []SubnetSpec
	// New says that no network with the Key exists, nor is being made elsewhere: the caller knows. An SDN that would have to look
	// for it first need not, nor for its subnets; after a lost answer it looks all the same. Where that is wrong there may be two.
	New bool
}

// Segment is a network's place on a physical one (Neutron: the provider attributes).
type Segment struct {
	Type     string // "flat", "vlan", "vxlan", "geneve", …
	Physical string // name of the physical network; "" for tunnels
	ID       int    // VLAN or tunnel id; 0 where the type has none
}

// Network is a layer-2 segment. Segment is fixed at creation.
type Network struct {
	Meta
	MTU            int
	External       bool
	Shared         bool
	NoPortSecurity bool
	Disabled       bool
	QoSPolicy      ID   `json:",omitempty"`
	Default        bool `json:",omitempty"`
	// Restricted says that the network is External for those projects only that have an Access.
	Restricted bool `json:",omitempty"`
	// Scope4 and Scope6 are the address scopes of its subnets; "" where they are of none.
	Scope4, Scope6 ID      `json:",omitempty"`
	Segment        Segment // zero where the SDN does not tell
	Subnets        []ID
}

// NetworkPatch changes a network.
type NetworkPatch struct {
	Patch
	MTU            *int
	NoPortSecurity *bool // of ports made from now on
	Disabled       *bool
	QoSPolicy      *ID   `json:",omitempty"` // "" is none
	Default        *bool `json:",omitempty"`
	// Shared and External are IsDenied where the SDN leaves them to its administrators. While ports
	// of other projects are on the network, it stays shared: IsConflict, InUse. An SDN may refuse a
	// change of External while the network has ports, in the same way.
	Shared   *bool
	External *bool
}

// NetworkQuery selects networks.
type NetworkQuery struct {
	Match
	External *bool
	Shared   *bool
}

// Networks are layer-2 segments (Neutron: network; OVN: Logical_Switch).
type Networks interface {
	// EnsureNetwork makes, finishes or adopts the network with the spec's Key, with its subnets.
	EnsureNetwork(ctx context.Context, spec NetworkSpec) (Network, error)
	Network(ctx context.Context, id ID) (Network, error)
	FindNetworks(ctx context.Context, q NetworkQuery) iter.Seq2[Network, error]
	UpdateNetwork(ctx context.Context, id ID, p NetworkPatch) (Network, error)
	// DeleteNetwork deletes the network and its subnets. A network with ports that are not the SDN's own, a router's leg
	// among them, stays whole: IsConflict, InUse.
	DeleteNetwork(ctx context.Context, id ID) error
}

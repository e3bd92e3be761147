package sdn

import (
	"context"
	"iter"
	"net/netip"
)

// Direction is seen from the port: Ingress is towards it.
type Direction string

// The directions.
const (
	Ingress Direction = "ingress"
	Egress  Direction = "egress"
)

// Rule allows traffic. Two rules are the same if all their fields but ID, Description and Numeric are.
type Rule struct {
	ID          ID     // given by the SDN, "" where it has none; of no meaning in what is applied
	Description string // of a rule that is there already it stays as it is
	Direction   Direction
	IPv6        bool     // which family; a rule is of one
	Protocol    Protocol // 0 is any
	// Numeric says that the protocol was said by its number although it has a name: it is shown as it was said. Of a rule that is there already it stays.
	Numeric bool `json:",omitempty"`
	Ports   PortRange
	// ICMPType and ICMPCode select with protocols 1 and 58; nil is any.
	ICMPType, ICMPCode *uint8
	// One of these, or none for any remote.
	RemotePrefix netip.Prefix
	RemoteGroup  ID
	RemoteSet    ID // an address group
}

// SecurityGroupSpec is what a security group is to be, applied as one whole value.
type SecurityGroupSpec struct {
	Base
	ID         ID // of the group that is to be this; "" is the one with the Key
	IfRevision int64
	Stateless  bool // replies need rules of their own; while ports have the group a change IsConflict, InUse
	Rules      []Rule
}

// SecurityGroup is a set of rules: traffic of a port is allowed by any rule of any of its groups. An SDN may have one by the
// name of "default" in each project, which ports that do not say get, and which cannot be deleted (IsConflict, InUse).
type SecurityGroup struct {
	Meta
	Stateless bool
	Rules     []Rule
	// Shared says that other projects have an Access, all of them or the one that asks.
	Shared bool `json:",omitempty"`
}

// SecurityGroupQuery selects security groups. Rules selects those that have one of these, by ID.
type SecurityGroupQuery struct {
	Match
	Rules []ID
}

// AddressGroupSpec is what an address group is to be, applied as one whole value.
type AddressGroupSpec struct {
	Base
	ID         ID // of the group that is to be this; "" is the one with the Key
	IfRevision int64
	Prefixes   []netip.Prefix
}

// AddressGroup is a named set of prefixes, of both families, that rules refer to.
type AddressGroup struct {
	Meta
	Prefixes []netip.Prefix
	Shared   bool `json:",omitempty"` // as in SecurityGroup
}

// AddressGroupQuery selects address groups.
type AddressGroupQuery struct {
	Match
}

// SecurityGroups filter the traffic of ports (Neutron: security-group, address-group; OVN: Port_Group, ACL, Address_Set).
type SecurityGroups interface {
	// ApplySecurityGroup makes the group be this value: missing rules are added before others are removed, the SDN's default
	// rules among them. A group or address group that a rule refers to and that is absent IsNotFound.
	ApplySecurityGroup(ctx context.Context, spec SecurityGroupSpec) (SecurityGroup, error)
	SecurityGroup(ctx context.Context, id ID) (SecurityGroup, error)
	FindSecurityGroups(ctx context.Context, q SecurityGroupQuery) iter.Seq2[SecurityGroup, error]
	// DeleteSecurityGroup deletes the group, and the rules of other groups that refer to it; one that
	// ports have IsConflict, InUse.
	DeleteSecurityGroup(ctx context.Context, id ID) error
	// ApplyAddressGroup makes the address group be this value. Where Capabilities.AddressGroups is false a rule with a RemoteSet
	// would allow everyone, so it IsUnsupported.
	ApplyAddressGroup(ctx context.Context, spec AddressGroupSpec) (AddressGroup, error)
	AddressGroup(ctx context.Context, id ID) (AddressGroup, error)
	FindAddressGroups(ctx context.Context, q AddressGroupQuery) iter.Seq2[AddressGroup, error]
	// DeleteAddressGroup deletes the group; one that rules name IsConflict, InUse.
	DeleteAddressGroup(ctx context.Context, id ID) error
}

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

// Rule allows traffic. It has no name of its own: two rules are the same if all their fields are.
type Rule struct {
	Direction Direction
	IPv6      bool     // which family; a rule is of one
	Protocol  Protocol // 0 is any
	Ports     PortRange
	// ICMPType and ICMPCode select with protocols 1 and 58; nil is any.
	ICMPType, ICMPCode *uint8
	// One of these, or none for any remote.
	RemotePrefix netip.Prefix
	RemoteGroup  ID
	RemoteSet    ID // an address group
}

// SecurityGroup is a set of rules: traffic of a port is allowed by any rule of any of its groups. It is applied whole.
type SecurityGroup struct {
	Base
	Stateless bool // replies need rules of their own
	Rules     []Rule
}

// AddressGroup is a named set of prefixes, of both families. It is applied whole.
type AddressGroup struct {
	Base
	Prefixes []netip.Prefix
}

// SecurityGroupInfo is a security group as the SDN has it.
type SecurityGroupInfo struct {
	Meta
	Stateless bool
	Rules     []Rule
}

// SecurityGroupQuery selects security groups.
type SecurityGroupQuery struct {
	Match
}

// SecurityGroups filter the traffic of ports (Neutron: security-group, address-group; OVN: Port_Group, ACL, Address_Set).
type SecurityGroups interface {
	// ApplySecurityGroup makes the group with the value's Key be this value: missing rules are added before others are
	// removed, the SDN's default rules among them.
	ApplySecurityGroup(ctx context.Context, group SecurityGroup) (ID, error)
	SecurityGroup(ctx context.Context, id ID) (SecurityGroupInfo, error)
	FindSecurityGroups(ctx context.Context, q SecurityGroupQuery) iter.Seq2[SecurityGroupInfo, error]
	// DeleteSecurityGroup deletes the group; one that ports have IsConflict, InUse.
	DeleteSecurityGroup(ctx context.Context, id ID) error
	// ApplyAddressGroup makes the address group with the value's Key be this value. Where Capabilities.AddressGroups is
	// false a rule with a RemoteSet would allow everyone, so it IsUnsupported.
	ApplyAddressGroup(ctx context.Context, group AddressGroup) (ID, error)
	// DeleteAddressGroup deletes the group; one that rules name IsConflict, InUse.
	DeleteAddressGroup(ctx context.Context, id ID) error
}

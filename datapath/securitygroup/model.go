package securitygroup

import (
	"net/netip"
)

// Direction is seen from the port: Ingress is towards it.
type Direction bool

// The directions.
const (
	Ingress Direction = false
	Egress  Direction = true
)

// Rule allows traffic. Its ID tells it from the others of its group: a rule never changes
// under one ID.
type Rule struct {
	ID        string
	Direction Direction
	IPv6      bool
	Protocol  uint8 // 0 is any
	// First and Last are the destination's transport ports, of protocols that have them; 0
	// and 0 are any.
	First, Last uint16
	// ICMPType and ICMPCode select with protocols 1 and 58; nil is any.
	ICMPType, ICMPCode *uint8
	// One of these says who is at the other end, or none for every address.
	Remote      netip.Prefix
	RemoteGroup string // a security group: the addresses of the domain's ports that have it
	RemoteSet   string // an address group: its prefixes
}

// Group is a security group: traffic of a port is allowed by any rule of any of its
// groups, and what answers it is allowed too.
type Group struct {
	ID       string
	Revision int64 // another one after each change of Rules
	Rules    []Rule
}

// Set is an address group.
type Set struct {
	ID       string
	Revision int64 // another one after each change of Prefixes
	Prefixes []netip.Prefix
}

// Limits are a port's share of the wire. The zero Limits are none.
type Limits struct {
	IngressKbps, EgressKbps   int64 // thousands of bits a second; 0: no limit
	IngressBurst, EgressBurst int64 // thousands of bits; 0: a tenth of a second's worth
	DSCP                      uint8 // mark of what is sent; 0: none
}

// Support tells what this kernel can enforce.
type Support struct {
	Groups bool // security groups
	Limits bool // bandwidth limits and marks
}

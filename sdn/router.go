package sdn

import (
	"context"
	"iter"
	"net/netip"
)

// ExternalGateway is a router's way out: an external network, and whether what leaves takes the router's address. It is set as
// a whole: SNAT that is false is none, not the SDN's default.
type ExternalGateway struct {
	Network   ID
	SNAT      bool
	Addresses []Address // the router's addresses there; chosen by the SDN where not asked for
}

// RouterInterface is a router's leg on a subnet.
type RouterInterface struct {
	Subnet ID
	Addr   netip.Addr
	Port   ID // "" where the SDN has no such object
}

// RouterSpec asks for a router. A nil Gateway of an existing router leaves what it has: a RouterPatch takes it away.
type RouterSpec struct {
	Base
	Gateway  *ExternalGateway
	Routes   []HostRoute
	Disabled bool // forwards nothing (Neutron: admin_state_up false)
	// New says that no router with the Key exists, nor is being created elsewhere: the caller
	// knows. An SDN that would look for it first need not; after a lost answer it looks
	// nevertheless. Where that is wrong there may be two.
	New bool
}

// Router forwards between the subnets attached to it and, with a gateway, to the outside.
type Router struct {
	Meta
	Gateway    *ExternalGateway
	Interfaces []RouterInterface
	Routes     []HostRoute
	Disabled   bool
	// Unreached says which attached ranges the SDN does not lead traffic to from outside the router (ranges that overlap with others,
	// say), and why. Not an error: the router works within.
	Unreached []Unreached
}

// UnreachedProject is the Reason of the ranges of a project's router: they are left out on purpose.
const UnreachedProject = "the router is a project's"

// Unreached is a range and the reason it cannot be led to.
type Unreached struct {
	Prefix netip.Prefix
	Reason string
}

// RouterPatch changes a router.
type RouterPatch struct {
	Patch
	// Gateway sets the way out; the zero ExternalGateway takes it away, which while floating IPs use it IsConflict, InUse. Any
	// other without a Network IsInvalid.
	// Addresses that the router has there and that are not asked for otherwise stay.
	Gateway  *ExternalGateway
	Routes   *[]HostRoute // the whole new list
	Disabled *bool
}

// RouterQuery selects routers. Subnets selects those with a leg on one of them.
type RouterQuery struct {
	Match
	Subnets []ID
}

// Matches tells whether r is selected by q.
func (q RouterQuery) Matches(r Router) bool {
	if !q.Match.Matches(r.Meta) {
		return false
	}
	for _, leg := range r.Interfaces {
		if in(q.Subnets, leg.Subnet) {
			return true
		}
	}
	return len(q.Subnets) == 0
}

// Routers forward between subnets (Neutron: router; OVN: Logical_Router).
type Routers interface {
	// EnsureRouter makes, finishes or adopts the router with the spec's Key.
	EnsureRouter(ctx context.Context, spec RouterSpec) (Router, error)
	Router(ctx context.Context, id ID) (Router, error)
	FindRouters(ctx context.Context, q RouterQuery) iter.Seq2[Router, error]
	UpdateRouter(ctx context.Context, id ID, p RouterPatch) (Router, error)
	// AttachSubnet gives the router a leg on the subnet at addr, which if invalid is the subnet's gateway address. Attached
	// already to this router: nil, but at another address than asked for IsConflict, Immutable. A subnet without a gateway and no addr IsInvalid; an address a port has, or a range that
	// overlaps another leg's, IsConflict. An SDN may allow a network but one router: IsConflict, InUse. Several calls for one leg at once make one; that
	// another is still at it when ctx is about to end IsUnavailable: ask again.
	AttachSubnet(ctx context.Context, router, subnet ID, addr netip.Addr) error
	// DetachSubnet takes the leg away; absent is nil. While a floating IP or a route needs it: IsConflict, InUse.
	DetachSubnet(ctx context.Context, router, subnet ID) error
	// DeleteRouter deletes the router with its gateway; one with legs IsConflict, InUse.
	DeleteRouter(ctx context.Context, id ID) error
}

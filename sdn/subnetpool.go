package sdn

import (
	"context"
	"iter"
	"net/netip"
)

// SubnetPoolSpec asks for a subnet pool: prefixes of one family that subnets are cut from.
type SubnetPoolSpec struct {
	Base
	Prefixes   []netip.Prefix // one family, at least one, not overlapping
	DefaultLen int            // length of a subnet that does not say; 0 is the length of the longest prefix
	MinLen     int            // 0 is the SDN's
	MaxLen     int            // 0 is the SDN's
	Shared     bool
	Default    bool // see SubnetPool
	// DefaultQuota is how much of the pool one project may have, 0 is no limit. The unit is an
	// address of IPv4 and a /64 of IPv6.
	DefaultQuota int64
	// Scope is the address scope that the pool is in: it overlaps no other pool there (IsConflict, Exists). An SDN
	// without AddressScopes refuses it (IsUnsupported).
	Scope ID `json:",omitempty"`
	// New says that no pool with the Key exists, nor is being made elsewhere: it was made up at random for this call, or the caller has
	// looked. An SDN that would have to look for it first need not; after a lost answer it looks all the same. Where that is wrong
	// there may be two.
	New bool
}

// SubnetPool is a space of prefixes. Within a pool no two subnets overlap; pools may overlap one another. Shared is fixed at
// creation. At most one pool of a family is the Default one: a second IsInvalid, "default".
type SubnetPool struct {
	Meta
	Prefixes   []netip.Prefix
	DefaultLen int
	MinLen     int
	MaxLen     int
	Shared     bool

	Default      bool  `json:",omitempty"`
	DefaultQuota int64 `json:",omitempty"`
	Scope        ID    `json:",omitempty"`
}

// SubnetPoolPatch changes a subnet pool. Prefixes is the whole new list; it can only grow (IsConflict, Immutable). Subnets
// that were cut already keep their lengths.
type SubnetPoolPatch struct {
	Patch
	Prefixes   *[]netip.Prefix
	DefaultLen *int
	MinLen     *int
	MaxLen     *int

	Default      *bool
	DefaultQuota *int64
	Scope        *ID `json:",omitempty"` // "" is none
}

// SubnetPoolQuery selects subnet pools.
type SubnetPoolQuery struct {
	Match
	Shared   *bool
	Default  *bool
	Overlaps []netip.Prefix // with a prefix that overlaps one of these
}

// SubnetPools are prefixes to cut subnets from (Neutron: subnetpool; OVN: none).
type SubnetPools interface {
	// EnsureSubnetPool makes, finishes or adopts the pool with the spec's Key.
	EnsureSubnetPool(ctx context.Context, spec SubnetPoolSpec) (SubnetPool, error)
	SubnetPool(ctx context.Context, id ID) (SubnetPool, error)
	FindSubnetPools(ctx context.Context, q SubnetPoolQuery) iter.Seq2[SubnetPool, error]
	UpdateSubnetPool(ctx context.Context, id ID, p SubnetPoolPatch) (SubnetPool, error)
	// DeleteSubnetPool deletes the pool; one that subnets were cut from IsConflict, InUse.
	DeleteSubnetPool(ctx context.Context, id ID) error
}

package sdn

import (
	"context"
	"iter"
)

// AddressScopeSpec asks for an address scope: subnet pools of one family that do not overlap, so that between their
// subnets nothing has to be translated.
type AddressScopeSpec struct {
	Base
	IPv6   bool
	Shared bool // other projects may put pools into it
}

// AddressScope is a space of addresses. The family is fixed.
type AddressScope struct {
	Meta
	IPv6   bool `json:",omitempty"`
	Shared bool `json:",omitempty"`
}

// AddressScopePatch changes an address scope. A Shared one stays so: IsConflict, Immutable.
type AddressScopePatch struct {
	Patch
	Shared *bool
}

// AddressScopeQuery selects address scopes.
type AddressScopeQuery struct {
	Match
	IPv6   *bool
	Shared *bool
}

// Matches reports whether s is selected by q.
func (q AddressScopeQuery) Matches(s AddressScope) bool {
	return q.Match.Matches(s.Meta) && equal(q.IPv6, s.IPv6) && equal(q.Shared, s.Shared)
}

// AddressScopes is a provider with address scopes; see SubnetPoolSpec.Scope. All subnets of a family on one
// network, and
// all on one router, are of one scope, or of none; those of a scope are on no router that leads them outside without
// SNAT: IsConflict.
type AddressScopes interface {
	// EnsureAddressScope makes, finishes or adopts the scope with the spec's Key.
	EnsureAddressScope(ctx context.Context, spec AddressScopeSpec) (AddressScope, error)
	AddressScope(ctx context.Context, id ID) (AddressScope, error)
	FindAddressScopes(ctx context.Context, q AddressScopeQuery) iter.Seq2[AddressScope, error]
	UpdateAddressScope(ctx context.Context, id ID, p AddressScopePatch) (AddressScope, error)
	// DeleteAddressScope deletes the scope; one with subnet pools IsConflict, InUse.
	DeleteAddressScope(ctx context.Context, id ID) error
}

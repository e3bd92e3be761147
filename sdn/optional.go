package sdn

import (
	"context"
	"net/netip"
)

// What follows not every provider can do, and no front end needs. Who serves a provider to others asks for it by a type assertion, on the provider itself:
// what is wrapped around one hides it.

// AtomicPorts is a provider that makes several ports or none.
type AtomicPorts interface {
	// EnsureAllPorts is EnsurePorts, but where one of them fails none is made or changed, and the error is that one's.
	EnsureAllPorts(ctx context.Context, specs []PortSpec) ([]Port, error)
}

// AtomicNetworks is a provider that makes several networks, several subnets and several subnet pools, or none of them: also if it is killed on the way.
type AtomicNetworks interface {
	// EnsureAllNetworks is EnsureNetwork for each, in the order of the specs, but where one of them fails none is made or changed, and the error is that
	// one's.
	EnsureAllNetworks(ctx context.Context, specs []NetworkSpec) ([]Network, error)
	// EnsureAllSubnets is the same with EnsureSubnet.
	EnsureAllSubnets(ctx context.Context, specs []SubnetSpec) ([]Subnet, error)
	// EnsureAllSubnetPools is the same with EnsureSubnetPool.
	EnsureAllSubnetPools(ctx context.Context, specs []SubnetPoolSpec) ([]SubnetPool, error)
}

// AtomicTrunks is a provider that makes a trunk with its subports or not at all.
type AtomicTrunks interface {
	// EnsureTrunkWith is EnsureTrunk and AttachSubports, but where a port fails the trunk is neither made nor changed.
	EnsureTrunkWith(ctx context.Context, spec TrunkSpec, subports []Subport) (Trunk, error)
}

// PortLegs is a provider that puts a network on a router by one of its ports.
type PortLegs interface {
	// AttachPort makes the port the router's leg, with all its addresses. The port must be bound to nothing and be no other's: IsConflict, InUse.
	// Repeated it succeeds.
	AttachPort(ctx context.Context, router, port ID) error
	// DetachPort takes the router's leg away that is this port, from all its subnets or, where one of them is needed, from none; absent is nil. All else is as in
	// Routers.DetachSubnet.
	DetachPort(ctx context.Context, router, port ID) error
}

// ConditionalDelete is a provider that deletes any noun at a revision.
type ConditionalDelete interface {
	// DeleteIf deletes the object if it is still at the revision; otherwise IsConflict, Stale. All else is as in the noun's own Delete.
	DeleteIf(ctx context.Context, noun Noun, id ID, revision int64) error
}

// PrefixRemoval is a provider that takes prefixes out of a subnet pool.
type PrefixRemoval interface {
	// RemovePrefixes removes what the pool has of these prefixes. While a subnet was cut from one of
	// them, nothing is removed: IsConflict, InUse. A pool without prefixes IsInvalid.
	RemovePrefixes(ctx context.Context, pool ID, prefixes []netip.Prefix, ifRevision int64) (SubnetPool, error)
}

// QuotaReset is a provider that can forget a project's own limits.
type QuotaReset interface {
	// ResetQuota gives the project the limits of one that has none of its own: of these
	// nouns, or of all if none is said.
	ResetQuota(ctx context.Context, project string, nouns ...Noun) error
}

// ForwardUpdate is a provider that changes a port forwarding, which keeps its id.
type ForwardUpdate interface {
	// UpdateForward makes the forwarding of the floating IP that has this one's ID be this one; one that is absent IsNotFound. All else is as in EnsureForwards.
	UpdateForward(ctx context.Context, floatingIP ID, forward Forward) (Forward, error)
}

// MetaPatch is a provider that changes of an object what every object has, also of the nouns that are applied as whole values, where an empty name or
// description says nothing: by a Patch it is taken away.
type MetaPatch interface {
	// PatchMeta changes the object; one that is absent IsNotFound. A noun without a Patch of its own is one of security groups, address groups, QoS
	// policies and load balancers; of others it IsUnsupported.
	PatchMeta(ctx context.Context, noun Noun, id ID, p Patch) error
}

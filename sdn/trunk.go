package sdn

import (
	"context"
	"iter"
)

// TrunkSpec asks for a trunk on a port: VLANs of the parent's interface are ports of other networks.
type TrunkSpec struct {
	Base
	Parent   ID   // port
	Disabled bool // its subports cannot be changed (Neutron: admin_state_up false)
}

// Subport is a port that is reached through a trunk.
type Subport struct {
	Port ID
	VLAN int // 1 to 4094; 0 in a request lets the provider choose
}

// Trunk is a parent port with its subports.
type Trunk struct {
	Meta
	Parent   ID
	Subports []Subport
	Disabled bool
}

// TrunkPatch changes a trunk.
type TrunkPatch struct {
	Patch
	Disabled *bool
}

// TrunkQuery selects trunks.
type TrunkQuery struct {
	Match
	Parents []ID
}

// Trunks carry ports of containers through the port of a virtual machine (Neutron: trunk; OVN: parent_name and tag).
type Trunks interface {
	// EnsureTrunk makes, finishes or adopts the trunk with the spec's Key. A parent that has another trunk, or is a subport,
	// IsConflict, Exists.
	EnsureTrunk(ctx context.Context, spec TrunkSpec) (Trunk, error)
	Trunk(ctx context.Context, id ID) (Trunk, error)
	FindTrunks(ctx context.Context, q TrunkQuery) iter.Seq2[Trunk, error]
	UpdateTrunk(ctx context.Context, id ID, p TrunkPatch) (Trunk, error)
	// AttachSubports adds ports and answers with their VLANs, by position. One already attached keeps its VLAN: success. A
	// wanted VLAN that is another's IsConflict, Exists; none left: IsExhausted, NoVLANs. Nothing is attached on an error.
	AttachSubports(ctx context.Context, trunk ID, subports []Subport) ([]Subport, error)
	// DetachSubports removes ports; absent ones count as removed.
	DetachSubports(ctx context.Context, trunk ID, ports []ID) error
	// DeleteTrunk deletes the trunk and frees its subports.
	DeleteTrunk(ctx context.Context, id ID) error
}

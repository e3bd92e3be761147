package sdn

import (
	"context"
	"iter"
)

// Limits are bandwidth limits and marks. The zero Limits are none.
type Limits struct {
	IngressKbps, EgressKbps   int64 // 0: no limit
	IngressBurst, EgressBurst int64 // kilobits; 0: the SDN's
	DSCP                      uint8 // mark of what is sent; 0: none
}

// QoSPolicySpec is what a QoS policy is to be, applied as one whole value.
type QoSPolicySpec struct {
	Base
	ID         ID // of the policy that is to be this; "" is the one with the Key
	IfRevision int64
	Shared     bool // other projects may use it; while their ports name it, it stays so (IsConflict, InUse)
	Limits     Limits
	Swapped    bool
	Default    bool `json:",omitempty"` // new networks of the project have it; a second one IsConflict, Exists
}

// QoSPolicy is a named set of limits, in force on each port that names it.
type QoSPolicy struct {
	Meta
	Shared bool
	Limits Limits
	// Swapped tells an API that names the limits that those of the two directions have each
	// other's names: a limit keeps its name when its direction changes. It limits nothing. An
	// SDN that does not keep it refuses it (IsUnsupported).
	Swapped bool `json:",omitempty"`
	Default bool `json:",omitempty"` // see QoSPolicySpec
}

// QoSPolicyQuery selects QoS policies.
type QoSPolicyQuery struct {
	Match
}

// QoSPolicies limit what ports send and receive (Neutron: qos-policy with its rules; OVN: QoS).
type QoSPolicies interface {
	// ApplyQoSPolicy makes the policy be this value; a change is in force on every port that names it. Where the SDN leaves
	// policies to its administrators IsDenied: those that are there can be found and named.
	ApplyQoSPolicy(ctx context.Context, spec QoSPolicySpec) (QoSPolicy, error)
	QoSPolicy(ctx context.Context, id ID) (QoSPolicy, error)
	FindQoSPolicies(ctx context.Context, q QoSPolicyQuery) iter.Seq2[QoSPolicy, error]
	// DeleteQoSPolicy deletes the policy; one that something names IsConflict, InUse.
	DeleteQoSPolicy(ctx context.Context, id ID) error
}

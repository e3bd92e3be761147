package sdn

import (
	"context"
	"iter"
)

// Everyone is the Target of an Access of all projects.
const Everyone = "*"

// AccessSpec asks for an access: a project sees and uses an object of another one (Neutron: RBAC policy).
type AccessSpec struct {
	Base        // whose the access is; a name, tags and a Key mean nothing
	Noun   Noun // one of SharedNouns
	Object ID
	// External gives a network to the project as an external one: for gateways and floating IPs. Otherwise
	// the object is as if it were shared with it.
	External bool
	Target   string // project, or Everyone
}

// Access is the right of a project, or of all, to see and use an object. All but the Target is fixed.
type Access struct {
	Meta
	Noun     Noun
	Object   ID
	External bool `json:",omitempty"`
	Target   string
}

// AccessQuery selects accesses.
type AccessQuery struct {
	Match
	Nouns   []Noun
	Objects []ID
	Targets []string
}

// Matches reports whether a is selected by q.
func (q AccessQuery) Matches(a Access) bool {
	return q.Match.Matches(a.Meta) && in(q.Nouns, a.Noun) && in(q.Objects, a.Object) && in(q.Targets, a.Target)
}

// SharedNouns are those whose objects projects can give one another access to.
var SharedNouns = []Noun{
	NounNetwork, NounSubnetPool, NounAddressGroup, NounSecurityGroup, NounQoSPolicy, NounAddressScope,
}

// AccessPolicies is a provider that gives single projects access to objects. An object that is Shared with
// every project, or External, has an access of Everyone, and the other way round.
type AccessPolicies interface {
	// CreateAccess gives access. The same access again IsConflict, Exists. An External access makes the
	// network external, for its targets alone, where it is not.
	CreateAccess(ctx context.Context, spec AccessSpec) (Access, error)
	Access(ctx context.Context, id ID) (Access, error)
	// FindAccesses finds accesses in the order of their ids.
	FindAccesses(ctx context.Context, q AccessQuery) iter.Seq2[Access, error]
	// UpdateAccess gives the access to another target.
	UpdateAccess(ctx context.Context, id ID, target string, ifRevision int64) (Access, error)
	// DeleteAccess removes an access; absent is nil. While a project uses the object that would not
	// see it any more: IsConflict, InUse.
	DeleteAccess(ctx context.Context, id ID, ifRevision int64) error
}

package neutronapi

import (
	"context"
	"iter"
	"net/http"

	"github.com/kuryr/kuryr/sdn"
)

// SecurityGroups are served below /v2.0/security-groups.
var SecurityGroups = Resource[SecurityGroup]{"security_group", "security_groups"}

// SecurityGroup is a security group in Neutron's JSON.
type SecurityGroup struct {
	Common
	Stateful bool                `json:"stateful"`
	Shared   bool                `json:"shared"` // never: no group is given to other projects
	Rules    []SecurityGroupRule `json:"security_group_rules"`
}

// defaultGroup is the name of the group that a project's ports have unless they say otherwise.
const defaultGroup = "default"

func isDefaultGroup(g sdn.SecurityGroup) bool { return g.Name == defaultGroup }

// EncodeSecurityGroup translates a security group.
func EncodeSecurityGroup(g sdn.SecurityGroup) SecurityGroup {
	out := SecurityGroup{Common: encodeMeta(g.Meta), Stateful: !g.Stateless, Rules: make([]SecurityGroupRule, len(g.Rules))}
	for i, r := range g.Rules {
		out.Rules[i] = EncodeSecurityGroupRule(g, r)
	}
	return out
}

// egressRules are what a new group has, as Neutron's: whatever goes out is allowed.
func egressRules() []sdn.Rule {
	return []sdn.Rule{{Direction: sdn.Egress}, {Direction: sdn.Egress, IPv6: true}}
}

type securityGroupChange = valueChange[sdn.SecurityGroupSpec]

func (s *server) securityGroups() *definition[sdn.SecurityGroup, SecurityGroup, sdn.SecurityGroupSpec, securityGroupChange] {
	remove, removeIf := s.checked(sdn.NounSecurityGroup, s.checkNotDefault, s.p.DeleteSecurityGroup)
	return &definition[sdn.SecurityGroup, SecurityGroup, sdn.SecurityGroupSpec, securityGroupChange]{
		Resource: SecurityGroups, path: "security-groups", title: "security group",
		meta: func(g sdn.SecurityGroup) sdn.Meta { return g.Meta }, get: s.p.SecurityGroup, find: s.findSecurityGroups, encode: EncodeSecurityGroup,
		spec: specSecurityGroup, patch: changeSecurityGroup, create: s.createSecurityGroup, update: s.updateSecurityGroup, remove: remove, removeIf: removeIf,
		setTags: func(ctx context.Context, id sdn.ID, p sdn.Patch) error {
			_, err := s.updateSecurityGroup(ctx, id, retagged(p, func(g *sdn.SecurityGroupSpec) *sdn.Base { return &g.Base }))
			return err
		},
	}
}

// findSecurityGroups lists groups.
func (s *server) findSecurityGroups(ctx context.Context, f *filter) iter.Seq2[sdn.SecurityGroup, error] {
	m := f.match()
	return func(yield func(sdn.SecurityGroup, error) bool) {
		if err := s.meetDefault(ctx, m); err != nil {
			yield(sdn.SecurityGroup{}, err)
			return
		}
		for g, err := range s.p.FindSecurityGroups(ctx, sdn.SecurityGroupQuery{Match: m}) {
			if !yield(g, err) {
				return
			}
		}
	}
}

// meetDefault sees to it that who lists groups finds the default one of the own project, as with Neutron: providers make it for who asks for a project's
// groups. What is asked for by id or Key needs none.
func (s *server) meetDefault(ctx context.Context, m sdn.Match) error {
	caller, _ := CallerOf(ctx)
	if len(m.Projects) > 0 || len(m.IDs) > 0 || len(m.Keys) > 0 || caller.Project == "" {
		return nil
	}
	_, _, err := sdn.First(s.p.FindSecurityGroups(ctx, sdn.SecurityGroupQuery{Match: sdn.Match{Projects: []string{caller.Project}}}))
	return err
}

var errDefaultExists = refuse(http.StatusConflict, "SecurityGroupDefaultAlreadyExists", "Default security group already exists.")

func specSecurityGroup(_ *call, b *body) sdn.SecurityGroupSpec {
	out := sdn.SecurityGroupSpec{Base: b.base(), Rules: egressRules()}
	if stateful := b.boolean("stateful"); stateful != nil {
		out.Stateless = !*stateful
	}
	b.readOnly("security_group_rules", "shared")
	if out.Name == defaultGroup {
		b.fail(errDefaultExists)
	}
	return out
}

func (s *server) createSecurityGroup(ctx context.Context, spec sdn.SecurityGroupSpec) (sdn.SecurityGroup, error) {
	find := func(m sdn.Match) iter.Seq2[sdn.SecurityGroup, error] {
		return s.p.FindSecurityGroups(ctx, sdn.SecurityGroupQuery{Match: m})
	}
	return unlessThere(ctx, s, "security group", spec.Base, find, func() (sdn.SecurityGroup, error) {
		return s.p.ApplySecurityGroup(ctx, spec)
	})
}

func changeSecurityGroup(_ *call, b *body, g sdn.SecurityGroup) securityGroupChange {
	p := b.changes(g.Meta)
	stateful := b.boolean("stateful")
	b.readOnly("security_group_rules", "shared")
	switch {
	case p.Name == nil:
	case isDefaultGroup(g):
		b.fail(refuse(http.StatusConflict, "SecurityGroupCannotUpdateDefault", "Updating default security group not allowed."))
	case *p.Name == defaultGroup:
		b.fail(errDefaultExists)
	}
	clearing, both := b.clearing("security group", g.Meta, p), stateful != nil && *stateful == g.Stateless
	return securityGroupChange{ifRevision: p.IfRevision, patch: clearing, both: both, change: func(spec *sdn.SecurityGroupSpec) error {
		rebase(&spec.Base, p)
		if stateful != nil {
			spec.Stateless = !*stateful
		}
		return nil
	}}
}

// updateSecurityGroup applies a change to a group as it is.
func (s *server) updateSecurityGroup(ctx context.Context, id sdn.ID, by securityGroupChange) (sdn.SecurityGroup, error) {
	return changeValue(ctx, s, sdn.NounSecurityGroup, id, by, s.p.SecurityGroup, func(g sdn.SecurityGroup) (sdn.SecurityGroupSpec, sdn.Meta) {
		return sdn.SecurityGroupSpec{ID: g.ID, IfRevision: g.Revision, Stateless: g.Stateless, Rules: g.Rules}, g.Meta
	}, s.p.ApplySecurityGroup)
}

// checkNotDefault refuses to delete a default group, as nobody can.
func (s *server) checkNotDefault(ctx context.Context, id sdn.ID) error {
	if g, err := s.p.SecurityGroup(ctx, id); err == nil && isDefaultGroup(g) {
		return refuse(http.StatusConflict, "SecurityGroupCannotRemoveDefault", "Insufficient rights for removing default security group.")
	}
	return nil
}

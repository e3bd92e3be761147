package neutronapi

import (
	"context"
	"iter"
	"net/http"

	"github.com/kuryr/kuryr/sdn"
)

// defaultGroup is the name of the group that a project's ports have unless they say otherwise.
const defaultGroup = "default"

func isDefaultGroup(g sdn.SecurityGroup) bool { return g.Name == defaultGroup }

// egressRules are what a new group has, as Neutron's: whatever goes out is allowed.
func egressRules() []sdn.Rule {
	return []sdn.Rule{{Direction: sdn.Egress}, {Direction: sdn.Egress, IPv6: true}}
}

type (
	securityGroupChange = valueChange[sdn.SecurityGroupSpec]
	securityGroupPatch  = valuePatch[sdn.SecurityGroupSpec]
)

func (s *server) securityGroups() tableOf[sdn.SecurityGroup] {
	type N = sdn.SecurityGroup
	type S = sdn.SecurityGroupSpec
	type P = securityGroupPatch
	remove, removeIf := s.checked(sdn.NounSecurityGroup, s.checkNotDefault, s.p.DeleteSecurityGroup)
	base := func(x *S) *sdn.Base { return &x.Base }
	t := &table{
		member: "security_group", collection: "security_groups", path: "security-groups", title: "security group",
		meta: via(func(n *N) sdn.Meta { return n.Meta }), shows: neutronMeta, tags: true,
		base: via(base), patch: via(func(p *P) *sdn.Patch { return &p.Patch }),
		fields: []field{
			{name: "stateful", is: isBool, show: via(func(n *N) any { return !n.Stateless }),
				taken: "`true`; from an SDN with stateless groups also `false`", why: "the embedded SDN has stateful groups only",
				post: setNot(func(x *S) *bool { return &x.Stateless }),
				put:  store(func(p *P, v any) { p.change = func(x *S) { x.Stateless = !v.(bool) } })},
			{name: "shared", show: via(func(n *N) any { return n.Shared })},
			{name: "security_group_rules", show: via(showRules)},
		},
		get: getCall{made[N], func(ctx context.Context, id sdn.ID) (any, error) { return pointer(s.p.SecurityGroup(ctx, id)) }},
		find: func(ctx context.Context, f *filter) iter.Seq2[any, error] {
			return pointers(s.findSecurityGroups(ctx, f))
		},
		shared: judged(func(c *call, n *N) (bool, error) {
			return c.sharing(sdn.NounSecurityGroup, n.Meta, &n.Shared)
		}),
		checkPost: hook(func(_ *call, b *body, x *S) {
			x.Rules = egressRules()
			if x.Name == defaultGroup {
				b.fail(errDefaultExists)
			}
		}),
		checkPut: hookOn(func(_ *call, b *body, n *N, p *P) {
			switch {
			case p.Name == nil:
			case isDefaultGroup(*n):
				b.fail(refuse(http.StatusConflict, "SecurityGroupCannotUpdateDefault", "Updating default security group not allowed."))
			case *p.Name == defaultGroup:
				b.fail(errDefaultExists)
			}
			p.clearing = b.clearing("security group", n.Meta, p.Patch)
		}),
		create: createCall{made[S], func(ctx context.Context, x any) (any, error) { return pointer(s.createSecurityGroup(ctx, *x.(*S))) }},
		update: updateCall{made[P], func(ctx context.Context, id sdn.ID, change any) (any, error) {
			p := *change.(*P)
			return pointer(s.updateSecurityGroup(ctx, id, p.of(base)))
		}},
		remove:   remove,
		removeIf: removeIf,
	}
	return tableOf[N]{t}
}

// findSecurityGroups lists groups.
func (s *server) findSecurityGroups(ctx context.Context, f *filter) iter.Seq2[sdn.SecurityGroup, error] {
	m := f.match()
	return func(yield func(sdn.SecurityGroup, error) bool) {
		if err := s.meetDefault(ctx, m); err != nil {
			yield(sdn.SecurityGroup{}, err)
			return
		}
		for g, err := range s.seenSecurityGroups(ctx, sdn.SecurityGroupQuery{Match: m}) {
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

func (s *server) createSecurityGroup(ctx context.Context, spec sdn.SecurityGroupSpec) (sdn.SecurityGroup, error) {
	find := func(m sdn.Match) iter.Seq2[sdn.SecurityGroup, error] {
		return s.p.FindSecurityGroups(ctx, sdn.SecurityGroupQuery{Match: m})
	}
	return unlessThere(ctx, s, "security group", spec.Base, find, func() (sdn.SecurityGroup, error) {
		return s.p.ApplySecurityGroup(ctx, spec)
	})
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

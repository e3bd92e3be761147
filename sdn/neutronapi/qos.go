package neutronapi

import (
	"context"
	"iter"
	"net/http"

	"github.com/kuryr/kuryr/sdn"
)

type (
	qosChange = valueChange[sdn.QoSPolicySpec]
	qosPatch  = valuePatch[sdn.QoSPolicySpec]
)

func (s *server) qosPolicies() tableOf[sdn.QoSPolicy] {
	type N = sdn.QoSPolicy
	type S = sdn.QoSPolicySpec
	type P = qosPatch
	remove, removeIf := s.checked(sdn.NounQoSPolicy, func(ctx context.Context, _ sdn.ID) error {
		if caller, _ := CallerOf(ctx); !caller.admin() {
			return errAdminsOnly("delete_policy")
		}
		return nil
	}, s.p.DeleteQoSPolicy)
	base := func(x *S) *sdn.Base { return &x.Base }
	t := &table{
		member: "policy", collection: "policies", path: "qos/policies", title: "QoS policy",
		meta: via(func(n *N) sdn.Meta { return n.Meta }), shows: neutronMeta, tags: true,
		base: via(base), patch: via(func(p *P) *sdn.Patch { return &p.Patch }),
		fields: []field{
			{name: "shared", is: isBool, show: via(func(n *N) any { return n.Shared }),
				post: set(func(x *S) *bool { return &x.Shared }),
				put:  store(func(p *P, v any) { p.also(func(x *S) { x.Shared = v.(bool) }) })},
			{name: "is_default", is: isBool, show: via(func(n *N) any { return n.Default }),
				post: set(func(x *S) *bool { return &x.Default }),
				put:  store(func(p *P, v any) { p.also(func(x *S) { x.Default = v.(bool) }) })},
			{name: "rules", show: via(showLimits)},
		},
		get: getCall{made[N], func(ctx context.Context, id sdn.ID) (any, error) { return pointer(s.p.QoSPolicy(ctx, id)) }},
		find: func(ctx context.Context, f *filter) iter.Seq2[any, error] {
			return pointers(s.p.FindQoSPolicies(ctx, sdn.QoSPolicyQuery{Match: f.match()}))
		},
		shared: judged(func(c *call, n *N) (bool, error) {
			return c.sharing(sdn.NounQoSPolicy, n.Meta, &n.Shared)
		}),
		beforePost: hook(func(c *call, b *body, _ *S) { b.fail(c.adminsOnly("create_policy")) }),
		beforePut:  hookOn(func(c *call, b *body, _ *N, _ *P) { b.fail(c.adminsOnly("update_policy")) }),
		checkPut:   hookOn(func(_ *call, b *body, n *N, p *P) { p.clearing = b.clearing("QoS policy", n.Meta, p.Patch) }),
		create: createCall{made[S], func(ctx context.Context, asked any) (any, error) {
			x := *asked.(*S)
			find := func(m sdn.Match) iter.Seq2[N, error] { return s.p.FindQoSPolicies(ctx, sdn.QoSPolicyQuery{Match: m}) }
			return pointer(unlessThere(ctx, s, "QoS policy", x.Base, find, func() (N, error) { return s.p.ApplyQoSPolicy(ctx, x) }))
		}},
		update: updateCall{made[P], func(ctx context.Context, id sdn.ID, p any) (any, error) {
			return pointer(s.updateQoSPolicy(ctx, id, p.(*P).of(base)))
		}},
		remove:   remove,
		removeIf: removeIf,
	}
	return tableOf[N]{t}
}

// updateQoSPolicy applies a change to a policy as it is.
func (s *server) updateQoSPolicy(ctx context.Context, id sdn.ID, by qosChange) (sdn.QoSPolicy, error) {
	return changeValue(ctx, s, sdn.NounQoSPolicy, id, by, s.p.QoSPolicy, func(p sdn.QoSPolicy) (sdn.QoSPolicySpec, sdn.Meta) {
		return sdn.QoSPolicySpec{ID: p.ID, IfRevision: p.Revision, Shared: p.Shared, Limits: p.Limits, Swapped: p.Swapped,
			Default: p.Default}, p.Meta
	}, s.p.ApplyQoSPolicy)
}

// adminsOnly refuses what Neutron's policy keeps for administrators.
func (c *call) adminsOnly(rule string) error {
	if c.caller.admin() {
		return nil
	}
	return errAdminsOnly(rule)
}

func errAdminsOnly(rule string) error {
	return refuse(http.StatusForbidden, "PolicyNotAuthorized", "rule:%s is disallowed by policy", rule)
}

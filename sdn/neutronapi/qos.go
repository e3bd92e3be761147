package neutronapi

import (
	"context"
	"iter"
	"net/http"

	"github.com/kuryr/kuryr/sdn"
)

// QoSPolicies are served below /v2.0/qos/policies.
var QoSPolicies = Resource[QoSPolicy]{"policy", "policies"}

// QoSPolicy is a QoS policy in Neutron's JSON.
type QoSPolicy struct {
	Common
	Shared    bool  `json:"shared"`
	IsDefault bool  `json:"is_default"` // never: a project has none here
	Rules     []any `json:"rules"`      // of BandwidthLimitRule and DSCPMarkingRule
}

// EncodeQoSPolicy translates a QoS policy.
func EncodeQoSPolicy(p sdn.QoSPolicy) QoSPolicy {
	out := QoSPolicy{Common: encodeMeta(p.Meta), Shared: p.Shared, Rules: []any{}}
	for _, r := range limitRules(p.Limits) {
		out.Rules = append(out.Rules, r.encode(p.ID, true))
	}
	return out
}

type qosChange = valueChange[sdn.QoSPolicySpec]

func (s *server) qosPolicies() *definition[sdn.QoSPolicy, QoSPolicy, sdn.QoSPolicySpec, qosChange] {
	remove, removeIf := s.checked(sdn.NounQoSPolicy, func(ctx context.Context, _ sdn.ID) error {
		if caller, _ := CallerOf(ctx); !caller.admin() {
			return errAdminsOnly("delete_policy")
		}
		return nil
	}, s.p.DeleteQoSPolicy)
	return &definition[sdn.QoSPolicy, QoSPolicy, sdn.QoSPolicySpec, qosChange]{
		Resource: QoSPolicies, path: "qos/policies", title: "QoS policy",
		meta: func(p sdn.QoSPolicy) sdn.Meta { return p.Meta }, get: s.p.QoSPolicy,
		find: func(ctx context.Context, f *filter) iter.Seq2[sdn.QoSPolicy, error] {
			return s.p.FindQoSPolicies(ctx, sdn.QoSPolicyQuery{Match: f.match()})
		},
		encode: EncodeQoSPolicy, shared: func(_ *call, p sdn.QoSPolicy) (bool, error) { return p.Shared, nil },
		spec: func(c *call, b *body) sdn.QoSPolicySpec {
			b.fail(c.adminsOnly("create_policy"))
			b.readOnly("rules")
			b.only("is_default", false, "a project has no policy by default here")
			return sdn.QoSPolicySpec{Base: b.base(), Shared: or(b.boolean("shared"))}
		},
		patch: func(c *call, b *body, p sdn.QoSPolicy) qosChange {
			b.fail(c.adminsOnly("update_policy"))
			b.readOnly("rules")
			b.only("is_default", false, "a project has no policy by default here")
			shared := b.boolean("shared")
			change := b.changes(p.Meta)
			clearing := b.clearing("QoS policy", p.Meta, change)
			both := shared != nil && *shared != p.Shared
			by := func(spec *sdn.QoSPolicySpec) error {
				rebase(&spec.Base, change)
				if shared != nil {
					spec.Shared = *shared
				}
				return nil
			}
			return qosChange{ifRevision: change.IfRevision, patch: clearing, both: both, change: by}
		},
		create: func(ctx context.Context, spec sdn.QoSPolicySpec) (sdn.QoSPolicy, error) {
			find := func(m sdn.Match) iter.Seq2[sdn.QoSPolicy, error] {
				return s.p.FindQoSPolicies(ctx, sdn.QoSPolicyQuery{Match: m})
			}
			return unlessThere(ctx, s, "QoS policy", spec.Base, find, func() (sdn.QoSPolicy, error) {
				return s.p.ApplyQoSPolicy(ctx, spec)
			})
		},
		update: s.updateQoSPolicy,
		remove: remove, removeIf: removeIf,
		setTags: func(ctx context.Context, id sdn.ID, p sdn.Patch) error {
			_, err := s.updateQoSPolicy(ctx, id, retagged(p, func(p *sdn.QoSPolicySpec) *sdn.Base { return &p.Base }))
			return err
		},
	}
}

// updateQoSPolicy applies a change to a policy as it is.
func (s *server) updateQoSPolicy(ctx context.Context, id sdn.ID, by qosChange) (sdn.QoSPolicy, error) {
	return changeValue(ctx, s, sdn.NounQoSPolicy, id, by, s.p.QoSPolicy, func(p sdn.QoSPolicy) (sdn.QoSPolicySpec, sdn.Meta) {
		return sdn.QoSPolicySpec{ID: p.ID, IfRevision: p.Revision, Shared: p.Shared, Limits: p.Limits}, p.Meta
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

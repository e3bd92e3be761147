package neutronapi

import (
	"context"
	"iter"
	"net/http"

	"github.com/kuryr/kuryr/sdn"
)

// most32 is the most that Neutron's numbers hold.
const most32 = 1<<31 - 1

// serveLimits adds the rules of QoS policies, a path for each type, and the types.
func (s *server) serveLimits() {
	for _, kind := range []string{bandwidthLimit, dscpMarking} {
		rules := func(c *call) (*resource, error) {
			p, err := s.qosPolicies().need(c, sdn.ID(c.PathValue("policy")))
			return s.limitRules(p, kind).resource(), err
		}
		s.serveWithin("/v2.0/qos/policies/{policy}/"+kind+"_rules", rules, nil)
	}
	types := []map[string]string{{"type": bandwidthLimit}, {"type": dscpMarking}}
	s.read("/v2.0/qos/rule-types", func(w http.ResponseWriter, c *call) error {
		writeJSON(w, http.StatusOK, map[string]any{"rule_types": types})
		return nil
	})
	s.read("/v2.0/qos/rule-types/{id}", func(w http.ResponseWriter, c *call) error {
		if err := c.adminsOnly("get_rule_type"); err != nil {
			return err
		}
		for _, t := range types {
			if t["type"] == c.PathValue("id") {
				writeJSON(w, http.StatusOK, map[string]any{"rule_type": map[string]any{"type": t["type"], "drivers": []any{}}})
				return nil
			}
		}
		return refuse(http.StatusNotFound, "QosRuleTypeNotFound", "QoS rule type %s could not be found.", c.PathValue("id"))
	})
}

// limitRules are the rules of one type of a policy.
func (s *server) limitRules(p sdn.QoSPolicy, kind string) tableOf[limitRule] {
	type R = limitRule
	t := &table{
		member: kind + "_rule", collection: kind + "_rules", title: "QoS rule", fields: limitFields(p.ID, kind),
		meta: via(func(r *R) sdn.Meta {
			return sdn.Meta{ID: sdn.ID(r.id(p.ID)), Revision: p.Revision, Base: sdn.Base{Project: p.Project}}
		}),
		shared: judged(func(*call, *R) (bool, error) { return true, nil }), // who sees the policy
		get:    got(func(_ context.Context, id sdn.ID) (R, error) { return findLimit(p.ID, p.Limits, p.Swapped, kind, id) }),
		find: sought(func(_ context.Context, f *filter) iter.Seq2[R, error] {
			f.named = true
			return func(yield func(R, error) bool) {
				for _, r := range limitRules(p.Limits, p.Swapped) {
					if r.kind == kind && !yield(r, nil) {
						return
					}
				}
			}
		}),
		beforePost: hook(func(c *call, b *body, r *R) {
			b.fail(c.adminsOnly("create_policy_" + kind + "_rule"))
			b.project()
			if r.kind = kind; kind == bandwidthLimit {
				r.direction = sdn.Egress
			}
		}),
		beforePut: hookOn(func(c *call, b *body, now, r *R) {
			b.fail(c.adminsOnly("update_policy_" + kind + "_rule"))
			b.project()
			*r = *now
		}),
		create: createCall{made[R], func(ctx context.Context, asked any) (any, error) {
			r := *asked.(*R)
			err := s.changeLimits(ctx, p.ID, func(spec *sdn.QoSPolicySpec) error {
				r.swapped = kind == bandwidthLimit && spec.Swapped
				return r.add(p.ID, &spec.Limits)
			})
			return pointer(r, err)
		}},
		update: updateCall{made[R], func(ctx context.Context, id sdn.ID, change any) (any, error) {
			r := *change.(*R)
			err := s.changeLimits(ctx, p.ID, func(spec *sdn.QoSPolicySpec) error {
				now, err := findLimit(p.ID, spec.Limits, spec.Swapped, kind, id)
				if err != nil {
					return err
				}
				now.take(&spec.Limits)
				if !r.turned { // another request may have turned it since this one was read
					r.direction = now.direction
				}
				if r.swapped = now.swapped; r.direction != now.direction {
					spec.Swapped = !spec.Swapped
					r.swapped = spec.Swapped
				}
				return r.add(p.ID, &spec.Limits)
			})
			return pointer(r, err)
		}},
		remove: func(ctx context.Context, id sdn.ID) error {
			if caller, _ := CallerOf(ctx); !caller.admin() {
				return errAdminsOnly("delete_policy_" + kind + "_rule")
			}
			return s.changeLimits(ctx, p.ID, func(spec *sdn.QoSPolicySpec) error {
				r, err := findLimit(p.ID, spec.Limits, spec.Swapped, kind, id)
				if err == nil {
					r.take(&spec.Limits)
				}
				return err
			})
		},
	}
	return tableOf[R]{t}
}

// add makes the rule a part of limits that lack one of its type and direction.
func (r limitRule) add(policy sdn.ID, l *sdn.Limits) error {
	for _, have := range limitRules(*l, r.swapped) {
		if have.kind == r.kind && have.direction == r.direction {
			return refuse(http.StatusConflict, "QoSRulesConflict",
				"Rule %s conflicts with rule %s which already exists in QoS Policy %s.", r.kind, have.id(policy), policy)
		}
	}
	r.put(l)
	return nil
}

// changeLimits changes a policy's limits without losing what another does at the same time.
func (s *server) changeLimits(ctx context.Context, policy sdn.ID, change func(*sdn.QoSPolicySpec) error) error {
	_, err := s.updateQoSPolicy(ctx, policy, qosChange{change: change})
	return err
}

// findLimit finds a rule among limits.
func findLimit(policy sdn.ID, l sdn.Limits, swapped bool, kind string, id sdn.ID) (limitRule, error) {
	for _, r := range limitRules(l, swapped) {
		if r.kind == kind && r.id(policy) == string(id) {
			return r, nil
		}
	}
	return limitRule{}, refuse(http.StatusNotFound, "QosRuleNotFound", "QoS rule %s for policy %s could not be found.", id, policy)
}

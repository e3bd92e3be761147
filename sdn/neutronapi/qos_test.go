package neutronapi

import (
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

func TestQoSPolicies(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	made := w.do(t, root, "POST", "qos/policies", `{"policy": {"name": "slow", "project_id": "alice", "is_default": false}}`, 201, "", "policy")
	shows(t, made, `{"name": "slow", "project_id": "alice", "shared": false, "is_default": false, "rules": []}`)
	policy := "qos/policies/" + made["id"].(string)
	limits, marks := policy+"/bandwidth_limit_rules", policy+"/dscp_marking_rules"
	egress := w.do(t, root, "POST", limits, `{"bandwidth_limit_rule": {"max_kbps": "1000", "max_burst_kbps": 100}}`, 201, "", "bandwidth_limit_rule")
	shows(t, egress, `{"max_kbps": 1000, "max_burst_kbps": 100, "direction": "egress"}`)
	ingress := w.do(t, root, "POST", limits, `{"bandwidth_limit_rule": {"max_kbps": 2000, "direction": "ingress"}}`, 201, "", "bandwidth_limit_rule")
	shows(t, ingress, `{"max_kbps": 2000, "max_burst_kbps": 0, "direction": "ingress"}`)
	mark := w.do(t, root, "POST", marks, `{"dscp_marking_rule": {"dscp_mark": 26}}`, 201, "", "dscp_marking_rule")
	shows(t, mark, `{"dscp_mark": 26}`)
	if egress["id"] == ingress["id"] || egress["id"] == mark["id"] {
		t.Errorf("rules have one id: %v %v %v", egress, ingress, mark)
	}
	rules := w.do(t, alice, "GET", policy, "", 200, "", "policy")["rules"].([]any)
	if len(rules) != 3 {
		t.Fatalf("the policy shows %v", rules)
	}
	shows(t, rules[0].(map[string]any), `{"type": "bandwidth_limit", "id": "`+egress["id"].(string)+`", "qos_policy_id": "`+made["id"].(string)+`"}`)
	if all := w.found(t, alice, limits+"?direction=ingress", "bandwidth_limit_rules"); len(all) != 1 || all[0]["id"] != ingress["id"] {
		t.Errorf("limits of what comes in: %v", all)
	}
	rule := limits + "/" + egress["id"].(string)
	shows(t, w.do(t, root, "PUT", rule, `{"bandwidth_limit_rule": {"max_kbps": 500}}`, 200, "", "bandwidth_limit_rule"), `{"max_kbps": 500, "max_burst_kbps": 100, "id": "`+egress["id"].(string)+`"}`)
	shows(t, w.do(t, alice, "GET", rule, "", 200, "", "bandwidth_limit_rule"), `{"max_kbps": 500}`)
	network, _ := w.wired(t, alice, "10.9.0.0/24")
	w.madePort(t, alice, network, `, "qos_policy_id": "`+made["id"].(string)+`"`)
	refused{
		{"another of its kind", root, "POST", limits, `{"bandwidth_limit_rule": {"max_kbps": 5}}`, 409, "QoSRulesConflict"},
		{"another mark", root, "POST", marks, `{"dscp_marking_rule": {"dscp_mark": 8}}`, 409, "QoSRulesConflict"},
		{"a mark that is none", root, "POST", marks, `{"dscp_marking_rule": {"dscp_mark": 3}}`, 400, "HTTPBadRequest"},
		{"no limit", root, "POST", limits, `{"bandwidth_limit_rule": {"direction": "ingress"}}`, 400, "HTTPBadRequest"},
		{"a limit of nothing", root, "PUT", rule, `{"bandwidth_limit_rule": {"max_kbps": 0}}`, 400, "HTTPBadRequest"},
		{"the way of another", root, "PUT", rule, `{"bandwidth_limit_rule": {"direction": "ingress"}}`, 409, "QoSRulesConflict"},
		{"no way", root, "PUT", rule, `{"bandwidth_limit_rule": {"direction": "up"}}`, 400, "HTTPBadRequest"},
		{"a rule that is not there", root, "GET", limits + "/none", "", 404, "QosRuleNotFound"},
		{"a rule of the other type", root, "GET", marks + "/" + egress["id"].(string), "", 404, "QosRuleNotFound"},
		{"a policy that is not there", root, "GET", "qos/policies/none/bandwidth_limit_rules", "", 404, "QosPolicyNotFound"},
		{"another's policy", bob, "GET", limits, "", 404, "QosPolicyNotFound"},
		{"a type that nobody has", root, "GET", policy + "/minimum_bandwidth_rules", "", 404, "HTTPNotFound"},
		{"by a member", alice, "POST", "qos/policies", `{"policy": {"name": "x"}}`, 403, "PolicyNotAuthorized"},
		{"changed by a member", alice, "PUT", policy, `{"policy": {"name": "x"}}`, 403, "PolicyNotAuthorized"},
		{"deleted by a member", alice, "DELETE", policy, "", 403, "PolicyNotAuthorized"},
		{"a rule by a member", alice, "POST", limits, `{"bandwidth_limit_rule": {"max_kbps": 5}}`, 403, "PolicyNotAuthorized"},
		{"a rule deleted by a member", alice, "DELETE", rule, "", 403, "PolicyNotAuthorized"},
		{"no truth value", root, "POST", "qos/policies", `{"policy": {"name": "x", "is_default": "perhaps"}}`, 400,
			"InvalidInput"},
		{"in use", root, "DELETE", policy, "", 409, "QosPolicyInUse"},
	}.run(t, w)
	if status, out := w.ask(t, alice, "DELETE", "/v2.0/"+policy, "", "If-Match", "revision_number="+w.do(t, alice, "GET", policy, "", 200, "", "policy")["revision_number"].(interface{ String() string }).String()); status != 403 {
		t.Errorf("a member deletes it at its revision: %d %v", status, out)
	}
	w.do(t, root, "DELETE", rule, "", 204, "", "")
	w.do(t, root, "DELETE", rule, "", 404, "QosRuleNotFound", "")
	if rules := w.do(t, root, "GET", policy, "", 200, "", "policy")["rules"].([]any); len(rules) != 2 {
		t.Errorf("without one it has %v", rules)
	}
	shows(t, w.do(t, root, "PUT", policy, `{"policy": {"name": "slower", "shared": false}}`, 200, "", "policy"), `{"name": "slower"}`)
}

func TestSharedQoSPolicy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.do(t, root, "POST", "qos/policies", `{"policy": {"name": "all", "shared": true}}`, 201, "", "policy")["id"].(string)
	shows(t, w.do(t, bob, "GET", "qos/policies/"+id, "", 200, "", "policy"), `{"name": "all", "shared": true}`)
	w.do(t, bob, "DELETE", "qos/policies/"+id, "", 403, "PolicyNotAuthorized", "")
	w.do(t, root, "DELETE", "qos/policies/"+id, "", 204, "", "")
}

// New networks of a project have its default policy, of which it has one.
func TestDefaultQoSPolicy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	body := `{"policy": {"name": "d", "project_id": "alice", "is_default": true}}`
	id := w.do(t, root, "POST", "qos/policies", body, 201, "", "policy")["id"].(string)
	w.do(t, root, "POST", "qos/policies", body, 409, "QoSPolicyDefaultAlreadyExists", "")
	made := w.do(t, alice, "POST", "networks", `{"network": {"name": "n"}}`, 201, "", "network")
	shows(t, made, `{"qos_policy_id": "`+id+`", "is_default": false}`)
	w.do(t, root, "DELETE", "qos/policies/"+id, "", 409, "QosPolicyInUse", "")
	path := "networks/" + made["id"].(string)
	none := `{"qos_policy_id": null}`
	shows(t, w.do(t, alice, "PUT", path, `{"network": `+none+`}`, 200, "", "network"), none)
	both := `{"is_default": false, "shared": true}`
	shows(t, w.do(t, root, "PUT", "qos/policies/"+id, `{"policy": `+both+`}`, 200, "", "policy"), both)
	shows(t, w.do(t, alice, "POST", "networks", `{"network": {"name": "n"}}`, 201, "", "network"), none)
}

func TestQoSRuleTypes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if got := names(w.found(t, alice, "qos/rule-types", "rule_types"), "type"); len(got) != 2 {
		t.Errorf("types of rules: %v", got)
	}
	shows(t, w.do(t, root, "GET", "qos/rule-types/dscp_marking", "", 200, "", "rule_type"), `{"type": "dscp_marking", "drivers": []}`)
	w.do(t, alice, "GET", "qos/rule-types/dscp_marking", "", 403, "PolicyNotAuthorized", "")
	w.do(t, root, "GET", "qos/rule-types/packet_rate", "", 404, "QosRuleTypeNotFound", "")
}

// A bandwidth rule keeps its id when its direction changes, and a further rule has another id.
func TestQoSDirection(t *testing.T) {
	w := newWorld(t)
	made := w.do(t, root, "POST", "qos/policies", `{"policy": {"name": "p", "project_id": "alice"}}`, 201, "", "policy")
	policy := "qos/policies/" + made["id"].(string)
	limits := policy + "/bandwidth_limit_rules"
	first := w.do(t, root, "POST", limits, `{"bandwidth_limit_rule": {"max_kbps": 1000, "max_burst_kbps": 100}}`,
		201, "", "bandwidth_limit_rule")
	rule := limits + "/" + first["id"].(string)
	turned := `{"id": "` + first["id"].(string) + `", "direction": "ingress", "max_kbps": 1000, "max_burst_kbps": 100}`
	shows(t, w.do(t, root, "PUT", rule, `{"bandwidth_limit_rule": {"direction": "ingress"}}`, 200, "", "bandwidth_limit_rule"), turned)
	shows(t, w.do(t, root, "GET", rule, "", 200, "", "bandwidth_limit_rule"), turned)
	policies := func() sdn.Limits {
		p, err := w.sdn.QoSPolicy(t.Context(), sdn.ID(made["id"].(string)))
		must(t, err)
		return p.Limits
	}
	if got := policies(); got != (sdn.Limits{IngressKbps: 1000, IngressBurst: 100}) {
		t.Errorf("the limits are %+v", got)
	}
	second := w.do(t, root, "POST", limits, `{"bandwidth_limit_rule": {"max_kbps": 7}}`, 201, "", "bandwidth_limit_rule")
	if second["id"] == first["id"] {
		t.Errorf("two rules have the id %v", first["id"])
	}
	shows(t, w.do(t, root, "GET", limits+"/"+second["id"].(string), "", 200, "", "bandwidth_limit_rule"),
		`{"id": "`+second["id"].(string)+`", "direction": "egress", "max_kbps": 7}`)
	for _, one := range []map[string]any{first, second} {
		for _, r := range w.do(t, root, "GET", policy, "", 200, "", "policy")["rules"].([]any) {
			if r := r.(map[string]any); r["id"] == one["id"] {
				one["shown"] = r["direction"]
			}
		}
	}
	if first["shown"] != "ingress" || second["shown"] != "egress" {
		t.Errorf("the policy shows %v and %v", first, second)
	}
	w.do(t, root, "DELETE", limits+"/"+second["id"].(string), "", 204, "", "")
	change := `{"bandwidth_limit_rule": {"direction": "egress", "max_kbps": 5}}`
	shows(t, w.do(t, root, "PUT", rule, change, 200, "", "bandwidth_limit_rule"),
		`{"id": "`+first["id"].(string)+`", "direction": "egress", "max_kbps": 5, "max_burst_kbps": 100}`)
	if got := policies(); got != (sdn.Limits{EgressKbps: 5, EgressBurst: 100}) {
		t.Errorf("the limits are %+v", got)
	}
}

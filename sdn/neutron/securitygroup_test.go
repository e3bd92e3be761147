package neutron

import (
	"strings"
	"testing"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/neutron/neutrontest"
)

const (
	groupHead   = `"id": "g", "name": "web", "project_id": "p1", "description": "kuryr/test/t/web", "revision_number": 1, "created_at": "2026-11-21T22:00:00Z"`
	egressRule  = `{"id": "e", "security_group_id": "g", "direction": "egress", "ethertype": "IPv4"}`
	ingressRule = `{"id": "i", "security_group_id": "g", "direction": "ingress", "ethertype": "IPv4", "protocol": "tcp", "port_range_min": 80, "port_range_max": 80}`
)

func groupOf(rules ...string) string {
	return `{` + groupHead + `, "security_group_rules": [` + strings.Join(rules, ", ") + `]}`
}

func webSpec() sdn.SecurityGroupSpec {
	return sdn.SecurityGroupSpec{
		Base:  sdn.Base{Key: testKey("web"), Name: "web"},
		Rules: []sdn.Rule{{Direction: sdn.Ingress, Protocol: sdn.TCP, Ports: sdn.PortRange{First: 80}}},
	}
}

// A bulk with one rule that is there adds none: where two processes apply one value, the group is read again and only what still lacks is added.
func TestAGroupAppliedByTwoProcesses(t *testing.T) {
	p, s, _ := onScript(t, map[string][]says{
		"GET /security-groups":           {{200, `{"security_groups": [` + groupOf(egressRule) + `]}`}},
		"POST /security-group-rules":     {{409, neutronError("SecurityGroupRuleExists", "Security group rule already exists. Rule id is i.")}},
		"GET /security-groups/g":         {{200, `{"security_group": ` + groupOf(egressRule, ingressRule) + `}`}, {200, `{"security_group": ` + groupOf(ingressRule) + `}`}},
		"DELETE /security-group-rules/e": {{404, neutronError("SecurityGroupRuleNotFound", "Security group rule e does not exist")}},
	})
	g, err := p.ApplySecurityGroup(t.Context(), webSpec())
	want(t, err, "", "", "")
	if len(g.Rules) != 1 || g.Rules[0].ID != "i" {
		t.Errorf("the rules are %+v", g.Rules)
	}
	if n := s.count("POST /security-group-rules"); n != 1 {
		t.Errorf("the rules were sent %d times, want once: what lacked was there when the group was read again", n)
	}
}

// No answer to a POST is followed by another POST without a look between.
func TestLostAnswersOfAGroup(t *testing.T) {
	answers := func() map[string][]says {
		return map[string][]says{
			"GET /security-groups":           {{200, `{"security_groups": []}`}, {200, `{"security_groups": [` + groupOf(egressRule) + `]}`}},
			"POST /security-groups":          {{201, `{"security_group": ` + groupOf(egressRule) + `}`}},
			"POST /security-group-rules":     {{201, `{"security_group_rules": [` + ingressRule + `]}`}},
			"GET /security-groups/g":         {{200, `{"security_group": ` + groupOf(ingressRule) + `}`}},
			"DELETE /security-group-rules/e": {{204, ""}},
		}
	}
	p, s, proxy := onScript(t, answers())
	proxy.Cut(neutrontest.Call{Method: "POST", Collection: "security-groups"}, 1)
	g, err := p.ApplySecurityGroup(t.Context(), webSpec())
	want(t, err, "", "", "")
	if len(g.Rules) != 1 || s.count("POST /security-groups ") != 1 || s.count("POST /security-group-rules") != 1 {
		t.Errorf("the rules are %+v after %q", g.Rules, s.asked)
	}

	p, s, proxy = onScript(t, answers())
	proxy.Cut(neutrontest.Call{Method: "POST", Collection: "security-group-rules"}, 1)
	_, err = p.ApplySecurityGroup(t.Context(), webSpec())
	want(t, err, sdn.KindUnavailable, "", "")
	if s.count("DELETE") != 0 || s.count("POST /security-group-rules") != 1 {
		t.Errorf("after a lost answer it did %q", s.asked)
	}
	s.answers["GET /security-groups"] = []says{{200, `{"security_groups": [` + groupOf(egressRule, ingressRule) + `]}`}}
	_, err = p.ApplySecurityGroup(t.Context(), webSpec())
	want(t, err, "", "", "")
	if s.count("POST /security-group-rules") != 1 || s.count("POST /security-groups ") != 1 {
		t.Errorf("the repeat made twins: %q", s.asked)
	}
}

// A new group whose rules are refused is not left behind.
func TestAGroupWhoseRulesAreRefused(t *testing.T) {
	p, s, _ := onScript(t, map[string][]says{
		"GET /security-groups":       {{200, `{"security_groups": []}`}, {200, `{"security_groups": [` + groupOf(egressRule) + `]}`}},
		"POST /security-groups":      {{201, `{"security_group": ` + groupOf(egressRule) + `}`}},
		"POST /security-group-rules": {{409, neutronError("OverQuota", "Quota exceeded for resources: ['security_group_rule'].")}},
		"DELETE /security-groups/g":  {{204, ""}},
	})
	_, err := p.ApplySecurityGroup(t.Context(), webSpec())
	want(t, err, sdn.KindExhausted, sdn.NoQuota, "")
	if s.count("DELETE /security-groups/g") != 1 {
		t.Errorf("the group stays: %q", s.asked)
	}
}

// Neutron deletes a group together with the rules that refer to it. It would also delete the
// default group for an administrator, so Kuryr does not ask.
func TestDeletedSecurityGroup(t *testing.T) {
	for name, c := range map[string]struct {
		group  string
		reason sdn.Reason
	}{
		"a group":           {groupOf(), ""},
		"the default group": {`{"id": "g", "name": "default"}`, sdn.InUse},
	} {
		p, s, _ := onScript(t, map[string][]says{
			"GET /security-groups/g":    {{200, `{"security_group": ` + c.group + `}`}},
			"DELETE /security-groups/g": {{204, ""}},
		})
		err := p.DeleteSecurityGroup(t.Context(), "g")
		if sdn.ReasonOf(err) != c.reason || (err == nil) != (s.count("DELETE") == 1) {
			t.Errorf("%s: error %v after %q", name, err, s.asked)
		}
	}
}

package neutronapi

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// newGroup makes a group of alice's and gives its id.
func (w *world) newGroup(t *testing.T, name string) string {
	t.Helper()
	return w.do(t, alice, "POST", "security-groups", `{"security_group": {"name": "`+name+`"}}`, 201, "", "security_group")["id"].(string)
}

// ruleBody is the body of a new rule.
func ruleBody(group, attributes string) string {
	return fmt.Sprintf(`{"security_group_rule": {"security_group_id": %q, %s}}`, group, attributes)
}

func TestRules(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	group, other := w.newGroup(t, "a"), w.newGroup(t, "b")
	set := w.do(t, alice, "POST", "address-groups", `{"address_group": {"name": "s", "addresses": ["192.0.2.0/24"]}}`, 201, "", "address_group")["id"].(string)
	for _, tc := range []struct{ name, asked, shown string }{
		{"everything", `"direction": "ingress"`,
			`{"ethertype": "IPv4", "protocol": null, "port_range_min": null, "port_range_max": null, "remote_ip_prefix": null, "normalized_cidr": null, "remote_group_id": null,
			"remote_address_group_id": null, "description": "", "belongs_to_default_sg": false, "tags": [], "project_id": "alice", "tenant_id": "alice"}`},
		{"one port", `"direction": "ingress", "protocol": "tcp", "port_range_min": 22, "port_range_max": 22, "description": "ssh"`,
			`{"protocol": "tcp", "port_range_min": 22, "port_range_max": 22, "description": "ssh"}`},
		{"ports as texts, the family in small letters", `"direction": "egress", "ethertype": "ipv6", "protocol": "UDP", "port_range_min": "5000", "port_range_max": "5010"`,
			`{"ethertype": "IPv6", "protocol": "udp", "port_range_min": 5000, "port_range_max": 5010}`},
		{"all ports", `"direction": "ingress", "protocol": "sctp", "port_range_min": 1, "port_range_max": 65535`, `{"protocol": "sctp", "port_range_min": null, "port_range_max": null}`},
		{"a number that has a name", `"direction": "ingress", "protocol": 47`, `{"protocol": "47"}`},
		{"a number that has none", `"direction": "ingress", "protocol": "253"`, `{"protocol": "253"}`},
		{"ICMP", `"direction": "ingress", "protocol": "icmp", "port_range_min": 8, "port_range_max": 0`, `{"protocol": "icmp", "port_range_min": 8, "port_range_max": 0}`},
		{"ICMP's type", `"direction": "egress", "protocol": "icmp", "port_range_min": 3`, `{"protocol": "icmp", "port_range_min": 3, "port_range_max": null}`},
		{"ICMP's older name of IPv6", `"direction": "ingress", "ethertype": "IPv6", "protocol": "icmp"`, `{"protocol": "ipv6-icmp"}`},
		{"a prefix with more than its length", `"direction": "ingress", "protocol": "tcp", "remote_ip_prefix": "10.1.2.3/8"`, `{"remote_ip_prefix": "10.1.2.3/8", "normalized_cidr": "10.0.0.0/8"}`},
		{"an address", `"direction": "ingress", "ethertype": "IPv6", "remote_ip_prefix": "2001:db8::1"`, `{"remote_ip_prefix": "2001:db8::1/128"}`},
		{"a prefix of everything stays one", `"direction": "ingress", "protocol": "udp", "remote_ip_prefix": "0.0.0.0/0"`, `{"remote_ip_prefix": "0.0.0.0/0", "normalized_cidr": "0.0.0.0/0"}`},
		{"a group", `"direction": "ingress", "remote_group_id": "` + other + `"`, `{"remote_group_id": "` + other + `"}`},
		{"itself", `"direction": "ingress", "remote_group_id": "` + group + `"`, `{"remote_group_id": "` + group + `"}`},
		{"an address group", `"direction": "ingress", "remote_address_group_id": "` + set + `"`, `{"remote_address_group_id": "` + set + `"}`},
	} {
		made := w.do(t, alice, "POST", "security-group-rules", ruleBody(group, tc.asked), 201, "", "security_group_rule")
		t.Run(tc.name, func(t *testing.T) {
			shows(t, made, tc.shown)
			path := "security-group-rules/" + made["id"].(string)
			shows(t, w.do(t, guest, "GET", path, "", 200, "", "security_group_rule"), tc.shown)
			w.do(t, bob, "GET", path, "", 404, "SecurityGroupRuleNotFound", "")
			w.do(t, bob, "DELETE", path, "", 404, "SecurityGroupRuleNotFound", "")
			for _, attribute := range []string{"id", "created_at", "updated_at", "revision_number", "security_group_id"} {
				if made[attribute] == nil || made[attribute] == "" {
					t.Errorf("it has no %s: %v", attribute, made)
				}
			}
		})
	}
	if got := len(w.do(t, alice, "GET", "security-groups/"+group, "", 200, "", "security_group")["security_group_rules"].([]any)); got != 17 {
		t.Errorf("the group shows %d rules, want 15 and the two it was born with", got)
	}
	refused{
		{"an address group that a rule names", alice, "DELETE", "address-groups/" + set, "", 409, "AddressGroupInUse"},
	}.run(t, w)
}

func TestRulesListed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	group := w.newGroup(t, "a")
	for _, attributes := range []string{
		`"direction": "ingress", "protocol": "tcp", "port_range_min": 22, "port_range_max": 22`,
		`"direction": "ingress", "protocol": "tcp", "port_range_min": 80, "port_range_max": 80`,
		`"direction": "ingress", "protocol": "udp"`,
	} {
		w.do(t, alice, "POST", "security-group-rules", ruleBody(group, attributes), 201, "", "security_group_rule")
	}
	for query, want := range map[string]int{
		"": 5, "direction=egress": 2, "protocol=tcp": 2, "protocol=6": 2, "port_range_min=22": 1, "ethertype=IPv6": 1, "protocol=tcp&protocol=udp": 3, "security_group_id=none": 0,
		"remote_group_id=none": 0, "limit=2": 2, "project_id=bob": 0,
	} {
		q := strings.TrimSuffix("security_group_id="+group+"&"+query, "&")
		if strings.HasPrefix(query, "security_group_id") {
			q = query
		}
		if got := len(w.found(t, alice, "security-group-rules?"+q, "security_group_rules")); got != want {
			t.Errorf("%q lists %d rules, want %d", query, got, want)
		}
	}
	all := names(w.found(t, alice, "security-group-rules?security_group_id="+group, "security_group_rules"), "id")
	if !slices.IsSorted(all) {
		t.Errorf("in the order of ids: %v", all)
	}
	paged := []string{}
	for marker := ""; ; {
		some := names(w.found(t, alice, "security-group-rules?security_group_id="+group+"&limit=2&marker="+marker, "security_group_rules"), "id")
		if len(some) == 0 {
			break
		}
		paged = append(paged, some...)
		marker = some[len(some)-1]
	}
	if !slices.Equal(paged, all) {
		t.Errorf("page by page %v, at once %v", paged, all)
	}
	if got := w.found(t, bob, "security-group-rules?security_group_id="+group, "security_group_rules"); len(got) != 0 {
		t.Errorf("another project sees %v", got)
	}
	if got := len(w.found(t, bob, "security-group-rules", "security_group_rules")); got != 4 {
		t.Errorf("bob sees %d rules, want the four of his default group", got)
	}
	w.do(t, alice, "GET", "security-group-rules?color=red", "", 400, "HTTPBadRequest", "")
}

func TestRulesRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	group, other := w.newGroup(t, "a"), w.newGroup(t, "b")
	foreign := w.do(t, bob, "POST", "security-groups", `{"security_group": {"name": "b"}}`, 201, "", "security_group")["id"].(string)
	w.do(t, alice, "POST", "security-group-rules", ruleBody(group, `"direction": "ingress", "protocol": "tcp", "port_range_min": 22, "port_range_max": 22`), 201, "", "security_group_rule")
	table := refused{}
	for _, tc := range []struct {
		name, asked string
		status      int
		kind        string
	}{
		{"no direction", `"protocol": "tcp"`, 400, "HTTPBadRequest"},
		{"a direction of its own", `"direction": "up"`, 400, "HTTPBadRequest"},
		{"family", `"direction": "ingress", "ethertype": "IPv5"`, 400, "SecurityGroupRuleInvalidEtherType"},
		{"protocol", `"direction": "ingress", "protocol": "carrier-pigeon"`, 400, "SecurityGroupRuleInvalidProtocol"},
		{"protocol beyond 255", `"direction": "ingress", "protocol": 256`, 400, "SecurityGroupRuleInvalidProtocol"},
		{"protocol of another kind", `"direction": "ingress", "protocol": {}`, 400, "SecurityGroupRuleInvalidProtocol"},
		{"protocol 0", `"direction": "ingress", "protocol": "hopopt"`, 501, "HTTPNotImplemented"},
		{"ports without a protocol", `"direction": "ingress", "port_range_min": 1, "port_range_max": 2`, 400, "SecurityGroupProtocolRequiredWithPorts"},
		{"the wrong way round", `"direction": "ingress", "protocol": "tcp", "port_range_min": 2, "port_range_max": 1`, 400, "SecurityGroupInvalidPortRange"},
		{"half a range", `"direction": "ingress", "protocol": "tcp", "port_range_min": 2`, 400, "SecurityGroupInvalidPortRange"},
		{"port 0", `"direction": "ingress", "protocol": "tcp", "port_range_min": 0, "port_range_max": 1`, 400, "SecurityGroupInvalidPortValue"},
		{"port 65536", `"direction": "ingress", "protocol": "tcp", "port_range_min": 1, "port_range_max": 65536`, 400, "SecurityGroupInvalidPortValue"},
		{"ports of GRE", `"direction": "ingress", "protocol": "gre", "port_range_min": 1, "port_range_max": 2`, 400, "SecurityGroupInvalidProtocolForPort"},
		{"ICMP's type", `"direction": "ingress", "protocol": "icmp", "port_range_min": 256`, 400, "SecurityGroupInvalidIcmpValue"},
		{"ICMP's code", `"direction": "ingress", "protocol": "icmp", "port_range_min": 3, "port_range_max": 300`, 400, "SecurityGroupInvalidIcmpValue"},
		{"a code alone", `"direction": "ingress", "protocol": "icmp", "port_range_max": 3`, 400, "SecurityGroupMissingIcmpType"},
		{"ICMPv6 of IPv4", `"direction": "ingress", "protocol": "ipv6-icmp"`, 400, "SecurityGroupEthertypeConflictWithProtocol"},
		{"a prefix of the other family", `"direction": "ingress", "remote_ip_prefix": "2001:db8::/32"`, 400, "SecurityGroupRuleParameterConflict"},
		{"no prefix", `"direction": "ingress", "remote_ip_prefix": "10.0.0.0/33"`, 400, "InvalidCIDR"},
		{"two remotes", `"direction": "ingress", "remote_ip_prefix": "10.0.0.0/8", "remote_group_id": "` + group + `"`, 400, "SecurityGroupMultipleRemoteEntites"},
		{"a remote group that is not there", `"direction": "ingress", "remote_group_id": "none"`, 404, "SecurityGroupNotFound"},
		{"another's remote group", `"direction": "ingress", "remote_group_id": "` + foreign + `"`, 404, "SecurityGroupNotFound"},
		{"an address group that is not there", `"direction": "ingress", "remote_address_group_id": "none"`, 404, "AddressGroupNotFound"},
		{"there already", `"direction": "ingress", "protocol": "6", "port_range_min": 22, "port_range_max": 22`, 409, "SecurityGroupRuleExists"},
		{"there already but for a prefix of everything", `"direction": "ingress", "protocol": "tcp", "port_range_min": 22, "port_range_max": 22, "remote_ip_prefix": "0.0.0.0/0"`, 409, "SecurityGroupRuleExists"},
		{"a rule's own id", `"direction": "ingress", "id": "x"`, 400, "HTTPBadRequest"},
	} {
		table = append(table, refused{{tc.name, alice, "POST", "security-group-rules", ruleBody(group, tc.asked), tc.status, tc.kind}}...)
	}
	rule := w.found(t, alice, "security-group-rules?protocol=tcp", "security_group_rules")[0]["id"].(string)
	bulk := func(first, second string) string {
		return `{"security_group_rules": [{` + first + `}, {` + second + `}]}`
	}
	in := func(group, port string) string {
		return fmt.Sprintf(`"security_group_id": %q, "direction": "ingress", "protocol": "udp", "port_range_min": %s, "port_range_max": %s`, group, port, port)
	}
	table = append(table, refused{
		{"a group that is not there", alice, "POST", "security-group-rules", ruleBody("none", `"direction": "ingress"`), 404, "SecurityGroupNotFound"},
		{"another's group", alice, "POST", "security-group-rules", ruleBody(foreign, `"direction": "ingress"`), 404, "SecurityGroupNotFound"},
		{"by a reader", guest, "POST", "security-group-rules", ruleBody(group, `"direction": "ingress"`), 403, "PolicyNotAuthorized"},
		{"no group", alice, "POST", "security-group-rules", `{"security_group_rule": {"direction": "ingress"}}`, 400, "HTTPBadRequest"},
		{"a rule is not changed", alice, "PUT", "security-group-rules/" + rule, `{"security_group_rule": {"description": "x"}}`, 400, "HTTPBadRequest"},
		{"two alike at once", alice, "POST", "security-group-rules", bulk(in(group, "1"), in(group, "1")), 409, "DuplicateSecurityGroupRuleInPost"},
		{"two groups at once", alice, "POST", "security-group-rules", bulk(in(group, "1"), in(other, "1")), 400, "SecurityGroupNotSingleGroupRules"},
		{"one of two wrong", alice, "POST", "security-group-rules", bulk(in(group, "1"), in(group, "0")), 400, "SecurityGroupInvalidPortValue"},
		{"one of two there", alice, "POST", "security-group-rules", bulk(in(group, "1"), strings.Replace(in(group, "22"), "udp", "tcp", 1)), 409, "SecurityGroupRuleExists"},
		{"none to delete", alice, "DELETE", "security-group-rules/none", "", 404, "SecurityGroupRuleNotFound"},
		{"another's to delete", bob, "DELETE", "security-group-rules/" + rule, "", 404, "SecurityGroupRuleNotFound"},
	}...)
	before := fmt.Sprint(w.do(t, alice, "GET", "security-groups/"+group, "", 200, "", "security_group"))
	table.run(t, w)
	if after := fmt.Sprint(w.do(t, alice, "GET", "security-groups/"+group, "", 200, "", "security_group")); after != before {
		t.Errorf("what was refused has changed the group from %s to %s", before, after)
	}
	out := w.do(t, alice, "POST", "security-group-rules", bulk(in(group, "1"), in(group, "2")), 201, "", "")
	if made := out["security_group_rules"].([]any); len(made) != 2 {
		t.Errorf("of two rules at once %v were made", made)
	}
	w.do(t, alice, "DELETE", "security-group-rules/"+rule, "", 204, "", "")
	w.do(t, alice, "DELETE", "security-group-rules/"+rule, "", 404, "SecurityGroupRuleNotFound", "")
}

// The refusal of a rule that is there names the one that is.
func TestRuleExistsNamesIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	body := ruleBody(w.newGroup(t, "a"), `"direction": "ingress"`)
	made := w.do(t, alice, "POST", "security-group-rules", body, 201, "", "security_group_rule")
	out := w.do(t, alice, "POST", "security-group-rules", body, 409, "SecurityGroupRuleExists", "")
	if said := out["NeutronError"].(map[string]any)["message"].(string); !strings.Contains(said, made["id"].(string)) {
		t.Errorf("%q does not name %s", said, made["id"])
	}
}

// The rules of other groups that name a group are deleted with it, so that groups that name each
// other can be deleted. A group that a port has stays, with the rules that name it.
func TestRulesOfDeletedRemoteGroups(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.newGroup(t, "a"), w.newGroup(t, "b")
	for _, pair := range [][2]string{{a, b}, {b, a}} {
		w.do(t, alice, "POST", "security-group-rules",
			ruleBody(pair[0], `"direction": "ingress", "remote_group_id": "`+pair[1]+`"`), 201, "", "")
	}
	network := w.do(t, alice, "POST", "networks", `{"network": {}}`, 201, "", "network")["id"].(string)
	body := fmt.Sprintf(`{"port": {"network_id": %q, "security_groups": [%q]}}`, network, b)
	port := w.do(t, alice, "POST", "ports", body, 201, "", "port")["id"].(string)
	rules := func(group string) int {
		t.Helper()
		shown := w.do(t, alice, "GET", "security-groups/"+group, "", 200, "", "security_group")
		return len(shown["security_group_rules"].([]any))
	}
	w.do(t, alice, "DELETE", "security-groups/"+b, "", 409, "SecurityGroupInUse", "")
	if n := rules(a); n != 3 {
		t.Errorf("the group has %d rules after a refused deletion of the other, want 3", n)
	}
	w.do(t, alice, "DELETE", "ports/"+port, "", 204, "", "")
	w.do(t, alice, "DELETE", "security-groups/"+b, "", 204, "", "")
	if n := rules(a); n != 2 {
		t.Errorf("the group has %d rules after the deletion of the other, want its first two", n)
	}
	w.do(t, alice, "DELETE", "security-groups/"+a, "", 204, "", "")
}

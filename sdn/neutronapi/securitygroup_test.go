package neutronapi

import (
	"slices"
	"sync"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

func TestSecurityGroups(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	made := w.do(t, alice, "POST", "security-groups", `{"security_group": {"name": "web", "description": "for the web"}}`, 201, "", "security_group")
	shows(t, made, `{"name": "web", "description": "for the web", "stateful": true, "shared": false, "project_id": "alice", "tenant_id": "alice", "tags": []}`)
	if rules := made["security_group_rules"].([]any); len(rules) != 2 {
		t.Errorf("a new group has the rules %v, want one for each family of what goes out", rules)
	}
	path := "security-groups/" + made["id"].(string)
	shows(t, w.do(t, alice, "PUT", path, `{"security_group": {"name": "www", "stateful": true}}`, 200, "", "security_group"), `{"name": "www", "description": "for the web"}`)
	shows(t, w.do(t, alice, "PUT", path, `{"security_group": {"name": "web", "description": ""}}`, 200, "", "security_group"), `{"name": "web", "description": "", "revision_number": 3}`)
	w.do(t, alice, "PUT", path, `{"security_group": {"name": "", "stateful": false}}`, 400, "HTTPBadRequest", "") // half of it could be done
	shows(t, w.do(t, alice, "GET", path, "", 200, "", "security_group"), `{"name": "web", "stateful": true, "revision_number": 3}`)
	shows(t, w.do(t, alice, "PUT", path, `{"security_group": {"name": ""}}`, 200, "", "security_group"), `{"name": ""}`)
	shows(t, w.do(t, alice, "PUT", path, `{"security_group": {"name": "www"}}`, 200, "", "security_group"), `{"name": "www", "description": ""}`)
	w.do(t, alice, "PUT", path+"/tags/green", "", 201, "", "")
	shows(t, w.do(t, alice, "GET", path, "", 200, "", "security_group"), `{"tags": ["green"], "name": "www"}`)
	w.do(t, bob, "GET", path, "", 404, "SecurityGroupNotFound", "")
	shows(t, w.do(t, guest, "GET", path, "", 200, "", "security_group"), `{"name": "www"}`)
	w.do(t, alice, "DELETE", path, "", 204, "", "")
	w.do(t, alice, "DELETE", path, "", 404, "SecurityGroupNotFound", "")
}

func TestSecurityGroupWithAKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const key = `{"security_group": {"name": "k", "description": "kuryr/abc/test/one"}}`
	first := w.do(t, root, "POST", "security-groups", key, 201, "", "security_group")
	rule := w.do(t, root, "POST", "security-group-rules", `{"security_group_rule": {"security_group_id": "`+first["id"].(string)+`", "direction": "ingress"}}`, 201, "", "security_group_rule")
	again := w.do(t, root, "POST", "security-groups", key, 201, "", "security_group")
	if again["id"] != first["id"] {
		t.Errorf("the same Key is %v and %v", first["id"], again["id"])
	}
	if rules := again["security_group_rules"].([]any); len(rules) != 3 {
		t.Errorf("asked for again the group has the rules %v: %v was to stay", rules, rule["id"])
	}
	refused{
		{"another's Key", alice, "POST", "security-groups", key, 403, "PolicyNotAuthorized"},
	}.run(t, w)
}

func TestDefaultSecurityGroup(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	all := w.found(t, alice, "security-groups", "security_groups")
	if len(all) != 1 || all[0]["name"] != "default" {
		t.Fatalf("who looks for the first time finds %v, want the default group", all)
	}
	id := all[0]["id"].(string)
	if got := names(w.found(t, alice, "security-group-rules?security_group_id="+id, "security_group_rules"), "direction"); !slices.Equal(got, []string{"egress", "egress", "ingress", "ingress"}) {
		slices.Sort(got)
		if !slices.Equal(got, []string{"egress", "egress", "ingress", "ingress"}) {
			t.Errorf("its rules are %v", got)
		}
	}
	for _, r := range w.found(t, alice, "security-group-rules?direction=ingress", "security_group_rules") {
		shows(t, r, `{"remote_group_id": "`+id+`", "belongs_to_default_sg": true, "protocol": null}`)
	}
	network, _ := w.wired(t, alice, "10.9.0.0/24")
	port := w.do(t, alice, "GET", "ports/"+w.madePort(t, alice, network, ""), "", 200, "", "port")
	shows(t, port, `{"security_groups": ["`+id+`"]}`)
	refused{
		{"another of the name", alice, "POST", "security-groups", `{"security_group": {"name": "default"}}`, 409, "SecurityGroupDefaultAlreadyExists"},
		{"another name", alice, "PUT", "security-groups/" + id, `{"security_group": {"name": "x"}}`, 409, "SecurityGroupCannotUpdateDefault"},
		{"deleted", alice, "DELETE", "security-groups/" + id, "", 409, "SecurityGroupCannotRemoveDefault"},
	}.run(t, w)
	shows(t, w.do(t, alice, "PUT", "security-groups/"+id, `{"security_group": {"description": "mine"}}`, 200, "", "security_group"), `{"description": "mine", "name": "default"}`)
	if all := w.found(t, root, "security-groups?project_id=", "security_groups"); len(all) != 0 {
		t.Errorf("no project has the groups %v", all)
	}
}

func TestSecurityGroupRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	network, _ := w.wired(t, alice, "10.9.0.0/24")
	id := w.do(t, alice, "POST", "security-groups", `{"security_group": {"name": "a", "description": "d"}}`, 201, "", "security_group")["id"].(string)
	w.madePort(t, alice, network, `, "security_groups": ["`+id+`"]`)
	path := "security-groups/" + id
	refused{
		{"rules at once", alice, "POST", "security-groups", `{"security_group": {"name": "a", "security_group_rules": []}}`, 400, "HTTPBadRequest"},
		{"an attribute of tomorrow", alice, "POST", "security-groups", `{"security_group": {"name": "a", "color": "red"}}`, 400, "HTTPBadRequest"},
		{"a foreign project", alice, "POST", "security-groups", `{"security_group": {"project_id": "bob"}}`, 400, "HTTPBadRequest"},
		{"by a reader", guest, "POST", "security-groups", `{"security_group": {}}`, 403, "PolicyNotAuthorized"},
		{"in use", alice, "DELETE", path, "", 409, "SecurityGroupInUse"},
		{"without state", alice, "PUT", path, `{"security_group": {"stateful": false}}`, 400, "HTTPBadRequest"},
		{"renamed default", alice, "PUT", path, `{"security_group": {"name": "default"}}`, 409, "SecurityGroupDefaultAlreadyExists"},
		{"another's", bob, "PUT", path, `{"security_group": {"name": "b"}}`, 404, "SecurityGroupNotFound"},
	}.run(t, w)
	status, out := w.ask(t, alice, "PUT", "/v2.0/"+path, `{"security_group": {"name": "b"}}`, "If-Match", "revision_number=99")
	if status != 412 {
		t.Errorf("at another revision: %d %v", status, out)
	}
	shows(t, w.do(t, alice, "GET", path, "", 200, "", "security_group"), `{"name": "a", "description": "d", "stateful": true}`)
}

// Many who each add a rule to one group lose none, also where the group is changed behind the API's back.
func TestRulesAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.do(t, alice, "POST", "security-groups", `{"security_group": {"name": "a"}}`, 201, "", "security_group")["id"].(string)
	const many = 24
	var group sync.WaitGroup
	for n := range many {
		group.Go(func() {
			port := string(rune('0'+n%10)) + string(rune('0'+n/10))
			w.do(t, alice, "POST", "security-group-rules",
				`{"security_group_rule": {"security_group_id": "`+id+`", "direction": "ingress", "protocol": "tcp", "port_range_min": "1`+port+`", "port_range_max": "1`+port+`"}}`, 201, "", "security_group_rule")
		})
	}
	for range 3 {
		g, err := w.sdn.SecurityGroup(t.Context(), sdn.ID(id))
		must(t, err)
		_, err = w.sdn.ApplySecurityGroup(t.Context(), sdn.SecurityGroupSpec{ID: g.ID, IfRevision: g.Revision, Base: sdn.Base{Name: g.Name + "+"}, Rules: g.Rules})
		if err != nil && sdn.ReasonOf(err) != sdn.Stale {
			t.Error(err)
		}
	}
	group.Wait()
	if got := len(w.found(t, alice, "security-group-rules?direction=ingress&protocol=tcp", "security_group_rules")); got != many {
		t.Errorf("%d rules of %d are there", got, many)
	}
}

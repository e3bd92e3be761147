package neutronapi

import (
	"slices"
	"testing"
)

// An RBAC policy gives one project, or all, an object of another's: it is seen and used then, and not
// changed. While it is used the policy stays.
func TestRBACPolicies(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	network, subnet := w.wired(t, alice, "10.5.0.0/24")
	poolBody := `{"subnetpool":{"name":"p","prefixes":["10.64.0.0/10"],"default_prefixlen":24}}`
	pool := w.made(t, alice, "POST", "/v2.0/subnetpools", poolBody, "subnetpool.id")
	group := w.made(t, alice, "POST", "/v2.0/security-groups", `{"security_group":{"name":"g"}}`, "security_group.id")
	addresses := w.made(t, alice, "POST", "/v2.0/address-groups",
		`{"address_group":{"name":"a","addresses":["10.0.0.0/8"]}}`, "address_group.id")
	scope := w.made(t, alice, "POST", "/v2.0/address-scopes", `{"address_scope":{"name":"s","ip_version":4}}`,
		"address_scope.id")
	policy := w.made(t, root, "POST", "/v2.0/qos/policies", `{"policy":{"name":"q","project_id":"alice"}}`, "policy.id")
	bobs, _ := w.wired(t, bob, "10.6.0.0/24")
	bobsGroup := w.made(t, bob, "POST", "/v2.0/security-groups", `{"security_group":{"name":"h"}}`, "security_group.id")

	for _, c := range []struct {
		noun, id, path, member, collection, missing string
		use                                         step // by Bob
		undo                                        string
	}{
		{"network", network, "networks", "network", "networks", "NetworkNotFound: ",
			step{"POST", "ports", `{"port":{"network_id":"` + network + `"}}`, 201, "port.fixed_ips.0.subnet_id=" + subnet},
			"port.id"},
		{"subnetpool", pool, "subnetpools", "subnetpool", "subnetpools", "SubnetPoolNotFound: ",
			step{"POST", "subnets", `{"subnet":{"network_id":"` + bobs + `","ip_version":4,"subnetpool_id":"` + pool + `"}}`,
				201, ""},
			"subnet.id"},
		{"security_group", group, "security-groups", "security_group", "security_groups", "SecurityGroupNotFound: ",
			step{"POST", "ports", `{"port":{"network_id":"` + bobs + `","security_groups":["` + group + `"]}}`, 201, ""},
			"port.id"},
		{"address_group", addresses, "address-groups", "address_group", "address_groups", "AddressGroupNotFound: ",
			step{"POST", "security-group-rules", `{"security_group_rule":{"security_group_id":"` + bobsGroup +
				`","direction":"ingress","remote_address_group_id":"` + addresses + `"}}`, 201, ""}, "security_group_rule.id"},
		{"address_scope", scope, "address-scopes", "address_scope", "address_scopes", "AddressScopeNotFound: ",
			step{"POST", "subnetpools",
				`{"subnetpool":{"name":"b","prefixes":["10.0.0.0/10"],"address_scope_id":"` + scope + `"}}`, 201, ""},
			"subnetpool.id"},
		{"qos_policy", policy, "qos/policies", "policy", "policies", "QosPolicyNotFound: ",
			step{"POST", "ports", `{"port":{"network_id":"` + bobs + `","qos_policy_id":"` + policy + `"}}`, 201, ""},
			"port.id"},
	} {
		t.Run(c.noun, func(t *testing.T) {
			path := "/v2.0/" + c.path + "/" + c.id
			listed := func(caller Caller) bool {
				return slices.ContainsFunc(w.found(t, caller, c.path, c.collection),
					func(o map[string]any) bool { return o["id"] == c.id })
			}
			body := func(target string) string {
				return `{"rbac_policy":{"object_type":"` + c.noun + `","object_id":"` + c.id +
					`","action":"access_as_shared","target_tenant":"` + target + `"}}`
			}
			w.steps(t, bob, []step{{"GET", path, "", 404, c.missing}, {"POST", "/v2.0/rbac-policies", body("bob"), 404,
				c.missing}})
			if listed(bob) {
				t.Error("the object is listed before there is a policy")
			}
			id := w.made(t, alice, "POST", "/v2.0/rbac-policies", body("bob"), "rbac_policy.id")
			if !slices.ContainsFunc(w.found(t, alice, "rbac-policies", "rbac_policies"),
				func(o map[string]any) bool { return o["id"] == id }) {
				t.Error("the policy is not in its project's list")
			}
			if c.noun == "security_group" {
				rule := `{"security_group_id":"` + c.id + `","direction":"ingress"}`
				w.steps(t, bob, []step{
					{"POST", "/v2.0/security-group-rules", `{"security_group_rule":` + rule + `}`, 403, "PolicyNotAuthorized: "},
					{"POST", "/v2.0/security-group-rules", `{"security_group_rules":[` + rule + `]}`, 403, "PolicyNotAuthorized: "},
				})
			}
			w.steps(t, alice, []step{
				{"POST", "/v2.0/rbac-policies", body("bob"), 409, "DuplicateRbacPolicy: "},
				{"POST", "/v2.0/rbac-policies", body("*"), 403, "PolicyNotAuthorized: rule:create_rbac_policy:target_tenant"},
				{"GET", "/v2.0/rbac-policies?object_id=" + c.id, "", 200, "rbac_policies.#=1 rbac_policies.0.target_tenant=bob " +
					"rbac_policies.0.action=access_as_shared rbac_policies.0.project_id=alice rbac_policies.0.object_type=" + c.noun},
				{"GET", path, "", 200, c.member + ".shared=false"},
			})
			for value, want := range map[string]bool{"true": true, "false": false} {
				found := w.found(t, bob, c.path+"?shared="+value, c.collection)
				if slices.ContainsFunc(found, func(o map[string]any) bool { return o["id"] == c.id }) != want {
					t.Errorf("the target's list with shared=%s has the object: %v, want %v", value, !want, want)
				}
			}
			w.steps(t, bob, []step{
				{"GET", path, "", 200, c.member + ".shared=true"},
				{"DELETE", path, "", 403, "PolicyNotAuthorized: "},
				{"GET", "/v2.0/rbac-policies/" + id, "", 404, "RbacPolicyNotFound: "},
			})
			if !listed(bob) || listed(Caller{Role: Member, Project: "carol"}) {
				t.Error("the object is not listed for its target alone")
			}
			use := w.made(t, bob, c.use.method, "/v2.0/"+c.use.path, c.use.body, c.undo)
			w.steps(t, alice, []step{
				{"DELETE", "/v2.0/rbac-policies/" + id, "", 409, "RbacPolicyInUse: project bob uses"},
				{"PUT", "/v2.0/rbac-policies/" + id, `{"rbac_policy":{"target_tenant":"carol"}}`, 409, "RbacPolicyInUse: "},
			})
			// One for all makes the other superfluous, and the other way round.
			all := w.made(t, root, "POST", "/v2.0/rbac-policies", body("*"), "rbac_policy.id")
			w.steps(t, root, []step{
				{"POST", "/v2.0/rbac-policies", body("*"), 409, "DuplicateRbacPolicy: "},
				{"GET", path, "", 200, c.member + ".shared=true"},
				{"DELETE", "/v2.0/rbac-policies/" + id, "", 204, ""},
				{"DELETE", "/v2.0/rbac-policies/" + all, "", 409, "RbacPolicyInUse: "},
			})
			if !listed(Caller{Role: Member, Project: "carol"}) {
				t.Error("the object is not listed for all")
			}
			id = w.made(t, alice, "POST", "/v2.0/rbac-policies", body("bob"), "rbac_policy.id")
			w.steps(t, root, []step{
				{"DELETE", "/v2.0/rbac-policies/" + all, "", 204, ""},
				{"GET", path, "", 200, c.member + ".shared=false"},
				{"DELETE", "/v2.0/" + c.use.path + "/" + use, "", 204, ""},
				{"PUT", "/v2.0/rbac-policies/" + id, `{"rbac_policy":{"target_tenant":"carol"}}`, 200,
					"rbac_policy.target_tenant=carol"},
			})
			w.steps(t, bob, []step{{"GET", path, "", 404, c.missing}})
			w.steps(t, root, []step{
				{"PUT", "/v2.0/rbac-policies/" + id, `{"rbac_policy":{"target_tenant":"bob"}}`, 200, ""},
			})
		})
	}
	// Policies go with their objects.
	w.steps(t, root, []step{
		{"GET", "/v2.0/rbac-policies?target_tenant=bob", "", 200, "rbac_policies.#=6"},
		{"DELETE", "/v2.0/networks/" + network, "", 204, ""},
		{"DELETE", "/v2.0/subnetpools/" + pool, "", 204, ""},
		{"DELETE", "/v2.0/security-groups/" + group, "", 204, ""},
		{"DELETE", "/v2.0/address-groups/" + addresses, "", 204, ""},
		{"DELETE", "/v2.0/qos/policies/" + policy, "", 204, ""},
		{"DELETE", "/v2.0/address-scopes/" + scope, "", 204, ""},
		{"GET", "/v2.0/rbac-policies?target_tenant=bob", "", 200, "rbac_policies.#=0"},
		{"GET", "/v2.0/rbac-policies?object_type=subnetpool", "", 200, "rbac_policies.#=0"},
		{"GET", "/v2.0/rbac-policies?object_id=" + w.outside() + "&target_tenant=*", "", 200,
			"rbac_policies.0.object_type=network"},
		{"POST", "/v2.0/rbac-policies", `{"rbac_policy":{"object_type":"subnetpool","object_id":"` + pool +
			`","action":"access_as_external","target_tenant":"bob"}}`, 404, "SubnetPoolNotFound: "},
		{"POST", "/v2.0/rbac-policies", `{"rbac_policy":{"object_type":"port","object_id":"x","action":"access_as_shared",
			"target_tenant":"bob"}}`, 400, "HTTPBadRequest: Invalid input for object_type"},
	})
}

// A network can be external for one project: it routes by it, and others do not see it.
func TestExternalForOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	network := w.made(t, root, "POST", "/v2.0/networks", `{"network":{"name":"out"}}`, "network.id")
	w.made(t, root, "POST", "/v2.0/subnets",
		`{"subnet":{"network_id":"`+network+`","ip_version":4,"cidr":"192.0.2.0/24","enable_dhcp":false}}`, "subnet.id")
	body := func(target string) string {
		return `{"rbac_policy":{"object_type":"network","object_id":"` + network +
			`","action":"access_as_external","target_tenant":"` + target + `"}}`
	}
	gateway := `{"router":{"external_gateway_info":{"network_id":"` + network + `"}}}`
	w.steps(t, alice, []step{{"POST", "/v2.0/rbac-policies", body("alice"), 403,
		"PolicyNotAuthorized: rule:create_rbac_policy:access_as_external"}})
	id := w.made(t, root, "POST", "/v2.0/rbac-policies", body("alice"), "rbac_policy.id")
	w.steps(t, root, []step{{"GET", "/v2.0/networks/" + network, "", 200, "network.router:external=true"}})
	w.steps(t, bob, []step{
		{"GET", "/v2.0/networks/" + network, "", 404, "NetworkNotFound: "}, {"POST", "/v2.0/routers", gateway, 404,
			"NetworkNotFound: "},
		{"GET", "/v2.0/networks?router:external=true", "", 200, "networks.#=1 networks.0.name=host"},
	})
	router := w.made(t, alice, "POST", "/v2.0/routers", gateway, "router.id")
	w.steps(t, alice, []step{
		{"GET", "/v2.0/networks?router:external=true", "", 200, "networks.#=2"},
		{"POST", "/v2.0/ports", `{"port":{"network_id":"` + network + `"}}`, 403, "PolicyNotAuthorized: "},
		{"POST", "/v2.0/floatingips", `{"floatingip":{"floating_network_id":"` + network + `"}}`, 201, ""},
	})
	w.steps(t, root, []step{{"DELETE", "/v2.0/rbac-policies/" + id, "", 409, "RbacPolicyInUse: project alice"}})
	all := w.made(t, root, "POST", "/v2.0/rbac-policies", body("*"), "rbac_policy.id")
	w.steps(t, bob, []step{{"GET", "/v2.0/networks/" + network, "", 200, ""}})
	w.steps(t, root, []step{
		{"DELETE", "/v2.0/rbac-policies/" + all, "", 204, ""},
		{"GET", "/v2.0/networks/" + network, "", 200, "network.router:external=true"},
		{"DELETE", "/v2.0/routers/" + router, "", 204, ""},
	})
	w.steps(t, bob, []step{{"GET", "/v2.0/networks/" + network, "", 404, "NetworkNotFound: "}})
	for _, fip := range w.listed(t, alice, "floatingips?floating_network_id="+network, "id") {
		w.steps(t, alice, []step{{"DELETE", "/v2.0/floatingips/" + fip, "", 204, ""}})
	}
	w.steps(t, root, []step{
		{"DELETE", "/v2.0/rbac-policies/" + id, "", 204, ""},
		{"GET", "/v2.0/networks/" + network, "", 200, "network.router:external=false"},
		{"DELETE", "/v2.0/rbac-policies/" + id, "", 404, "RbacPolicyNotFound: "},
	})
}

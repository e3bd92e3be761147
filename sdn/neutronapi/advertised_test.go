package neutronapi

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// proofs are the requests by which each advertised extension is known to be served. In paths and
// bodies a word such as $network is the id of what advertised makes.
var proofs = map[string][]step{
	Kuryr: {{"GET", "extensions/kuryr", "", 200, "extension.capabilities.HostAddresses=true"}},
	"standard-attr-description": {
		{"PUT", "networks/$spare", `{"network":{"description":"d"}}`, 200, "network.description=d"},
		{"PUT", "subnets/$subnet", `{"subnet":{"description":"d"}}`, 200, "subnet.description=d"},
		{"PUT", "subnetpools/$pool", `{"subnetpool":{"description":"d"}}`, 200, "subnetpool.description=d"},
		{"PUT", "ports/$port", `{"port":{"description":"d"}}`, 200, "port.description=d"},
		{"PUT", "routers/$router", `{"router":{"description":"d"}}`, 200, "router.description=d"},
		{"PUT", "floatingips/$fip", `{"floatingip":{"description":"d"}}`, 200, "floatingip.description=d"},
		{"PUT", "security-groups/$group", `{"security_group":{"description":"d"}}`, 200, "security_group.description=d"},
		{"PUT", "qos/policies/$policy", `{"policy":{"description":"d"}}`, 200, "policy.description=d"},
		{"PUT", "trunks/$trunk", `{"trunk":{"description":"d"}}`, 200, "trunk.description=d"},
	},
	"standard-attr-revisions": {
		{"GET", "networks/$network?fields=revision_number", "", 200, "network.revision_number=2"},
	},
	"standard-attr-timestamp": {{"GET", "networks?sort_key=created_at&sort_dir=asc&fields=updated_at", "", 200, ""}},
	"standard-attr-tag": {
		{"PUT", "networks/$network/tags/t", "", 201, ""},
		{"PUT", "subnets/$subnet/tags/t", "", 201, ""},
		{"PUT", "subnetpools/$pool/tags/t", "", 201, ""},
		{"PUT", "ports/$port/tags/t", "", 201, ""},
		{"PUT", "routers/$router/tags/t", "", 201, ""},
		{"PUT", "floatingips/$fip/tags/t", "", 201, ""},
		{"PUT", "security-groups/$group/tags/t", "", 201, ""},
		{"PUT", "qos/policies/$policy/tags/t", "", 201, ""},
		{"PUT", "trunks/$trunk/tags/t", "", 201, ""},
		{"GET", "networks?tags=t", "", 200, "networks.#=1"},
		{"DELETE", "networks/$network/tags", "", 204, ""},
	},
	"tag-creation": {{"POST", "networks/$network/tags", `{"tags":["a","b"]}`, 201, ""}},
	"tag-ports-during-bulk-creation": {
		{"POST", "ports", `{"ports":[{"network_id":"$network","tags":["t"]}]}`, 201, "ports.0.tags.0=t"},
	},
	"revision-if-match": {{"GET", "networks/$network", "", 200, ""}}, // and TestRevisions
	"pagination":        {{"GET", "networks?limit=1", "", 200, "networks.#=1 networks_links.0.rel=next"}},
	"sorting": {
		{"GET", "networks?sort_key=name&sort_dir=desc&fields=name", "", 200, "networks.0.name=host"},
	},
	"project-id":             {{"GET", "networks?project_id=x", "", 200, "networks.#=0"}},
	"filter-validation":      {{"GET", "networks?colour=red", "", 400, "HTTPBadRequest: colour"}},
	"empty-string-filtering": {{"GET", "subnetpools?name=", "", 200, "subnetpools.#=0"}},
	"ip-substring-filtering": {{"GET", "ports?fixed_ips=ip_address_substr%3D10.1.", "", 200, "ports.#=2"}},
	"net-mtu":                {{"POST", "networks", `{"network":{"mtu":1400}}`, 201, "network.mtu=1400"}},
	"net-mtu-writable":       {{"PUT", "networks/$network", `{"network":{"mtu":1300}}`, 200, "network.mtu=1300"}},
	"external-net": {
		{"POST", "networks", `{"network":{"router:external":true}}`, 201, "network.router:external=true"},
		{"PUT", "networks/$spare", `{"network":{"router:external":true}}`, 200, "network.router:external=true"},
		{"GET", "networks?router:external=true&id=$spare", "", 200, "networks.#=1"},
	},
	"subnet_allocation": {
		{"POST", "subnets", `{"subnet":{"network_id":"$network","ip_version":4,"subnetpool_id":"$pool"}}`, 201, ""},
	},
	"default-subnetpools": {
		{"PUT", "subnetpools/$pool", `{"subnetpool":{"is_default":true}}`, 200, "subnetpool.is_default=true"},
		{"POST", "subnets", `{"subnet":{"network_id":"$spare","ip_version":4,"use_default_subnetpool":true}}`, 201,
			"subnet.subnetpool_id=$pool"},
	},
	"subnet-service-types": {
		{"PUT", "subnets/$sparesubnet", `{"subnet":{"service_types":["compute:x"]}}`, 200, "subnet.service_types.0=compute:x"},
		{"POST", "ports", `{"port":{"network_id":"$inside","device_owner":"compute:y"}}`, 409,
			"IpAddressGenerationFailureNoMatchingSubnet: compute:y"},
		{"PUT", "subnets/$sparesubnet", `{"subnet":{"service_types":[]}}`, 200, "subnet.service_types.#=0"},
	},
	prefixOperations: {
		{"PUT", "subnetpools/$pool/add_prefixes", `{"prefixes":["172.16.0.0/12"]}`, 200, "prefixes.#=2"},
		{"PUT", "subnetpools/$pool/remove_prefixes", `{"prefixes":["172.16.0.0/12"]}`, 200, "prefixes.#=1"},
	},
	"rbac-policies": {
		{"POST", "rbac-policies",
			`{"rbac_policy":{"object_type":"network","object_id":"$network",
				"action":"access_as_shared","target_tenant":"p"}}`, 201,
			"rbac_policy.target_tenant=p"},
	},
	"rbac-subnetpool": {
		{"POST", "rbac-policies",
			`{"rbac_policy":{"object_type":"subnetpool","object_id":"$pool",
				"action":"access_as_shared","target_tenant":"p"}}`, 201,
			"rbac_policy.target_tenant=p"},
	},
	"rbac-security-groups": {
		{"POST", "rbac-policies",
			`{"rbac_policy":{"object_type":"security_group","object_id":"$group",
				"action":"access_as_shared","target_tenant":"p"}}`, 201,
			"rbac_policy.target_tenant=p"},
	},
	"rbac-address-group": {{"GET", "rbac-policies?object_type=address_group", "", 200, "rbac_policies.#=0"}},
	// and TestRBACPolicies
	"qos-default": {{"PUT", "qos/policies/$policy", `{"policy":{"is_default":true}}`, 200,
		"policy.is_default=true"}},
	addressScope: {
		{"POST", "address-scopes", `{"address_scope":{"name":"s","ip_version":4}}`, 201, "address_scope.ip_version=4"},
		{"PUT", "subnetpools/$pool", `{"subnetpool":{"address_scope_id":null}}`, 200, "subnetpool.address_scope_id=null"},
	},
	"rbac-address-scope": {{"GET", "rbac-policies?object_type=address_scope", "", 200, "rbac_policies.#=0"}},
	// and TestRBACPolicies
	"port-security": {
		{"POST", "networks", `{"network":{"port_security_enabled":false}}`, 201, "network.port_security_enabled=false"},
		{"POST", "ports",
			`{"port":{"network_id":"$network","port_security_enabled":false}}`, 201, "port.port_security_enabled=false"},
	},
	"allowed-address-pairs": {
		{"PUT", "ports/$port",
			`{"port":{"allowed_address_pairs":[{"ip_address":"10.9.0.1"}]}}`, 200, "port.allowed_address_pairs.#=1"},
	},
	"binding": {
		{"POST", "ports", `{"port":{"network_id":"$network","binding:host_id":"h","binding:profile":{"a":"b"}}}`, 201,
			"port.binding:host_id=h port.binding:profile.a=b port.binding:vif_type=bridge port.binding:vnic_type=normal"},
	},
	"port-trusted-vif": {
		{"PUT", "ports/$port", `{"port":{"binding:profile":{"a":"b"},"trusted":true}}`, 200, "port.trusted=true"},
		{"PUT", "ports/$port", `{"port":{"trusted":false}}`, 200, "port.trusted=false port.binding:profile.a=b"},
	},
	"quotas": {
		{"PUT", "quotas/p", `{"quota":{"network":5}}`, 200, "quota.network=5"},
		{"GET", "quotas/p/default", "", 200, ""},
		{"DELETE", "quotas/p", "", 204, ""},
	},
	"quota_details": {{"GET", "quotas/p/details", "", 200, "quota.network.used=0"}},
	"router": {
		{"PUT", "routers/$other/add_router_interface", `{"subnet_id":"$sparesubnet"}`, 200, ""},
		{"PUT", "routers/$other/remove_router_interface", `{"subnet_id":"$sparesubnet"}`, 200, ""},
	},
	"ext-gw-mode": {
		{"PUT", "routers/$other", `{"router":{"external_gateway_info":{"network_id":"$external","enable_snat":false}}}`, 200,
			"router.external_gateway_info.enable_snat=false"},
	},
	"extraroute": {
		{"PUT", "routers/$router",
			`{"router":{"routes":[{"destination":"10.8.0.0/16","nexthop":"10.1.0.7"}]}}`, 200, "router.routes.#=1"},
	},
	"extraroute-atomic": {
		{"PUT", "routers/$router/add_extraroutes",
			`{"router":{"routes":[{"destination":"10.6.0.0/16","nexthop":"10.1.0.7"}]}}`, 200, ""},
		{"PUT", "routers/$router/remove_extraroutes",
			`{"router":{"routes":[{"destination":"10.6.0.0/16","nexthop":"10.1.0.7"}]}}`, 200, ""},
	},
	"floating-ip-port-forwarding": {
		{"POST", "floatingips/$fip/port_forwardings",
			`{"port_forwarding":{"protocol":"tcp","external_port":2222,"internal_port":22,
			"internal_port_id":"$port","internal_ip_address":"$address"}}`, 201, ""},
	},
	"floating-ip-port-forwarding-port-ranges": {
		{"POST", "floatingips/$fip/port_forwardings", `{"port_forwarding":{"protocol":"udp","external_port_range":"700:705",
			"internal_port_range":"700:705","internal_port_id":"$port","internal_ip_address":"$address"}}`, 201, ""},
	},
	"floating-ip-port-forwarding-description": {
		{"POST", "floatingips/$fip/port_forwardings",
			`{"port_forwarding":{"protocol":"tcp","external_port":3333,"internal_port":33,
			"internal_port_id":"$port","internal_ip_address":"$address","description":"d"}}`, 201,
			"port_forwarding.description=d"},
	},
	"security-group": {
		{"POST", "security-group-rules",
			`{"security_group_rule":{"security_group_id":"$group","direction":"ingress"}}`, 201, ""},
		{"PUT", "ports/$port", `{"port":{"security_groups":["$group"]}}`, 200, "port.security_groups.0=$group"},
	},
	"security-groups-normalized-cidr": {
		{"POST", "security-group-rules", `{"security_group_rule":{"security_group_id":"$group","direction":"ingress",
			"remote_ip_prefix":"10.0.0.5/24"}}`, 201, "security_group_rule.normalized_cidr=10.0.0.0/24"},
	},
	"security-groups-rules-belongs-to-default-sg": {
		{"GET", "security-group-rules?belongs_to_default_sg=true", "", 200, "security_group_rules.#=0"},
	},
	"address-group": {
		{"PUT", "address-groups/$set/add_addresses", `{"addresses":["192.0.2.0/24"]}`, 200, "address_group.addresses.#=1"},
		{"PUT", "address-groups/$set/remove_addresses", `{"addresses":["192.0.2.0/24"]}`, 200, "address_group.addresses.#=0"},
	},
	"security-groups-remote-address-group": {
		{"POST", "security-group-rules", `{"security_group_rule":{"security_group_id":"$group","direction":"ingress",
			"remote_address_group_id":"$set"}}`, 201, "security_group_rule.remote_address_group_id=$set"},
	},
	"trunk": {
		{"PUT", "trunks/$trunk/add_subports",
			`{"sub_ports":[{"port_id":"$child","segmentation_type":"vlan","segmentation_id":7}]}`, 200, ""},
		{"GET", "trunks/$trunk/get_subports", "", 200, "sub_ports.#=1"},
		{"PUT", "trunks/$trunk/remove_subports", `{"sub_ports":[{"port_id":"$child"}]}`, 200, ""},
	},
	"qos": {
		{"POST", "qos/policies/$policy/bandwidth_limit_rules", `{"bandwidth_limit_rule":{"max_kbps":1000}}`, 201, ""},
		{"POST", "qos/policies/$policy/dscp_marking_rules", `{"dscp_marking_rule":{"dscp_mark":8}}`, 201, ""},
		{"GET", "qos/rule-types", "", 200, "rule_types.#=2"},
		{"PUT", "ports/$port", `{"port":{"qos_policy_id":"$policy"}}`, 200, "port.qos_policy_id=$policy"},
	},
	"qos-bw-limit-direction": {
		{"POST", "qos/policies/$policy/bandwidth_limit_rules",
			`{"bandwidth_limit_rule":{"max_kbps":1000,"direction":"ingress"}}`, 201, ""},
	},
	Publications: {
		{"PUT", "kuryr-publications", `{"publication":{"description":"kuryr/a/b/c","ports":[{"host_ip_address":"0.0.0.0",
			"protocol":"udp","external_port_range":"53:54","internal_port":53,"internal_port_id":"$port"}]}}`,
			200, "publication.ports.#=1"},
		{"GET", "kuryr-publications?description=kuryr/a/b/c", "", 200, "publication.ports.#=1"},
	},
	ApplyBalancers: {
		{"PUT", "lbaas/loadbalancers/kuryr:apply",
			`{"loadbalancer":{"description":"kuryr/a/b/c","vip_subnet_id":"$subnet"}}`, 200, ""},
	},
	"network-ip-availability": {{"GET", "network-ip-availabilities/$network", "", 200, ""}},
}

// advertised makes what the proofs name, and returns their ids by word.
func advertised(t *testing.T, w *world) *strings.Replacer {
	t.Helper()
	words := []string{
		"$network", string(w.network.ID), "$subnet", string(w.subnet.ID), "$pool", string(w.pool.ID),
		"$port", string(w.port.ID),
		"$router", string(w.router.ID), "$fip", string(w.fip.ID), "$address", w.port.Addresses[0].Addr.String(),
		"$external", string(w.sdn.Capabilities().ExternalNetwork),
	}
	create := func(word, path, member, attributes string) string {
		t.Helper()
		id := w.made(t, root, "POST", "/v2.0/"+path, `{"`+member+`":{`+attributes+`}}`, member+".id")
		words = slices.Insert(words, 0, word, id) // longer words come first
		return id
	}
	create("$spare", "networks", "network", "")
	inside := create("$inside", "networks", "network", "")
	create("$sparesubnet", "subnets", "subnet", `"network_id":"`+inside+`","ip_version":4,"cidr":"10.77.0.0/24"`)
	create("$other", "routers", "router", "")
	create("$group", "security-groups", "security_group", `"name":"g"`)
	create("$set", "address-groups", "address_group", `"name":"s","addresses":[]`)
	create("$policy", "qos/policies", "policy", `"name":"q"`)
	parent := create("$parent", "ports", "port", `"network_id":"`+inside+`"`)
	create("$child", "ports", "port", `"network_id":"`+inside+`"`)
	create("$trunk", "trunks", "trunk", `"port_id":"`+parent+`"`)
	return strings.NewReplacer(words...)
}

// Each advertised extension is served: its requests are not refused.
func TestAdvertisedExtensions(t *testing.T) {
	t.Parallel()
	listed := newWorld(t).listed(t, root, "extensions", "alias")
	for _, alias := range listed {
		t.Run(alias, func(t *testing.T) {
			steps, ok := proofs[alias]
			if !ok {
				t.Fatal("the extension is advertised, and no request shows that it is served")
			}
			w := newWorld(t)
			words := advertised(t, w)
			for _, s := range steps {
				s.path, s.body, s.want = "/v2.0/"+words.Replace(s.path), words.Replace(s.body), words.Replace(s.want)
				w.steps(t, root, []step{s})
			}
		})
	}
	for _, alias := range slices.Sorted(maps.Keys(proofs)) {
		if !slices.Contains(listed, alias) {
			t.Errorf("%s is not advertised", alias)
		}
	}
}

// The advertised versions of Octavia's API promise these requests. What depends on the provider of
// load balancers is refused as Octavia's providers do, with 501; a version says nothing of it.
func TestAdvertisedVersions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	words := advertised(t, w)
	lb := w.made(t, root, "POST", "/v2.0/lbaas/loadbalancers",
		words.Replace(`{"loadbalancer":{"vip_subnet_id":"$subnet"}}`), "loadbalancer.id")
	listener := w.made(t, root, "POST", "/v2.0/lbaas/listeners",
		`{"listener":{"loadbalancer_id":"`+lb+`","protocol":"TCP","protocol_port":80}}`, "listener.id")
	pool := w.made(t, root, "POST", "/v2.0/lbaas/pools",
		`{"pool":{"listener_id":"`+listener+`","protocol":"TCP","lb_algorithm":"ROUND_ROBIN"}}`, "pool.id")
	status, out := w.ask(t, root, "GET", LoadBalancing, "")
	newest := at(out, "versions.26.id")
	if status != http.StatusOK || newest != "v2.26" || at(out, "versions.26.status") != "CURRENT" {
		t.Fatalf("%d %v: each version needs its requests below", status, out)
	}
	members := "lbaas/pools/" + pool + "/members"
	for _, s := range []struct {
		since int
		step
	}{
		{0, step{"PUT", "lbaas/loadbalancers/" + lb, `{"loadbalancer":{"name":"n"}}`, 200, "loadbalancer.name=n"}},
		{1, step{"PUT", "lbaas/listeners/" + listener, `{"listener":{"timeout_client_data":50000}}`, 200, ""}},
		{5, step{"PUT", "lbaas/loadbalancers/" + lb, `{"loadbalancer":{"tags":["t"]}}`, 200, "loadbalancer.tags.0=t"}},
		{5, step{"PUT", "lbaas/listeners/" + listener, `{"listener":{"tags":["t"]}}`, 200, "listener.tags.0=t"}},
		{5, step{"PUT", "lbaas/pools/" + pool, `{"pool":{"tags":["t"]}}`, 200, "pool.tags.0=t"}},
		{5, step{"POST", members,
			`{"member":{"address":"10.1.0.5","protocol_port":80,"tags":["t"]}}`, 201, "member.tags.0=t"}},
		{6, step{"GET", "lbaas/flavors", "", 200, ""}},
		{11, step{"PUT", members + "?additive_only=true",
			`{"members":[{"address":"10.1.0.6","protocol_port":80}]}`, 202, ""}},
		{12, step{"PUT", "lbaas/listeners/" + listener, `{"listener":{"allowed_cidrs":["10.0.0.0/8"]}}`, 200, ""}},
		{14, step{"GET", "lbaas/availabilityzones", "", 200, ""}},
		{19, step{"PUT", "lbaas/quotas/p", `{"quota":{"l7policy":5,"l7rule":5}}`, 202, "quota.l7policy=5 quota.l7rule=5"}},
		{23, step{"POST", "lbaas/listeners",
			`{"listener":{"loadbalancer_id":"` + lb + `","protocol":"SCTP","protocol_port":80}}`, 201, ""}},
		{26, step{"POST", "lbaas/loadbalancers",
			`{"loadbalancer":{"vip_subnet_id":"$subnet","additional_vips":[]}}`, 201, ""}},
	} {
		s.path, s.body = "/v2.0/"+s.path, words.Replace(s.body)
		w.steps(t, root, []step{s.step})
	}
	for _, s := range []step{
		{"PUT", "lbaas/listeners/" + listener, `{"listener":{"timeout_client_data":1}}`, 501, "timeout_client_data"},
		{"PUT", "lbaas/pools/" + pool, `{"pool":{"lb_algorithm":"SOURCE_IP_PORT"}}`, 501, "lb_algorithm"},
	} {
		status, out := w.ask(t, root, s.method, "/v2.0/"+s.path, s.body)
		said := at(out, "faultstring")
		option := strings.Contains(said, "does not support a requested option") && strings.Contains(said, s.want)
		if status != s.status || !option {
			t.Errorf("%s %s: %d %s, want a provider's refusal that names %s", s.method, s.path, status, said, s.want)
		}
	}
}

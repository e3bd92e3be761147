package neutronapi

import "testing"

// Pools of a scope are of its family and do not overlap. Networks and routers lead to one scope of a family; packets
// between two are translated.
func TestAddressScopes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	made := func(path, member, body string) string {
		return w.made(t, alice, "POST", "/v2.0/"+path, `{"`+member+`":`+body+`}`, member+".id")
	}
	pool := func(prefix, scope string) string {
		return `{"subnetpool":{"name":"p","prefixes":["` + prefix +
			`"],"default_prefixlen":24,"address_scope_id":"` + scope + `"}}`
	}
	a := made("address-scopes", "address_scope", `{"name":"a","ip_version":4}`)
	b := made("address-scopes", "address_scope", `{"name":"b","ip_version":4}`)
	six := made("address-scopes", "address_scope", `{"name":"six","ip_version":6}`)
	w.steps(t, alice, []step{
		{"POST", "/v2.0/address-scopes", `{"address_scope":{"name":"x"}}`, 400, "HTTPBadRequest: ip_version"},
		{"POST", "/v2.0/address-scopes", `{"address_scope":{"ip_version":5}}`, 400, "HTTPBadRequest: ip_version"},
		{"POST", "/v2.0/address-scopes", `{"address_scope":{"ip_version":4,"shared":true}}`, 403, "PolicyNotAuthorized: "},
		{"PUT", "/v2.0/address-scopes/" + a, `{"address_scope":{"ip_version":6}}`, 400,
			"HTTPBadRequest: read-only attribute ip_version"},
		{"PUT", "/v2.0/address-scopes/" + a, `{"address_scope":{"name":"one"}}`, 200,
			"address_scope.name=one address_scope.shared=false"},
		{"GET", "/v2.0/address-scopes?ip_version=6", "", 200, "address_scopes.#=1 address_scopes.0.name=six"},
		{"POST", "/v2.0/subnetpools", pool("10.0.0.0/9", six), 400, "InvalidInput: other family"},
		{"POST", "/v2.0/subnetpools", pool("10.0.0.0/9", "none"), 404, "AddressScopeNotFound: "},
	})
	w.steps(t, bob, []step{
		{"GET", "/v2.0/address-scopes/" + a, "", 404, "AddressScopeNotFound: "},
		{"POST", "/v2.0/subnetpools", pool("10.0.0.0/9", a), 404, "AddressScopeNotFound: "},
	})
	inA := w.made(t, alice, "POST", "/v2.0/subnetpools", pool("10.0.0.0/9", a), "subnetpool.id")
	inB := w.made(t, alice, "POST", "/v2.0/subnetpools", pool("10.0.0.0/9", b), "subnetpool.id")
	w.steps(t, alice, []step{
		{"POST", "/v2.0/subnetpools", pool("10.1.0.0/16", a), 409, "AddressScopePrefixConflict: "},
		{"PUT", "/v2.0/subnetpools/" + inB, `{"subnetpool":{"address_scope_id":"` + a + `"}}`, 409,
			"AddressScopePrefixConflict: "},
		{"DELETE", "/v2.0/address-scopes/" + a, "", 409, "AddressScopeInUse: "},
	})
	w.made(t, alice, "POST", "/v2.0/subnetpools", pool("10.128.0.0/16", a), "subnetpool.id")
	w.steps(t, alice, []step{
		{"PUT", "/v2.0/subnetpools/" + inA, `{"subnetpool":{"prefixes":["10.0.0.0/8"]}}`, 409,
			"AddressScopePrefixConflict: "},
	})

	// Networks and routers.
	cut := func(network, pool, cidr string) string {
		return made("subnets", "subnet", `{"network_id":"`+network+`","ip_version":4,"subnetpool_id":"`+pool+
			`","cidr":"`+cidr+`"}`)
	}
	one, two := made("networks", "network", `{"name":"one"}`), made("networks", "network", `{"name":"two"}`)
	first, second := cut(one, inA, "10.0.0.0/24"), cut(two, inB, "10.64.0.0/24")
	plain := made("networks", "network", `{"name":"plain"}`)
	other := made("subnets", "subnet", `{"network_id":"`+plain+`","ip_version":4,"cidr":"172.16.0.0/24"}`)
	router := made("routers", "router", `{"external_gateway_info":{"network_id":"`+w.outside()+`"}}`)
	add := func(subnet string) (string, string, string) {
		return "PUT", "/v2.0/routers/" + router + "/add_router_interface", `{"subnet_id":"` + subnet + `"}`
	}
	attach := func(subnet string, status int, want string) step {
		method, path, body := add(subnet)
		return step{method, path, body, status, want}
	}
	w.steps(t, alice, []step{
		{"GET", "/v2.0/networks/" + one, "", 200, "network.ipv4_address_scope=" + a + " network.ipv6_address_scope=null"},
		{"POST", "/v2.0/subnets", `{"subnet":{"network_id":"` + one + `","ip_version":4,"subnetpool_id":"` + inB +
			`","cidr":"10.65.0.0/24"}}`, 409,
			"NetworkAddressScopeAffinityError: "},
		{"POST", "/v2.0/subnets", `{"subnet":{"network_id":"` + one + `","ip_version":4,"cidr":"172.17.0.0/24"}}`, 409,
			"NetworkAddressScopeAffinityError: "},
		attach(first, 200, ""),
		attach(second, 409, "NetworkAddressScopeAffinityError: different address scopes"),
		attach(other, 409, "NetworkAddressScopeAffinityError: different address scopes"),
		{"PUT", "/v2.0/subnetpools/" + inB, `{"subnetpool":{"address_scope_id":null}}`, 200,
			"subnetpool.address_scope_id=null"},
		{"GET", "/v2.0/networks/" + two, "", 200, "network.ipv4_address_scope=null"},
	})
	w.steps(t, root, []step{
		{"PUT", "/v2.0/routers/" + router, `{"router":{"external_gateway_info":{"network_id":"` + w.outside() +
			`","enable_snat":false}}}`, 409, "NetworkAddressScopeAffinityError: without translation"},
		{"PUT", "/v2.0/address-scopes/" + a, `{"address_scope":{"shared":true}}`, 200, "address_scope.shared=true"},
		{"PUT", "/v2.0/address-scopes/" + a, `{"address_scope":{"shared":false}}`, 409, "ImmutableAttribute: "},
		{"DELETE", "/v2.0/address-scopes/" + b, "", 204, ""},
	})
	w.steps(t, bob, []step{{"GET", "/v2.0/address-scopes", "", 200, "address_scopes.#=1 address_scopes.0.id=" + a}})
}

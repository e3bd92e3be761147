package neutronapi

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// Who is not known, or could be taken for another, is not served; what versions there are everybody is told.
func TestNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, caller := range []Caller{{}, {Role: Member}, {Role: Reader}, {Project: "a"}, {Project: "a", Role: "boss"}} {
		for _, path := range []string{"/v2.0/networks", "/v2.0/extensions", "/v2.0/", "/v2.0/colours"} {
			w.steps(t, caller, []step{{"GET", path, "", 401, "HTTPUnauthorized: requires authentication"}})
		}
		w.steps(t, caller, []step{{"GET", "/", "", 200, "versions.0.id=v2.0 versions.0.links.0.href=http://example.com/v2.0/"}})
	}
	recorder := httptest.NewRecorder()
	w.handler.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v2.0/networks", nil))
	if recorder.Code != http.StatusUnauthorized {
		t.Errorf("a request without a caller: %d", recorder.Code)
	}
}

// Projects do not see, change or use what is another's, but for what is shared.
func TestProjects(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b, reader := Caller{Project: "a", Role: Member}, Caller{Project: "b", Role: Member}, Caller{Project: "a", Role: Reader}
	make := func(c Caller, collection, body string) string {
		member := strings.TrimSuffix(collection, "s")
		return w.made(t, c, "POST", "/v2.0/"+collection, `{"`+member+`":`+body+`}`, member+".id")
	}
	own := make(Caller{Project: "a", Role: Admin}, "networks", `{"name":"own","description":"kuryr/a/b/own"}`)
	ownSubnet := make(a, "subnets", `{"network_id":"`+own+`","ip_version":4,"cidr":"10.1.0.0/24"}`)
	ownPort := make(a, "ports", `{"network_id":"`+own+`"}`)
	shared := make(root, "networks", `{"name":"shared","shared":true,"project_id":"c"}`)
	sharedSubnet := make(root, "subnets", `{"network_id":"`+shared+`","ip_version":4,"cidr":"10.1.0.0/24","project_id":"c"}`)
	hidden := make(root, "subnetpools", `{"name":"hidden","prefixes":["10.0.0.0/8"],"project_id":"c"}`)
	open := make(root, "subnetpools", `{"name":"open","prefixes":["10.0.0.0/8"],"default_prefixlen":24,"shared":true,"project_id":"c"}`)
	external := string(w.sdn.Capabilities().ExternalNetwork)

	for _, tc := range []struct {
		caller Caller
		query  string
		want   []string
	}{
		{a, "networks", []string{own, shared, external}}, {b, "networks", []string{shared, external}}, {reader, "networks", []string{own, shared, external}},
		{a, "subnets?cidr=10.1.0.0/24", []string{ownSubnet, sharedSubnet}}, {b, "subnets?cidr=10.1.0.0/24", []string{sharedSubnet}}, {a, "ports", []string{ownPort}}, {b, "ports", nil},
		{a, "subnetpools", []string{open}}, {b, "networks?description=kuryr/a/b/own", nil}, {b, "networks?id=" + own, nil}, {b, "networks?project_id=a", nil},
	} {
		got := w.listed(t, tc.caller, tc.query, "id")
		slices.Sort(got)
		slices.Sort(tc.want)
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s lists %s: %v, want %v", tc.caller.Project, tc.query, got, tc.want)
		}
	}
	w.steps(t, b, []step{
		{"GET", "/v2.0/networks/" + own, "", 404, "NetworkNotFound: "},
		{"PUT", "/v2.0/networks/" + own, `{"network":{"name":"x"}}`, 404, "NetworkNotFound: "},
		{"DELETE", "/v2.0/networks/" + own, "", 404, "NetworkNotFound: "},
		{"PUT", "/v2.0/networks/" + own + "/tags/x", "", 404, "TagResourceNotFound: "},
		{"GET", "/v2.0/networks/" + own + "/tags", "", 404, "TagResourceNotFound: "},
		{"PUT", "/v2.0/networks/" + shared, `{"network":{"name":"x"}}`, 403, "PolicyNotAuthorized: another project's"},
		{"DELETE", "/v2.0/networks/" + external, "", 403, "PolicyNotAuthorized: another project's"},
		{"DELETE", "/v2.0/subnets/" + sharedSubnet, "", 403, "PolicyNotAuthorized: another project's"},
		{"PUT", "/v2.0/subnetpools/" + open + "/tags", `{"tags":[]}`, 403, "PolicyNotAuthorized: another project's"},
		{"GET", "/v2.0/subnetpools/" + hidden, "", 404, "SubnetPoolNotFound: "},
		{"POST", "/v2.0/networks", `{"network":{"project_id":"a"}}`, 400, "HTTPBadRequest: other than the authenticated project"},
		{"POST", "/v2.0/networks", `{"network":{"tenant_id":"a"}}`, 400, "HTTPBadRequest: other than the authenticated project"},
		{"POST", "/v2.0/networks", `{"network":{"shared":true}}`, 403, "PolicyNotAuthorized: rule:create_network:shared is disallowed by policy"},
		{"POST", "/v2.0/networks", `{"network":{"router:external":true}}`, 403, "PolicyNotAuthorized: rule:create_network:router:external"},
		{"POST", "/v2.0/networks", `{"network":{"provider:network_type":"vlan"}}`, 403, "PolicyNotAuthorized: rule:create_network:provider:network_type"},
		{"POST", "/v2.0/networks", `{"network":{"description":"kuryr/a/b/own"}}`, 403, "PolicyNotAuthorized: only administrators write descriptions that begin with kuryr/"},
		{"POST", "/v2.0/subnets", `{"subnet":{"network_id":"` + own + `","ip_version":4,"cidr":"10.9.0.0/24"}}`, 404, "NetworkNotFound: "},
		{"POST", "/v2.0/subnets", `{"subnet":{"network_id":"` + shared + `","ip_version":4,"cidr":"10.9.0.0/24"}}`, 403, "PolicyNotAuthorized: another project's"},
		{"POST", "/v2.0/ports", `{"port":{"network_id":"` + own + `"}}`, 404, "NetworkNotFound: "},
		{"POST", "/v2.0/ports", `{"port":{"network_id":"` + shared + `","fixed_ips":[{"ip_address":"10.1.0.9"}]}}`, 403, "PolicyNotAuthorized: rule:create_port:fixed_ips"},
		{"POST", "/v2.0/ports", `{"port":{"network_id":"` + shared + `","mac_address":"02:00:00:00:00:01"}}`, 403, "PolicyNotAuthorized: rule:create_port:mac_address"},
		{"POST", "/v2.0/ports", `{"port":{"network_id":"` + shared + `","port_security_enabled":false}}`, 403, "PolicyNotAuthorized: rule:create_port:port_security_enabled"},
		{"POST", "/v2.0/ports", `{"port":{"network_id":"` + shared + `","allowed_address_pairs":[]}}`, 403, "PolicyNotAuthorized: rule:create_port:allowed_address_pairs"},
		{"POST", "/v2.0/ports", `{"port":{"network_id":"` + shared + `","device_owner":"network:dhcp"}}`, 403, "PolicyNotAuthorized: rule:create_port:device_owner"},
		{"POST", "/v2.0/ports", `{"port":{"network_id":"` + shared + `","binding:host_id":"h"}}`, 403, "PolicyNotAuthorized: rule:create_port:binding:host_id"},
		{"POST", "/v2.0/ports", `{"port":{"network_id":"` + shared + `","fixed_ips":[{"subnet_id":"` + sharedSubnet + `"}]}}`, 201, "port.project_id=b port.fixed_ips.#=1 port.binding:host_id=absent port.binding:vif_details=absent port.binding:vnic_type=normal"},
		{"GET", "/v2.0/networks/" + shared, "", 200, "network.provider:network_type=absent network.name=shared"},
		{"GET", "/v2.0/quotas/a", "", 403, "AdminRequired: "},
		{"PUT", "/v2.0/quotas/b", `{"quota":{"port":5}}`, 403, "AdminRequired: "},
		{"GET", "/v2.0/quotas", "", 403, "AdminRequired: "},
		{"DELETE", "/v2.0/quotas/b", "", 403, "AdminRequired: "},
		{"GET", "/v2.0/quotas/b/details", "", 200, "quota.port.used=1"},
		{"GET", "/v2.0/quotas/tenant", "", 200, "tenant.tenant_id=b"},
	})
	w.steps(t, a, []step{
		{"POST", "/v2.0/networks", `{"network":{"name":"mine","description":"kuryr/a/b/own"}}`, 403, "PolicyNotAuthorized: only administrators write"},
		{"POST", "/v2.0/subnets", `{"subnet":{"network_id":"` + own + `","ip_version":4,"subnetpool_id":"` + hidden + `"}}`, 404, "SubnetPoolNotFound: "},
		{"POST", "/v2.0/subnets", `{"subnet":{"network_id":"` + own + `","ip_version":4,"subnetpool_id":"` + open + `"}}`, 201, "subnet.cidr=10.0.0.0/24 subnet.tenant_id=a"},
		{"POST", "/v2.0/ports", `{"port":{"network_id":"` + own + `","fixed_ips":[{"ip_address":"10.1.0.9"}],"mac_address":"02:00:00:00:00:01","port_security_enabled":false}}`, 201, "port.project_id=a"},
		{"PUT", "/v2.0/ports/" + ownPort, `{"port":{"mac_address":"02:00:00:00:00:02"}}`, 403, "PolicyNotAuthorized: rule:update_port:mac_address"},
		{"DELETE", "/v2.0/ports/" + ownPort, "", 204, ""},
	})
	w.steps(t, reader, []step{
		{"GET", "/v2.0/networks/" + own, "", 200, "network.id=" + own},
		{"PUT", "/v2.0/networks/" + own, `{"network":{"name":"x"}}`, 403, "PolicyNotAuthorized: the caller's role is reader"},
		{"DELETE", "/v2.0/networks/" + own, "", 403, "PolicyNotAuthorized: the caller's role is reader"},
		{"POST", "/v2.0/networks", `{"network":{}}`, 403, "PolicyNotAuthorized: the caller's role is reader"},
		{"PUT", "/v2.0/networks/" + own + "/tags", `{"tags":[]}`, 403, "PolicyNotAuthorized: the caller's role is reader"},
	})
}

// Descriptions that begin as Keys do are administrators' to write: a member's object
// would be taken for a front end's.
func TestMembersWriteNoKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, admin := Caller{Project: "a", Role: Member}, Caller{Project: "a", Role: Admin}
	const refused = "PolicyNotAuthorized: only administrators write descriptions that begin with kuryr/"
	net := w.made(t, a, "POST", "/v2.0/networks", `{"network":{"description":"kuryr, not a Key"}}`, "network.id")
	subnet := w.made(t, a, "POST", "/v2.0/subnets",
		`{"subnet":{"network_id":"`+net+`","ip_version":4,"cidr":"10.1.0.0/24"}}`, "subnet.id")
	port := w.made(t, a, "POST", "/v2.0/ports", `{"port":{"network_id":"`+net+`"}}`, "port.id")
	router := w.made(t, a, "POST", "/v2.0/routers",
		`{"router":{"external_gateway_info":{"network_id":"`+string(w.sdn.Capabilities().ExternalNetwork)+`"}}}`, "router.id")
	w.made(t, a, "PUT", "/v2.0/routers/"+router+"/add_router_interface", `{"subnet_id":"`+subnet+`"}`, "port_id")
	floating := w.made(t, a, "POST", "/v2.0/floatingips",
		`{"floatingip":{"floating_network_id":"`+string(w.sdn.Capabilities().ExternalNetwork)+`"}}`, "floatingip.id")
	forward := w.made(t, a, "POST", "/v2.0/floatingips/"+floating+"/port_forwardings",
		`{"port_forwarding":{"protocol":"tcp","internal_port_id":"`+port+`","internal_port":80,"external_port":80}}`,
		"port_forwarding.id")
	group := w.made(t, a, "POST", "/v2.0/security-groups", `{"security_group":{"name":"g"}}`, "security_group.id")
	set := w.made(t, a, "POST", "/v2.0/address-groups",
		`{"address_group":{"name":"s","addresses":["192.0.2.1"]}}`, "address_group.id")
	pool := w.made(t, a, "POST", "/v2.0/subnetpools",
		`{"subnetpool":{"name":"p","prefixes":["10.8.0.0/16"]}}`, "subnetpool.id")
	trunk := w.made(t, a, "POST", "/v2.0/trunks", `{"trunk":{"port_id":"`+port+`"}}`, "trunk.id")
	key := `"description":"kuryr/` + w.sdn.Installation() + `/docker-network/x"`
	for _, description := range []string{key, `"description":"kuryr/another/thing/n"`, `"description":"kuryr/"`} {
		w.steps(t, a, []step{
			{"POST", "/v2.0/networks", `{"network":{` + description + `}}`, 403, refused},
			{"POST", "/v2.0/networks", `{"networks":[{},{` + description + `}]}`, 403, refused},
			{"PUT", "/v2.0/networks/" + net, `{"network":{` + description + `}}`, 403, refused},
			{
				"POST", "/v2.0/subnets",
				`{"subnet":{"network_id":"` + net + `","ip_version":4,"cidr":"10.2.0.0/24",` + description + `}}`, 403, refused,
			},
			{"PUT", "/v2.0/subnets/" + subnet, `{"subnet":{` + description + `}}`, 403, refused},
			{"POST", "/v2.0/subnetpools", `{"subnetpool":{"name":"q","prefixes":["10.9.0.0/16"],` + description + `}}`, 403, refused},
			{"PUT", "/v2.0/subnetpools/" + pool, `{"subnetpool":{` + description + `}}`, 403, refused},
			{"POST", "/v2.0/ports", `{"port":{"network_id":"` + net + `",` + description + `}}`, 403, refused},
			{"PUT", "/v2.0/ports/" + port, `{"port":{` + description + `}}`, 403, refused},
			{"POST", "/v2.0/trunks", `{"trunk":{"port_id":"` + port + `",` + description + `}}`, 403, refused},
			{"PUT", "/v2.0/trunks/" + trunk, `{"trunk":{` + description + `}}`, 403, refused},
			{"POST", "/v2.0/routers", `{"router":{` + description + `}}`, 403, refused},
			{"PUT", "/v2.0/routers/" + router, `{"router":{` + description + `}}`, 403, refused},
			{"POST", "/v2.0/floatingips", `{"floatingip":{"floating_network_id":"` + string(w.sdn.Capabilities().ExternalNetwork) + `",` + description + `}}`, 403, refused},
			{"PUT", "/v2.0/floatingips/" + floating, `{"floatingip":{` + description + `}}`, 403, refused},
			{"POST", "/v2.0/floatingips/" + floating + "/port_forwardings", `{"port_forwarding":{"protocol":"tcp","internal_port_id":"` + port + `","internal_port":80,"external_port":81,` + description + `}}`, 403, refused},
			{
				"PUT", "/v2.0/floatingips/" + floating + "/port_forwardings/" + forward,
				`{"port_forwarding":{` + description + `}}`, 403, refused,
			},
			{"POST", "/v2.0/security-groups", `{"security_group":{"name":"h",` + description + `}}`, 403, refused},
			{"PUT", "/v2.0/security-groups/" + group, `{"security_group":{` + description + `}}`, 403, refused},
			{"POST", "/v2.0/security-group-rules", `{"security_group_rule":{"security_group_id":"` + group + `","direction":"ingress",` + description + `}}`, 403, refused},
			{"POST", "/v2.0/address-groups", `{"address_group":{"name":"t","addresses":["192.0.2.1"],` + description + `}}`, 403, refused},
			{"PUT", "/v2.0/address-groups/" + set, `{"address_group":{` + description + `}}`, 403, refused},
		})
	}
	given := w.made(t, admin, "POST", "/v2.0/routers", `{"router":{`+key+`}}`, "router.id")
	w.steps(t, a, []step{
		{"PUT", "/v2.0/routers/" + given, `{"router":{"name":"x",` + key + `}}`, 200, "router.name=x"}, // as it is
		{"PUT", "/v2.0/routers/" + given, `{"router":{"description":"kuryr/a/b/c"}}`, 403, refused},
	})
}

// An administrator's object with a Key is another one than a member's object that carries
// the same Key from before members were kept from writing Keys.
func TestSquattedKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ops, b := Caller{Project: "ops", Role: Admin}, Caller{Project: "b", Role: Admin}
	key := func(noun string) string {
		return `"description":"kuryr/` + w.sdn.Installation() + `/` + strings.ReplaceAll(noun, "_", "-") + `/x"`
	}
	subnet := string(w.subnet.ID)
	for collection, more := range map[string]string{
		"networks": "", "routers": "", "security-groups": `"name":"g",`, "address-groups": `"name":"a","addresses":["192.0.2.1"],`,
		"subnetpools": `"name":"p","prefixes":["10.50.0.0/16"],`, "qos/policies": `"name":"q","shared":true,`,
		"floatingips": `"floating_network_id":"` + string(w.sdn.Capabilities().ExternalNetwork) + `",`, "ports": `"network_id":"` + string(w.network.ID) + `",`,
		"lbaas/loadbalancers": `"vip_subnet_id":"` + subnet + `",`,
	} {
		noun := strings.TrimSuffix(strings.ReplaceAll(collection[strings.Index(collection, "/")+1:], "-", "_"), "s")
		if noun == "policie" {
			noun = "policy"
		}
		body := `{"` + noun + `":{` + more + key(noun) + `}}`
		theirs := w.made(t, b, "POST", "/v2.0/"+collection, body, noun+".id")
		for _, who := range []Caller{ops, root} {
			mine := w.made(t, who, "POST", "/v2.0/"+collection, body, noun+".id")
			again := w.made(t, who, "POST", "/v2.0/"+collection, body, noun+".id")
			if mine == theirs || again != mine {
				t.Errorf("%s of %q: %s, then %s; another project's is %s", noun, who.Project, mine, again, theirs)
			}
			if status, out := w.ask(t, who, "GET", "/v2.0/"+collection+"/"+mine, ""); status != 200 ||
				at(out, noun+".project_id") != who.Project {
				t.Errorf("%s of %q: %d %v", noun, who.Project, status, out)
			}
		}
	}
}

// Nobody but administrators and its owner puts a port or a VIP on an external network,
// shared or not, or gives one that is there further addresses; what is there is changed
// and deleted as ever.
func TestNothingOnAnExternalNetwork(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := Caller{Project: "a", Role: Member}
	host := string(w.sdn.Capabilities().ExternalNetwork)
	open := w.made(t, root, "POST", "/v2.0/networks", `{"network":{"shared":true,"router:external":true}}`, "network.id")
	w.made(t, root, "POST", "/v2.0/subnets",
		`{"subnet":{"network_id":"`+open+`","ip_version":4,"cidr":"203.0.113.0/24"}}`, "subnet.id")
	own := w.made(t, root, "POST", "/v2.0/networks", `{"network":{"router:external":true,"project_id":"a"}}`, "network.id")
	w.made(t, root, "POST", "/v2.0/subnets",
		`{"subnet":{"network_id":"`+own+`","ip_version":4,"cidr":"198.51.100.0/24","project_id":"a"}}`, "subnet.id")
	for _, network := range []string{host, open} {
		subnet := w.listed(t, root, "subnets?ip_version=4&network_id="+network, "id")[0]
		before := w.made(t, root, "POST", "/v2.0/ports",
			`{"port":{"project_id":"a","network_id":"`+network+`","fixed_ips":[{"subnet_id":"`+subnet+`"}]}}`, "port.id")
		w.steps(t, a, []step{
			{"POST", "/v2.0/ports", `{"port":{"network_id":"` + network + `"}}`, 403, "PolicyNotAuthorized: is external"},
			{
				"POST", "/v2.0/ports",
				`{"ports":[{"network_id":"` + network + `"},{"network_id":"` + network + `"}]}`, 403, "PolicyNotAuthorized: is external",
			},
			{"PUT", "/v2.0/ports/" + before, `{"port":{"fixed_ips":[{"subnet_id":"` + subnet + `"},{"subnet_id":"` + subnet + `"}]}}`, 403, "PolicyNotAuthorized: rule:update_port:fixed_ips"},
			{"PUT", "/v2.0/ports/" + before, `{"port":{"name":"kept"}}`, 200, "port.name=kept port.fixed_ips.#=1"},
			{"DELETE", "/v2.0/ports/" + before, "", 204, ""},
			{"POST", "/v2.0/floatingips", `{"floatingip":{"floating_network_id":"` + network + `"}}`, 201, "floatingip.project_id=a"},
		})
		for _, place := range []string{`"vip_subnet_id":"` + subnet + `"`, `"vip_network_id":"` + network + `"`} {
			if status, out := w.ask(t, a, "POST", "/v2.0/lbaas/loadbalancers", `{"loadbalancer":{`+place+`}}`); status != 403 {
				t.Errorf("a VIP at %s: %d %v", place, status, out)
			}
		}
	}
	w.steps(t, a, []step{{"POST", "/v2.0/ports", `{"port":{"network_id":"` + own + `"}}`, 201, "port.project_id=a"}})
}

// A port on another project's network takes a few of its addresses at most.
func TestAddressesOnAnothersNetwork(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	shared := w.made(t, root, "POST", "/v2.0/networks", `{"network":{"shared":true,"project_id":"c"}}`, "network.id")
	subnet := w.made(t, root, "POST", "/v2.0/subnets",
		`{"subnet":{"network_id":"`+shared+`","ip_version":4,"cidr":"10.7.0.0/24","project_id":"c"}}`, "subnet.id")
	many := func(n int) string {
		return `"fixed_ips":[` + strings.TrimSuffix(strings.Repeat(`{"subnet_id":"`+subnet+`"},`, n), ",") + `]`
	}
	a, c := Caller{Project: "a", Role: Member}, Caller{Project: "c", Role: Member}
	port := w.made(t, a, "POST", "/v2.0/ports", `{"port":{"network_id":"`+shared+`",`+many(mostAddresses)+`}}`, "port.id")
	w.steps(t, a, []step{
		{"POST", "/v2.0/ports", `{"port":{"network_id":"` + shared + `",` + many(mostAddresses+1) + `}}`, 400, "InvalidInput: Exceeded maximum amount of fixed ips per port"},
		{
			"PUT", "/v2.0/ports/" + port, `{"port":{` + many(mostAddresses+1) + `}}`,
			400, "InvalidInput: Exceeded maximum amount of fixed ips per port",
		},
	})
	w.steps(t, c, []step{{
		"POST", "/v2.0/ports", `{"port":{"network_id":"` + shared + `",` + many(mostAddresses+1) + `}}`,
		201, "port.project_id=c",
	}})
}

// A project that has no limits of its own has the default ones, which limit its members
// and not an administrator, and which can be raised and taken away.
func TestDefaultQuotas(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, admin := Caller{Project: "a", Role: Member}, Caller{Project: "a", Role: Admin}
	const routers = `{"routers":[{},{},{},{},{},{},{},{},{},{}]}`
	w.steps(t, a, []step{
		{"GET", "/v2.0/quotas/a", "", 200,
			"quota.router=20 quota.port_forwarding=500 quota.address_group=100 quota.rbac_policy=100"},
		{"POST", "/v2.0/routers", routers, 201, "routers.#=10"},
		{"POST", "/v2.0/routers", routers, 201, "routers.#=10"},
		{"POST", "/v2.0/routers", `{"router":{}}`, 409, "OverQuota: router"},
	})
	w.steps(t, admin, []step{
		{"POST", "/v2.0/routers", `{"router":{}}`, 201, "router.project_id=a"},
		{"PUT", "/v2.0/quotas/a", `{"quota":{"router":22,"address_group":0}}`, 200, "quota.router=22 quota.address_group=0"},
		{"POST", "/v2.0/address-groups", `{"address_group":{"name":"g","addresses":[]}}`, 409, "OverQuota: address_group"},
	})
	w.steps(t, a, []step{
		{"POST", "/v2.0/routers", `{"router":{}}`, 201, "router.project_id=a"},
		{"POST", "/v2.0/routers", `{"router":{}}`, 409, "OverQuota: router"},
	})
	w.steps(t, admin, []step{{"PUT", "/v2.0/quotas/a", `{"quota":{"router":-1}}`, 200, "quota.router=-1"}})
	w.steps(t, a, []step{{"POST", "/v2.0/routers", routers, 201, "routers.#=10"}})
	w.steps(t, admin, []step{
		{"DELETE", "/v2.0/quotas/a", "", 204, ""},
		{"GET", "/v2.0/quotas/a", "", 200, "quota.router=20 quota.address_group=100"},
	})
	w.steps(t, root, []step{
		{"POST", "/v2.0/routers", routers, 201, ""},
		{"POST", "/v2.0/routers", routers, 201, ""},
		{"POST", "/v2.0/routers", routers, 201, ""},
	})
}

// A network that can be on one router only is put there by its owner, also where another project has a port on it.
func TestLegOnAnothersNetwork(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := Caller{Project: "a", Role: Member}
	shared := w.made(t, root, "POST", "/v2.0/networks", `{"network":{"shared":true,"project_id":"c"}}`, "network.id")
	w.made(t, root, "POST", "/v2.0/subnets", `{"subnet":{"network_id":"`+shared+`","ip_version":4,"cidr":"10.7.0.0/24","project_id":"c"}}`, "subnet.id")
	leg := func(c Caller) (router, body string) {
		port := w.made(t, c, "POST", "/v2.0/ports", `{"port":{"network_id":"`+shared+`"}}`, "port.id")
		return w.made(t, c, "POST", "/v2.0/routers", `{"router":{}}`, "router.id"), `{"port_id":"` + port + `"}`
	}
	router, body := leg(a)
	w.steps(t, a, []step{{"PUT", "/v2.0/routers/" + router + "/add_router_interface", body, 400, "BadRequest: network " + shared + " is not owned"}})
	router, body = leg(Caller{Project: "c", Role: Member})
	w.steps(t, Caller{Project: "c", Role: Member}, []step{{"PUT", "/v2.0/routers/" + router + "/add_router_interface", body, 200, "id=" + router}})
}

// A network's owner sees what others have on it, and may take their ports away.
func TestNetworkOwner(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.made(t, root, "POST", "/v2.0/networks", `{"network":{"project_id":"a"}}`, "network.id")
	s := w.made(t, root, "POST", "/v2.0/subnets", `{"subnet":{"network_id":"`+n+`","ip_version":4,"cidr":"10.1.0.0/24","project_id":"c"}}`, "subnet.id")
	p := w.made(t, root, "POST", "/v2.0/ports", `{"port":{"network_id":"`+n+`","project_id":"c"}}`, "port.id")
	w.steps(t, Caller{Project: "a", Role: Member}, []step{
		{"GET", "/v2.0/subnets/" + s, "", 200, "subnet.id=" + s}, {"GET", "/v2.0/ports/" + p, "", 200, "port.id=" + p},
		{"PUT", "/v2.0/ports/" + p, `{"port":{"name":"x"}}`, 403, "PolicyNotAuthorized: "}, {"DELETE", "/v2.0/subnets/" + s, "", 403, "PolicyNotAuthorized: "},
	})
	w.steps(t, Caller{Project: "b", Role: Member}, []step{
		{"GET", "/v2.0/subnets/" + s, "", 404, "SubnetNotFound: "}, {"GET", "/v2.0/ports/" + p, "", 404, "PortNotFound: "}, {"DELETE", "/v2.0/ports/" + p, "", 404, "PortNotFound: "},
	})
	w.steps(t, Caller{Project: "a", Role: Reader}, []step{{"DELETE", "/v2.0/ports/" + p, "", 403, "PolicyNotAuthorized: "}})
	w.steps(t, Caller{Project: "a", Role: Member}, []step{{"DELETE", "/v2.0/ports/" + p, "", 204, ""}}) // so that it can delete the network
}

func TestAudit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var seen []Change
	w.handler = NewHandler(w.sdn, Options{Audit: func(ctx context.Context, c Change) {
		if _, ok := CallerOf(ctx); !ok {
			t.Error("the context has no caller")
		}
		seen = append(seen, c)
	}})
	a := Caller{Project: "a", Role: Member, Name: "anna"}
	w.ask(t, a, "GET", "/v2.0/networks", "")
	id := w.made(t, a, "POST", "/v2.0/networks", `{"network":{}}`, "network.id")
	w.ask(t, a, "DELETE", "/v2.0/networks/none?x=secret", "")
	w.ask(t, a, "DELETE", "/v2.0/networks/"+id, "")
	if len(seen) != 3 {
		t.Fatalf("%d changes: %+v", len(seen), seen)
	}
	if c := seen[0]; c.Caller != a || c.Method != "POST" || c.Path != "/v2.0/networks" || !slices.Equal(c.IDs, []string{id}) || c.Status != 201 || c.Error != "" {
		t.Errorf("of a creation: %+v", c)
	}
	if c := seen[1]; c.Path != "/v2.0/networks/none" || c.Status != 404 || c.Error != "NetworkNotFound" {
		t.Errorf("of a refusal: %+v", c)
	}
	if c := seen[2]; c.Status != 204 {
		t.Errorf("of a deletion: %+v", c)
	}
}

// breaking panics once a network is made, changed or deleted.
type breaking struct{ sdn.Provider }

func (b breaking) EnsureNetwork(ctx context.Context, s sdn.NetworkSpec) (sdn.Network, error) {
	_, _ = b.Provider.EnsureNetwork(ctx, s)
	panic("made")
}

func (b breaking) UpdateNetwork(ctx context.Context, id sdn.ID, p sdn.NetworkPatch) (sdn.Network, error) {
	_, _ = b.Provider.UpdateNetwork(ctx, id, p)
	panic("changed")
}

func (b breaking) DeleteNetwork(ctx context.Context, id sdn.ID) error {
	_ = b.Provider.DeleteNetwork(ctx, id)
	panic("deleted")
}

// A change that was made is told of even where what comes after it breaks.
func TestAuditOfPanic(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := Caller{Project: "a", Role: Member}
	id := w.made(t, a, "POST", "/v2.0/networks", `{"network":{}}`, "network.id")
	var seen []Change
	w.handler = NewHandler(breaking{w.sdn}, Options{Audit: func(_ context.Context, c Change) { seen = append(seen, c) }})
	for _, q := range [][3]string{{"POST", "/v2.0/networks", `{"network":{}}`}, {"PUT", "/v2.0/networks/" + id, `{"network":{"name":"x"}}`}, {"DELETE", "/v2.0/networks/" + id, ""}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: the panic is held back", q[0])
				}
			}()
			w.ask(t, a, q[0], q[1], q[2])
		}()
		if len(seen) != 1 || seen[0].Caller != a || seen[0].Method != q[0] || seen[0].Path != q[1] || seen[0].Status != 500 || seen[0].Error != "HTTPInternalServerError" {
			t.Errorf("of a %s that panics: %+v", q[0], seen)
		}
		seen = nil
	}
}

// What comes with a deletion is refused, whether or not its length is told; what is sent in chunks and has none is nothing.
func TestDeleteWithBody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, q := range []struct {
		body   string
		length int64
		want   int
	}{{"{}", 2, 400}, {"{}", -1, 400}, {"", -1, 204}, {"", 0, 204}} {
		id := w.made(t, Caller{Role: Admin}, "POST", "/v2.0/networks", `{"network":{}}`, "network.id")
		r, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, w.server.URL+"/v2.0/networks/"+id, io.MultiReader(strings.NewReader(q.body)))
		must(t, err)
		if r.ContentLength = q.length; q.length == 0 {
			r.Body = nil
		}
		response, err := w.server.Client().Do(r)
		must(t, err)
		_ = response.Body.Close()
		if response.StatusCode != q.want {
			t.Errorf("%q of length %d: %d, want %d", q.body, q.length, response.StatusCode, q.want)
		}
	}
}

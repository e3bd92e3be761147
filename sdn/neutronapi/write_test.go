package neutronapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
)

// ask sends a request as a caller and gives the status and the body.
func (w *world) ask(t *testing.T, caller Caller, method, path, body string, headers ...string) (int, any) {
	t.Helper()
	r := httptest.NewRequestWithContext(WithCaller(t.Context(), caller), method, path, strings.NewReader(body))
	if body == "" {
		r.Body = http.NoBody
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	recorder := httptest.NewRecorder()
	w.handler.ServeHTTP(recorder, r)
	var out any
	if recorder.Body.Len() > 0 {
		decoder := json.NewDecoder(bytes.NewReader(recorder.Body.Bytes()))
		decoder.UseNumber()
		must(t, decoder.Decode(&out))
	}
	return recorder.Code, out
}

// made sends a request that must succeed, and gives what is at a place of the answer.
func (w *world) made(t *testing.T, caller Caller, method, path, body, place string) string {
	t.Helper()
	status, out := w.ask(t, caller, method, path, body)
	if status >= 300 {
		t.Fatalf("%s %s %s: %d %v", method, path, body, status, out)
	}
	return at(out, place)
}

// at prints what is at a place such as "ports.0.fixed_ips.#", where # is the length of a list.
func at(v any, place string) string {
	for part := range strings.SplitSeq(place, ".") {
		switch of := v.(type) {
		case map[string]any:
			found, there := of[part]
			if !there {
				return "absent"
			}
			v = found
		case []any:
			i, err := strconv.Atoi(part)
			switch {
			case part == "#":
				v = json.Number(strconv.Itoa(len(of)))
			case err != nil || i >= len(of):
				return "absent"
			default:
				v = of[i]
			}
		default:
			return "absent"
		}
	}
	if s, ok := v.(string); ok {
		return s
	}
	data, _ := json.Marshal(v)
	return string(data)
}

// step is a request and what must come of it: a status, and values at places of the answer, or the type of the error and what its message has.
type step struct {
	method, path, body string
	status             int
	want               string // "network.name=x network.mtu=1400", or "TypeOfError: text"
}

func (w *world) steps(t *testing.T, caller Caller, steps []step) {
	t.Helper()
	for _, s := range steps {
		status, out := w.ask(t, caller, s.method, s.path, s.body)
		name := fmt.Sprintf("%s %s %s", s.method, s.path, s.body)
		if status != s.status {
			t.Errorf("%s: %d %v, want %d", name, status, out, s.status)
			continue
		}
		if s.status >= 400 {
			kind, says, _ := strings.Cut(s.want, ": ")
			if at(out, "NeutronError.type") != kind || !strings.Contains(at(out, "NeutronError.message"), says) || at(out, "NeutronError.detail") != "" {
				t.Errorf("%s: %v, want %s", name, out, s.want)
			}
			continue
		}
		for pair := range strings.FieldsSeq(s.want) {
			place, want, _ := strings.Cut(pair, "=")
			if got := at(out, place); got != want {
				t.Errorf("%s: %s is %s, want %s", name, place, got, want)
			}
		}
	}
}

func TestWriteNetworks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := "/v2.0/networks/" + string(w.network.ID)
	external := "/v2.0/networks/" + string(w.sdn.Capabilities().ExternalNetwork)
	id := w.made(t, root, "POST", "/v2.0/networks", `{"network":{"name":"one","description":"words","mtu":1400,"project_id":"p","admin_state_up":"True","shared":false}}`, "network.id")
	w.steps(t, root, []step{
		{"GET", "/v2.0/networks/" + id, "", 200, "network.name=one network.mtu=1400 network.project_id=p network.tenant_id=p network.description=words network.revision_number=1 network.tags=[]"},
		{"PUT", "/v2.0/networks/" + id, `{"network":{"name":"two","description":null,"port_security_enabled":0}}`, 200, "network.name=two network.description= network.port_security_enabled=false network.revision_number=2"},
		{"PUT", "/v2.0/networks/" + id, `{"network":{"description":"kuryr/x/y/z"}}`, 200, "network.description=kuryr/x/y/z"},
		{"PUT", "/v2.0/networks/" + id, `{"network":{"description":"kuryr/x/y/z"}}`, 200, "network.description=kuryr/x/y/z"},
		{"PUT", "/v2.0/networks/" + id, `{"network":{"description":"kuryr/x/y/other"}}`, 409, "ImmutableAttribute: Invalid input for key"},
		{"PUT", "/v2.0/networks/" + id, `{"network":{"admin_state_up":"down"}}`, 400,
			"InvalidInput: Invalid input for admin_state_up"},
		{"PUT", "/v2.0/networks/" + id, `{"network":{"mtu":5}}`, 400, "HTTPBadRequest: Invalid input for mtu. Reason: '5' is too small"},
		{"PUT", "/v2.0/networks/" + id, `{"network":{"id":"x"}}`, 400, "HTTPBadRequest: Cannot update read-only attribute id"},
		{"PUT", "/v2.0/networks/" + id, `{"network":{"project_id":"x"}}`, 400, "HTTPBadRequest: Cannot update read-only attribute project_id"},
		{"PUT", "/v2.0/networks/" + id, `{"net":{}}`, 400, "HTTPBadRequest: Unable to find 'network' in request body"},
		{"PUT", "/v2.0/networks/none", `{"network":{}}`, 404, "NetworkNotFound: none"},
		{"PUT", external, `{"network":{"name":"mine"}}`, 403, "PolicyNotAuthorized: built in"},
		{"DELETE", n, "", 409, "NetworkInUse: it has ports"},
		{"DELETE", "/v2.0/networks/" + id, "", 204, ""},
		{"DELETE", "/v2.0/networks/" + id, "", 404, "NetworkNotFound: " + id},
		{"POST", "/v2.0/networks", `{"network":{"name":"x","colour":"red","smell":1}}`, 400, "HTTPBadRequest: Unrecognized attribute(s) 'colour, smell'"},
		{"POST", "/v2.0/networks", `{"network":{"id":"x"}}`, 400, "HTTPBadRequest: Attribute 'id' not allowed in POST"},
		{"POST", "/v2.0/networks", `{"network":{"tags":["x"]}}`, 201, "network.tags=[\"x\"]"},
		{"POST", "/v2.0/networks", `{"network":{"name":null}}`, 400, "HTTPBadRequest: Invalid input for name. Reason: 'None' is not a valid string"},
		{"POST", "/v2.0/networks", `{"network":{"name":"` + strings.Repeat("n", 256) + `"}}`, 400, "HTTPBadRequest: exceeds maximum length of 255"},
		{"POST", "/v2.0/networks", `{"network":{"name":"a\u0000b"}}`, 400, "HTTPBadRequest: Invalid input for name"},
		{"POST", "/v2.0/networks", `{"network":{"admin_state_up":"perhaps"}}`, 400, "InvalidInput: Invalid input for admin_state_up. Reason: 'perhaps' cannot be converted to boolean"},
		{"POST", "/v2.0/networks", `{"network":{"mtu":1e9}}`, 400, "InvalidInput: Invalid input for mtu. Reason: '1e9' is not an integer"},
		{"POST", "/v2.0/networks", `{"network":{"project_id":"a","tenant_id":"b"}}`, 400, "HTTPBadRequest: 'project_id' and 'tenant_id' do not match"},
		{"POST", "/v2.0/networks", `{"network":{"provider:network_type":"vlan"}}`, 400, "HTTPBadRequest: Attribute 'provider:network_type'"},
		{"POST", "/v2.0/networks", `{"network":{"is_default":true}}`, 400, "InvalidInput: external network"},
		{"POST", "/v2.0/networks", `{"network":{"availability_zone_hints":["nova"]}}`, 400, "HTTPBadRequest: Attribute 'availability_zone_hints'"},
		{"POST", "/v2.0/networks", `{"network":[]}`, 400, "HTTPBadRequest: Object 'network' contains invalid data"},
		{"POST", "/v2.0/networks", `{"network":null}`, 400, "HTTPBadRequest: Unable to find 'network'"},
		{"POST", "/v2.0/networks", `{"networks":[]}`, 400, "HTTPBadRequest: Resources required"},
		{"POST", "/v2.0/networks", `{"networks":{}}`, 400, "HTTPBadRequest: Body contains invalid data"},
		{"POST", "/v2.0/networks", `{"network":{}} {}`, 400, "HTTPBadRequest: Body contains invalid data"},
		{"POST", "/v2.0/networks", `[]`, 400, "HTTPBadRequest: Body contains invalid data"},
		{"POST", "/v2.0/networks", ``, 400, "HTTPBadRequest: Resource body required"},
	})
}

func TestWriteSubnets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	of := `"network_id":"` + w.made(t, root, "POST", "/v2.0/networks", `{"network":{"project_id":"p"}}`, "network.id") + `","ip_version":4`
	id := w.made(t, root, "POST", "/v2.0/subnets", `{"subnet":{`+of+`,"name":"s","cidr":"10.2.0.7/24","enable_dhcp":true,"gateway_ip":null,
		"allocation_pools":[{"start":"10.2.0.10","end":"10.2.0.20"}],"dns_nameservers":["192.0.2.1"],"host_routes":[{"destination":"192.0.2.0/24","nexthop":"10.2.0.3"}]}}`, "subnet.id")
	pooled := `"subnetpool_id":"` + string(w.pool.ID) + `"`
	one := "/v2.0/subnets/" + id
	w.steps(t, root, []step{
		{"GET", one, "", 200, "subnet.cidr=10.2.0.0/24 subnet.gateway_ip=null subnet.enable_dhcp=true subnet.allocation_pools.0.end=10.2.0.20 subnet.dns_nameservers=[\"192.0.2.1\"] subnet.host_routes.0.nexthop=10.2.0.3 subnet.ip_version=4"},
		{"PUT", one, `{"subnet":{"gateway_ip":"10.2.0.1","allocation_pools":[{"start":"10.2.0.2","end":"10.2.0.254"}],"dns_nameservers":null,"host_routes":[],"enable_dhcp":"false"}}`, 200, "subnet.gateway_ip=10.2.0.1 subnet.allocation_pools.0.start=10.2.0.2 subnet.allocation_pools.0.end=10.2.0.254 subnet.enable_dhcp=false subnet.dns_nameservers=[]"},
		{"PUT", one, `{"subnet":{"gateway_ip":null}}`, 200, "subnet.gateway_ip=null subnet.allocation_pools.0.start=10.2.0.2"},
		{"PUT", one, `{"subnet":{"kuryr:reserved_addresses":["10.2.0.99"]}}`, 200, "subnet.kuryr:reserved_addresses.0=10.2.0.99"},
		{"PUT", one, `{"subnet":{"cidr":"10.3.0.0/24"}}`, 400, "HTTPBadRequest: Cannot update read-only attribute cidr"},
		{"PUT", one, `{"subnet":{"ip_version":6}}`, 400, "HTTPBadRequest: Cannot update read-only attribute ip_version"},
		{"PUT", one, `{"subnet":{"gateway_ip":"10.2.0.15","allocation_pools":[{"start":"10.2.0.10","end":"10.2.0.20"}]}}`, 409, "GatewayConflictWithAllocationPools: 10.2.0.15"},
		{"POST", "/v2.0/subnets", `{"subnet":{` + of + `,"cidr":"10.2.0.128/25"}}`, 400, "InvalidInput: Invalid input for cidr. Reason: the range overlaps with another subnet"},
		{"POST", "/v2.0/subnets", `{"subnet":{` + of + `}}`, 400, "BadRequest: a subnetpool must be specified in the absence of a cidr"},
		{"POST", "/v2.0/subnets", `{"subnet":{"cidr":"10.9.0.0/24","ip_version":4}}`, 400, "HTTPBadRequest: Required attribute 'network_id' not specified"},
		{"POST", "/v2.0/subnets", `{"subnet":{"network_id":"none","ip_version":4,"cidr":"10.9.0.0/24"}}`, 404, "NetworkNotFound: none"},
		{"POST", "/v2.0/subnets", `{"subnet":{` + of + `,"cidr":"fd00::/64"}}`, 400, "InvalidInput: does not match the ip_version '4'"},
		{"POST", "/v2.0/subnets", `{"subnet":{` + of + `,"cidr":"10.9.0.0/24","allocation_pools":[{"start":"10.9.0.1"}]}}`, 400, "HTTPBadRequest: Invalid input for allocation_pools"},
		{"POST", "/v2.0/subnets", `{"subnet":{` + of + `,"cidr":"10.9.0.0/24","allocation_pools":[{"start":"10.9.0.2","end":"10.9.0.9","step":1}]}}`, 400, "HTTPBadRequest: Invalid input for allocation_pools. Reason: Unexpected keys: step"},
		{"POST", "/v2.0/subnets", `{"subnet":{` + of + `,"cidr":"10.9.0.0/24","allocation_pools":[{"start":"10.9.0.9","end":"10.9.0.2"}]}}`, 400, "InvalidAllocationPool: 10.9.0.9-10.9.0.2"},
		{"POST", "/v2.0/subnets", `{"subnet":{` + of + `,"cidr":"10.9.0.0/24","allocation_pools":[{"start":"10.9.0.9","end":"10.9.1.2"}]}}`, 400, "OutOfBoundsAllocationPool: beyond the subnet cidr 10.9.0.0/24"},
		{"POST", "/v2.0/subnets", `{"subnet":{` + of + `,"cidr":"10.9.0.0/24","allocation_pools":[{"start":"10.9.0.2","end":"10.9.0.9"},{"start":"10.9.0.9","end":"10.9.0.10"}]}}`, 409, "OverlappingAllocationPools: 10.9.0.9"},
		{"POST", "/v2.0/subnets", `{"subnet":{` + of + `,"cidr":"10.9.0.0/24","service_types":["nova"]}}`, 400, "InvalidSubnetServiceType: nova"},
		{"POST", "/v2.0/subnets", `{"subnet":{` + of + `,"cidr":"10.9.0.0/24","use_default_subnetpool":true}}`, 400, "BadRequest: No default subnetpool found for IPv4"},
		{"POST", "/v2.0/subnets", `{"subnet":{` + of + `,"cidr":"10.9.0.0/24","ipv6_ra_mode":"slaac","ipv6_address_mode":"slaac"}}`, 400, "InvalidInput: cannot be set for an IPv4 subnet"},
		{"POST", "/v2.0/subnets", `{"subnet":{` + strings.Replace(of, ":4", ":6", 1) + `,"cidr":"fd00:2::/64","ipv6_ra_mode":"slaac","ipv6_address_mode":"slaac"}}`, 400, "HTTPBadRequest: Attribute 'ipv6_address_mode'"},
		{"POST", "/v2.0/subnets", `{"subnet":{` + strings.Replace(of, ":4", ":6", 1) + `,"cidr":"fd00:2::/64","ipv6_ra_mode":null,"ipv6_address_mode":null}}`, 201, "subnet.gateway_ip=fd00:2::1 subnet.ip_version=6"},
		{"POST", "/v2.0/subnets", `{"subnet":{` + of + `,"cidr":"10.9.0.0/26","prefixlen":26}}`, 400, "HTTPBadRequest: Invalid input for prefixlen"},
		{"POST", "/v2.0/subnets", `{"subnet":{` + of + `,` + pooled + `,"prefixlen":"26"}}`, 201, "subnet.cidr=10.0.0.0/26 subnet.subnetpool_id=" + string(w.pool.ID)},
		{"POST", "/v2.0/subnets", `{"subnet":{` + of + `,` + pooled + `,"prefixlen":4}}`, 400, "MinPrefixSubnetAllocationError: minimum allowed prefix is 8"},
		{"POST", "/v2.0/subnets", `{"subnet":{` + of + `,"subnetpool_id":"none"}}`, 404, "SubnetPoolNotFound: none"},
		{"DELETE", one, "", 204, ""},
		{"DELETE", "/v2.0/subnets/" + string(w.subnet.ID), "", 409, "SubnetInUse: ports have addresses of it"},
	})
}

func TestWriteSubnetPools(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one := "/v2.0/subnetpools/" + w.made(t, root, "POST", "/v2.0/subnetpools",
		`{"subnetpool":{"name":"p","prefixes":["172.17.0.0/16","172.16.0.0/16","172.16.3.0/24"],"default_prefixlen":"24","min_prefixlen":null,"shared":true,"default_quota":null,"address_scope_id":null}}`, "subnetpool.id")
	w.steps(t, root, []step{
		{"GET", one, "", 200, `subnetpool.prefixes=["172.16.0.0/15"] subnetpool.default_prefixlen=24 subnetpool.shared=true subnetpool.ip_version=4 subnetpool.default_quota=null`},
		{"PUT", one, `{"subnetpool":{"prefixes":["172.16.0.0/14"],"default_prefixlen":25}}`, 200, `subnetpool.prefixes=["172.16.0.0/14"] subnetpool.default_prefixlen=25`},
		{"PUT", one, `{"subnetpool":{"prefixes":["172.16.0.0/16","172.18.0.0/15","10.8.0.0/16"]}}`, 400, "IllegalSubnetPoolPrefixUpdate: can only grow"},
		{"PUT", one, `{"subnetpool":{"shared":false}}`, 400, "HTTPBadRequest: Cannot update read-only attribute shared"},
		{"PUT", one, `{"subnetpool":{"min_prefixlen":30}}`, 400, "IllegalSubnetPoolPrefixBounds: "},
		{"PUT", one, `{"subnetpool":{"default_quota":-3}}`, 400, "HTTPBadRequest: Invalid input for default_quota"},
		{"POST", "/v2.0/subnetpools", `{"subnetpool":{"name":"p"}}`, 400, "HTTPBadRequest: Required attribute 'prefixes' not specified"},
		{"POST", "/v2.0/subnetpools", `{"subnetpool":{"name":"p","prefixes":[]}}`, 400, "EmptySubnetPoolPrefixList: Empty"},
		{"POST", "/v2.0/subnetpools", `{"subnetpool":{"name":"p","prefixes":["10.0.0.0/8","fd00::/48"]}}`, 400, "PrefixVersionMismatch: mix"},
		{"POST", "/v2.0/subnetpools", `{"subnetpool":{"name":"p","prefixes":["x"]}}`, 400, "HTTPBadRequest: Invalid input for prefixes. Reason: 'x' is not a valid IP subnet"},
		{"POST", "/v2.0/subnetpools", `{"subnetpool":{"name":"p","prefixes":["10.0.0.0/8"],"is_default":"perhaps"}}`, 400, "InvalidInput: Invalid input for is_default"},
		{"DELETE", one, "", 204, ""},
	})
}

func TestWritePorts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	of := `"network_id":"` + string(w.network.ID) + `"`
	s := string(w.subnet.ID)
	one := "/v2.0/ports/" + w.made(t, root, "POST", "/v2.0/ports", `{"port":{`+of+`,"name":"p","fixed_ips":[{"ip_address":"10.1.0.77"},{"subnet_id":"`+s+`"}],"mac_address":"02:00:00:00:00:aa",
		"device_id":"d","device_owner":"compute:x","binding:host_id":"h","binding:vnic_type":"normal","binding:profile":{"a":"b","n":5},"security_groups":null,"admin_state_up":true,
		"extra_dhcp_opts":[],"qos_policy_id":null,"tags":["x"],"allowed_address_pairs":[{"ip_address":"10.1.0.200"},{"ip_address":"10.1.0.201/32","mac_address":"02:00:00:00:00:bb"}]}}`, "port.id")
	w.steps(t, root, []step{
		{"GET", one, "", 200, `port.mac_address=02:00:00:00:00:aa port.fixed_ips.#=2 port.device_id=d port.binding:host_id=h port.binding:vnic_type=normal port.binding:vif_type=bridge port.binding:profile.n=5 port.tags=["x"] port.allowed_address_pairs.0.ip_address=10.1.0.200 port.allowed_address_pairs.1.ip_address=10.1.0.201/32 port.extra_dhcp_opts=[]`},
		{"PUT", one, `{"port":{"fixed_ips":[{"subnet_id":"` + s + `","ip_address":"10.1.0.77"}],"device_id":"","binding:host_id":"","binding:profile":{},"allowed_address_pairs":[],"name":"q"}}`, 200, `port.fixed_ips.#=1 port.fixed_ips.0.ip_address=10.1.0.77 port.device_id= port.binding:vif_type=unbound port.binding:profile={} port.allowed_address_pairs=[] port.name=q port.status=DOWN`},
		{"PUT", one, `{"port":{"fixed_ips":[]}}`, 200, `port.fixed_ips=[]`},
		{"PUT", one, `{"port":{"network_id":"x"}}`, 400, "HTTPBadRequest: Cannot update read-only attribute network_id"},
		{"PUT", one, `{"port":{"binding:vif_type":"x"}}`, 400, "HTTPBadRequest: Cannot update read-only attribute binding:vif_type"},
		{"PUT", one, `{"port":{"admin_state_up":null}}`, 400, "InvalidInput: Invalid input for admin_state_up"},
		{"POST", "/v2.0/ports", `{"port":{` + of + `,"fixed_ips":[{"ip_address":"` + w.port.Addresses[0].Addr.String() + `"}]}}`, 409, "IpAddressAlreadyAllocated: Invalid input for fixed_ips"},
		{"POST", "/v2.0/ports", `{"port":{` + of + `,"fixed_ips":[{"ip_address":"10.7.0.1"}]}}`, 400, "InvalidIpForNetwork: Invalid input for fixed_ips"},
		{"POST", "/v2.0/ports", `{"port":{` + of + `,"fixed_ips":[{}]}}`, 400, "InvalidInput: IP allocation requires subnet_id or ip_address"},
		{"POST", "/v2.0/ports", `{"port":{` + of + `,"fixed_ips":[{"ip":"10.7.0.1"}]}}`, 400, "HTTPBadRequest: Invalid input for fixed_ips. Reason: Unexpected keys: ip"},
		{"POST", "/v2.0/ports", `{"port":{` + of + `,"fixed_ips":"10.7.0.1"}}`, 400, "HTTPBadRequest: Invalid input for fixed_ips. Reason: '10.7.0.1' is not a list"},
		{"POST", "/v2.0/ports", `{"port":{` + of + `,"mac_address":"` + w.port.MAC.String() + `"}}`, 409, "MacAddressInUse: "},
		{"POST", "/v2.0/ports", `{"port":{` + of + `,"mac_address":"x"}}`, 400, "HTTPBadRequest: Invalid input for mac_address. Reason: 'x' is not a valid MAC address"},
		{"POST", "/v2.0/ports", `{"port":{` + of + `,"port_security_enabled":false,"allowed_address_pairs":[{"ip_address":"10.1.0.9"}]}}`, 409, "AddressPairAndPortSecurityRequired: "},
		{"POST", "/v2.0/ports", `{"port":{` + of + `,"port_security_enabled":false,"security_groups":["x"]}}`, 400, "PortSecurityAndIPRequiredForSecurityGroups: "},
		{"POST", "/v2.0/ports", `{"port":{` + of + `,"security_groups":["none"]}}`, 404, "SecurityGroupNotFound: none"},
		{"POST", "/v2.0/ports", `{"port":{` + of + `,"qos_policy_id":"none"}}`, 404, "QosPolicyNotFound: none"},
		{"POST", "/v2.0/ports", `{"port":{` + of + `,"allowed_address_pairs":[{"ip_address":"10.1.0.9"},{"ip_address":"10.1.0.9"}]}}`, 400, "DuplicateAddressPairInRequest: "},
		{"POST", "/v2.0/ports", `{"port":{` + of + `,"extra_dhcp_opts":[{"opt_name":"a","opt_value":"b"}]}}`, 400, "HTTPBadRequest: Attribute 'extra_dhcp_opts'"},
		{"POST", "/v2.0/ports", `{"port":{` + of + `,"binding:host_id":"elsewhere"}}`, 400, "InvalidInput: Invalid input for binding:host_id"},
		{"POST", "/v2.0/ports", `{"port":{"network_id":"none"}}`, 404, "NetworkNotFound: none"},
		{"DELETE", one, "", 204, ""},
		{"DELETE", one, "", 404, "PortNotFound: "},
		{"DELETE", "/v2.0/ports/" + string(w.router.Interfaces[0].Port), "", 409, "ServicePortInUse: "},
	})
	id := w.made(t, root, "POST", "/v2.0/ports", `{"port":{`+of+`,"port_security_enabled":false,"security_groups":[]}}`, "port.id")
	w.steps(t, root, []step{{"GET", "/v2.0/ports/" + id, "", 200, "port.port_security_enabled=false port.security_groups=[] port.fixed_ips.#=1"}})
}

// Administrators change afterwards whether a network or a QoS policy is shared, and whether a
// network is external, unless others use it as what it is.
func TestChangeSharedAndExternal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.made(t, alice, "POST", "/v2.0/networks", `{"network":{}}`, "network.id")
	network := "/v2.0/networks/" + id
	subnet := `{"subnet":{"network_id":"` + id + `","ip_version":4,"cidr":"203.0.113.0/24"}}`
	share, unshare := `{"network":{"shared":true}}`, `{"network":{"shared":false}}`
	external, internal := `{"network":{"router:external":true}}`, `{"network":{"router:external":false}}`
	w.steps(t, alice, []step{
		{"POST", "/v2.0/subnets", subnet, 201, ""},
		{"PUT", network, share, 403, "PolicyNotAuthorized: update_network:shared"},
		{"PUT", network, external, 403, "PolicyNotAuthorized: update_network:router:external"},
	})
	w.steps(t, bob, []step{{"GET", network, "", 404, "NetworkNotFound: "}})
	w.steps(t, root, []step{{"PUT", network, share, 200, "network.shared=true"}})
	port := w.made(t, bob, "POST", "/v2.0/ports", `{"port":{"network_id":"`+id+`"}}`, "port.id")
	w.steps(t, root, []step{
		{"PUT", network, unshare, 409, "NetworkInUse: ports of other projects"},
		{"PUT", network, external, 409, "NetworkInUse: it has ports"},
		{"DELETE", "/v2.0/ports/" + port, "", 204, ""},
		{"PUT", network, unshare, 200, "network.shared=false"},
		{"PUT", network, external, 200, "network.router:external=true"},
	})
	gateway := `{"router":{"external_gateway_info":{"network_id":"` + id + `"}}}`
	router := w.made(t, bob, "POST", "/v2.0/routers", gateway, "router.id")
	other := w.made(t, root, "POST", "/v2.0/networks", `{"network":{}}`, "network.id")
	subnet = `{"subnet":{"network_id":"` + other + `","ip_version":4,"cidr":"203.0.113.128/25"}}`
	builtIn := "/v2.0/networks/" + string(w.sdn.Capabilities().ExternalNetwork)
	w.steps(t, root, []step{
		{"PUT", network, internal, 409, "NetworkInUse: "},
		{"DELETE", "/v2.0/routers/" + router, "", 204, ""},
		{"POST", "/v2.0/subnets", subnet, 201, ""},
		{"PUT", "/v2.0/networks/" + other, external, 400, "InvalidInput: overlaps"},
		{"PUT", network, internal, 200, "network.router:external=false"},
		{"PUT", "/v2.0/networks/" + other, external, 200, "network.router:external=true"},
		{"PUT", builtIn, internal, 403, "PolicyNotAuthorized: built in"},
	})

	policy := w.made(t, root, "POST", "/v2.0/qos/policies", `{"policy":{"name":"q","project_id":"alice"}}`, "policy.id")
	path := "/v2.0/qos/policies/" + policy
	w.steps(t, root, []step{{"PUT", path, `{"policy":{"shared":true}}`, 200, "policy.shared=true"}})
	own := w.made(t, bob, "POST", "/v2.0/networks", `{"network":{}}`, "network.id")
	limited := `{"port":{"network_id":"` + own + `","qos_policy_id":"` + policy + `"}}`
	port = w.made(t, bob, "POST", "/v2.0/ports", limited, "port.id")
	w.steps(t, root, []step{
		{"PUT", path, `{"policy":{"shared":false}}`, 409, "QosPolicyInUse: ports of other projects"},
		{"DELETE", "/v2.0/ports/" + port, "", 204, ""},
		{"PUT", path, `{"policy":{"shared":false}}`, 200, "policy.shared=false"},
	})
}

// An empty list is not an absent one.
func TestEmptyIsNotAbsent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	network := w.made(t, root, "POST", "/v2.0/networks", `{"network":{}}`, "network.id")
	create := func(pools string) string {
		t.Helper()
		body := `{"subnet":{"network_id":"` + network + `","ip_version":4,"cidr":"10.7.0.0/29"` + pools + `}}`
		return "/v2.0/subnets/" + w.made(t, root, "POST", "/v2.0/subnets", body, "subnet.id")
	}
	port := `{"port":{"network_id":"` + network + `"}}`
	full := step{"POST", "/v2.0/ports", port, 409, "IpAddressGenerationFailure: "}
	subnet := create(`,"allocation_pools":[]`)
	w.steps(t, root, []step{
		{"GET", subnet, "", 200, "subnet.allocation_pools=[] subnet.gateway_ip=10.7.0.1"},
		full,
		{"PUT", subnet, `{"subnet":{"allocation_pools":[{"start":"10.7.0.4","end":"10.7.0.4"}]}}`, 200, ""},
		{"POST", "/v2.0/ports", port, 201, "port.fixed_ips.0.ip_address=10.7.0.4"},
		{"PUT", subnet, `{"subnet":{"allocation_pools":[]}}`, 200, "subnet.allocation_pools=[]"},
		full,
		{"PUT", subnet, `{"subnet":{"name":"s"}}`, 200, "subnet.allocation_pools=[]"},
		{"POST", "/v2.0/ports", port[:len(port)-2] + `,"fixed_ips":[{"ip_address":"10.7.0.6"}]}}`, 201, ""},
		{"PUT", subnet, `{"subnet":{"allocation_pools":null}}`, 400, "HTTPBadRequest: allocation_pools"},
	})

	policy := "/v2.0/qos/policies/" + w.made(t, root, "POST", "/v2.0/qos/policies",
		`{"policy":{"name":"q","description":"words"}}`, "policy.id")
	w.steps(t, root, []step{
		{"PUT", policy, `{"policy":{"description":"","shared":true}}`, 200, "policy.description= policy.shared=true"},
		{"PUT", policy, `{"policy":{"name":"","shared":false}}`, 200, "policy.name= policy.shared=false"},
	})
}

// Attributes read back as they were sent, so that clients that compare them see no difference.
func TestReadsBackAsSent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	network := w.made(t, root, "POST", "/v2.0/networks", `{"network":{}}`, "network.id")
	group := w.newGroup(t, "g")
	prefix, pairs := `"remote_ip_prefix":"10.0.0.5/24"`, `[{"ip_address":"10.0.0.5/24","mac_address":"02:00:00:00:00:01"}]`
	rule := `{"security_group_rule":{"security_group_id":"` + group + `","direction":"ingress",` + prefix + `}}`
	id := w.made(t, alice, "POST", "/v2.0/security-group-rules", rule, "security_group_rule.id")
	masked := strings.Replace(rule, "10.0.0.5", "10.0.0.0", 1)
	w.steps(t, alice, []step{
		{"GET", "/v2.0/security-group-rules/" + id, "", 200,
			"security_group_rule.remote_ip_prefix=10.0.0.5/24 security_group_rule.normalized_cidr=10.0.0.0/24"},
		{"POST", "/v2.0/security-group-rules", masked, 409, "SecurityGroupRuleExists: "},
	})
	port := w.made(t, root, "POST", "/v2.0/ports",
		`{"port":{"network_id":"`+network+`","allowed_address_pairs":`+pairs+`}}`, "port.id")
	w.steps(t, root, []step{
		{"GET", "/v2.0/ports/" + port, "", 200, "port.allowed_address_pairs.0.ip_address=10.0.0.5/24"},
		{"PUT", "/v2.0/ports/" + port, `{"port":{"allowed_address_pairs":[{"ip_address":"fd00::5/64"}]}}`, 200,
			"port.allowed_address_pairs.0.ip_address=fd00::5/64"},
	})
}

// Prefixes are added to a subnet pool and removed from it, unless a subnet was cut from them.
func TestSubnetPoolPrefixes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pool := w.made(t, alice, "POST", "/v2.0/subnetpools",
		`{"subnetpool":{"name":"p","prefixes":["10.0.0.0/8"],"default_prefixlen":24}}`, "subnetpool.id")
	network := w.made(t, alice, "POST", "/v2.0/networks", `{"network":{}}`, "network.id")
	subnet := `{"subnet":{"network_id":"` + network + `","ip_version":4,"subnetpool_id":"` + pool + `",` +
		`"cidr":"10.0.5.0/24"}}`
	path := "/v2.0/subnetpools/" + pool
	both, half := `{"prefixes":["172.16.0.0/16","192.168.0.0/16"]}`, `{"prefixes":["192.168.128.0/17"]}`
	inUse := `{"prefixes":["10.128.0.0/9","10.0.0.0/16"]}`
	subnet = "/v2.0/subnets/" + w.made(t, alice, "POST", "/v2.0/subnets", subnet, "subnet.id")
	w.steps(t, alice, []step{
		{"PUT", path + "/add_prefixes", both, 200, "prefixes.#=3 prefixes.1=172.16.0.0/16"},
		{"PUT", path + "/add_prefixes", both, 200, "prefixes.#=3"},
		{"PUT", path + "/remove_prefixes", half, 200, "prefixes.#=3 prefixes.2=192.168.0.0/17"},
		{"PUT", path + "/remove_prefixes", half, 200, "prefixes.#=3"},
		{"PUT", path + "/remove_prefixes", inUse, 400, "IllegalSubnetPoolPrefixUpdate: subnets were cut"},
		{"PUT", path + "/remove_prefixes", `{"prefixes":["0.0.0.0/1"]}`, 400, "IllegalSubnetPoolPrefixUpdate: "},
		{"PUT", path + "/remove_prefixes", `{"prefixes":["x"]}`, 400, "HTTPBadRequest: prefixes"},
		{"PUT", path + "/add_prefixes", `{"prefixes":["fd00::/48"]}`, 400, "InvalidInput: family"},
		{"PUT", path, `{"subnetpool":{"prefixes":["10.0.0.0/8"]}}`, 400, "IllegalSubnetPoolPrefixUpdate: "},
		{"GET", path, "", 200, "subnetpool.prefixes.#=3 subnetpool.prefixes.0=10.0.0.0/8"},
		{"DELETE", subnet, "", 204, ""},
		{"PUT", path + "/remove_prefixes", `{"prefixes":["10.0.0.0/8"]}`, 200, "prefixes.#=2"},
		{"PUT", path + "/remove_prefixes", `{"prefixes":["0.0.0.0/0"]}`, 400, "InvalidInput: must not all be removed"},
	})
	w.steps(t, bob, []step{{"PUT", path + "/add_prefixes", both, 404, "SubnetPoolNotFound: "}})
}

// The values of binding:profile keep their types.
func TestProfileReadsBackAsSent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	profile := `{"number":1,"truth":true,"list":["a"],"object":{"b":2},"text":"1"}`
	w.steps(t, root, []step{{
		"POST", "/v2.0/ports", `{"port":{"network_id":"` + string(w.network.ID) + `","binding:profile":` + profile + `}}`, 201,
		`port.binding:profile={"list":["a"],"number":1,"object":{"b":2},"text":"1","truth":true}`,
	}})
}

// A subnet's service types decide whose ports get its addresses.
func TestServiceTypes(t *testing.T) {
	w := newWorld(t)
	a := Caller{Project: "a", Role: Member}
	net := w.made(t, a, "POST", "/v2.0/networks", `{"network":{}}`, "network.id")
	subnet := w.made(t, a, "POST", "/v2.0/subnets", `{"subnet":{"network_id":"`+net+
		`","ip_version":4,"cidr":"10.7.0.0/24","service_types":["compute:x"]}}`, "subnet.id")
	router := w.made(t, a, "POST", "/v2.0/routers", `{"router":{}}`, "router.id")
	path := "/v2.0/subnets/" + subnet
	port := func(rest string) string { return `{"port":{"network_id":"` + net + `"` + rest + `}}` }
	w.steps(t, a, []step{
		{"GET", path, "", 200, "subnet.service_types.0=compute:x subnet.service_types.#=1"},
		{"GET", "/v2.0/subnets?service_types=compute:x", "", 200, "subnets.#=1"},
		{"GET", "/v2.0/subnets?service_types=compute:y", "", 200, "subnets.#=0"},
		{"POST", "/v2.0/ports", port(`,"device_owner":"compute:x"`), 201, "port.fixed_ips.0.subnet_id=" + subnet},
		{"POST", "/v2.0/ports", port(`,"device_owner":"compute:y"`), 409, "IpAddressGenerationFailureNoMatchingSubnet: compute:y"},
		{"POST", "/v2.0/ports", port(``), 409, "IpAddressGenerationFailureNoMatchingSubnet: "},
		{"POST", "/v2.0/ports", port(`,"fixed_ips":[{"subnet_id":"` + subnet + `"}]`), 400, "InvalidIpForNetwork: "},
		{"POST", "/v2.0/ports", port(`,"fixed_ips":[]`), 201, "port.fixed_ips.#=0"},
		{"PUT", path, `{"subnet":{"service_types":["foo"]}}`, 400, "InvalidSubnetServiceType: foo does not correspond"},
		{"PUT", path, `{"subnet":{"service_types":[1]}}`, 400, "HTTPBadRequest: "},
		{"PUT", path, `{"subnet":{"service_types":["compute:x","compute:x"]}}`, 400, "InvalidInput: service_types"},
		{"PUT", "/v2.0/routers/" + router + "/add_router_interface", `{"subnet_id":"` + subnet + `"}`, 200, ""},
		{"PUT", path, `{"subnet":{"service_types":null}}`, 200, "subnet.service_types.#=0"},
		{"POST", "/v2.0/ports", port(``), 201, "port.fixed_ips.0.subnet_id=" + subnet},
	})
}

// A default subnet pool is chosen by administrators and used by all who see it, within its quota.
func TestDefaultSubnetPool(t *testing.T) {
	w := newWorld(t)
	a, b := Caller{Project: "a", Role: Member}, Caller{Project: "b", Role: Member}
	admin := Caller{Project: "a", Role: Admin}
	net := w.made(t, a, "POST", "/v2.0/networks", `{"network":{}}`, "network.id")
	theirs := w.made(t, b, "POST", "/v2.0/networks", `{"network":{}}`, "network.id")
	subnet := func(network, rest string) string {
		return `{"subnet":{"network_id":"` + network + `","use_default_subnetpool":true` + rest + `}}`
	}
	const none = "BadRequest: Bad subnets request: No default subnetpool found for IPv"
	w.steps(t, a, []step{
		{"POST", "/v2.0/subnets", subnet(net, `,"ip_version":4`), 400, none + "4"},
		{"POST", "/v2.0/subnetpools", `{"subnetpool":{"name":"p","prefixes":["10.8.0.0/16"],"is_default":true}}`, 403,
			"PolicyNotAuthorized: rule:create_subnetpool:is_default"},
		{"POST", "/v2.0/subnetpools", `{"subnetpool":{"name":"p","prefixes":["10.8.0.0/16"],"default_quota":-1}}`, 400,
			"HTTPBadRequest: default_quota"},
	})
	pool := w.made(t, admin, "POST", "/v2.0/subnetpools", `{"subnetpool":{"name":"p","prefixes":["10.8.0.0/16"],
		"default_prefixlen":24,"shared":true,"is_default":true,"default_quota":300}}`, "subnetpool.id")
	w.steps(t, admin, []step{
		{"POST", "/v2.0/subnetpools", `{"subnetpool":{"name":"q","prefixes":["10.9.0.0/16"],"is_default":true}}`, 400,
			"InvalidInput: is_default"},
		{"GET", "/v2.0/subnetpools?is_default=true", "", 200, "subnetpools.#=1 subnetpools.0.id=" + pool},
	})
	w.steps(t, a, []step{
		{"GET", "/v2.0/subnetpools/" + pool, "", 200, "subnetpool.is_default=true subnetpool.default_quota=300"},
		{"PUT", "/v2.0/subnetpools/" + pool, `{"subnetpool":{"is_default":false}}`, 403, "PolicyNotAuthorized: is_default"},
		{"POST", "/v2.0/subnets", subnet(net, `,"ip_version":4`), 201, "subnet.subnetpool_id=" + pool},
		{"POST", "/v2.0/subnets", subnet(net, `,"ip_version":6`), 400, none + "6"},
		{"POST", "/v2.0/subnets", subnet(net, `,"ip_version":4,"subnetpool_id":"`+pool+`"`), 400,
			"BadRequest: cannot both be specified"},
		{"POST", "/v2.0/subnets", subnet(net, `,"ip_version":4`), 409, "SubnetPoolQuotaExceeded: default_quota"},
		{"POST", "/v2.0/subnets", subnet(net, `,"ip_version":4,"prefixlen":28`), 201, "subnet.subnetpool_id=" + pool},
	})
	w.steps(t, b, []step{
		{"POST", "/v2.0/subnets", subnet(theirs, `,"ip_version":4`), 201, "subnet.subnetpool_id=" + pool},
	})
	w.steps(t, admin, []step{
		{"PUT", "/v2.0/subnetpools/" + pool, `{"subnetpool":{"default_quota":null}}`, 200, "subnetpool.default_quota=null"},
		{"POST", "/v2.0/subnets", subnet(net, `,"ip_version":4`), 201, ""},
		{"PUT", "/v2.0/subnetpools/" + pool, `{"subnetpool":{"is_default":false}}`, 200, "subnetpool.is_default=false"},
	})
	w.steps(t, a, []step{{"POST", "/v2.0/subnets", subnet(net, `,"ip_version":4`), 400, none + "4"}})
}

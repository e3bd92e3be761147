package api_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/sdn"
)

// requests has a constructor of each request, by a method that has it.
var requests = map[string]func() api.Request{
	"DeleteNetwork":   func() api.Request { return &api.NetworkRequest{} },
	"CreateNetwork":   func() api.Request { return &api.CreateNetworkRequest{} },
	"AllocateNetwork": func() api.Request { return &api.AllocateNetworkRequest{} },
	"GwAllocCheck":    func() api.Request { return &api.GwAllocCheckRequest{} },
	"Leave":           func() api.Request { return &api.EndpointRequest{} },
	"CreateEndpoint":  func() api.Request { return &api.CreateEndpointRequest{} },
	"Join":            func() api.Request { return &api.JoinRequest{} },
	"Program":         func() api.Request { return &api.ProgramRequest{} },
	"DiscoverNew":     func() api.Request { return &api.DiscoverRequest{} },
	"RequestPool":     func() api.Request { return &api.RequestPoolRequest{} },
	"ReleasePool":     func() api.Request { return &api.ReleasePoolRequest{} },
	"RequestAddress":  func() api.Request { return &api.RequestAddressRequest{} },
	"ReleaseAddress":  func() api.Request { return &api.ReleaseAddressRequest{} },
}

// call returns the body of a call: valid ids, and the fields, which replace them.
func call(fields string) []byte {
	body := fmt.Sprintf(`{"NetworkID":"%064d","EndpointID":"%064d","SandboxKey":"/run/netns/a"`, 1, 2)
	if !strings.Contains(fields, `"Pool`) {
		body += `,"PoolID":"a"`
	}
	return []byte(strings.TrimSuffix(body+","+fields, ",") + "}")
}

// optioned returns the body of a call with an option in each of the maps.
func optioned(value any, names ...string) []byte {
	for i := len(names) - 1; i >= 0; i-- {
		value = map[string]any{names[i]: value}
	}
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return call(`"Options":` + string(text))
}

func checkInvalid(t *testing.T, method string, body []byte, want string) {
	t.Helper()
	err := api.Decode(body, requests[method]())
	if e := (*api.Error)(nil); !errors.As(err, &e) || e.Status != http.StatusBadRequest || e.Text != want {
		t.Errorf("%s %.300s:\n%v, want\n%s", method, body, err, want)
	}
}

func TestInvalidFields(t *testing.T) {
	t.Parallel()
	const id = ": must be 1 to 128 letters, digits, '_', '.' or '-', not "
	const v4 = ": must be an IPv4 address with a prefix length, such as 10.0.0.0/24, not "
	const v6 = ": must be an IPv6 address with a prefix length, such as fd00:1::/64, not "
	const inPool = "SubPool: must have a Pool that contains it, not "
	for _, c := range []struct{ method, fields, want string }{
		{"DeleteNetwork", `"NetworkID":7`, "NetworkID: must be a string, not a JSON number"},
		{"DeleteNetwork", `"NetworkID":"../x"`, "NetworkID" + id + `"../x"`},
		{"CreateNetwork", `"IPv4Data":[null]`, "IPv4Data: must not contain null"},
		{"CreateNetwork", `"IPv4Data":{}`, "IPv4Data: must be a list, not a JSON object"},
		{"CreateNetwork", `"IPv4Data":[{}]`, "IPv4Data.Pool: is missing"},
		{"CreateNetwork", `"IPv4Data":[{"Pool":"fd00::/64"}]`, "IPv4Data.Pool" + v4 + `"fd00::/64"`},
		{"CreateNetwork", `"IPv6Data":[{"Pool":"x"}]`, "IPv6Data.Pool" + v6 + `"x"`},
		{"CreateNetwork", `"IPv6Data":[{"Pool":"fd00::/64","Gateway":"fd01::1/64"}]`,
			"IPv6Data.Gateway: must be in fd00::/64, not fd01::1"},
		{"CreateNetwork", `"IPv4Data":[{"Pool":"10.0.0.0/8","AuxAddresses":{"x":"y"}}]`,
			`IPv4Data.AuxAddresses.x: must be an IP address, not "y"`},
		{"CreateNetwork", `"Options":{"com.docker.network.internal":"yes"}`,
			"Options.com.docker.network.internal: must be true or false, not a JSON string"},
		{"AllocateNetwork", `"Options":{"a":[]}`, "Options: must be a string, not a JSON array"},
		{"CreateNetwork", `"Options":{"com.docker.network.generic":[]}`,
			"Options.com.docker.network.generic: must be an object, not a JSON array"},
		{"Leave", `"EndpointID":""`, "EndpointID" + id + `""`},
		{"CreateEndpoint", `"Interface":[]`, "Interface: must be an object, not a JSON array"},
		{"CreateEndpoint", `"Interface":{"Address":"10.0.0.9"}`, "Interface.Address" + v4 + `"10.0.0.9"`},
		{"CreateEndpoint", `"Interface":{"MacAddress":"01:00:00:00:00:01"}`,
			"Interface.MacAddress: must be a unicast MAC address of 6 bytes, not 01:00:00:00:00:01"},
		{"Join", `"SandboxKey":"/run/../etc"`, `SandboxKey: must be a clean absolute path, not "/run/../etc"`},
		{"Join", `"SandboxKey":"run/x"`, `SandboxKey: must be a clean absolute path, not "run/x"`},
		{"DiscoverNew", `"DiscoveryType":"a"`, "DiscoveryType: must be a whole number (int), not a JSON string"},
		{"RequestPool", `"Pool":"10.0.0.0/24","V6":true`, "Pool" + v6 + `"10.0.0.0/24"`},
		{"RequestPool", `"Pool":"::ffff:10.0.0.0/120","V6":true`, "Pool" + v6 + `"::ffff:10.0.0.0/120"`},
		{"RequestPool", `"Pool":"10.0.0.0/24","SubPool":"10.0.1.0/25"`, "SubPool: must be in 10.0.0.0/24, not 10.0.1.0/25"},
		{"RequestPool", `"SubPool":"10.0.1.0/25"`, inPool + "10.0.1.0/25"},
		{"RequestPool", `"Pool":"0.0.0.0/24","SubPool":"0.0.0.0/25"`, inPool + "0.0.0.0/25"},
		{"RequestPool", `"Pool":"0.0.0.0/0"`, "Pool: must be a unicast range, not 0.0.0.0/0"},
		{"RequestPool", `"Pool":"0.0.0.0/31"`, "Pool: 0.0.0.0/31: the smallest range is a /30"},
		{"RequestPool", `"Pool":"::/127","V6":true`, "Pool: ::/127: the smallest range is a /126"},
		{"RequestPool", `"AddressSpace":"a b"`,
			`AddressSpace: must be at most 24 letters, digits, '_', '.' or '-', not "a b"`},
		{"RequestPool", `"Options":{"x":1}`, "Options: must be a string, not a JSON number"},
		{"RequestPool", `"Options":{"neutron.net.shared":"perhaps"}`,
			`Options.neutron.net.shared: must be true or false, not "perhaps"`},
		{"RequestPool", `"Options":{"neutron.subnet.uuid":""}`,
			`Options.neutron.subnet.uuid: must be 1 to 255 printable characters, not ""`},
		{"RequestPool", `"Options":{"neutron.pool.v6.uuid":"a/b"}`, `Options.neutron.pool.v6.uuid: must be an id, not "a/b"`},
		{"ReleasePool", `"PoolID":"a b"`, `PoolID: must be 1 to 255 printable characters, not "a b"`},
		{"RequestAddress", `"Address":"10.0.0.9/33"`, `Address: must be an IP address, not "10.0.0.9/33"`},
		{"RequestAddress", `"Options":{"com.docker.network.endpoint.macaddress":"zz"}`,
			`Options.com.docker.network.endpoint.macaddress: must be a MAC address such as 02:42:ac:11:00:02, not "zz"`},
		{"ReleaseAddress", "", "Address: is missing"},
		{"ReleaseAddress", `"Address":"fe80::1%eth0"`, `Address: must be an IP address, not "fe80::1%eth0"`},
	} {
		checkInvalid(t, c.method, call(c.fields), c.want)
	}
	for method := range requests {
		const empty = "the call came without a body: the engine repeated it after its connection broke; try again"
		for text, want := range map[string]string{
			"": empty, " \n": empty, "[]": "body: must be a JSON object", "null": "body: must be a JSON object",
			"{": "body: invalid JSON value: unexpected end of JSON input",
		} {
			checkInvalid(t, method, []byte(text), want)
		}
	}
}

// many returns a list of n items.
func many(n int, item string) string {
	var list []string
	for i := range n {
		list = append(list, strings.ReplaceAll(item, "N", fmt.Sprint(i)))
	}
	return strings.Join(list, ",")
}

// invalidOption is an option with an invalid value, and the error after the field.
type invalidOption struct {
	option string
	value  any
	want   string
}

const groupsForm = ": must be names or ids of security groups, separated by commas or spaces, not "

func TestInvalidNetworkOptions(t *testing.T) {
	t.Parallel()
	const router = `: must be 1 to 64 letters, digits, '_', '.' or '-', not "a b"`
	const form = ": must be DESTINATION=NEXTHOP or DESTINATION=link, separated by commas or spaces, not "
	const destination = ": the destination must be a range such as 10.9.0.0/16, not "
	const hop = `: the next hop of 10.9.0.0/16 must be an address or "link", not `
	for _, c := range []invalidOption{
		{api.OptMTU, "9", `: must be a number from 68 to 65535, not "9"`},
		{api.OptMTU, 1400, ": must be a string, not a JSON number"},
		{api.OptHostBinding, "fd00::1", `: must be an IPv4 address, not "fd00::1"`},
		{api.OptRouter, "a b", router},
		{api.OptExternal, "a b", router},
		{api.OptGateway, "10.50.0.1", `: must be none, not "10.50.0.1"; use --gateway for an address`},
		{api.OptPublish, "nat", `: must be floatingip or proxy, not "nat"`},
		{api.OptGroups, ",", groupsForm + `""`},
		{api.OptGroups, "0123456789012345678901234567890123456789ab",
			`: must be ids, or names of at most 41 characters, not "0123456789012345678901234567890123456789ab"`},
		{api.OptRoutes, "", form + `""`},
		{api.OptRoutes, "10.9.0.0/16", form + `"10.9.0.0/16"`},
		{api.OptRoutes, "10.9.0.1/16=10.50.0.5", ": 10.9.0.1/16 has host bits; did you mean 10.9.0.0/16?"},
		{api.OptRoutes, "10.9.0.0=10.50.0.5", destination + `"10.9.0.0"`},
		{api.OptRoutes, "::ffff:10.9.0.0/112=link", destination + `"::ffff:10.9.0.0/112"`},
		{api.OptRoutes, "10.9.0.0/16=next", hop + `"next"`},
		{api.OptRoutes, "10.9.0.0/16=224.0.0.1", hop + `"224.0.0.1"`},
		{api.OptRoutes, "10.9.0.0/16=fd50::5", ": the next hop fd50::5 is not of the family of 10.9.0.0/16"},
		{api.OptRoutes, many(2000, "10.9.0.0/16=link"), ": 10.9.0.0/16 is given twice"},
		{api.OptRoutes, many(21, "10.9.N.0/24=link"), ": has more than 20 routes"},
	} {
		for _, method := range []string{"CreateNetwork", "GwAllocCheck"} {
			body := optioned(c.value, api.OptGeneric, c.option)
			checkInvalid(t, method, body, "Options."+api.OptGeneric+"."+c.option+c.want)
		}
	}
}

func TestInvalidEndpointOptions(t *testing.T) {
	t.Parallel()
	ports := func(fields string) any { return json.RawMessage("[{" + fields + "}]") }
	const allowed = ": must be addresses or ranges, each with @MAC or without, separated by commas or spaces, not "
	const ifname = ": must be 1 to 15 visible characters without '/', ':', ',' and '%', not "
	for _, c := range []invalidOption{
		{api.OptMAC, "!!", ": invalid JSON value: illegal base64 data at input byte 0"},
		{api.OptMAC, "Aqq7", ": must be a unicast MAC address of 6 bytes, not 02:aa:bb"},
		{api.OptExposed, ports(`"Proto":"tcp"`), ".Proto: must be a whole number (uint8), not a JSON string"},
		{api.OptPortMap, ports(`"Proto":6`), ".Port: must be from 1 to 65535, not 0"},
		{api.OptPortMap, ports(`"Port":70000`), ".Port: must be a whole number (uint16), not a JSON number 70000"},
		{api.OptPortMap, ports(`"Port":1,"HostPort":9,"HostPortEnd":8`), ".HostPortEnd: must be at least 9, not 8"},
		{api.OptPortMap, ports(`"Port":1,"HostIP":"x"`), `.HostIP: must be an IP address, not "x"`},
		{api.OptPortSecurity, "no", `: must be true or false, not "no"`},
		{api.OptPortSecurity, false, ": must be a string, not a JSON bool"},
		{api.OptAllowed, "10.0.0.1/8", ": 10.0.0.1/8 has host bits; did you mean 10.0.0.0/8?"},
		{api.OptAllowed, "10.0.0.1@", `: "10.0.0.1@" has no MAC address after @`},
		{api.OptAllowed, "10.0.0.1@01:00:5e:00:00:01", ": must be a unicast MAC address of 6 bytes, not 01:00:5e:00:00:01"},
		{api.OptAllowed, "fe80::1%eth0", allowed + `"fe80::1%eth0"`},
		{api.OptAllowed, "::ffff:10.0.0.1", ": must not have an IPv4 address in IPv6 form, such as ::ffff:10.0.0.1"},
		{api.OptAllowed, many(101, "10.0.0.1"), ": has more than 100 addresses"},
		{api.OptPort, "a,b", `: must be the id of a port, not "a,b"`},
		{api.OptNeutronPort, "a\tb", `: must be the id of a port, not "a\tb"`},
		{api.OptGroups, " , ", groupsForm + `""`},
		{api.OptGroups, many(21, "N"), ": has more than 20 security groups"},
		{api.OptQoSPolicy, "a,b", `: must be the name or the id of a QoS policy, not "a,b"`},
		{api.OptFloatingIP, "yes", `: must be auto, an address, or the id of a floating IP, not "yes"`},
		{api.OptPublish, "nat", `: must be floatingip or proxy, not "nat"`},
		{api.OptIfname, "a\n", ifname + `"a\n"`}, {api.OptIfname, "..", ifname + `".."`},
		{api.OptIfname, "a:1", ifname + `"a:1"`}, {api.OptIfname, "\u00e4", ifname + `"ä"`},
		{api.OptIfname, "sixteencharacter", ifname + `"sixteencharacter"`},
	} {
		for _, method := range []string{"CreateEndpoint", "Join", "Program"} {
			checkInvalid(t, method, optioned(c.value, c.option), "Options."+c.option+c.want)
		}
	}
	two := optioned(map[string]string{api.OptPort: "a", api.OptNeutronPort: "b"})
	checkInvalid(t, "CreateEndpoint", two, `Options.neutron.port.uuid: must be the port of kuryr.port, not "b"`)
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	const existing, external = `"neutron.net.uuid":"a",`, `"kuryr.external_network":"x"`
	const mtu = "com.docker.network.driver.mtu"
	const owners, route = "an existing network has its owner's ", "option kuryr.routes: "
	for _, c := range []struct{ method, options, want string }{
		{"-o", `"kuryr.rooter":"x"`, "option kuryr.rooter is not known; did you mean kuryr.router?"},
		{"-o", `"kuryr.router":"x","kuryr.gateway":"none"`,
			"a network without a gateway has no router: leave out kuryr.gateway or kuryr.router"},
		{"-o", external + `,"kuryr.gateway":"none"`, "a network without a way out has no external network: " +
			"leave out kuryr.external_network, or --internal and kuryr.gateway"},
		{"-o", external + `,"kuryr.router":"x"`,
			"a shared router has a gateway of its own: leave out kuryr.external_network or kuryr.router"},
		{"-o", existing + `"kuryr.router":"x"`, owners + "router: leave out kuryr.router"},
		{"-o", existing + external, owners + "router: leave out kuryr.external_network"},
		{"-o", existing + `"` + mtu + `":"1400"`, owners + "MTU: leave out " + mtu},
		{"-o", existing + `"kuryr.routes":"10.9.0.0/16=link"`, owners + "routes: leave out kuryr.routes"},
		{"-o", `"kuryr.routes":"fd09::/32=link"`, route + "the network has no range of the family of fd09::/32"},
		{"-o", `"kuryr.routes":"10.9.0.0/16=10.77.0.5"`, route + "the next hop 10.77.0.5 is neither in a range of " +
			"the network nor in a destination on the link"},
		{"-o", `"kuryr.routes":"10.50.0.0/24=link"`, route + "10.50.0.0/24 is the network's own range"},
		{"-o", `"kuryr.routes":"0.0.0.0/0=10.50.0.5"`,
			route + "0.0.0.0/0 is the route of the gateway: use --gateway, or kuryr.gateway=none"},
		{"CreateNetwork", `"com.docker.network.internal":true,"com.docker.network.generic":{"kuryr.router":"x"}`,
			"an internal network has no router: leave out --internal or kuryr.router"},
		{"AllocateNetwork", `"kuryr.rooter":"x"`, "option kuryr.rooter is not known; did you mean kuryr.router?"},
		{"CreateEndpoint", `"kuryr.allowed":"x"`, "option kuryr.allowed is not known; did you mean kuryr.allowed_addresses?"},
		{"CreateEndpoint", `"neutron.port.nam":"x"`, "option neutron.port.nam is not known; did you mean neutron.port.uuid?"},
		{"CreateEndpoint", `"kuryr.port_security":"false","kuryr.allowed_addresses":"10.0.0.0/8"`,
			"kuryr.port_security=false allows all addresses: leave out kuryr.allowed_addresses"},
		{"CreateEndpoint", `"kuryr.port_security":"false","kuryr.security_groups":"web"`,
			"kuryr.port_security=false disables security groups: leave out kuryr.security_groups"},
		{"RequestPool", `"kuryr.x":"y"`, "IPAM option kuryr.x is not known"},
	} {
		if c.method == "-o" {
			c.method, c.options = "CreateNetwork", `"com.docker.network.generic":{`+c.options+"}"
		}
		fields := `"Options":{` + c.options + `}`
		if c.method == "CreateNetwork" {
			fields += `,"IPv4Data":[{"Pool":"10.50.0.0/24"}]`
		}
		err := api.Decode(call(fields), requests[c.method]())
		if r := (*api.Refusal)(nil); !errors.As(err, &r) || r.Text != c.want {
			t.Errorf("%s %s:\n%v, want\n%s", c.method, fields, err, c.want)
		}
	}
}

func address(s string) netip.Addr  { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func TestDecode(t *testing.T) {
	t.Parallel()
	id, on, off := fmt.Sprintf("%064d", 1), true, false
	endpoint := api.EndpointRequest{NetworkID: id, EndpointID: fmt.Sprintf("%064d", 2)}
	none := map[bool]api.Reference{}
	mac := net.HardwareAddr{2, 0x42, 0x0a, 0x32, 8, 2}
	connected := sdn.HostRoute{Destination: prefix("192.0.2.0/24"), NextHop: address("0.0.0.0")}
	via := sdn.HostRoute{Destination: prefix("10.9.0.0/16"), NextHop: address("10.50.0.5")}
	for _, c := range []struct {
		method, fields string
		want           api.Request
	}{
		{"DeleteNetwork", `"SomethingNew":[1]`, &api.NetworkRequest{NetworkID: id}},
		{"DiscoverNew", `"DiscoveryData":[1],"DiscoveryType":null`, &api.DiscoverRequest{}},
		{"CreateNetwork", `
			"IPv4Data": [
				{"AddressSpace": "local_scope", "Pool": "10.50.0.9/24", "Gateway": "10.50.0.1/24",
					"AuxAddresses": {"db": "10.50.0.9/24"}},
				{"AddressSpace": "null", "Pool": "0.0.0.0/0"}, {"Pool": "10.51.0.0/24"}
			],
			"IPv6Data": [{"Pool": "fd50::/64"}],
			"Options": {
				"com.docker.network.new": 1, "com.docker.network.enable_ipv6": true,
				"com.docker.network.internal": null,
				"com.docker.network.generic": {
					"kuryr.routes": "10.9.0.0/16=10.50.0.5, 192.0.2.0/24=link", "kuryr.router": "edge",
					"kuryr.security_groups": "web,db web", "kuryr.publish": "floatingip", "lab.opt": [1],
					"com.docker.network.driver.mtu": "1400", "neutron.net.shared": "ON",
					"com.docker.network.bridge.host_binding_ipv4": "0.0.0.0"
				}
			}`, &api.CreateNetworkRequest{
			NetworkID: id,
			Options: api.NetworkOptions{
				MTU: 1400, Router: "edge", Routes: []sdn.HostRoute{via, connected},
				Groups: []string{"web", "db"}, Publish: api.PublishFloatingIP,
				Existing: api.Existing{Shared: &on, Subnet: none, Pool: none},
				Foreign:  []string{"com.docker.network.new", "lab.opt"},
			},
			Ranges: []*api.IPAMData{
				{AddressSpace: api.LocalSpace, Pool: prefix("10.50.0.0/24"), Gateway: address("10.50.0.1"),
					AuxAddresses: []netip.Addr{address("10.50.0.9")}, Routes: []sdn.HostRoute{via, connected}},
				{Pool: prefix("10.51.0.0/24"), Place: 2, Routes: []sdn.HostRoute{connected}},
				{Pool: prefix("fd50::/64")},
			},
		}},
		{"GwAllocCheck", `"Options":{"com.docker.network.generic":{"kuryr.gateway":"none"}}`, &api.GwAllocCheckRequest{
			Options: api.NetworkOptions{NoGateway: true, Existing: api.Existing{Subnet: none, Pool: none}},
		}},
		{"AllocateNetwork", `"Options":{"com.docker.network.bridge.host_binding_ipv4":"192.0.2.1"}`,
			&api.AllocateNetworkRequest{
				CreateNetworkRequest: api.CreateNetworkRequest{NetworkID: id, Options: api.NetworkOptions{
					HostBinding: address("192.0.2.1"), Existing: api.Existing{Subnet: none, Pool: none},
				}},
				UserOptions: map[string]string{api.OptHostBinding: "192.0.2.1"},
			}},
		{"CreateEndpoint", `
			"Interface": {"Address": "10.50.8.2/16", "AddressIPv6": ""},
			"Options": {
				"com.docker.network.endpoint.macaddress": "AkIKMggC", "com.docker.network.endpoint.ifname": "wan0",
				"com.docker.network.endpoint.dnsservers": ["10.50.0.2"], "com.docker.network.windows_dns": {"a": 1},
				"kuryr.port": "p", "neutron.port.uuid": "p", "kuryr.port_security": "true", "lab.ep": "v1",
				"kuryr.qos_policy": "gold", "kuryr.floating_ip": "192.0.2.9",
				"kuryr.allowed_addresses": "10.50.0.200 10.9.0.0/16@02:42:0a:32:08:02"
			}`, &api.CreateEndpointRequest{
			EndpointRequest: endpoint, MAC: mac, Addresses: []netip.Prefix{prefix("10.50.8.2/16")},
			Options: api.EndpointOptions{
				MAC: mac, PortMap: []api.PortMapping{}, Ifname: "wan0", NoPortSecurity: &off,
				Port: "p", PortOption: api.OptNeutronPort, QoSPolicy: "gold", FloatingIP: "192.0.2.9",
				Allowed: []sdn.AllowedPair{
					{Prefix: prefix("10.50.0.200/32")}, {Prefix: prefix("10.9.0.0/16"), MAC: mac},
				},
			},
		}},
		{"CreateEndpoint", `"Interface":{"MacAddress":"02:42:0a:32:08:02"}`, &api.CreateEndpointRequest{
			EndpointRequest: endpoint, MAC: mac, MACGiven: true,
			Options: api.EndpointOptions{PortMap: []api.PortMapping{}},
		}},
		{"Join", `"Options": {
				"com.docker.network.endpoint.exposedports": [{"Proto": 17, "Port": 53}], "kuryr.x": "of another driver",
				"com.docker.network.portmap": [
					{"Proto": 6, "Port": 80},
					{"Proto": 6, "Port": 80, "HostIP": "127.0.0.1", "HostPort": 8080},
					{"Proto": 6, "Port": 80, "HostIP": "::", "HostPort": 8080, "HostPortEnd": 8090}
				]
			}`, nil},
		{"RequestPool", `
			"AddressSpace": "global_scope", "Pool": "fd50::5/64", "SubPool": "fd50::/80", "V6": true,
			"Options": {"b": "", "a": "", "neutron.subnet.v6.uuid": "s", "neutron.pool.name": "theirs"}`,
			&api.RequestPoolRequest{
				AddressSpace: api.GlobalSpace, Pool: prefix("fd50::/64"), SubPool: prefix("fd50::/80"), V6: true,
				Existing: api.Existing{
					Subnet: map[bool]api.Reference{true: {Option: "neutron.subnet.v6.uuid", ID: "s"}},
					Pool:   map[bool]api.Reference{false: {Option: "neutron.pool.name", Name: "theirs"}},
				},
				Foreign: []string{"a", "b"},
			}},
		{"RequestPool", `"Pool":"0.0.0.0/26"`, &api.RequestPoolRequest{
			AnyOfLength: prefix("0.0.0.0/26"), Existing: api.Existing{Subnet: none, Pool: none},
		}},
		{"RequestAddress", `"Address": "10.50.0.1/24", "Options": {
				"RequestAddressType": "com.docker.network.gateway", "com.docker.network.ipam.serial": "true",
				"com.docker.network.endpoint.macaddress": "02:42:0a:32:08:02"
			}`, &api.RequestAddressRequest{
			PoolID: api.PoolID{Pool: "a"}, Address: address("10.50.0.1"), MAC: mac, Gateway: true, Serial: true,
		}},
		{"ReleasePool", `"PoolID":"p/node"`, &api.ReleasePoolRequest{PoolID: api.PoolID{Pool: "p", Node: true}}},
		{"ReleasePool", `"PoolID":"p/manager-abc"`, &api.ReleasePoolRequest{PoolID: api.PoolID{Pool: "p", Life: "abc"}}},
	} {
		r := requests[c.method]()
		if err := api.Decode(call(c.fields), r); err != nil || c.want != nil && !reflect.DeepEqual(r, c.want) {
			t.Errorf("%s %s:\n%+v, %v, want\n%+v", c.method, c.fields, r, err, c.want)
		}
		switch r := r.(type) {
		case *api.JoinRequest:
			want := "[{6 80 invalid IP {0 0}} {6 80 127.0.0.1 {8080 8080}} {6 80 :: {8080 8090}}] [{17 53}]"
			if got := fmt.Sprint(r.Options.PortMap, r.Options.Exposed); got != want {
				t.Errorf("port map %s, want %s", got, want)
			}
		case *api.ReleasePoolRequest:
			if !strings.Contains(c.fields, `"`+r.PoolID.String()+`"`) {
				t.Errorf("%s became %s", c.fields, r.PoolID)
			}
		}
	}
}

// FuzzDecode checks that each error of a request has a status of 4xx or is a refusal, and that
// routes, allowed addresses and port mappings have the values that their documentation promises.
func FuzzDecode(f *testing.F) {
	for method := range requests {
		f.Add(method, call(`"Interface":{"Address":"10.50.8.2/16"},"Address":"10.50.0.1"`))
	}
	f.Add("CreateNetwork", call(`"IPv6Data":[{"Pool":"fd50::/64"}],"Options":{"com.docker.network.generic":`+
		`{"kuryr.routes":"192.0.2.0/24=link,fd09::/64=fe80::1"}}`))
	f.Add("CreateEndpoint", call(`"Options":{"com.docker.network.portmap":[{"Port":80,"HostIP":"127.0.0.1"}],`+
		`"kuryr.allowed_addresses":"10.9.0.0/16,192.0.2.7@02:00:00:00:00:07,fd00::1"}`))
	f.Add("RequestPool", []byte(`{"Pool":"fe80::%1/64","Options":{"neutron.net.uuid":"a"},"V6":true}`))
	f.Fuzz(func(t *testing.T, method string, text []byte) {
		create, ok := requests[method]
		if !ok {
			return
		}
		r := create()
		err := api.Decode(text, r)
		invalid, refusal := (*api.Error)(nil), (*api.Refusal)(nil)
		if err != nil && !errors.As(err, &refusal) && (!errors.As(err, &invalid) || invalid.Status/100 != 4) {
			t.Fatalf("%q: %v", text, err)
		}
		if err != nil {
			return
		}
		if r, ok := r.(*api.CreateNetworkRequest); ok {
			for _, route := range r.Options.Routes {
				to, hop := route.Destination, route.NextHop
				if to != to.Masked() || !hop.IsValid() || hop.Is6() != to.Addr().Is6() {
					t.Fatalf("%q: route %+v", text, route)
				}
			}
		}
		if r, ok := r.(*api.CreateEndpointRequest); ok {
			for _, pair := range r.Options.Allowed {
				if !pair.Prefix.IsValid() || pair.Prefix != pair.Prefix.Masked() {
					t.Fatalf("%q: allowed %+v", text, pair)
				}
			}
		}
	})
}

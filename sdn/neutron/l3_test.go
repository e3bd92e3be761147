package neutron

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/neutron/neutrontest"
)

// want tells whether err is of a kind, for a reason, about a field; the kind "" is no error.
func want(t *testing.T, err error, kind sdn.Kind, reason sdn.Reason, field string) {
	t.Helper()
	is := map[sdn.Kind]func(error) bool{
		"": func(err error) bool { return err == nil }, sdn.KindConflict: sdn.IsConflict, sdn.KindInvalid: sdn.IsInvalid, sdn.KindNotFound: sdn.IsNotFound,
		sdn.KindDenied: sdn.IsDenied, sdn.KindUnsupported: sdn.IsUnsupported, sdn.KindUnavailable: sdn.IsUnavailable, sdn.KindExhausted: sdn.IsExhausted,
	}[kind]
	if !is(err) || err != nil && (sdn.ReasonOf(err) != reason || field != "" && sdn.FieldOf(err) != field) {
		t.Errorf("got error %v (reason %q, field %q), want %q, reason %q, field %q", err, sdn.ReasonOf(err), sdn.FieldOf(err), kind, reason, field)
	}
}

const (
	subnetWithGateway    = `{"subnet": {"id": "s", "network_id": "n", "cidr": "10.7.0.0/24", "gateway_ip": "10.7.0.1"}}`
	subnetWithoutGateway = `{"subnet": {"id": "s", "network_id": "n", "cidr": "10.7.0.0/24", "gateway_ip": null}}`
	noLeg                = `{"ports": []}`
	leg                  = `{"ports": [{"id": "l", "device_id": "r", "device_owner": "network:router_interface", "fixed_ips": [{"subnet_id": "s", "ip_address": "10.7.0.1"}]}]}`
)

// A router that has the subnet is a 400, or a 409 where two attach at once; so is one that cannot have it. What there is tells.
func TestFinding6RouterHasTheSubnet(t *testing.T) {
	bad := func(message string) says {
		return says{400, neutronError("BadRequest", "Bad router request: "+message)}
	}
	has := bad("Router already has a port on subnet s.")
	taken := says{409, neutronError("IpAddressAlreadyAllocated", "IP address 10.7.0.1 already allocated in subnet s")}
	for name, c := range map[string]struct {
		refusal      says
		legs, subnet string
		addr         netip.Addr
		kind         sdn.Kind
		reason       sdn.Reason
		field        string
	}{
		"attached":                     {has, leg, subnetWithGateway, netip.Addr{}, "", "", ""},
		"attached, address asked for":  {has, leg, subnetWithGateway, netip.MustParseAddr("10.7.0.1"), "", "", ""},
		"attached at once":             {taken, leg, subnetWithGateway, netip.Addr{}, "", "", ""},
		"the gateway is a port's":      {taken, noLeg, subnetWithGateway, netip.Addr{}, sdn.KindConflict, sdn.AddressInUse, ""},
		"no gateway":                   {bad("Subnet for router interface must have a gateway IP."), noLeg, subnetWithoutGateway, netip.Addr{}, sdn.KindInvalid, "", "addr"},
		"overlaps":                     {bad("Cidr 10.7.0.0/24 of subnet s overlaps with cidr 10.7.0.0/16 of subnet o."), noLeg, subnetWithGateway, netip.Addr{}, sdn.KindConflict, sdn.Exists, "subnet"},
		"absent":                       {says{404, neutronError("SubnetNotFound", "Subnet s could not be found.")}, noLeg, subnetWithGateway, netip.Addr{}, sdn.KindNotFound, "", ""},
		"denied":                       {says{403, neutronError("PolicyNotAuthorized", "rule is disallowed by policy")}, noLeg, subnetWithGateway, netip.Addr{}, sdn.KindDenied, "", ""},
		"over quota":                   {says{409, neutronError("OverQuota", "Quota exceeded for resources: ['port'].")}, noLeg, subnetWithGateway, netip.Addr{}, sdn.KindExhausted, sdn.NoQuota, ""},
		"a failure after it was done":  {says{500, neutronError("HTTPInternalServerError", "Request Failed")}, leg, subnetWithGateway, netip.Addr{}, "", "", ""},
		"a failure before it was done": {says{503, ""}, noLeg, subnetWithGateway, netip.Addr{}, sdn.KindUnavailable, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p, s, _ := onScript(t, map[string][]says{
				"PUT /routers/r/add_router_interface": {c.refusal}, "GET /ports": {{200, c.legs}}, "GET /subnets/s": {{200, c.subnet}},
			})
			want(t, p.AttachSubnet(t.Context(), "r", "s", c.addr), c.kind, c.reason, c.field)
			if n := s.count("PUT"); n != 1 {
				t.Errorf("%d requests to attach, want 1", n)
			}
		})
	}
}

// A leg that another call is at the moment giving the router is not to be seen yet, and Neutron's database refuses a second one: it is asked for again.
func TestALegInTheMaking(t *testing.T) {
	making := says{409, neutronError("NeutronDbObjectDuplicateEntry", "Failed to create a duplicate RouterPort: for attribute(s) ['PRIMARY'] with value(s) r-l")}
	made := says{400, neutronError("BadRequest", "Bad router request: Router already has a port on subnet s.")}
	p, s, _ := onScript(t, map[string][]says{
		"GET /subnets/s": {{200, subnetWithGateway}}, "GET /ports": {{200, leg}}, "PUT /routers/r/add_router_interface": {making, made},
	})
	want(t, p.AttachSubnet(t.Context(), "r", "s", netip.Addr{}), "", "", "")
	if n := s.count("PUT"); n != 2 {
		t.Errorf("asked %q, want the leg asked for twice", s.asked)
	}
}

// A port that another call has made to become a leg is that call's to give to the router: it is waited for, and removed only where nothing becomes of it.
func TestALegOfAnotherCall(t *testing.T) {
	const (
		router = `{"router": {"id": "r", "project_id": "p1", "admin_state_up": true}}`
		port   = `{"id": "l", "description": "kuryr/test/router-leg/r/s", "project_id": "p1", "device_id": "", "revision_number": 1, "fixed_ips": [{"subnet_id": "s", "ip_address": "10.7.0.254"}]}`
		other  = `{"id": "l", "description": "kuryr/test/router-leg/r/s", "project_id": "p1", "device_id": "", "revision_number": 1, "fixed_ips": [{"subnet_id": "s", "ip_address": "10.7.0.9"}]}`
		owned  = `{"id": "l", "device_id": "r", "device_owner": "network:router_interface", "revision_number": 2, "fixed_ips": [{"subnet_id": "s", "ip_address": "10.7.0.254"}]}`
	)
	ports := func(list string) says { return says{200, `{"ports": [` + list + `]}`} }
	same, gone := says{200, `{"port": ` + port + `}`}, says{404, neutronError("PortNotFound", "Port l could not be found.")}
	taken := says{409, neutronError("IpAddressAlreadyAllocated", "IP address 10.7.0.254 already allocated in subnet s")}
	made := says{201, `{"port": ` + port + `}`}
	for name, c := range map[string]struct {
		list            []says // of legs, and of ports by the Key, by turns
		look, post, put []says
		kind            sdn.Kind
		reason          sdn.Reason
		posts, puts     int
		removed         bool
	}{
		"becomes a leg": {list: []says{ports(""), ports(""), ports(port), ports(owned)}, look: []says{same, same, {200, `{"port": ` + owned + `}`}},
			post: []says{taken}, posts: 1},
		"goes, and is made here": {list: []says{ports(""), ports(port), ports("")}, look: []says{same, gone}, post: []says{made}, put: []says{{200, `{}`}}, posts: 1, puts: 1},
		"stays, and is made anew": {list: []says{ports(""), ports(port), ports("")}, look: []says{same}, post: []says{made}, put: []says{{200, `{}`}},
			posts: 1, puts: 1, removed: true},
		"is at another address, and becomes a leg": {list: []says{ports(""), ports(other), ports(`{"id": "l", "device_id": "r", "device_owner": "network:router_interface",
			"fixed_ips": [{"subnet_id": "s", "ip_address": "10.7.0.9"}]}`)}, look: []says{gone}, kind: sdn.KindConflict, reason: sdn.Immutable},
		"is taken for one that was left by another": {list: []says{ports(""), ports(""), ports(""), ports(port), ports(owned)}, look: []says{same, {200, `{"port": ` + owned + `}`}},
			post: []says{made, taken}, put: []says{gone}, posts: 1, puts: 1},
	} {
		t.Run(name, func(t *testing.T) {
			p, s, _ := onScript(t, map[string][]says{
				"GET /subnets/s": {{200, subnetWithGateway}}, "GET /routers/r": {{200, router}}, "GET /ports": c.list, "GET /ports/l": c.look,
				"POST /ports": c.post, "PUT /routers/r/add_router_interface": c.put, "DELETE /ports/l": {{204, ""}},
			})
			want(t, p.AttachSubnet(t.Context(), "r", "s", netip.MustParseAddr("10.7.0.254")), c.kind, c.reason, "")
			if posts, puts, removed := s.count("POST"), s.count("PUT"), s.count("DELETE") == 1; posts != c.posts || puts != c.puts || removed != c.removed {
				t.Errorf("asked %q, want %d ports made, %d given to the router, removed %v", s.asked, c.posts, c.puts, c.removed)
			}
		})
	}
	t.Run("there is no time to wait", func(t *testing.T) {
		p, s, _ := onScript(t, map[string][]says{
			"GET /subnets/s": {{200, subnetWithGateway}}, "GET /routers/r": {{200, router}}, "GET /ports": {ports(""), ports(port)},
		})
		p.client.backoff = func(context.Context, int, error) bool { return false }
		want(t, p.AttachSubnet(t.Context(), "r", "s", netip.MustParseAddr("10.7.0.254")), sdn.KindUnavailable, "", "")
		if len(s.asked) != 0 {
			t.Errorf("asked %q, want nothing changed", s.asked)
		}
	})
}

// A leg at an address of its own needs a port. One whose making had no answer may be another call's: it is waited for like that. It goes where the router refuses it.
func TestALegAtAnAddress(t *testing.T) {
	const router = `{"router": {"id": "r", "project_id": "p1", "admin_state_up": true}}`
	const port = `{"id": "l", "description": "kuryr/test/router-leg/r/s", "project_id": "p1", "device_id": "", "fixed_ips": [{"subnet_id": "s", "ip_address": "10.7.0.254"}]}`
	at := netip.MustParseAddr("10.7.0.254")
	answers := func() map[string][]says {
		return map[string][]says{
			"GET /subnets/s": {{200, subnetWithGateway}}, "GET /routers/r": {{200, router}}, "POST /ports": {{201, `{"port": ` + port + `}`}},
			"GET /ports":                          {{200, noLeg}},
			"PUT /routers/r/add_router_interface": {{200, `{}`}}, "DELETE /ports/l": {{204, ""}},
		}
	}
	p, s, proxy := onScript(t, answers())
	proxy.Cut(neutrontest.Call{Method: "POST", Collection: "ports"}, 1)
	s.answers["GET /ports"] = []says{{200, noLeg}, {200, noLeg}, {200, `{"ports": [` + port + `]}`}, {200, noLeg}}
	s.answers["GET /ports/l"] = []says{{200, `{"port": ` + port + `}`}}
	want(t, p.AttachSubnet(t.Context(), "r", "s", at), "", "", "")
	if posts, removed, attaches := s.count("POST"), s.count("DELETE"), s.count("PUT"); posts != 2 || removed != 1 || attaches != 1 {
		t.Errorf("%d ports made, %d removed and %d attached, want 2, 1 and 1: %q", posts, removed, attaches, s.asked)
	}
	p, s, _ = onScript(t, answers())
	s.answers["PUT /routers/r/add_router_interface"] = []says{{400, neutronError("BadRequest", "Cidr 10.7.0.0/24 of subnet s overlaps with cidr 10.7.0.0/16 of subnet o.")}}
	want(t, p.AttachSubnet(t.Context(), "r", "s", at), sdn.KindConflict, sdn.Exists, "subnet")
	if s.count("DELETE /ports/l") != 1 {
		t.Errorf("the port that did not become a leg stays: %q", s.asked)
	}
	p, s, _ = onScript(t, answers())
	s.answers["PUT /routers/r/remove_router_interface"] = []says{{404, neutronError("RouterInterfaceNotFoundForSubnet", "Router r has no interface on subnet s")}}
	s.answers["GET /ports"] = []says{{200, `{"ports": [` + port + `]}`}}
	want(t, p.DetachSubnet(t.Context(), "r", "s"), "", "", "")
	if s.count("DELETE /ports/l") != 1 {
		t.Errorf("the port of a call that did not come to its end stays: %q", s.asked)
	}
}

// What administrators alone may say of a gateway is said only where it is not so already.
func TestGatewayChange(t *testing.T) {
	yes, no := true, false
	on, off := &gatewayWire{Network: "x", SNAT: &yes, Addresses: []fixedIP{{"s", "203.0.113.5"}}}, &gatewayWire{Network: "x", SNAT: &no}
	at := func(a string) []sdn.Address { return []sdn.Address{{Addr: netip.MustParseAddr(a)}} }
	for name, c := range map[string]struct {
		have *gatewayWire
		want sdn.ExternalGateway
		body string // "" is no change
	}{
		"none to none":         {nil, sdn.ExternalGateway{}, ""},
		"taken away":           {on, sdn.ExternalGateway{}, "map[]"},
		"the default":          {nil, sdn.ExternalGateway{Network: "x", SNAT: true}, "{x <nil> []}"},
		"there":                {on, sdn.ExternalGateway{Network: "x", SNAT: true}, ""},
		"there at its address": {on, sdn.ExternalGateway{Network: "x", SNAT: true, Addresses: at("203.0.113.5")}, ""},
		"at another address":   {on, sdn.ExternalGateway{Network: "x", SNAT: true, Addresses: at("203.0.113.6")}, "{x <nil> [{ 203.0.113.6}]}"},
		"another network":      {on, sdn.ExternalGateway{Network: "y", SNAT: true}, "{y <nil> []}"},
		"no translation":       {on, sdn.ExternalGateway{Network: "x"}, "{x false []}"},
		"translation again":    {off, sdn.ExternalGateway{Network: "x", SNAT: true}, "{x true []}"},
	} {
		body, change := gatewayChange(c.have, c.want)
		got := ""
		if change {
			got = fmt.Sprint(body)
			if g, ok := body.(gatewayWire); ok {
				snat := "<nil>"
				if g.SNAT != nil {
					snat = fmt.Sprint(*g.SNAT)
				}
				got = fmt.Sprintf("{%s %s %v}", g.Network, snat, g.Addresses)
			}
		}
		if got != c.body {
			t.Errorf("%s: the body is %q, want %q", name, got, c.body)
		}
	}
}

// A duplicate port forwarding, and much else, is the same 400.
func TestFinding6DuplicateForwarding(t *testing.T) {
	const forward = `{"id": "f", "protocol": "tcp", "external_port": 80, "internal_port": 8080, "internal_port_id": "p", "internal_ip_address": "10.8.0.5"}`
	const others = `{"id": "f", "protocol": "tcp", "external_port": 80, "internal_port": 80, "internal_port_id": "q", "internal_ip_address": "10.8.0.6"}`
	const inRange = `{"id": "f", "protocol": "tcp", "external_port_range": "75:85", "internal_port_range": "75:85", "internal_port_id": "q", "internal_ip_address": "10.8.0.6"}`
	bad := func(message string) says {
		return says{400, neutronError("BadRequest", "Bad port_forwarding request: "+message)}
	}
	collision := bad("There is a port collision with the external_port_range. The following ranges collides: 80:80 and 80:80.")
	for name, c := range map[string]struct {
		refusal says
		after   string // the list when it was refused
		kind    sdn.Kind
		reason  sdn.Reason
		field   string
	}{
		"made by another at once":     {collision, forward, "", "", ""},
		"made, and then it failed":    {says{500, ""}, forward, "", "", ""},
		"the outer port is another's": {collision, others, sdn.KindConflict, sdn.Exists, "forwards[0].external"},
		"in another's range":          {collision, inRange, sdn.KindConflict, sdn.Exists, "forwards[0].external"},
		"the inner port is another's": {bad("There is a port collision with the internal_port_range. The following ranges collides: 8080:8080 and 8080:8080."), "", sdn.KindConflict, sdn.Exists, "forwards[0].internal"},
		"no way":                      {bad("External network x is not reachable from subnet s. Cannot set Port forwarding for port p with Floating IP fip"), "", sdn.KindNotFound, "", ""},
		"another router":              {bad("The Floating IP fip had been set on router r, the internal Neutron port p can not reach it"), "", sdn.KindConflict, sdn.InUse, ""},
		"associated":                  {says{409, neutronError("FloatingIPPortAlreadyAssociated", "Cannot associate floating IP 203.0.113.5 (fip) with port p")}, "", sdn.KindConflict, sdn.InUse, ""},
		"its port is associated":      {says{409, neutronError("PortHasBindingFloatingIP", "that port already has a binding floating IP.")}, "", sdn.KindConflict, sdn.InUse, ""},
	} {
		t.Run(name, func(t *testing.T) {
			list := "GET /floatingips/fip/port_forwardings"
			p, s, _ := onScript(t, map[string][]says{
				list:                                     {{200, `{"port_forwardings": []}`}, {200, `{"port_forwardings": [` + c.after + `]}`}},
				"GET /ports":                             {{200, `{"ports": [{"id": "p", "fixed_ips": [{"subnet_id": "s", "ip_address": "10.8.0.5"}]}]}`}},
				"POST /floatingips/fip/port_forwardings": {c.refusal},
			}, "floating-ip-port-forwarding")
			got, err := p.EnsureForwards(t.Context(), "fip", []sdn.Forward{{
				Protocol: sdn.TCP, External: sdn.PortRange{First: 80}, Internal: sdn.PortRange{First: 8080}, Target: sdn.Target{Port: "p"},
			}})
			want(t, err, c.kind, c.reason, c.field)
			if err == nil && got[0].ID != "f" {
				t.Errorf("the id is %q, want that of the one that is there", got[0].ID)
			}
			if n := s.count("POST"); n != 1 {
				t.Errorf("%d requests to make it, want 1", n)
			}
		})
	}
}

// A rule with an address group opens the port to everyone on ML2/OVN before 26, under the same aliases: nothing is sent.
func TestFinding9AddressGroupsBefore26(t *testing.T) {
	before := []string{"address-group", "security-groups-remote-address-group", "quota-check-limit", "stateful-security-group"}
	p, s, _ := onScript(t, nil, before...)
	_, err := p.ApplyAddressGroup(t.Context(), sdn.AddressGroupSpec{Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
	want(t, err, sdn.KindUnsupported, "", "")
	_, err = p.ApplySecurityGroup(t.Context(), sdn.SecurityGroupSpec{Rules: []sdn.Rule{{Direction: sdn.Ingress, RemoteSet: "a"}}})
	want(t, err, sdn.KindUnsupported, "", "")
	if len(s.asked) != 0 {
		t.Errorf("asked for %q", s.asked)
	}
	p, s, _ = onScript(t, map[string][]says{"POST /address-groups": {{201, `{"address_group": {"id": "a", "addresses": ["10.0.0.0/8"]}}`}}},
		append(before, "quota-check-limit-default")...)
	_, err = p.ApplyAddressGroup(t.Context(), sdn.AddressGroupSpec{Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
	want(t, err, "", "", "")
	if n := s.count("POST"); n != 1 {
		t.Errorf("%d groups made, want 1", n)
	}
}

// Error types of these nouns, with the statuses they were seen with.
func TestErrorTypesOfRoutersAndGroups(t *testing.T) {
	for _, c := range []struct {
		status int
		kind   string
		is     sdn.Kind
		reason sdn.Reason
	}{
		{409, "RouterInUse", sdn.KindConflict, sdn.InUse},
		{409, "RouterInterfaceInUseByFloatingIP", sdn.KindConflict, sdn.InUse},
		{409, "RouterInterfaceInUseByRoute", sdn.KindConflict, sdn.InUse},
		{409, "RouterExternalGatewayInUseByFloatingIp", sdn.KindConflict, sdn.InUse},
		{400, "InvalidRoutes", sdn.KindInvalid, ""},
		{404, "ExternalGatewayForFloatingIPNotFound", sdn.KindNotFound, ""},
		{409, "FloatingIPPortAlreadyAssociated", sdn.KindConflict, sdn.Exists},
		{409, "FipInUseByPortForwarding", sdn.KindConflict, sdn.InUse},
		{409, "PortHasBindingFloatingIP", sdn.KindConflict, sdn.InUse},
		{400, "PortHasPortForwarding", sdn.KindConflict, sdn.InUse},
		{409, "ExternalIpAddressExhausted", sdn.KindExhausted, sdn.NoAddresses},
		{409, "SecurityGroupInUse", sdn.KindConflict, sdn.InUse},
		{409, "SecurityGroupRuleExists", sdn.KindConflict, sdn.Exists},
		{409, "SecurityGroupDefaultAlreadyExists", sdn.KindConflict, sdn.Exists},
		{409, "AddressGroupInUse", sdn.KindConflict, sdn.InUse},
		{409, "QosPolicyInUse", sdn.KindConflict, sdn.InUse},
		{409, "QoSRulesConflict", sdn.KindConflict, sdn.Exists},
		{409, "QosRuleNotSupported", sdn.KindUnsupported, ""},
		{403, "PolicyNotAuthorized", sdn.KindDenied, ""},
		{404, "HTTPNotFound", sdn.KindUnsupported, ""}, // no such path: the extension is not loaded
		{412, "RevisionNumberConstraintFailed", sdn.KindConflict, sdn.Stale},
		{409, "OverQuota", sdn.KindExhausted, sdn.NoQuota},
	} {
		kind, reason, _ := classify(c.status, fault{Type: c.kind, Message: "words", neutron: true})
		if kind != c.is || reason != c.reason {
			t.Errorf("%d %s is %q (%s), want %q (%s)", c.status, c.kind, kind, reason, c.is, c.reason)
		}
	}
}

// Neutron deletes no floating IP that forwards: its forwardings go first.
func TestDeleteAForwardingFloatingIP(t *testing.T) {
	p, s, _ := onScript(t, map[string][]says{
		"DELETE /floatingips/fip":                    {{409, neutronError("FipInUseByPortForwarding", "Floating IP fip in use by Port Forwarding resources.")}, {204, ""}},
		"GET /floatingips/fip/port_forwardings":      {{200, `{"port_forwardings": [{"id": "f", "protocol": "tcp", "external_port": 80}]}`}},
		"DELETE /floatingips/fip/port_forwardings/f": {{204, ""}},
	})
	want(t, p.DeleteFloatingIP(t.Context(), "fip"), "", "", "")
	if n := s.count("DELETE"); n != 3 {
		t.Errorf("asked for %q", s.asked)
	}
}

// A Neutron without port forwardings has none to delete.
func TestDeleteForwardsOfNone(t *testing.T) {
	p, _, _ := onScript(t, map[string][]says{
		"DELETE /floatingips/fip/port_forwardings/f": {{404, neutronError("HTTPNotFound", "The resource could not be found.")}},
	})
	want(t, p.DeleteForwards(t.Context(), "fip", []sdn.ID{"f"}), "", "", "")
}

// Addresses that another takes away as often as they are added are not said to be there.
func TestAddressesThatOthersTakeAway(t *testing.T) {
	p, s, _ := onScript(t, map[string][]says{
		"GET /address-groups/a":               {{200, `{"address_group": {"id": "a", "addresses": []}}`}},
		"PUT /address-groups/a/add_addresses": {{200, `{"address_group": {"id": "a", "addresses": ["10.0.0.0/8"]}}`}},
	}, "address-group", "security-groups-remote-address-group", "quota-check-limit-default")
	_, err := p.ApplyAddressGroup(t.Context(), sdn.AddressGroupSpec{ID: "a", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
	want(t, err, sdn.KindConflict, sdn.Stale, "prefixes")
	if n := s.count("PUT"); n != maxRaces {
		t.Errorf("it was tried %d times", n)
	}
}

package neutronapi

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// routed makes a network of a project whose subnet a router leads outside, with a port on it.
func (w *world) routed(t *testing.T, c Caller, cidr string) (network, port string) {
	t.Helper()
	network, subnet := w.wired(t, c, cidr)
	router := w.do(t, c, "POST", "routers", `{"router": {"external_gateway_info": {"network_id": "`+w.outside()+`"}}}`, 201, "", "router")["id"].(string)
	w.do(t, c, "PUT", "routers/"+router+"/add_router_interface", `{"subnet_id": "`+subnet+`"}`, 200, "", "")
	return network, w.madePort(t, c, network, "")
}

func (w *world) outside() string { return string(w.sdn.Capabilities().ExternalNetwork) }

// floating is the body of a floating IP.
func (w *world) floating(more string) string {
	return fmt.Sprintf(`{"floatingip": {"floating_network_id": %q%s}}`, w.outside(), more)
}

func TestFloatingIPs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	network, port := w.routed(t, alice, "10.9.0.0/24")
	address := w.do(t, alice, "GET", "ports/"+port, "", 200, "", "port")["fixed_ips"].([]any)[0].(map[string]any)["ip_address"].(string)
	made := w.do(t, alice, "POST", "floatingips", w.floating(`, "description": "d", "floating_ip_address": null, "port_id": null, "fixed_ip_address": null`), 201, "", "floatingip")
	shows(t, made, `{"port_id": null, "fixed_ip_address": null, "router_id": null, "status": "DOWN", "description": "d", "project_id": "alice", "floating_network_id": "`+w.outside()+`"}`)
	path := "floatingips/" + made["id"].(string)
	led := w.do(t, alice, "PUT", path, `{"floatingip": {"port_id": "`+port+`"}}`, 200, "", "floatingip")
	shows(t, led, `{"port_id": "`+port+`", "fixed_ip_address": "`+address+`", "status": "ACTIVE"}`)
	if led["router_id"] == nil {
		t.Error("it does not tell by which router")
	}
	shows(t, w.do(t, alice, "PUT", path, `{"floatingip": {"description": "e"}}`, 200, "", "floatingip"), `{"port_id": "`+port+`", "description": "e"}`)
	if all := w.found(t, alice, "floatingips?port_id="+port+"&status=ACTIVE", "floatingips"); len(all) != 1 {
		t.Errorf("listed by its port: %v", all)
	}
	second := w.do(t, alice, "POST", "floatingips", w.floating(""), 201, "", "floatingip")["id"].(string)
	lonely, _ := w.wired(t, alice, "10.8.0.0/24")
	unreached := w.madePort(t, alice, lonely, "")
	both := w.madePort(t, alice, network, `, "fixed_ips": [{"ip_address": "10.9.0.50"}, {"ip_address": "10.9.0.51"}]`)
	bare := w.madePort(t, alice, network, `, "fixed_ips": []`)
	hisNetwork, _ := w.wired(t, bob, "10.7.0.0/24")
	his := w.madePort(t, bob, hisNetwork, "")
	to := func(port, more string) string { return `{"floatingip": {"port_id": "` + port + `"` + more + `}}` }
	refused{
		{"an address that has one", alice, "PUT", "floatingips/" + second, to(port, ""), 409, "FloatingIPPortAlreadyAssociated"},
		{"a port that no router reaches", alice, "PUT", "floatingips/" + second, to(unreached, ""), 404, "ExternalGatewayForFloatingIPNotFound"},
		{"the same at creation", alice, "POST", "floatingips", w.floating(`, "port_id": "` + unreached + `"`), 404, "ExternalGatewayForFloatingIPNotFound"},
		{"one of two addresses", alice, "PUT", "floatingips/" + second, to(both, ""), 400, "BadRequest"},
		{"an address of another", alice, "PUT", "floatingips/" + second, to(both, `, "fixed_ip_address": "10.9.0.52"`), 400, "BadRequest"},
		{"an address of none", alice, "PUT", "floatingips/" + second, `{"floatingip": {"fixed_ip_address": "10.9.0.50"}}`, 400, "BadRequest"},
		{"a port without an address", alice, "PUT", "floatingips/" + second, to(bare, ""), 400, "BadRequest"},
		{"no port", alice, "PUT", "floatingips/" + second, to("none", ""), 404, "PortNotFound"},
		{"another's port", alice, "PUT", "floatingips/" + second, to(his, ""), 404, "PortNotFound"},
		{"a network inside", alice, "POST", "floatingips", `{"floatingip": {"floating_network_id": "` + network + `"}}`, 400, "BadRequest"},
		{"no network", alice, "POST", "floatingips", `{"floatingip": {}}`, 400, "HTTPBadRequest"},
		{"its address by a member", alice, "POST", "floatingips", w.floating(`, "floating_ip_address": "203.0.113.9"`), 403, "PolicyNotAuthorized"},
		{"the host's by a member", alice, "POST", "floatingips", w.floating(`, "kuryr:of_host": true`), 403, "PolicyNotAuthorized"},
		{"a name in DNS", alice, "POST", "floatingips", w.floating(`, "dns_name": "x"`), 400, "HTTPBadRequest"},
		{"another network", alice, "PUT", path, `{"floatingip": {"floating_network_id": "x"}}`, 400, "HTTPBadRequest"},
		{"another's", bob, "GET", path, "", 404, "FloatingIPNotFound"},
	}.run(t, w)
	shows(t, w.do(t, alice, "PUT", "floatingips/"+second, to(both, `, "fixed_ip_address": "10.9.0.51"`), 200, "", "floatingip"), `{"fixed_ip_address": "10.9.0.51"}`)
	shows(t, w.do(t, alice, "PUT", path, `{"floatingip": {"port_id": null}}`, 200, "", "floatingip"), `{"port_id": null, "fixed_ip_address": null, "router_id": null}`)
	w.do(t, alice, "DELETE", path, "", 204, "", "")
	w.do(t, alice, "DELETE", path, "", 404, "FloatingIPNotFound", "")
}

// Who owns a shared network sees the ports that others have on it, and leads nothing to them.
func TestForeignPortOnOwnNetwork(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	network := w.do(t, root, "POST", "networks", `{"network": {"project_id": "alice", "shared": true}}`, 201, "", "network")["id"].(string)
	w.do(t, alice, "POST", "subnets", `{"subnet": {"network_id": "`+network+`", "ip_version": 4, "cidr": "10.9.0.0/24"}}`, 201, "", "subnet")
	his := w.madePort(t, bob, network, "")
	w.do(t, alice, "GET", "ports/"+his, "", 200, "", "port")
	fip := w.do(t, alice, "POST", "floatingips", w.floating(""), 201, "", "floatingip")["id"].(string)
	refused{
		{"a floating IP", alice, "POST", "floatingips", w.floating(`, "port_id": "` + his + `"`), 400, "BadRequest"},
		{"changed", alice, "PUT", "floatingips/" + fip, `{"floatingip": {"port_id": "` + his + `"}}`, 400, "BadRequest"},
		{"a forwarding", alice, "POST", "floatingips/" + fip + "/port_forwardings",
			`{"port_forwarding": {"protocol": "tcp", "external_port": 1, "internal_port": 1, "internal_port_id": "` + his + `"}}`, 400, "BadRequest"},
	}.run(t, w)
}

func TestFloatingIPAddresses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	outside := w.do(t, root, "POST", "networks", `{"network": {"router:external": true}}`, 201, "", "network")["id"].(string)
	floating := func(more string) string {
		return fmt.Sprintf(`{"floatingip": {"floating_network_id": %q%s}}`, outside, more)
	}
	subnet := w.do(t, root, "POST", "subnets", `{"subnet": {"network_id": "`+outside+`", "ip_version": 4, "cidr": "203.0.113.0/29"}}`, 201, "", "subnet")["id"].(string)
	chosen := w.do(t, root, "POST", "floatingips", floating(`, "floating_ip_address": "203.0.113.2"`), 201, "", "floatingip")
	shows(t, chosen, `{"floating_ip_address": "203.0.113.2"}`)
	var got []string
	for range 4 {
		got = append(got, w.do(t, alice, "POST", "floatingips", floating(`, "subnet_id": "`+subnet+`"`), 201, "", "floatingip")["floating_ip_address"].(string))
	}
	if want := []string{"203.0.113.3", "203.0.113.4", "203.0.113.5", "203.0.113.6"}; !slices.Equal(got, want) {
		t.Errorf("of the subnet: %v, want %v", got, want)
	}
	_, inside := w.wired(t, alice, "10.9.0.0/24")
	refused{
		{"a subnet that is full", alice, "POST", "floatingips", floating(`, "subnet_id": "` + subnet + `"`), 409, "IpAddressGenerationFailure"},
		{"an address that is taken", root, "POST", "floatingips", floating(`, "floating_ip_address": "203.0.113.2"`), 409, "IpAddressAlreadyAllocated"},
		{"an address beside the subnet", root, "POST", "floatingips", floating(`, "floating_ip_address": "203.0.113.9", "subnet_id": "` + subnet + `"`), 400, "InvalidIpForSubnet"},
		{"a subnet of another network", alice, "POST", "floatingips", floating(`, "subnet_id": "` + inside + `"`), 400, "InvalidInput"},
		{"no subnet", alice, "POST", "floatingips", floating(`, "subnet_id": "none"`), 404, "SubnetNotFound"},
	}.run(t, w)
	other := w.do(t, root, "POST", "subnets", `{"subnet": {"network_id": "`+outside+`", "ip_version": 4, "cidr": "203.0.113.16/29"}}`, 201, "", "subnet")["id"].(string)
	keyed := func(subnet string) string {
		return floating(`, "description": "kuryr/x/y/z", "subnet_id": "` + subnet + `"`)
	}
	first := w.do(t, root, "POST", "floatingips", keyed(other), 201, "", "floatingip")
	if again := w.do(t, root, "POST", "floatingips", keyed(other), 201, "", "floatingip"); again["id"] != first["id"] || first["floating_ip_address"] != "203.0.113.18" {
		t.Errorf("of one Key: %v and %v", first, again)
	}
	refused{{"a Key's of another subnet", root, "POST", "floatingips", keyed(subnet), 409, "ImmutableAttribute"}}.run(t, w)
	host := w.do(t, root, "POST", "floatingips", w.floating(`, "floating_ip_address": "127.0.0.9", "kuryr:of_host": true`), 201, "", "floatingip")
	shows(t, host, `{"floating_ip_address": "127.0.0.9"}`)
}

func TestPortForwardingsWritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	network, port := w.routed(t, alice, "10.9.0.0/24")
	other := w.madePort(t, alice, network, `, "fixed_ips": [{"ip_address": "10.9.0.50"}]`)
	fip := w.do(t, alice, "POST", "floatingips", w.floating(""), 201, "", "floatingip")["id"].(string)
	all := "floatingips/" + fip + "/port_forwardings"
	body := func(port, more string) string {
		return `{"port_forwarding": {"protocol": "tcp", "internal_port_id": "` + port + `"` + more + `}}`
	}
	made := w.do(t, alice, "POST", all, body(port, `, "external_port": 8088, "internal_port": "80", "internal_ip_address": null`), 201, "", "port_forwarding")
	shows(t, made, `{"protocol": "tcp", "external_port": 8088, "internal_port": 80, "external_port_range": "8088:8088", "internal_port_range": "80:80", "internal_port_id": "`+port+`"}`)
	ranged := w.do(t, alice, "POST", all, body(other, `, "external_port_range": "9000:9010", "internal_port_range": "90:100", "internal_ip_address": "10.9.0.50"`), 201, "", "port_forwarding")
	shows(t, ranged, `{"external_port": null, "internal_port": null, "external_port_range": "9000:9010", "internal_port_range": "90:100", "internal_ip_address": "10.9.0.50"}`)
	if got := len(w.found(t, alice, all, "port_forwardings")); got != 2 {
		t.Errorf("%d are listed", got)
	}
	if got := w.found(t, alice, all+"?external_port=8088&protocol=tcp", "port_forwardings"); len(got) != 1 || got[0]["id"] != made["id"] {
		t.Errorf("by the outer port: %v", got)
	}
	if got := w.found(t, alice, all+"?internal_port_id="+other, "port_forwardings"); len(got) != 1 || got[0]["id"] != ranged["id"] {
		t.Errorf("by the port: %v", got)
	}
	one := all + "/" + made["id"].(string)
	changed := w.do(t, alice, "PUT", one, `{"port_forwarding": {"external_port": 8089, "internal_port_id": "`+other+`"}}`, 200, "", "port_forwarding")
	shows(t, changed, `{"id": "`+made["id"].(string)+`", "external_port": 8089, "internal_port": 80, "internal_port_id": "`+other+`", "internal_ip_address": "10.9.0.50"}`)
	shows(t, w.do(t, alice, "PUT", one, `{"port_forwarding": {"protocol": "udp"}}`, 200, "", "port_forwarding"), `{"protocol": "udp", "external_port": 8089}`)
	shows(t, w.do(t, alice, "GET", one, "", 200, "", "port_forwarding"), `{"protocol": "udp", "internal_port_id": "`+other+`"}`)
	lonely, _ := w.wired(t, alice, "10.8.0.0/24")
	unreached := w.madePort(t, alice, lonely, "")
	_, elsewhere := w.routed(t, alice, "10.7.0.0/24")
	associated := w.do(t, alice, "POST", "floatingips", w.floating(`, "port_id": "`+port+`"`), 201, "", "floatingip")["id"].(string)
	const ports = `, "external_port": 1, "internal_port": 1`
	refused{
		{"outer ports of another", alice, "POST", all, body(port, `, "external_port": 9005, "internal_port": 1`), 400, "BadRequest"},
		{"the same again", alice, "POST", all, body(other, `, "external_port_range": "9000:9010", "internal_port_range": "90:100"`), 400, "BadRequest"},
		{"changed to another's", alice, "PUT", all + "/" + ranged["id"].(string), `{"port_forwarding": {"protocol": "udp", "external_port_range": "8089:8099"}}`, 400, "BadRequest"},
		{"ranges of two lengths", alice, "POST", all, body(port, `, "external_port_range": "1:3", "internal_port_range": "1:2"`), 400, "BadRequest"},
		{"no outer port", alice, "POST", all, body(port, `, "internal_port": 1`), 400, "BadRequest"},
		{"port 0", alice, "POST", all, body(port, `, "external_port": 0, "internal_port": 1`), 400, "HTTPBadRequest"},
		{"a range backwards", alice, "POST", all, body(port, `, "external_port_range": "3:1", "internal_port": 1`), 400, "HTTPBadRequest"},
		{"no protocol with ports", alice, "POST", all, `{"port_forwarding": {"protocol": "gre", "internal_port_id": "` + port + `"` + ports + `}}`, 400, "InvalidInput"},
		{"without a protocol", alice, "POST", all, `{"port_forwarding": {"internal_port_id": "` + port + `"` + ports + `}}`, 400, "HTTPBadRequest"},
		{"an address of another", alice, "POST", all, body(port, ports+`, "internal_ip_address": "10.9.0.99"`), 400, "BadRequest"},
		{"no port", alice, "POST", all, body("none", ports), 404, "PortNotFound"},
		{"a port that no router reaches", alice, "POST", all, body(unreached, ports), 400, "BadRequest"},
		{"a port behind another router", alice, "POST", all, body(elsewhere, ports), 400, "BadRequest"},
		{"an associated floating IP", alice, "POST", "floatingips/" + associated + "/port_forwardings", body(other, ports), 409, "FloatingIPPortAlreadyAssociated"},
		{"a floating IP that is not there", alice, "POST", "floatingips/none/port_forwardings", body(port, ports), 404, "FloatingIPNotFound"},
		{"another's floating IP", bob, "GET", all, "", 404, "FloatingIPNotFound"},
		{"none of its forwardings", alice, "GET", "floatingips/" + associated + "/port_forwardings/" + made["id"].(string), "", 404, "PortForwardingNotFound"},
		{"a reader", guest, "POST", all, body(port, ports), 403, "PolicyNotAuthorized"},
		{"associated meanwhile", alice, "PUT", "floatingips/" + fip, `{"floatingip": {"port_id": "` + other + `"}}`, 409, "FipInUseByPortForwarding"},
		{"its floating IP deleted", alice, "DELETE", "floatingips/" + fip, "", 409, "FipInUseByPortForwarding"},
	}.run(t, w)
	if said := w.do(t, alice, "POST", all, body(unreached, ports), 400, "BadRequest", "")["NeutronError"].(map[string]any)["message"].(string); !strings.Contains(said, "is not reachable from") {
		t.Errorf("who is not reached is told %q", said)
	}
	shows(t, w.do(t, alice, "GET", all+"/"+ranged["id"].(string), "", 200, "", "port_forwarding"), `{"protocol": "tcp", "external_port_range": "9000:9010"}`)
	w.do(t, alice, "DELETE", one, "", 204, "", "")
	w.do(t, alice, "DELETE", one, "", 404, "PortForwardingNotFound", "")
	w.do(t, alice, "DELETE", all+"/"+ranged["id"].(string), "", 204, "", "")
	w.do(t, alice, "DELETE", "floatingips/"+fip, "", 204, "", "")
}

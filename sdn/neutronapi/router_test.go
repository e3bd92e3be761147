package neutronapi

import (
	"fmt"
	"testing"
)

func TestRouters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	outside := string(w.sdn.Capabilities().ExternalNetwork)
	made := w.do(t, alice, "POST", "routers", `{"router": {"name": "r", "admin_state_up": true, "external_gateway_info": {"network_id": "`+outside+`"}}}`, 201, "", "router")
	shows(t, made, `{"name": "r", "status": "ACTIVE", "admin_state_up": true, "routes": [], "project_id": "alice", "availability_zones": []}`)
	gateway := made["external_gateway_info"].(map[string]any)
	shows(t, gateway, `{"network_id": "`+outside+`", "enable_snat": true}`)
	if len(gateway["external_fixed_ips"].([]any)) == 0 {
		t.Errorf("the gateway has no address: %v", gateway)
	}
	if _, seen := made["ha"]; seen {
		t.Error("a member sees an attribute of administrators")
	}
	path := "routers/" + made["id"].(string)
	shows(t, w.do(t, alice, "PUT", path, `{"router": {"name": "s", "external_gateway_info": {"network_id": "`+outside+`"}}}`, 200, "", "router"), `{"name": "s"}`)
	shows(t, w.do(t, alice, "PUT", path, `{"router": {"external_gateway_info": {}}}`, 200, "", "router"), `{"external_gateway_info": null, "name": "s"}`)
	snat := w.do(t, root, "PUT", path, `{"router": {"external_gateway_info": {"network_id": "`+outside+`", "enable_snat": false}}}`, 200, "", "router")["external_gateway_info"].(map[string]any)
	shows(t, snat, `{"enable_snat": false}`)
	subnet := snat["external_fixed_ips"].([]any)[0].(map[string]any)["subnet_id"].(string)
	snat = w.do(t, root, "PUT", path, `{"router": {"external_gateway_info": {"network_id": "`+outside+`", "external_fixed_ips": [{"subnet_id": "`+subnet+`"}]}}}`, 200, "", "router")["external_gateway_info"].(map[string]any)
	shows(t, snat, `{"enable_snat": true}`)
	shows(t, w.do(t, alice, "PUT", path, `{"router": {"external_gateway_info": null}}`, 200, "", "router"), `{"external_gateway_info": null}`)
	inside, _ := w.wired(t, alice, "10.9.0.0/24")
	gw := func(network, more string) string {
		return `{"router": {"external_gateway_info": {"network_id": "` + network + `"` + more + `}}}`
	}
	refused{
		{"a gateway on a network inside", alice, "PUT", path, gw(inside, ""), 400, "BadRequest"},
		{"on none", alice, "PUT", path, gw("none", ""), 404, "NetworkNotFound"},
		{"without a network", alice, "PUT", path, `{"router": {"external_gateway_info": {"enable_snat": true}}}`, 400, "HTTPBadRequest"},
		{"with what it has not", root, "PUT", path, gw(outside, `, "color": 1`), 400, "HTTPBadRequest"},
		{"translation chosen by a member", alice, "PUT", path, gw(outside, `, "enable_snat": true`), 403, "PolicyNotAuthorized"},
		{"an address chosen by a member", alice, "POST", "routers", gw(outside, `, "external_fixed_ips": []`), 403, "PolicyNotAuthorized"},
		{"routes at once", alice, "POST", "routers", `{"router": {"routes": []}}`, 400, "HTTPBadRequest"},
		{"highly available", root, "POST", "routers", `{"router": {"ha": true}}`, 400, "HTTPBadRequest"},
		{"distributed by a member", alice, "POST", "routers", `{"router": {"distributed": true}}`, 403, "PolicyNotAuthorized"},
		{"a flavor", alice, "POST", "routers", `{"router": {"flavor_id": "f"}}`, 400, "HTTPBadRequest"},
		{"a zone", alice, "POST", "routers", `{"router": {"availability_zone_hints": ["z"]}}`, 400, "HTTPBadRequest"},
		{"another's", bob, "GET", path, "", 404, "RouterNotFound"},
		{"with a leg", root, "DELETE", "routers/" + string(w.router.ID), "", 409, "RouterInUse"},
	}.run(t, w)
	w.do(t, alice, "DELETE", path, "", 204, "", "")
	w.do(t, alice, "DELETE", path, "", 404, "RouterNotFound", "")
}

func TestRouterLegs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	network, subnet := w.wired(t, alice, "10.9.0.0/24")
	six := w.do(t, alice, "POST", "subnets", `{"subnet": {"network_id": "`+network+`", "ip_version": 6, "cidr": "2001:db8:9::/64"}}`, 201, "", "subnet")["id"].(string)
	_, overlaps := w.wired(t, alice, "10.9.0.0/25")
	bare := w.do(t, alice, "POST", "subnets", `{"subnet": {"network_id": "`+network+`", "ip_version": 4, "cidr": "10.8.0.0/24", "gateway_ip": null}}`, 201, "", "subnet")["id"].(string)
	id := w.do(t, alice, "POST", "routers", `{"router": {"name": "r"}}`, 201, "", "router")["id"].(string)
	add, remove := "routers/"+id+"/add_router_interface", "routers/"+id+"/remove_router_interface"
	by := func(what, id string) string { return fmt.Sprintf(`{"%s_id": %q}`, what, id) }
	leg := w.do(t, alice, "PUT", add, by("subnet", subnet), 200, "", "")
	shows(t, leg, `{"id": "`+id+`", "network_id": "`+network+`", "subnet_id": "`+subnet+`", "subnet_ids": ["`+subnet+`"], "tenant_id": "alice", "project_id": "alice"}`)
	port := leg["port_id"].(string)
	shows(t, w.do(t, alice, "GET", "ports/"+port, "", 200, "", "port"), `{"device_id": "`+id+`", "device_owner": "network:router_interface"}`)
	taken := w.madePort(t, alice, network, `, "device_id": "vm"`)
	foreign, _ := w.wired(t, bob, "10.7.0.0/24")
	his := w.madePort(t, bob, foreign, "")
	refused{
		{"again", alice, "PUT", add, by("subnet", subnet), 400, "BadRequest"},
		{"overlapping", alice, "PUT", add, by("subnet", overlaps), 400, "BadRequest"},
		{"without a gateway address", alice, "PUT", add, by("subnet", bare), 400, "BadRequest"},
		{"nothing", alice, "PUT", add, `{}`, 400, "BadRequest"},
		{"both", alice, "PUT", add, `{"subnet_id": "a", "port_id": "b"}`, 400, "BadRequest"},
		{"something else", alice, "PUT", add, `{"network_id": "a"}`, 400, "HTTPBadRequest"},
		{"no subnet", alice, "PUT", add, by("subnet", "none"), 404, "SubnetNotFound"},
		{"no port", alice, "PUT", add, by("port", "none"), 404, "PortNotFound"},
		{"another's port", alice, "PUT", add, by("port", his), 404, "PortNotFound"},
		{"a port in use", alice, "PUT", add, by("port", taken), 409, "PortInUse"},
		{"another's router", bob, "PUT", add, by("subnet", subnet), 404, "RouterNotFound"},
		{"a reader", guest, "PUT", add, by("subnet", subnet), 403, "PolicyNotAuthorized"},
		{"with the wrong subnet", alice, "PUT", remove, `{"subnet_id": "` + six + `", "port_id": "` + port + `"}`, 400, "SubnetMismatchForPort"},
		{"a leg that it has not", alice, "PUT", remove, by("subnet", six), 404, "RouterInterfaceNotFoundForSubnet"},
		{"a port that is none", alice, "PUT", remove, by("port", taken), 404, "RouterInterfaceNotFound"},
		{"the router", alice, "DELETE", "routers/" + id, "", 409, "RouterInUse"},
		{"the leg's port", alice, "DELETE", "ports/" + port, "", 409, "ServicePortInUse"},
	}.run(t, w)
	w.do(t, alice, "PUT", "routers/"+id, `{"router": {"routes": [{"destination": "172.16.0.0/16", "nexthop": "10.9.0.9"}]}}`, 200, "", "router")
	w.do(t, alice, "PUT", remove, by("subnet", subnet), 409, "RouterInterfaceInUseByRoute", "")
	w.do(t, alice, "PUT", "routers/"+id, `{"router": {"external_gateway_info": {"network_id": "`+w.outside()+`"}}}`, 200, "", "router")
	inside := w.madePort(t, alice, network, `, "fixed_ips": [{"subnet_id": "`+subnet+`"}]`)
	fip := w.do(t, alice, "POST", "floatingips", w.floating(`, "port_id": "`+inside+`"`), 201, "", "floatingip")["id"].(string)
	w.do(t, alice, "PUT", remove, by("subnet", subnet), 409, "RouterInterfaceInUseByFloatingIP", "")
	w.do(t, alice, "PUT", "routers/"+id, `{"router": {"external_gateway_info": {}}}`, 409, "RouterExternalGatewayInUseByFloatingIp", "")
	w.do(t, alice, "DELETE", "floatingips/"+fip, "", 204, "", "")
	w.do(t, alice, "PUT", "routers/"+id, `{"router": {"routes": null}}`, 200, "", "router")
	gone := w.do(t, alice, "PUT", remove, by("port", port), 200, "", "")
	shows(t, gone, `{"port_id": "`+port+`", "subnet_id": "`+subnet+`", "network_id": "`+network+`"}`)
	w.do(t, alice, "GET", "ports/"+port, "", 404, "PortNotFound", "")
}

func TestRouterLegByPort(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	network, subnet := w.wired(t, alice, "10.9.0.0/24")
	port := w.madePort(t, alice, network, `, "fixed_ips": [{"ip_address": "10.9.0.77"}]`)
	none := w.madePort(t, alice, network, `, "fixed_ips": []`)
	id := w.do(t, alice, "POST", "routers", `{"router": {"name": "r"}}`, 201, "", "router")["id"].(string)
	add := "routers/" + id + "/add_router_interface"
	w.do(t, alice, "PUT", add, `{"port_id": "`+none+`"}`, 400, "BadRequest", "")
	leg := w.do(t, alice, "PUT", add, `{"port_id": "`+port+`"}`, 200, "", "")
	shows(t, leg, `{"port_id": "`+port+`", "subnet_id": "`+subnet+`"}`)
	interfaces := w.do(t, alice, "GET", "routers/"+id, "", 200, "", "router")["interfaces_info"].([]any)
	shows(t, interfaces[0].(map[string]any), `{"ip_address": "10.9.0.77", "port_id": "`+port+`"}`)
	w.do(t, alice, "PUT", "routers/"+id+"/remove_router_interface", `{"subnet_id": "`+subnet+`"}`, 200, "", "")
}

func TestProviderWithoutExtras(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.handler = NewHandler(plain{w.sdn}, Options{})
	network, _ := w.wired(t, alice, "10.9.0.0/24")
	port := w.madePort(t, alice, network, "")
	id := w.do(t, alice, "POST", "routers", `{"router": {"name": "r"}}`, 201, "", "router")["id"].(string)
	group := w.do(t, alice, "POST", "security-groups", `{"security_group": {"name": "a", "description": "d"}}`, 201, "", "security_group")["id"].(string)
	refused{
		{"a description taken away", alice, "PUT", "security-groups/" + group, `{"security_group": {"description": ""}}`, 501, "HTTPNotImplemented"},
		{"a leg by port", alice, "PUT", "routers/" + id + "/add_router_interface", `{"port_id": "` + port + `"}`, 501, "HTTPNotImplemented"},
		{"a forwarding changed", root, "PUT", "floatingips/" + string(w.fip.ID) + "/port_forwardings/" + w.found(t, root, "floatingips/"+string(w.fip.ID)+"/port_forwardings", "port_forwardings")[0]["id"].(string),
			`{"port_forwarding": {"protocol": "sctp"}}`, 501, "HTTPNotImplemented"},
	}.run(t, w)
	shows(t, w.do(t, alice, "GET", "ports/"+port, "", 200, "", "port"), `{"device_id": ""}`)
}

func TestExtraRoutes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, subnet := w.wired(t, alice, "10.9.0.0/24")
	id := w.do(t, alice, "POST", "routers", `{"router": {"name": "r"}}`, 201, "", "router")["id"].(string)
	path := "routers/" + id
	w.do(t, alice, "PUT", path+"/add_router_interface", `{"subnet_id": "`+subnet+`"}`, 200, "", "")
	routes := func(list string) string { return `{"router": {"routes": [` + list + `]}}` }
	const a, b = `{"destination": "172.16.0.0/16", "nexthop": "10.9.0.9"}`, `{"destination": "172.17.0.0/16", "nexthop": "10.9.0.8"}`
	shows(t, w.do(t, alice, "PUT", path+"/add_extraroutes", routes(a), 200, "", "router"), `{"routes": [`+a+`]}`)
	shows(t, w.do(t, alice, "PUT", path+"/add_extraroutes", routes(a+","+b), 200, "", "router"), `{"routes": [`+a+","+b+`]}`)
	shows(t, w.do(t, alice, "PUT", path+"/remove_extraroutes", routes(a+","+a), 200, "", "router"), `{"routes": [`+b+`]}`)
	shows(t, w.do(t, alice, "PUT", path+"/remove_extraroutes", routes(a), 200, "", "router"), `{"routes": [`+b+`]}`)
	many := ""
	for n := range maxRoutes {
		many += fmt.Sprintf(`{"destination": "192.168.%d.0/24", "nexthop": "10.9.0.9"},`, n)
	}
	refused{
		{"a next hop elsewhere", alice, "PUT", path + "/add_extraroutes", routes(`{"destination": "172.18.0.0/16", "nexthop": "10.1.0.9"}`), 400, "InvalidRoutes"},
		{"the router itself", alice, "PUT", path, routes(`{"destination": "172.18.0.0/16", "nexthop": "10.9.0.1"}`), 400, "InvalidRoutes"},
		{"too many", alice, "PUT", path, routes(many + a), 400, "RoutesExhausted"},
		{"no destination", alice, "PUT", path, routes(`{"destination": "x", "nexthop": "10.9.0.9"}`), 400, "HTTPBadRequest"},
		{"half a route", alice, "PUT", path, routes(`{"destination": "172.18.0.0/16"}`), 400, "HTTPBadRequest"},
		{"without the router's name", alice, "PUT", path + "/add_extraroutes", `{"routes": []}`, 400, "HTTPBadRequest"},
		{"another's", bob, "PUT", path + "/add_extraroutes", routes(a), 404, "RouterNotFound"},
		{"more gateways", alice, "PUT", path + "/add_external_gateways", `{}`, 404, "HTTPNotFound"},
	}.run(t, w)
	shows(t, w.do(t, alice, "PUT", path, routes(""), 200, "", "router"), `{"routes": []}`)
}

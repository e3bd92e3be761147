package neutronapi_test

import (
	"fmt"
	"testing"
)

// An action and a change of tags can be made to depend on the revision as a change can: at another one nothing happens.
func TestActionsAtARevision(t *testing.T) {
	t.Parallel()
	a := serveStore(t)
	network := id(a.make("/networks", "network", object{"name": "n"}))
	subnet := id(a.make("/subnets", "subnet", object{"network_id": network, "ip_version": 4, "cidr": "10.0.0.0/24"}))
	router := "/routers/" + id(a.make("/routers", "router", object{"name": "r"}))
	group := "/address-groups/" + id(a.make("/address-groups", "address_group", object{"name": "a"}))
	parent := id(a.make("/ports", "port", object{"network_id": network}))
	child := id(a.make("/ports", "port", object{"network_id": network}))
	trunk := "/trunks/" + id(a.make("/trunks", "trunk", object{"port_id": parent}))
	routes := object{"router": object{"routes": []object{{"destination": "192.0.2.0/24", "nexthop": "10.0.0.9"}}}}
	subports := object{"sub_ports": []object{{"port_id": child, "segmentation_type": "vlan", "segmentation_id": 7}}}
	for _, c := range []struct {
		method, path, action, member string
		body                         object
	}{
		{"PUT", router, "/add_router_interface", "router", object{"subnet_id": subnet}},
		{"PUT", router, "/add_extraroutes", "router", routes},
		{"PUT", router, "/remove_extraroutes", "router", routes},
		{"PUT", router, "/remove_router_interface", "router", object{"subnet_id": subnet}},
		{"PUT", group, "/add_addresses", "address_group", object{"addresses": []string{"192.0.2.1/32"}}},
		{"PUT", group, "/remove_addresses", "address_group", object{"addresses": []string{"192.0.2.1/32"}}},
		{"PUT", trunk, "/add_subports", "trunk", subports},
		{"PUT", trunk, "/remove_subports", "trunk", subports},
		{"PUT", "/networks/" + network, "/tags", "network", object{"tags": []string{"x"}}},
		{"DELETE", "/networks/" + network, "/tags", "network", nil},
	} {
		revision := func() string {
			_, answer := a.ask("GET", c.path, nil)
			return fmt.Sprint(answer[c.member].(object)["revision_number"])
		}
		var body any
		if c.body != nil {
			body = c.body
		}
		was := revision()
		if status, answer := a.ask(c.method, c.path+c.action, body, "If-Match", "revision_number=99999"); status != 412 {
			t.Errorf("%s%s at another revision: %d %v", c.member, c.action, status, answer)
		}
		if now := revision(); now != was {
			t.Errorf("%s%s: refused, the revision went from %s to %s", c.member, c.action, was, now)
		}
		if status, answer := a.ask(c.method, c.path+c.action, body, "If-Match", "revision_number="+was); status < 200 || status > 299 {
			t.Errorf("%s%s at its revision: %d %v", c.member, c.action, status, answer)
		}
	}
}

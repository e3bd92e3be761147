package neutronapi

import "testing"

// Networks, ports and routers are DOWN while they are switched off, and a port while its network is.
func TestAdminStateDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	off := func(member, more string) string { return `{"` + member + `":{"admin_state_up":false` + more + `}}` }
	w.steps(t, root, []step{
		{"POST", "/v2.0/networks", off("network", ""), 201, "network.admin_state_up=false network.status=DOWN"},
		{"POST", "/v2.0/ports", off("port", `,"network_id":"`+string(w.network.ID)+`","binding:host_id":"h"`), 201,
			"port.admin_state_up=false port.status=DOWN"},
		{"POST", "/v2.0/routers", off("router", ""), 201, "router.admin_state_up=false router.status=DOWN"},
		{"PUT", "/v2.0/ports/" + string(w.port.ID), off("port", ""), 200, "port.status=DOWN"},
		{"PUT", "/v2.0/routers/" + string(w.router.ID), off("router", ""), 200, "router.status=DOWN"},
		{"PUT", "/v2.0/networks/" + string(w.network.ID), off("network", ""), 200, "network.status=DOWN"},
		{"PUT", "/v2.0/ports/" + string(w.port.ID), `{"port":{"admin_state_up":true}}`, 200, "port.status=DOWN"},
		{"PUT", "/v2.0/networks/" + string(w.network.ID), `{"network":{"admin_state_up":true}}`, 200, "network.status=ACTIVE"},
		{"GET", "/v2.0/ports/" + string(w.port.ID), "", 200, "port.status=ACTIVE"},
	})
}

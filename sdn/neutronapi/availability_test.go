package neutronapi

import "testing"

func TestAvailability(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	network, subnet := w.wired(t, alice, "10.9.0.0/29")
	w.madePort(t, alice, network, "")
	path := "network-ip-availabilities/" + network
	got := w.do(t, root, "GET", path, "", 200, "", "network_ip_availability")
	shows(t, got, `{"network_id": "`+network+`", "network_name": "n", "project_id": "alice", "total_ips": 5, "used_ips": 1,
		"subnet_ip_availability": [{"subnet_id": "`+subnet+`", "subnet_name": "", "cidr": "10.9.0.0/29", "ip_version": 4, "total_ips": 5, "used_ips": 1}]}`)
	w.do(t, alice, "GET", path, "", 404, "NetworkNotFound", "")
	if all := w.found(t, alice, "network-ip-availabilities", "network_ip_availabilities"); len(all) != 0 {
		t.Errorf("a member is told %v", all)
	}
	if all := w.found(t, root, "network-ip-availabilities?project_id=alice", "network_ip_availabilities"); len(all) != 1 || all[0]["network_id"] != network {
		t.Errorf("of the project: %v", all)
	}
	if all := w.found(t, root, "network-ip-availabilities?ip_version=4&network_name=n", "network_ip_availabilities"); len(all) != 1 {
		t.Errorf("of the family: %v", all)
	}
	if all := w.found(t, root, "network-ip-availabilities?ip_version=6&network_name=n", "network_ip_availabilities"); len(all) != 0 {
		t.Errorf("of the other family: %v", all)
	}
	w.do(t, root, "POST", "network-ip-availabilities", `{}`, 405, "HTTPMethodNotAllowed", "")
}

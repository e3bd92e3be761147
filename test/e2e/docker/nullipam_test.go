//go:build e2e

package docker_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"testing"
)

// sdn sends a request to the Neutron API of the embedded SDN, which must succeed. It returns the
// object in the answer.
func (r rig) sdn(t *testing.T, method, path string, body object) object {
	t.Helper()
	status, text := r.request(t, "/run/kuryr/kuryr.sock", method, "/v2.0/"+path, body)
	answer := map[string]object{}
	if status >= http.StatusBadRequest {
		t.Fatalf("%s %s: status %d: %s", method, path, status, text)
	}
	if len(text) > 0 {
		if err := json.Unmarshal(text, &answer); err != nil {
			t.Fatalf("%s %s: %s: %v", method, path, text, err)
		}
	}
	for _, o := range answer {
		return o
	}
	return nil
}

// existingNetwork creates a network in the SDN, as an operator does, and returns its ID. The
// test deletes it at its end.
func (r rig) existingNetwork(t *testing.T, name string, cidrs ...string) string {
	t.Helper()
	made := r.sdn(t, http.MethodPost, "networks", object{"network": object{"name": name}})
	id := fmt.Sprint(made["id"])
	t.Cleanup(func() { r.sdn(t, http.MethodDelete, "networks/"+id, nil) })
	for _, cidr := range cidrs {
		version := 4
		if netip.MustParsePrefix(cidr).Addr().Is6() {
			version = 6
		}
		r.sdn(t, http.MethodPost, "subnets", object{"subnet": object{
			"network_id": id, "cidr": cidr, "ip_version": version,
		}})
	}
	return id
}

// TestNullIPAM checks that containers without an IPAM driver get the addresses of their ports.
func TestNullIPAM(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	needs(t, ownKernel)
	r := newRig(t)
	id := r.existingNetwork(t, "theirs", "10.77.0.0/24", "fd77::/64")
	r.create(t, "null", "network", "create", "-d", driver, "--ipam-driver", "null",
		"-o", "neutron.net.uuid="+id, "null")
	a, b := r.run(t, "null-a", "null"), r.run(t, "null-b", "null")
	inside(t, "10.77.0.0/24", a.ip4, b.ip4)
	inside(t, "fd77::/64", a.ip6, b.ip6)
	hasRoute(t, a, "-4", "10.77.0.1")
	reaches(t, a.in, b.ip4, a.ip4)
	reaches(t, a.in, b.ip6, a.ip6)
	r.docker(t, "stop", "null-b")
	if left := r.portsOf(t, b.ip4); len(left) > 0 {
		t.Errorf("a stopped container has ports: %v", left)
	}
	r.docker(t, "start", "null-b")
	b = r.look(t, "null-b", "null")
	reaches(t, a.in, b.ip4, a.ip4)
	r.consistent(t)
}

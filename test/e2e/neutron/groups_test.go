//go:build e2e

package neutron_test

import (
	"context"
	"fmt"
	"testing"
)

// Security groups on a container's port: a rule that comes lets in, a rule that goes
// shuts out, and nothing else passes.
func TestSecurityGroups(t *testing.T) {
	r := shared(t)
	network, subnets := r.ownNetwork("groups", "10.42.0.0/24")
	r.h1.use("groups", network, subnets)
	vm := r.vm(r.h2, "groups-vm", network.ID(), nil)
	group := r.group("groups")
	box := r.h1.run("groups-box", "groups", "--driver-opt", "kuryr.security_groups="+group.Text("name"))
	if got := fmt.Sprint(box.port()["security_groups"]); got != fmt.Sprint([]string{group.ID()}) {
		t.Fatalf("the container's groups are %s, not %s", got, group.ID())
	}
	// Out it may, and back come the answers: so the way is there, and what does not pass below is shut out.
	r.reaches(box.in, vm.Addrs[0].Addr(), box.ip4)
	r.cut(r.inside(vm), box.ip4)
	for _, rule := range append(
		[]object{{"protocol": "icmp"}},
		object{"protocol": "tcp", "port_range_min": port, "port_range_max": port},
		object{"protocol": "udp"},
	) {
		r.allow(group, rule)
	}
	r.reaches(r.inside(vm), box.ip4, vm.Addrs[0].Addr())
	for _, rule := range r.find("security-group-rules", "direction=ingress&security_group_id="+group.ID()) {
		if err := r.api.Delete(r.ctx, "security-group-rules", rule.ID()); err != nil {
			t.Fatal(err)
		}
	}
	r.cut(r.inside(vm), box.ip4)
}

// --expose opens the port to everybody and nothing else, in both families, whatever the container's groups.
func TestExposedPorts(t *testing.T) {
	r := shared(t)
	network, subnets := r.ownNetwork("expose", "10.43.0.0/24", "fd43::/64")
	r.h1.use("expose", network, subnets)
	vm := r.vm(r.h2, "expose-vm", network.ID(), nil)
	shut := r.group("shut")
	box := r.h1.run(
		"expose-box", "expose", "--driver-opt", "kuryr.security_groups="+shut.ID(), "--expose",
		fmt.Sprintf("%d/tcp", port),
	)
	for _, to := range box.addrs() {
		r.until("the exposed port is not reached", func(context.Context) error {
			return asks(r.inside(vm), "tcp", to, port).Err()
		})
		if res := asks(r.inside(vm), "udp", to, port); res.OK() {
			t.Errorf("a port that is not exposed is reached: %s", res)
		}
	}
}

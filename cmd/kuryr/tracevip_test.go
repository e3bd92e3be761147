//go:build linux

package main

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/api"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/topology"
	"github.com/kuryr/kuryr/datapath/trace"
	"github.com/kuryr/kuryr/sdn"
	"golang.org/x/sys/unix"
)

// A VIP is one of the router's that the packet comes to, or any that a floating IP leads to.
func TestTraceToVIP(t *testing.T) {
	t.Parallel()
	port := "vip"
	tr := &tracer{objects: topology.Objects{
		Routers: []api.Router{{Common: api.Common{ID: "r1"}, Interfaces: []api.Interface{{SubnetID: "s1"}}}, {Common: api.Common{ID: "r2"}, Interfaces: []api.Interface{{SubnetID: "s2"}}}},
		Ports: []api.Port{{Common: api.Common{ID: "other"}, FixedIPs: []api.FixedIP{{SubnetID: "s1", IPAddress: "10.96.0.11"}}},
			{Common: api.Common{ID: port}, DeviceOwner: sdn.OwnerLoadBalancer, FixedIPs: []api.FixedIP{{SubnetID: "s1", IPAddress: "10.96.0.10"}}}},
		FloatingIPs: []api.FloatingIP{{FloatingIPAddress: "192.0.2.9", PortID: &port}},
	}}
	for _, c := range []struct{ router, dst, want string }{
		{"r1", "10.96.0.10", port}, {"r2", "10.96.0.10", ""}, {"r1", "10.96.0.11", ""}, {"r2", "192.0.2.9", port},
	} {
		if got := tr.vip(c.router, netip.MustParseAddr(c.dst)); got != c.want {
			t.Errorf("%s from %s: %q, want %q", c.dst, c.router, got, c.want)
		}
	}
	l := loadBalancer{Doors: []door{{Listener: api.Listener{Protocol: "TCP", ProtocolPort: 80}, Members: []api.PoolMember{{Address: "10.0.0.5", ProtocolPort: 8080, Weight: 1}}}}}
	l.Name = "api"
	for says, f := range map[string]trace.Flow{
		"leads tcp 80 to 10.0.0.5:8080": {Protocol: unix.IPPROTO_TCP, Port: 80},
		"no listener at udp 80":         {Protocol: unix.IPPROTO_UDP, Port: 80},
		"name one":                      {Protocol: unix.IPPROTO_ICMP},
	} {
		if err := leads(netip.MustParseAddr("10.96.0.10"), f, l); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "api") {
			t.Errorf("got %v, want %q", err, says)
		}
	}
}

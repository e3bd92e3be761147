//go:build e2e

package neutron_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// A router to the external network, on a network that Kuryr makes; containers get out by it and have floating IPs.
func TestFloatingIP(t *testing.T) {
	r := shared(t)
	r.h1.network("float", "--subnet", "10.44.0.0/24", "--gateway", "10.44.0.1", "-o", "kuryr.external_network=external")
	group := r.group("float", everything...)
	box := r.h1.run(
		"float-box", "float", "--driver-opt", "kuryr.security_groups="+group.ID(), "--driver-opt",
		"kuryr.floating_ip=auto",
	)
	floating := r.one("floatingips", "port_id="+box.port().ID())
	addr := netip.MustParseAddr(floating.Text("floating_ip_address"))
	r.reaches(r.outside, addr, outsideAddr)
	// The way out, as the floating IP.
	r.until("the outside is not reached", func(context.Context) error {
		return box.in("ping", "-n", "-c1", "-W2", outsideAddr.String()).Err()
	})
	r.h1.docker("rm", "-f", "float-box")
	if left := r.find("floatingips", "project_id="+r.lab.Project()); len(left) > 0 {
		t.Errorf("the floating IP is still there: %v", left)
	}
}

// A floating IP that the operator made is attached, and detached, not deleted.
func TestOperatorsFloatingIP(t *testing.T) {
	r := shared(t)
	external, err := r.lab.ExternalNetwork(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	network, subnets := r.ownNetwork("mine", "10.45.0.0/24")
	r.routed("mine", external, subnets[0])
	floating := r.create("floatingips", object{"floating_network_id": external.ID()})
	addr := netip.MustParseAddr(floating.Text("floating_ip_address"))
	r.h2.use("mine", network, subnets)
	group := r.group("mine", everything...)
	box := r.h2.run(
		"mine-box", "mine", "--driver-opt", "kuryr.security_groups="+group.ID(), "--driver-opt",
		"kuryr.floating_ip="+addr.String(),
	)
	r.reaches(r.outside, addr, outsideAddr)
	r.reaches(box.in, box.ip4, netip.Addr{})
	r.h2.docker("rm", "-f", "mine-box")
	if port := r.get("floatingips", floating.ID()).Text("port_id"); port != "" {
		t.Errorf("the floating IP is still attached to %s", port)
	}
}

// outsideAddr is the outside's, on the external network.
var outsideAddr = netip.MustParseAddr("203.0.113.1")

// Published ports without a floating IP: a proxy on the host, to the container's own namespace.
func TestPublishedPorts(t *testing.T) {
	r := shared(t)
	network, subnets := r.ownNetwork("publish", "10.46.0.0/24")
	r.h1.use("publish", network, subnets)
	r.h1.run("publish-box", "publish", "-p", fmt.Sprintf("8080:%d/tcp", port), "-p", fmt.Sprintf("8080:%d/udp", port))
	neighbour := func(argv ...string) privatehost.Result { return r.h1.Outside(r.ctx, argv...) }
	for _, proto := range []string{"tcp", "udp"} {
		for _, from := range []struct {
			what string
			run  runner
			to   netip.Addr
		}{
			{"the neighbour", neighbour, privatehost.HostIPv4.Addr()},
			{"the host", r.h1.sh, netip.MustParseAddr("127.0.0.1")},
			{"the neighbour by IPv6", neighbour, privatehost.HostIPv6.Addr()},
		} {
			r.until(from.what+" does not reach the published port", func(context.Context) error {
				return asks(from.run, proto, from.to, 8080).Err()
			})
		}
	}
	r.h1.docker("rm", "-f", "publish-box")
	for _, proto := range []string{"tcp", "udp"} {
		if res := asks(neighbour, proto, privatehost.HostIPv4.Addr(), 8080); res.OK() {
			t.Errorf("the port is still published: %s", res)
		}
	}
}

//go:build linux

package agent

import (
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/kuryr/kuryr/internal/hostports"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/local"
)

// heldPorts counts the host ports of each owner.
type heldPorts map[string]int

func (h heldPorts) Reserve(owner string, _ hostports.Port) error { h[owner]++; return nil }
func (h heldPorts) Restore(owner string, _ hostports.Port) error { h[owner]++; return nil }
func (h heldPorts) ReleaseAll(owner string)                      { delete(h, owner) }

// TestPublish checks that a container's ports are published and withdrawn as one value, also after
// an earlier version published them.
func TestPublish(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	p, err := local.Open(ctx, local.Options{Path: filepath.Join(t.TempDir(), "sdn.db"), Host: "h"})
	must(err)
	defer p.Close()
	subnets := []sdn.SubnetSpec{{CIDR: netip.MustParsePrefix("10.0.0.0/24")}, {CIDR: netip.MustParsePrefix("fd00::/64")}}
	network, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Subnets: subnets})
	must(err)
	outside := p.Capabilities().ExternalNetwork
	router, err := p.EnsureRouter(ctx, sdn.RouterSpec{Gateway: &sdn.ExternalGateway{Network: outside}})
	must(err)
	for _, subnet := range network.Subnets {
		must(p.AttachSubnet(ctx, router.ID, subnet, netip.Addr{}))
	}
	ports, err := p.EnsurePorts(ctx, []sdn.PortSpec{{Network: network.ID}})
	must(err)

	held := heldPorts{}
	n := NewNetwork(NetworkConfig{Provider: p, Host: "h", HostPorts: held})
	a := Attachment{Container: "c", Interface: "eth0", Network: "net", Want: Want{Published: []Published{
		{HostPort: 80, Port: 8080, Protocol: sdn.TCP},
		{HostPort: 53, Port: 53, Protocol: sdn.UDP, HostIP: netip.MustParseAddr("127.0.0.1")},
	}}}
	count := func() int {
		t.Helper()
		forwards, err := sdn.All(p.FindForwards(ctx, sdn.ForwardQuery{}))
		must(err)
		return len(forwards)
	}
	earlier := n.key(kindPublish, a)
	earlier.Name += "/0"
	every, err := p.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{
		Base: sdn.Base{Key: earlier}, Network: outside, Address: netip.IPv4Unspecified(), OfHost: true,
	})
	must(err)
	_, err = p.EnsureForwards(ctx, every.ID, []sdn.Forward{{
		Protocol: sdn.TCP, External: sdn.PortRange{First: 80}, Target: sdn.Target{Port: ports[0].ID},
		Internal: sdn.PortRange{First: 8080},
	}})
	must(err)
	must(n.restore(ctx, a))
	if held[device(a)] != 1 {
		t.Errorf("%d host ports are restored, want 1", held[device(a)])
	}
	must(n.publish(ctx, a, ports[0]))
	if n := count(); n != 3 {
		t.Errorf("%d forwardings, want 3", n)
	}
	must(n.unpublish(ctx, a))
	if n := count(); n != 0 || len(held) != 0 {
		t.Errorf("%d forwardings are left, host ports %v", n, held)
	}
	if left, err := sdn.All(p.FindFloatingIPs(ctx, sdn.FloatingIPQuery{})); err != nil || len(left) != 0 {
		t.Errorf("floating IPs %v are left, %v", left, err)
	}
}

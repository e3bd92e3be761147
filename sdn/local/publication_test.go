package local

import (
	"net/netip"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// publishedBox is a provider with a port that can be published.
func publishedBox(t testing.TB, o Options) (*Provider, sdn.Port) {
	t.Helper()
	ctx := t.Context()
	p := open(t, o)
	subnets := []sdn.SubnetSpec{{CIDR: prefix("10.0.0.0/24")}, {CIDR: prefix("fd00::/64")}}
	n, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Subnets: subnets})
	ok(t, err)
	outside := &sdn.ExternalGateway{Network: p.Capabilities().ExternalNetwork, SNAT: true}
	r, err := p.EnsureRouter(ctx, sdn.RouterSpec{Gateway: outside})
	ok(t, err)
	for _, subnet := range n.Subnets {
		ok(t, p.AttachSubnet(ctx, r.ID, subnet, netip.Addr{}))
	}
	ports, err := p.EnsurePorts(ctx, []sdn.PortSpec{{Network: n.ID, Host: testHost}})
	ok(t, err)
	return p, ports[0]
}

// publishedKey is a publication's Key.
func publishedKey(p *Provider) sdn.Key {
	return sdn.Key{Owner: p.Installation(), Kind: "test", Name: "publication"}
}

// manyUDP are UDP ports of both families that lead to a port, none next to another.
func manyUDP(port sdn.ID, count int) []sdn.PublishedPort {
	var list []sdn.PublishedPort
	for i := range uint16(count) {
		for _, host := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
			list = append(list, sdn.PublishedPort{Host: host, Forward: sdn.Forward{
				Protocol: sdn.UDP, External: sdn.PortRange{First: 10000 + 2*i}, Target: sdn.Target{Port: port},
				Internal: sdn.PortRange{First: 20000 + i},
			}})
		}
	}
	return list
}

// TestPublicationIsOneStep checks that a publication of many ports is one change of the store and
// one of the data path, and that a repeat changes neither.
func TestPublicationIsOneStep(t *testing.T) {
	t.Parallel()
	fake := newFake()
	p, port := publishedBox(t, Options{Datapath: fake})
	updates := 0
	fake.fail = func(call, _ string) error {
		if call == "forwards" {
			updates++
		}
		return nil
	}
	commits := func() int {
		b, err := p.db.Begin(false)
		ok(t, err)
		defer func() { _ = b.Rollback() }()
		return b.ID()
	}
	spec := sdn.PublicationSpec{Key: publishedKey(p), Ports: manyUDP(port.ID, 1000)}
	for _, step := range []struct {
		name string
		do   func() error
		told int
	}{
		{"publish", func() error { _, err := p.Publish(t.Context(), spec); return err }, 1},
		{"repeat", func() error { _, err := p.Publish(t.Context(), spec); return err }, 0},
		{"change", func() error {
			spec.Ports = spec.Ports[500:]
			_, err := p.Publish(t.Context(), spec)
			return err
		}, 1},
		{"unpublish", func() error { return p.Unpublish(t.Context(), spec.Key) }, 1},
	} {
		before := commits()
		updates = 0
		ok(t, step.do())
		if updates != step.told || commits()-before > step.told {
			t.Errorf("%s: %d updates, %d commits, want %d", step.name, updates, commits()-before, step.told)
		}
		checkSum(t, p)
	}
}

package local

import (
	"context"
	"net"
	"net/netip"
	"reflect"
	"testing"

	"github.com/kuryr/kuryr/datapath/fabric"
	"github.com/kuryr/kuryr/sdn"
	"go.etcd.io/bbolt"
)

func TestProjection(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := open(t, Options{})
	n, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{MTU: 1400, Subnets: []sdn.SubnetSpec{{CIDR: prefix("10.0.0.0/24")}, {CIDR: prefix("fd00:1::/64")}}})
	ok(t, err)
	r, err := p.EnsureRouter(ctx, sdn.RouterSpec{Gateway: &sdn.ExternalGateway{Network: p.external, SNAT: true}})
	ok(t, err)
	for _, s := range n.Subnets {
		ok(t, p.AttachSubnet(ctx, r.ID, s, netip.Addr{}))
	}
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	ports, err := p.EnsurePorts(ctx, []sdn.PortSpec{
		{Network: n.ID, Host: testHost, MAC: mac, Addresses: []sdn.Address{{Addr: netip.MustParseAddr("10.0.0.9")}}, AllowedPairs: []sdn.AllowedPair{{Prefix: prefix("10.0.0.128/25")}}},
		{Network: n.ID, Host: testHost, WithoutAddresses: true, NoPortSecurity: new(true)},
		{Network: n.ID}, // not plugged
	})
	ok(t, err)
	fip, err := p.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{Network: p.external, Target: sdn.Target{Port: ports[0].ID}})
	ok(t, err)
	any, err := p.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{Network: p.external, Address: netip.IPv4Unspecified()})
	ok(t, err)
	_, err = p.EnsureForwards(ctx, any.ID, []sdn.Forward{
		{Protocol: sdn.TCP, External: sdn.PortRange{First: 80, Last: 81}, Target: sdn.Target{Port: ports[0].ID}, Internal: sdn.PortRange{First: 8080, Last: 8081}},
		{Protocol: sdn.UDP, External: sdn.PortRange{First: 53, Last: 54}, Target: sdn.Target{Port: ports[0].ID}, Internal: sdn.PortRange{First: 53}},
	})
	ok(t, err)
	r, err = p.Router(ctx, r.ID)
	ok(t, err)
	var got fabric.State
	ok(t, p.view(func(b *bbolt.Tx) (err error) { got, err = p.projectAll(b); return err }))

	target := netip.MustParseAddr("10.0.0.9")
	forward := func(proto uint8, port, to uint16) fabric.Forward {
		return fabric.Forward{Address: netip.IPv4Unspecified(), Protocol: proto, Port: port, To: netip.AddrPortFrom(target, to), Via: port}
	}
	id := string(r.ID)
	want := fabric.State{
		Domains: []fabric.Domain{{
			ID:      id,
			Bridges: []fabric.Bridge{{Network: string(n.ID), MTU: 1400, Addrs: []netip.Prefix{prefix("10.0.0.1/24"), prefix("fd00:1::1/64")}}},
			Uplink: &fabric.Uplink{
				Addrs: []netip.Addr{r.Gateway.Addresses[0].Addr, r.Gateway.Addresses[1].Addr}, SNAT: true, MTU: 1500,
				Reach:    []netip.Prefix{prefix("10.0.0.0/24"), prefix("fd00:1::/64")},
				Floating: []fabric.Floating{{External: fip.Address, Internal: target}},
			},
		}},
		Ports: map[string][]fabric.Port{id: {
			{ID: string(ports[0].ID), Network: string(n.ID), MAC: mac, Addrs: []netip.Addr{target}, Guard: true, Allowed: []fabric.AllowedAddress{{Prefix: prefix("10.0.0.128/25")}}},
			{ID: string(ports[1].ID), Network: string(n.ID), MAC: ports[1].MAC},
		}},
		Forwards: map[string][]fabric.Forward{id: {forward(6, 80, 8080), forward(6, 81, 8081), forward(17, 53, 53), forward(17, 54, 53)}},
	}
	if !reflect.DeepEqual(spread(got), spread(want)) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

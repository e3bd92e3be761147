package local

import (
	"context"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/kuryr/kuryr/datapath/router"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/engine"
)

func TestProjection(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := open(t, Options{})
	n, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{MTU: 1400, Subnets: []sdn.SubnetSpec{{CIDR: prefix("10.0.0.0/24")}, {CIDR: prefix("fd00:1::/64")}}})
	ok(t, err)
	r, err := p.EnsureRouter(ctx, sdn.RouterSpec{Gateway: &sdn.ExternalGateway{Network: p.Capabilities().ExternalNetwork, SNAT: true}})
	ok(t, err)
	for _, s := range n.Subnets {
		ok(t, p.AttachSubnet(ctx, r.ID, s, netip.Addr{}))
	}
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	ports, err := p.EnsurePorts(ctx, []sdn.PortSpec{
		{Network: n.ID, Host: testHost, MAC: mac, Addresses: []sdn.Address{{Addr: netip.MustParseAddr("10.0.0.9")}}, AllowedPairs: []sdn.AllowedPair{{Prefix: prefix("10.0.0.128/25")}}},
		{Network: n.ID, Host: testHost, WithoutAddresses: true, NoPortSecurity: new(true)},
		{Network: n.ID}, // not plugged
		{Network: n.ID, Host: testHost, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 2},
			Addresses: []sdn.Address{{Addr: netip.MustParseAddr("fd00:1::9")}}},
	})
	ok(t, err)
	fip, err := p.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{Network: p.Capabilities().ExternalNetwork, Target: sdn.Target{Port: ports[0].ID}})
	ok(t, err)
	any, err := p.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{Network: p.Capabilities().ExternalNetwork, Address: netip.IPv4Unspecified()})
	ok(t, err)
	_, err = p.EnsureForwards(ctx, any.ID, []sdn.Forward{
		{Protocol: sdn.TCP, External: sdn.PortRange{First: 80, Last: 81}, Target: sdn.Target{Port: ports[0].ID}, Internal: sdn.PortRange{First: 8080, Last: 8081}},
		{Protocol: sdn.UDP, External: sdn.PortRange{First: 53, Last: 54}, Target: sdn.Target{Port: ports[0].ID}, Internal: sdn.PortRange{First: 53}},
	})
	ok(t, err)
	r, err = p.Router(ctx, r.ID)
	ok(t, err)
	var got router.State
	ok(t, p.view(func(b engine.Tx) (err error) { got, err = p.projectAll(b); return err }))

	target := netip.MustParseAddr("10.0.0.9")
	forward := func(proto uint8, port, to uint16) router.Forward {
		return router.Forward{Address: netip.IPv4Unspecified(), Protocol: proto, Port: port, To: netip.AddrPortFrom(target, to), Via: port}
	}
	id := string(r.ID)
	want := router.State{
		Shapes: []router.Shape{{
			ID:      id,
			Bridges: []router.Bridge{{Network: string(n.ID), MTU: 1400, Addrs: []netip.Prefix{prefix("10.0.0.1/24"), prefix("fd00:1::1/64")}}},
			Uplink: &router.Uplink{
				Addrs: []netip.Addr{r.Gateway.Addresses[0].Addr, r.Gateway.Addresses[1].Addr}, SNAT: true, MTU: 1500,
				Reach:    []netip.Prefix{prefix("10.0.0.0/24"), prefix("fd00:1::/64")},
				Floating: []router.Floating{{External: fip.Address, Internal: target}},
			},
		}},
		Ports: map[string][]router.Port{id: {
			{ID: string(ports[0].ID), Network: string(n.ID), MAC: mac, Addrs: []netip.Addr{target}, Guard: true, Allowed: []router.AllowedAddress{{Prefix: prefix("10.0.0.128/25")}}},
			{ID: string(ports[1].ID), Network: string(n.ID), MAC: ports[1].MAC},
			{ID: string(ports[3].ID), Network: string(n.ID), MAC: ports[3].MAC, Guard: true,
				Addrs:  []netip.Addr{netip.MustParseAddr("fd00:1::9")},
				OnLink: []netip.Prefix{prefix("fd00:1::/64")}},
		}},
		Forwards: map[string][]router.Forward{id: {forward(6, 80, 8080), forward(6, 81, 8081), forward(17, 53, 53), forward(17, 54, 53)}},
	}
	if !reflect.DeepEqual(spread(got), spread(want)) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// A project gives its networks what ranges it likes, so the host gets no routes to them. What else leads to its router and back is there.
func TestHostKeepsItsRoutes(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := open(t, Options{Datapath: newFake()})
	made := map[string]sdn.ID{}
	var target sdn.ID
	for _, project := range []string{"", "demo"} {
		n, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Base: sdn.Base{Project: project}, Subnets: []sdn.SubnetSpec{{CIDR: prefix("1.1.1.0/24")}, {CIDR: prefix("fd00:1::/64")}}})
		ok(t, err)
		second, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Base: sdn.Base{Project: "demo"}, Subnets: []sdn.SubnetSpec{{CIDR: prefix("8.0.0.0/6")}}})
		ok(t, err)
		r, err := p.EnsureRouter(ctx, sdn.RouterSpec{Base: sdn.Base{Project: project}, Gateway: &sdn.ExternalGateway{Network: p.Capabilities().ExternalNetwork, SNAT: true}})
		ok(t, err)
		for _, s := range append(n.Subnets, second.Subnets...) {
			ok(t, p.AttachSubnet(ctx, r.ID, s, netip.Addr{}))
		}
		ports, err := p.EnsurePorts(ctx, []sdn.PortSpec{{Base: sdn.Base{Project: project}, Network: n.ID, Host: testHost}})
		ok(t, err)
		made[project], target = r.ID, ports[0].ID
	}
	fip, err := p.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{Base: sdn.Base{Project: "demo"}, Network: p.Capabilities().ExternalNetwork, Target: sdn.Target{Port: target}})
	ok(t, err)
	shape := func(project string) (d *router.Shape) {
		t.Helper()
		ok(t, p.view(func(b engine.Tx) (err error) { d, err = p.projectDomain(b, made[project]); return err }))
		return d
	}
	unreached := func(project string) []sdn.Unreached {
		t.Helper()
		r, err := p.Router(ctx, made[project])
		ok(t, err)
		return r.Unreached
	}
	all := []netip.Prefix{prefix("1.1.1.0/24"), prefix("8.0.0.0/6"), prefix("fd00:1::/64")}
	if d := shape(""); !slices.Equal(d.Uplink.Reach, all) || len(unreached("")) != 0 {
		t.Errorf("nobody's router: the host is to reach %v, and is told not to reach %v", d.Uplink.Reach, unreached(""))
	}
	d := shape("demo")
	if len(d.Uplink.Reach) != 0 {
		t.Errorf("the host is to reach a project's %v", d.Uplink.Reach)
	}
	if len(d.Uplink.Addrs) != 2 || !d.Uplink.SNAT || len(d.Uplink.Floating) != 1 || d.Uplink.Floating[0].External != fip.Address {
		t.Errorf("the way out and the floating IP of a project's router: %+v", d.Uplink)
	}
	told := unreached("demo")
	for _, u := range told {
		if u.Reason != sdn.UnreachedProject || !slices.Contains(all, u.Prefix) {
			t.Errorf("not reached: %+v", u)
		}
	}
	if len(told) != len(all) {
		t.Errorf("not reached: %+v", told)
	}
	checkSum(t, p)
	ok(t, p.DeleteFloatingIP(ctx, fip.ID))
	_, err = p.UpdateRouter(ctx, made["demo"], sdn.RouterPatch{Gateway: &sdn.ExternalGateway{}})
	ok(t, err)
	if told := unreached("demo"); len(told) != 0 {
		t.Errorf("without a way out: %+v", told)
	}
}

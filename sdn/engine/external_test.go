package engine

import (
	"context"
	"net/netip"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// The gateway of an external network is the host: no port, router or floating IP can have its address.
func TestExternalGatewayIsTheHosts(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	p := open(t, Options{})
	n, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{External: true, Subnets: []sdn.SubnetSpec{{CIDR: prefix("203.0.113.0/24")}}})
	ok(t, err)
	for _, network := range []sdn.ID{n.ID, p.external} {
		subnets, err := sdn.All(p.FindSubnets(ctx, sdn.SubnetQuery{Networks: []sdn.ID{network}}))
		ok(t, err)
		asked := []sdn.Address{{Subnet: subnets[0].ID, Addr: subnets[0].Gateway}}
		_, port := p.EnsureAllPorts(ctx, []sdn.PortSpec{{Network: network, Addresses: asked}})
		_, floating := p.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{Network: network, Address: subnets[0].Gateway})
		for what, err := range map[string]error{"port": port, "floating IP": floating} {
			if sdn.ReasonOf(err) != sdn.AddressInUse {
				t.Errorf("%s at %v: %v", what, subnets[0].Gateway, err)
			}
		}
		if network != p.external {
			continue
		}
		if _, err := p.EnsureRouter(ctx, sdn.RouterSpec{Gateway: &sdn.ExternalGateway{Network: network, Addresses: asked}}); sdn.ReasonOf(err) != sdn.AddressInUse {
			t.Errorf("router at %v: %v", subnets[0].Gateway, err)
		}
	}
}

// Floating IPs, ports and projects' routers never take an address of the part that is
// kept for routers of no project.
func TestProjectsLeaveTheHostItsLinks(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	p := open(t, Options{UplinkRanges: []netip.Prefix{prefix("198.51.100.0/28")}, Quotas: map[sdn.Noun]int64{}})
	kept := prefix("198.51.100.8/29")
	router := func(project string) (netip.Addr, error) {
		r, err := p.EnsureRouter(ctx, sdn.RouterSpec{
			Base:    sdn.Base{Project: project},
			Gateway: &sdn.ExternalGateway{Network: p.external, SNAT: true},
		})
		if err != nil {
			return netip.Addr{}, err
		}
		return r.Gateway.Addresses[0].Addr, nil
	}
	floating := func(string) (netip.Addr, error) {
		f, err := p.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{Network: p.external})
		return f.Address, err
	}
	port := func(project string) (netip.Addr, error) {
		made, err := p.EnsureAllPorts(ctx, []sdn.PortSpec{{
			Base: sdn.Base{Project: project}, Network: p.external, WithoutGroups: true,
		}})
		if err != nil {
			return netip.Addr{}, err
		}
		return made[0].Addresses[0].Addr, nil
	}
	takers := []func(string) (netip.Addr, error){router, floating, port}
	for n := 0; ; n++ {
		a, err := takers[n%len(takers)]("demo")
		if sdn.ReasonOf(err) == sdn.NoAddresses {
			if n != 6 { // .2 to .7: the first is the host's
				t.Errorf("projects got %d addresses, want 6", n)
			}
			break
		}
		ok(t, err)
		if kept.Contains(a) {
			t.Errorf("a project got %v", a)
		}
	}
	for i := range 7 { // .8 to .14
		if a, err := router(""); err != nil || !kept.Contains(a) {
			t.Errorf("the host's router %d has %v, %v", i, a, err)
		}
	}
	if _, err := router(""); sdn.ReasonOf(err) != sdn.NoAddresses {
		t.Errorf("one more router than there are addresses: %v", err)
	}
}

// Where the host's part is full, its routers have addresses of the rest.
func TestHostLinksBeyondTheirPart(t *testing.T) {
	t.Parallel()
	p := open(t, Options{UplinkRanges: []netip.Prefix{prefix("198.51.100.0/29")}})
	for i := range 5 {
		_, err := p.EnsureRouter(t.Context(), sdn.RouterSpec{Gateway: &sdn.ExternalGateway{Network: p.external}})
		if err != nil {
			t.Errorf("router %d: %v", i, err)
		}
	}
}

// A link from before the host had a part of the range keeps its address when the store is
// opened again and the router changed.
func TestHostLinksKeepTheirAddresses(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	store := newStore(t)
	p := openOn(t, store, Options{UplinkRanges: []netip.Prefix{prefix("198.51.100.0/28")}})
	links := p.subnetOf(t, 4)
	old := netip.MustParseAddr("198.51.100.2")
	r, err := p.EnsureRouter(ctx, sdn.RouterSpec{Gateway: &sdn.ExternalGateway{
		Network: p.external, SNAT: true, Addresses: []sdn.Address{{Subnet: links, Addr: old}},
	}})
	ok(t, err)
	made, err := p.EnsureAllPorts(ctx, []sdn.PortSpec{{
		Base: sdn.Base{Project: "demo"}, Network: p.external, WithoutGroups: true,
		Addresses: []sdn.Address{{Addr: netip.MustParseAddr("198.51.100.9")}},
	}})
	ok(t, err)
	p = openOn(t, store, Options{})
	r, err = p.UpdateRouter(ctx, r.ID, sdn.RouterPatch{Gateway: &sdn.ExternalGateway{Network: p.external, SNAT: false}})
	if err != nil || r.Gateway.Addresses[0].Addr != old {
		t.Errorf("the router's gateway is %+v, %v", r.Gateway, err)
	}
	if port, err := p.Port(ctx, made[0].ID); err != nil || port.Addresses[0] != made[0].Addresses[0] {
		t.Errorf("the port has %v, %v", port.Addresses, err)
	}
	ok(t, p.DeletePort(ctx, made[0].ID, 0))
}

// subnetOf is the built-in external network's subnet of a family.
func (p *Engine) subnetOf(t *testing.T, family int) sdn.ID {
	t.Helper()
	for s, err := range p.FindSubnets(t.Context(), sdn.SubnetQuery{Networks: []sdn.ID{p.external}}) {
		ok(t, err)
		if s.CIDR.Addr().Is4() == (family == 4) {
			return s.ID
		}
	}
	t.Fatal("no such subnet")
	return ""
}

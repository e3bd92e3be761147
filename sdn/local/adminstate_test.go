package local

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/kuryr/kuryr/datapath/router"
	"github.com/kuryr/kuryr/sdn"
)

// offWorld is a router with a gateway and a network on it, where a port, its floating IP and a
// forwarding of the host's, and a load balancer with a floating IP are.
type offWorld struct {
	p                       *Provider
	fake                    *fakeKernel
	network, external, port sdn.ID
	router                  sdn.ID
}

func newOffWorld(t *testing.T) *offWorld {
	t.Helper()
	ctx := t.Context()
	w := &offWorld{fake: newFake()}
	w.p = open(t, Options{Datapath: w.fake})
	n, err := w.p.EnsureNetwork(ctx, sdn.NetworkSpec{Subnets: []sdn.SubnetSpec{{CIDR: prefix("10.0.0.0/24")}}})
	ok(t, err)
	out, err := w.p.EnsureNetwork(ctx, sdn.NetworkSpec{
		External: true, Subnets: []sdn.SubnetSpec{{CIDR: prefix("192.0.2.0/24")}},
	})
	ok(t, err)
	r, err := w.p.EnsureRouter(ctx, sdn.RouterSpec{Gateway: &sdn.ExternalGateway{Network: out.ID, SNAT: true}})
	ok(t, err)
	ok(t, w.p.AttachSubnet(ctx, r.ID, n.Subnets[0], netip.Addr{}))
	_, err = w.p.UpdateRouter(ctx, r.ID, sdn.RouterPatch{Routes: &[]sdn.HostRoute{{
		Destination: prefix("10.9.0.0/24"), NextHop: netip.MustParseAddr("10.0.0.200"),
	}}})
	ok(t, err)
	made, err := w.p.EnsurePorts(ctx, []sdn.PortSpec{{Network: n.ID, Host: testHost}})
	ok(t, err)
	l, err := w.p.ApplyLoadBalancer(ctx, service(n.Subnets[0], "a", "10.0.0.9:80"))
	ok(t, err)
	for _, port := range []sdn.ID{made[0].ID, l.VIPs[0].Port} {
		_, err := w.p.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{Network: out.ID, Target: sdn.Target{Port: port}})
		ok(t, err)
	}
	f, err := w.p.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{Network: w.p.Capabilities().ExternalNetwork, Address: netip.IPv4Unspecified()})
	if err == nil {
		_, err = w.p.EnsureForwards(ctx, f.ID, []sdn.Forward{{
			Protocol: sdn.TCP, External: sdn.PortRange{First: 80}, Internal: sdn.PortRange{First: 80},
			Target: sdn.Target{Port: made[0].ID},
		}})
	}
	ok(t, err)
	w.network, w.external, w.port, w.router = n.ID, out.ID, made[0].ID, r.ID
	return w
}

// sums is what the router's domain has, in numbers.
type sums struct{ gateways, routes, uplinks, forwards, vips, frontends, down int }

func (w *offWorld) sums() (s sums) {
	w.fake.mu.Lock()
	defer w.fake.mu.Unlock()
	d := w.fake.state[string(w.router)]
	for _, b := range d.shape.Bridges {
		s.gateways += len(b.Addrs)
	}
	if d.shape.Uplink != nil {
		s.uplinks = 1
	}
	s.routes, s.forwards, s.vips, s.frontends = len(d.shape.Routes), len(d.forwards), len(d.vips), len(d.balanced)
	for _, p := range d.ports {
		if p.Down {
			s.down++
		}
	}
	return s
}

func (w *offWorld) status(t *testing.T, id sdn.ID) sdn.PortStatus {
	t.Helper()
	p, err := w.p.Port(t.Context(), id)
	ok(t, err)
	return p.Status
}

// An object that is off is missing in the data path, with all that depends on it, also after a
// restart; switched on again all of it is back.
func TestAdminState(t *testing.T) {
	t.Parallel()
	whole := sums{gateways: 1, routes: 1, uplinks: 1, forwards: 1, vips: 2, frontends: 2}
	for name, c := range map[string]struct {
		turn func(t *testing.T, w *offWorld, off bool)
		want sums
		port sdn.PortStatus
	}{
		"port": {func(t *testing.T, w *offWorld, off bool) {
			p, err := w.p.UpdatePort(t.Context(), w.port, sdn.PortPatch{Disabled: &off})
			ok(t, err)
			if p.Disabled != off {
				t.Errorf("the port's state is %v, want %v", p.Disabled, off)
			}
		}, sums{gateways: 1, routes: 1, uplinks: 1, forwards: 1, vips: 2, frontends: 2, down: 1}, sdn.PortDown},
		"network": {func(t *testing.T, w *offWorld, off bool) {
			_, err := w.p.UpdateNetwork(t.Context(), w.network, sdn.NetworkPatch{Disabled: &off})
			ok(t, err)
		}, sums{uplinks: 1, forwards: 1, down: 1}, sdn.PortDown},
		"external network": {func(t *testing.T, w *offWorld, off bool) {
			_, err := w.p.UpdateNetwork(t.Context(), w.external, sdn.NetworkPatch{Disabled: &off})
			ok(t, err)
		}, sums{gateways: 1, routes: 1, vips: 1, frontends: 1}, sdn.PortActive},
		"router": {func(t *testing.T, w *offWorld, off bool) {
			_, err := w.p.UpdateRouter(t.Context(), w.router, sdn.RouterPatch{Disabled: &off})
			ok(t, err)
		}, sums{}, sdn.PortActive},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newOffWorld(t)
			if got := w.sums(); got != whole {
				t.Fatalf("the data path has %+v, want %+v", got, whole)
			}
			for range 2 {
				for range 2 { // repeated it is no change
					c.turn(t, w, true)
				}
				if got := w.sums(); got != c.want {
					t.Errorf("switched off: the data path has %+v, want %+v", got, c.want)
				}
				if got := w.status(t, w.port); got != c.port {
					t.Errorf("switched off: the port is %s, want %s", got, c.port)
				}
				checkSum(t, w.p)
				w.fake.mu.Lock()
				w.fake.state = map[string]*fakeDomain{} // as after a reboot
				w.fake.mu.Unlock()
				_, err := w.p.Reconcile(t.Context())
				ok(t, err)
				if got := w.sums(); got != c.want {
					t.Errorf("after a reboot the data path has %+v, want %+v", got, c.want)
				}
				c.turn(t, w, false)
				if got := w.sums(); got != whole {
					t.Errorf("switched on: the data path has %+v, want %+v", got, whole)
				}
				if got := w.status(t, w.port); got != sdn.PortActive {
					t.Errorf("switched on: the port is %s", got)
				}
				checkSum(t, w.p)
			}
		})
	}
}

// A gateway that moves from an external network that is off brings published ports and floating
// IPs back, and takes them along to one that is off.
func TestGatewayMoves(t *testing.T) {
	t.Parallel()
	w := newOffWorld(t)
	whole := w.sums()
	other, err := w.p.EnsureNetwork(t.Context(), sdn.NetworkSpec{External: true})
	ok(t, err)
	_, err = w.p.UpdateNetwork(t.Context(), w.external, sdn.NetworkPatch{Disabled: new(true)})
	ok(t, err)
	for _, c := range []struct {
		to   sdn.ID
		want sums
	}{
		{other.ID, whole}, {w.external, sums{gateways: 1, routes: 1, vips: 1, frontends: 1}}, {other.ID, whole},
	} {
		_, err = w.p.UpdateRouter(t.Context(), w.router, sdn.RouterPatch{
			Gateway: &sdn.ExternalGateway{Network: c.to, SNAT: true},
		})
		ok(t, err)
		if got := w.sums(); got != c.want {
			t.Errorf("the data path has %+v, want %+v", got, c.want)
		}
		checkSum(t, w.p)
	}
}

// An object made while its network or router is off, or off itself, is off; it can be adopted and be
// switched on.
func TestMadeOff(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	fake := newFake()
	p := open(t, Options{Datapath: fake})
	key := sdn.Base{Key: sdn.Key{Owner: "o", Kind: "k", Name: "n"}}
	for range 2 { // the second adopts
		n, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Base: key, Disabled: true})
		ok(t, err)
		made, err := p.EnsurePorts(ctx, []sdn.PortSpec{
			{Base: key, Network: n.ID, Host: testHost, Disabled: true, WithoutAddresses: true},
		})
		ok(t, err)
		r, err := p.EnsureRouter(ctx, sdn.RouterSpec{Base: key, Disabled: true})
		ok(t, err)
		if !n.Disabled || !made[0].Disabled || made[0].Status != sdn.PortDown || !r.Disabled {
			t.Errorf("made: %+v, %+v, %+v", n, made[0], r)
		}
		for i, off := range []bool{true, false} {
			_, err := p.UpdateNetwork(ctx, n.ID, sdn.NetworkPatch{Disabled: new(i == 1)})
			ok(t, err)
			port, err := p.UpdatePort(ctx, made[0].ID, sdn.PortPatch{Disabled: new(off)})
			ok(t, err)
			if port.Status != sdn.PortDown {
				t.Errorf("with the one off the other is %s", port.Status)
			}
		}
		_, err = p.UpdateNetwork(ctx, n.ID, sdn.NetworkPatch{Disabled: new(false)})
		ok(t, err)
		fake.mu.Lock()
		all := slices.Collect(maps.Values(fake.state[string(n.ID)].ports))
		fake.mu.Unlock()
		if slices.ContainsFunc(all, func(p router.Port) bool { return p.Down }) || len(all) != 1 {
			t.Errorf("switched on, the data path has %+v", all)
		}
	}
	checkSum(t, p)
}

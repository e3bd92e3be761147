package local

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/kuryr/kuryr/datapath/lb"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/engine"
	"go.etcd.io/bbolt"
)

// service is a load balancer on a subnet with one listener.
func service(subnet sdn.ID, name string, members ...string) sdn.LoadBalancerSpec {
	spec := sdn.LoadBalancerSpec{Base: sdn.Base{Key: sdn.Key{Owner: "o", Kind: "service", Name: name}}, VIPs: []sdn.VIP{{Subnet: subnet}}, Listeners: []sdn.Listener{{Protocol: sdn.TCP, Port: 80}}}
	for _, m := range members {
		spec.Listeners[0].Pool.Members = append(spec.Listeners[0].Pool.Members, sdn.Member{Addr: netip.MustParseAddrPort(m)})
	}
	return spec
}

// vipWorld is a provider with a network of VIPs that is on no router yet, and a router.
func vipWorld(t *testing.T) (p *Provider, fake *fakeKernel, subnet, router sdn.ID) {
	t.Helper()
	fake = newFake()
	p = open(t, Options{Datapath: fake})
	n, err := p.EnsureNetwork(t.Context(), sdn.NetworkSpec{Subnets: []sdn.SubnetSpec{{CIDR: prefix("10.96.0.0/12")}}})
	ok(t, err)
	r, err := p.EnsureRouter(t.Context(), sdn.RouterSpec{Gateway: &sdn.ExternalGateway{Network: p.Capabilities().ExternalNetwork, SNAT: true}})
	ok(t, err)
	return p, fake, n.Subnets[0], r.ID
}

func (f *fakeKernel) balancedIn(domain sdn.ID) []lb.Key {
	f.mu.Lock()
	defer f.mu.Unlock()
	var keys []lb.Key
	if d := f.state[string(domain)]; d != nil {
		for k := range d.balanced {
			keys = append(keys, k)
		}
	}
	return keys
}

// A VIP comes when the kernel has what it leads to, and goes after it: nobody is refused at an address that is there too early.
func TestFrontendsComeBeforeTheirVIPs(t *testing.T) {
	t.Parallel()
	p, fake, subnet, router := vipWorld(t)
	ok(t, p.AttachSubnet(t.Context(), router, subnet, netip.Addr{}))
	var calls []string
	fake.mu.Lock()
	fake.fail = func(call, _ string) error {
		calls = append(calls, call)
		return nil
	}
	fake.mu.Unlock()
	l, err := p.ApplyLoadBalancer(t.Context(), service(subnet, "a", "10.0.0.5:8080"))
	ok(t, err)
	ok(t, p.DeleteLoadBalancer(t.Context(), l.ID))
	fake.mu.Lock()
	defer fake.mu.Unlock()
	if want := []string{"frontends", "vips", "frontends", "vips"}; !slices.Equal(calls, want) {
		t.Errorf("the kernel is told by %v, want %v", calls, want)
	}
}

// A load balancer on a network without a router is stored; the kernel has it while a router is on its subnet.
func TestLoadBalancerFollowsItsRouter(t *testing.T) {
	t.Parallel()
	p, fake, subnet, router := vipWorld(t)
	ctx := t.Context()
	l, err := p.ApplyLoadBalancer(ctx, service(subnet, "a", "10.0.0.5:8080"))
	ok(t, err)
	if !l.Status.Ready || l.Status.Message == "" {
		t.Errorf("without a router its status is %+v, want it to be ready and to say so", l.Status)
	}
	for range 2 {
		ok(t, p.AttachSubnet(ctx, router, subnet, netip.Addr{}))
		if keys := fake.balancedIn(router); len(keys) != 1 || keys[0].Addr != l.VIPs[0].Addr {
			t.Errorf("the router balances %v, want the VIP %v", keys, l.VIPs[0].Addr)
		}
		checkSum(t, p)
		if l, err = p.LoadBalancer(ctx, l.ID); err != nil || !l.Status.Ready || l.Status.Message != "" {
			t.Errorf("with a router its status is %+v, %v", l.Status, err)
		}
		ok(t, p.DetachSubnet(ctx, router, subnet))
		checkSum(t, p)
	}
}

// A floating IP of a VIP is one more address of the same frontends, and not translated itself.
func TestFloatingIPOfLoadBalancer(t *testing.T) {
	t.Parallel()
	p, fake, subnet, router := vipWorld(t)
	ctx := t.Context()
	ok(t, p.AttachSubnet(ctx, router, subnet, netip.Addr{}))
	a, err := p.ApplyLoadBalancer(ctx, service(subnet, "a", "10.0.0.5:8080"))
	ok(t, err)
	b, err := p.ApplyLoadBalancer(ctx, service(subnet, "b", "10.0.0.6:8080"))
	ok(t, err)
	f, err := p.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{Network: p.Capabilities().ExternalNetwork, Target: sdn.Target{Port: a.VIPs[0].Port}})
	ok(t, err)
	at := lb.Key{Addr: f.Address, Protocol: sdn.TCP, Port: 80}
	leads := func(to string) {
		t.Helper()
		checkSum(t, p)
		fake.mu.Lock()
		defer fake.mu.Unlock()
		d := fake.state[string(router)]
		if got := d.balanced[at].Endpoints; to == "" && got != nil || to != "" && (len(got) != 1 || got[0].String() != to) {
			t.Errorf("the floating IP leads to %v, want %q", got, to)
		}
		for _, floating := range d.shape.Uplink.Floating {
			if floating.Internal.IsValid() {
				t.Errorf("%v is translated to %v besides", floating.External, floating.Internal)
			}
		}
	}
	leads("10.0.0.5:8080")
	_, err = p.ApplyLoadBalancer(ctx, service(subnet, "a", "10.0.0.7:8080"))
	ok(t, err)
	leads("10.0.0.7:8080")
	_, err = p.UpdateFloatingIP(ctx, f.ID, sdn.FloatingIPPatch{Target: &sdn.Target{Port: b.VIPs[0].Port}})
	ok(t, err)
	leads("10.0.0.6:8080")
	ok(t, p.DeleteLoadBalancer(ctx, b.ID))
	leads("")
	vip := sdn.Gateway{Addr: a.VIPs[0].Addr}
	if _, err := p.UpdateSubnet(ctx, subnet, sdn.SubnetPatch{Gateway: &vip}); !sdn.IsConflict(err) {
		t.Errorf("a VIP that is to be the gateway: %v", err)
	}
	if err := p.DeletePorts(ctx, []sdn.ID{a.VIPs[0].Port}); !sdn.IsConflict(err) || sdn.ReasonOf(err) != sdn.InUse {
		t.Errorf("deleting a VIP's port: %v", err)
	}
	host, err := p.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{Network: p.Capabilities().ExternalNetwork, Address: netip.IPv4Unspecified()})
	ok(t, err)
	_, err = p.EnsureForwards(ctx, host.ID, []sdn.Forward{{Protocol: sdn.TCP, External: sdn.PortRange{First: 80}, Target: sdn.Target{Port: a.VIPs[0].Port}, Internal: sdn.PortRange{First: 80}}})
	if !sdn.IsUnsupported(err) {
		t.Errorf("a forwarding to a VIP: %v", err)
	}
}

// A change tells the kernel what changes, however many load balancers there are.
func TestLoadBalancerCostsItsChange(t *testing.T) {
	t.Parallel()
	p, fake, subnet, router := vipWorld(t)
	ctx := t.Context()
	ok(t, p.AttachSubnet(ctx, router, subnet, netip.Addr{}))
	spec := service(subnet, "one", "10.0.0.5:8080")
	for _, name := range []string{"a", "b", "c"} {
		_, err := p.ApplyLoadBalancer(ctx, service(subnet, name, "10.0.0.5:8080"))
		ok(t, err)
	}
	spec.Listeners = append(spec.Listeners, sdn.Listener{Protocol: sdn.UDP, Port: 80}, sdn.Listener{Protocol: sdn.TCP, Port: 443})
	l, err := p.ApplyLoadBalancer(ctx, spec)
	ok(t, err)
	for what, c := range map[string]struct {
		do   func() error
		cost int
	}{
		"nothing":  {func() error { _, err := p.ApplyLoadBalancer(ctx, spec); return err }, 0},
		"its name": {func() error { spec.Name = "web"; _, err := p.ApplyLoadBalancer(ctx, spec); return err }, 0},
		"one member": {func() error {
			spec.Listeners[0].Pool.Members[0].Drain = !spec.Listeners[0].Pool.Members[0].Drain
			_, err := p.ApplyLoadBalancer(ctx, spec)
			return err
		}, 1},
	} {
		before, calls := fake.frontends, fake.calls
		ok(t, c.do())
		if cost := fake.frontends - before; cost != c.cost {
			t.Errorf("%s costs %d frontends, want %d", what, cost, c.cost)
		}
		if n := fake.calls - calls; n > 1 {
			t.Errorf("%s costs %d calls", what, n)
		}
	}
	before := fake.frontends
	ok(t, p.DeleteLoadBalancer(ctx, l.ID))
	if cost := fake.frontends - before; cost != 3 {
		t.Errorf("its end costs %d frontends, want 3", cost)
	}
	checkSum(t, p)
}

// A kernel that does not track SCTP balances none.
func TestLoadBalancerWithoutSCTP(t *testing.T) {
	t.Parallel()
	p, fake, subnet, _ := vipWorld(t)
	spec := service(subnet, "a")
	spec.Listeners[0].Protocol = sdn.SCTP
	fake.can.SCTP = false
	if _, err := p.ApplyLoadBalancer(t.Context(), spec); !sdn.IsUnsupported(err) || sdn.FieldOf(err) != "listeners[0].protocol" {
		t.Errorf("got %v", err)
	}
	if slices.Contains(p.Capabilities().LoadBalancer.Protocols, sdn.SCTP) {
		t.Error("SCTP is promised")
	}
	fake.can.SCTP = true
	_, err := p.ApplyLoadBalancer(t.Context(), spec)
	ok(t, err)
}

func TestFrontend(t *testing.T) {
	t.Parallel()
	four, six := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd00::1")
	at := func(a string) sdn.Member { return sdn.Member{Addr: netip.MustParseAddrPort(a)} }
	heavy, drained := at("10.0.0.1:80"), at("10.0.0.3:80")
	heavy.Weight, drained.Drain = 4, true
	light := at("10.0.0.2:80")
	light.Weight = 2
	l := sdn.Listener{Protocol: sdn.TCP, Port: 80, Sources: []netip.Prefix{prefix("192.0.2.0/24")}, Pool: sdn.Pool{
		Affinity: sdn.Affinity{ClientIP: true}, Members: []sdn.Member{heavy, light, drained, at("[fd00::5]:80")},
	}}
	f := frontend(l, four)
	if want := []netip.AddrPort{heavy.Addr, heavy.Addr, light.Addr}; !slices.Equal(f.Endpoints, want) {
		t.Errorf("the endpoints are %v, want %v", f.Endpoints, want)
	}
	if !slices.Equal(f.Draining, []netip.AddrPort{drained.Addr}) {
		t.Errorf("there drain %v, want %v", f.Draining, drained.Addr)
	}
	if f.Affinity != defaultAffinity || !slices.Equal(f.Sources, l.Sources) {
		t.Errorf("got %+v", f)
	}
	// Nobody of the other family may connect, and that is not everybody.
	if f = frontend(l, six); len(f.Sources) != 1 || f.Sources[0] != netip.MustParsePrefix("::/128") || len(f.Endpoints) != 1 || f.Draining != nil {
		t.Errorf("got %+v", f)
	}
	l.Pool.Affinity, l.Pool.Algorithm = sdn.Affinity{}, sdn.SourceIP
	if f = frontend(l, four); f.Affinity != defaultAffinity {
		t.Errorf("%s keeps a client for %v", l.Pool.Algorithm, f.Affinity)
	}
	l.Pool.Affinity = sdn.Affinity{ClientIP: true, Timeout: time.Minute}
	if f = frontend(l, four); f.Affinity != time.Minute {
		t.Errorf("a client is kept for %v", f.Affinity)
	}
	// However odd the weights, there is room for all.
	for n, most := range map[int]int{300: mostShares, 7000: lb.MaxEndpoints, lb.MaxEndpoints: lb.MaxEndpoints} {
		many := make([]sdn.Member, n)
		for i := range many {
			many[i].Weight = 1
		}
		for i := range 200 {
			many[i].Weight = 1 + i%256
		}
		total := 0
		for _, n := range shares(many) {
			if total += n; n < 1 {
				t.Error("a member has no share")
			}
		}
		if total > most {
			t.Errorf("%d members have %d places, at most %d", n, total, most)
		}
	}
}

// A load balancer is ready when the kernel has it, whatever else the kernel refuses.
func TestLoadBalancerReady(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	spec := service(w.networks[0].Subnets[0], "a", "10.0.0.200:80")
	l, err := w.ApplyLoadBalancer(t.Context(), spec)
	ok(t, err)
	ready := func() bool {
		l, err := w.LoadBalancer(t.Context(), l.ID)
		ok(t, err)
		return l.Status.Ready
	}
	w.refuse = "ports"
	if _, err := w.EnsurePorts(t.Context(), []sdn.PortSpec{portSpec(w, 0)}); !sdn.IsUnavailable(err) {
		t.Errorf("got %v, want unavailable", err)
	}
	if !ready() {
		t.Error("a refused port makes the load balancer not ready")
	}
	w.refuse = ""
	ok(t, w.sync.retry(t.Context()))
	spec.ID, spec.Listeners[0].Port = l.ID, 81
	change := stored(t, func(ctx context.Context) error {
		_, err := w.ApplyLoadBalancer(ctx, spec)
		return err
	})
	if ready() {
		t.Error("a load balancer whose change is not applied yet is ready")
	}
	ok(t, change.settle())
	if !ready() {
		t.Error("the load balancer is not ready after its change")
	}
	checkSum(t, w.Provider)
}

// A change of a load balancer does not read those that have the same address elsewhere.
func TestSameAddressElsewhereIsNotRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	twin, err := w.EnsureNetwork(t.Context(), sdn.NetworkSpec{Subnets: []sdn.SubnetSpec{{CIDR: prefix("10.0.0.0/24")}}})
	ok(t, err)
	ok(t, w.AttachSubnet(t.Context(), w.routers[1], twin.Subnets[0], netip.Addr{}))
	var ids []sdn.ID
	for _, subnet := range []sdn.ID{w.networks[0].Subnets[0], twin.Subnets[0]} {
		spec := service(subnet, string(subnet), "10.0.0.200:80")
		spec.VIPs[0].Addr = netip.MustParseAddr("10.0.0.50")
		l, err := w.ApplyLoadBalancer(t.Context(), spec)
		ok(t, err)
		ids = append(ids, l.ID)
	}
	var row []byte
	rewrite := func(value func(is []byte) []byte) {
		ok(t, w.db.Update(func(b *bbolt.Tx) error {
			bucket := b.Bucket([]byte(engine.LoadBalancers.Noun))
			return bucket.Put([]byte(ids[1]), value(slices.Clone(bucket.Get([]byte(ids[1])))))
		}))
	}
	rewrite(func(is []byte) []byte { row = is; return []byte("damaged") })
	ok(t, w.DeleteLoadBalancer(t.Context(), ids[0]))
	if keys := w.fake.balancedIn(w.routers[0]); len(keys) != 0 {
		t.Errorf("the deleted load balancer is still at %v", keys)
	}
	rewrite(func([]byte) []byte { return row })
	checkSum(t, w.Provider)
}

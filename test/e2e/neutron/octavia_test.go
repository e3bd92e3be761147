//go:build e2e

package neutron_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/neutron"
	"github.com/kuryr/kuryr/sdn/neutron/neutrontest"
	"github.com/kuryr/kuryr/test/e2e/neutronlab"
	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// Load balancers of a real Octavia with OVN's provider, with packets.
func TestOctavia(t *testing.T) {
	r := balanced(t)
	b := newBalancing(r, "ovn")
	t.Run("life", func(t *testing.T) { b.in(t).life() })
	t.Run("beyond the router", func(t *testing.T) { b.in(t).beyond() })
	t.Run("shared", func(t *testing.T) { b.in(t).shared() })
	t.Run("contract", func(t *testing.T) { contractOfBalancers(t, r.lab, "ovn", heart) })
}

// What Octavia refuses, and what happens to its load balancers and to the process that makes them.
func TestOctaviaFaults(t *testing.T) {
	b := newBalancing(balanced(t), "ovn")
	t.Run("refusals", func(t *testing.T) { b.in(t).refusals() })
	t.Run("lost answer", func(t *testing.T) { b.in(t).lostAnswer() })
	t.Run("killed", func(t *testing.T) { b.in(t).killed("ovn") })
	t.Run("behind our back", func(t *testing.T) { b.in(t).behindOurBack() })
	t.Run("stuck and broken", func(t *testing.T) { b.in(t).stuckAndBroken() })
	t.Run("quota", func(t *testing.T) { b.in(t).quota() })
}

// Load balancers of Octavia's provider amphora, without machines.
func TestOctaviaAmphora(t *testing.T) {
	t.Parallel()
	// A boot of its own: another Octavia, with amphora's worker, and a Neutron that asks Keystone.
	l := neutronlab.Start(t, neutronlab.Options{Hosts: 2, Keystone: true, Octavia: true, Amphora: true})
	a := amphorae{newBalancing(freeRig(t, l), "amphora")}
	t.Run("life", func(t *testing.T) { a.in(t).life() })
	t.Run("part in error", func(t *testing.T) { a.in(t).partInError() })
	t.Run("flavor and zone", func(t *testing.T) { a.in(t).flavorAndZone() })
	t.Run("killed", func(t *testing.T) { a.in(t).killed("amphora") })
	t.Run("refusals", func(t *testing.T) { a.in(t).refusals() })
	t.Run("contract", func(t *testing.T) { contractOfBalancers(t, l, "amphora", heart) })
}

// balancing is a lab with Octavia, a network whose router leads outside, a client on one host and members on both.
type balancing struct {
	*rig
	p        *neutron.Provider
	octavia  *neutrontest.Proxy
	external object
	subnet   sdn.ID
	client   *neutronlab.VM
	members  []*neutronlab.VM
}

// newBalancing furnishes the lab. A provider of Octavia's makes the load balancers.
func newBalancing(r *rig, backend string) *balancing {
	r.Helper()
	b := &balancing{rig: r}
	var err error
	if b.external, err = r.lab.ExternalNetwork(r.ctx); err != nil {
		r.Fatal(err)
	}
	network, subnets := r.ownNetwork("balanced", "10.80.0.0/24")
	b.subnet = sdn.ID(subnets[0].ID())
	// OVN answers for a VIP only where a router is on its subnet.
	r.routed("balanced", b.external, subnets[0])
	b.p, b.octavia = b.open(backend)
	b.client = b.server(r.h1, "cl", network.ID())
	b.members = []*neutronlab.VM{
		b.server(r.h1, "m1", network.ID()), b.server(r.h2, "m2", network.ID()),
		b.server(r.h2, "m3", network.ID()),
	}
	return b
}

// in is b for a test of it.
func (b *balancing) in(t *testing.T) *balancing {
	t.Helper()
	same := *b
	same.rig = &rig{T: t, ctx: b.ctx, lab: b.lab, api: b.api, h1: b.h1, h2: b.h2}
	t.Cleanup(b.octavia.Reset)
	return &same
}

// memberPort is where members answer with the client's address and their name.
const memberPort = 7001

// server plugs a VM that answers on memberPort.
func (b *balancing) server(h host, name, network string) *neutronlab.VM {
	b.Helper()
	vm := b.vm(h, name, network, nil)
	cmd := h.Command(
		context.Background(), "nsenter", "--net=/run/netns/"+name, "--", probe, "serve",
		fmt.Sprint(memberPort), name,
	)
	if err := h.StartCommand(cmd); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return vm
}

// before is the address in this process of a proxy before one of the central host's services.
func (b *balancing) before(service string) *neutrontest.Proxy {
	b.Helper()
	to, err := url.Parse(service)
	if err != nil {
		b.Fatal(err)
	}
	proxy := neutrontest.Handler(&httputil.ReverseProxy{
		Transport: &http.Transport{DialContext: b.lab.Central.Dial}, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) },
	})
	server := httptest.NewServer(proxy)
	b.Cleanup(server.Close)
	proxy.URL = server.URL
	return proxy
}

// open opens a provider as the user demo that has one of Octavia's make load balancers,
// and gives what stands before its Octavia.
func (b *balancing) open(backend string) (*neutron.Provider, *neutrontest.Proxy) {
	b.Helper()
	id, octavia := b.lab.Identity(), b.before(neutronlab.OctaviaURL)
	p, err := neutron.Open(neutron.Config{
		Installation: "balancing", Host: "h1", Env: func(string) (string, bool) { return "", false }, Timeout: limit,
		Endpoint: b.before(neutronlab.Endpoint).URL, OctaviaEndpoint: octavia.URL, Backend: backend,
		Auth: neutron.Auth{
			URL:      b.before(strings.TrimSuffix(neutronlab.KeystoneURL, "/v3")).URL + "/v3",
			Username: id.Name, Password: id.Password, UserDomainID: "default",
			ProjectName: id.Name, ProjectDomainID: "default",
		},
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = p.Close() })
	return p, octavia
}

// spec is a load balancer with one TCP listener on port 80.
func (b *balancing) spec(name string, members ...*neutronlab.VM) sdn.LoadBalancerSpec {
	l := sdn.Listener{Protocol: sdn.TCP, Port: 80}
	for _, m := range members {
		l.Pool.Members = append(l.Pool.Members, sdn.Member{
			Name: m.Name, Addr: netip.AddrPortFrom(m.Addrs[0].Addr(), memberPort), Subnet: b.subnet,
		})
	}
	return sdn.LoadBalancerSpec{
		Base: sdn.Base{
			Key: sdn.Key{Owner: "balancing", Kind: "k8s-service", Name: name}, Name: name,
			Tags: []string{"kuryr"},
		},
		VIPs: []sdn.VIP{{Subnet: b.subnet}}, Listeners: []sdn.Listener{l},
	}
}

// ready applies until the load balancer is ready, as its user would.
func (b *balancing) ready(spec sdn.LoadBalancerSpec) sdn.LoadBalancer {
	b.Helper()
	begin, steps := time.Now(), 0
	var now sdn.LoadBalancer
	for {
		var err error
		if now, err = b.p.ApplyLoadBalancer(b.ctx, spec); err != nil {
			b.Fatalf("apply %s: %v", spec.Key.Name, err)
		}
		steps++
		if now.Status.Ready {
			b.Logf("%s: ready after %d steps and %s", spec.Name, steps, time.Since(begin).Round(10*time.Millisecond))
			return now
		}
		if time.Since(begin) > limit || now.Status.RetryAfter <= 0 {
			b.Fatalf("%s is not ready after %d steps: %+v", spec.Name, steps, now.Status)
		}
		b.pause(now.Status.RetryAfter)
	}
}

func (b *balancing) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-b.ctx.Done():
		b.Fatal(b.ctx.Err())
	}
}

// gone deletes a load balancer until it is gone.
func (b *balancing) gone(id sdn.ID) {
	b.Helper()
	b.until("load balancer "+string(id)+" stays", func(ctx context.Context) error {
		return b.p.DeleteLoadBalancer(ctx, id)
	})
	if _, err := b.p.LoadBalancer(b.ctx, id); !sdn.IsNotFound(err) {
		b.Errorf("it was deleted, and is still there: %v", err)
	}
}

// answers asks an address until each of the members, and no other, has answered.
func (b *balancing) answers(from runner, proto string, to netip.AddrPort, members ...*neutronlab.VM) {
	b.Helper()
	want := map[string]bool{}
	for _, m := range members {
		want[m.Name] = true
	}
	b.until(fmt.Sprintf(
		"%s to %v is not answered by all of %v and none else", proto, to, want,
	), func(context.Context) error {
		got := map[string]bool{}
		for range 12 {
			res := from(probe, proto, to.String())
			if !res.OK() {
				return res.Err()
			}
			name := res.Out()[strings.LastIndex(res.Out(), " ")+1:]
			if !want[name] {
				return fmt.Errorf("%s answers", res.Out())
			}
			got[name] = true
		}
		if len(got) != len(want) {
			return fmt.Errorf("only %v of %v answer", got, want)
		}
		return nil
	})
}

// counted are the requests of one call to Octavia.
func (b *balancing) counted(call func()) []string {
	b.octavia.Reset()
	call()
	var all []string
	for _, c := range b.octavia.Calls() {
		all = append(all, c.String())
	}
	return all
}

// life makes a load balancer, changes all that can be changed, and deletes it.
func (b *balancing) life() {
	spec := b.spec("life", b.members[:2]...)
	spec.Listeners = append(spec.Listeners, sdn.Listener{Protocol: sdn.UDP, Port: 80, Pool: spec.Listeners[0].Pool})
	made := b.ready(spec)
	can := b.p.Capabilities().LoadBalancer
	if len(can.Protocols) != 3 || !can.ClientIPKept || can.SourceRanges {
		b.Errorf("the capabilities are not those of OVN's provider: %+v", can)
	}
	vip := made.VIPs[0].Addr
	at := netip.AddrPortFrom(vip, 80)
	b.answers(b.runs(), "tcp", at, b.members[:2]...)
	b.answers(b.runs(), "udp", at, b.members[:2]...)

	b.pause(3 * time.Second) // times of change are in seconds
	b.ready(spec)
	if calls := b.counted(func() { b.ready(spec) }); len(calls) != 1 {
		b.Errorf("nothing has changed, and Octavia was asked %v", calls)
	}

	// Members change in one request, of one pool alone.
	spec.Listeners[0].Pool.Members = b.spec("", b.members[1:]...).Listeners[0].Pool.Members
	calls := b.counted(func() { b.ready(spec) })
	b.Logf("one member changed: %v", calls)
	if n := len(slices.DeleteFunc(slices.Clone(calls), func(c string) bool {
		return strings.HasPrefix(c, "GET")
	})); n != 1 {
		b.Errorf("one member changed, and there were %d changing requests: %v", n, calls)
	}
	b.answers(b.runs(), "tcp", at, b.members[1:]...)
	b.answers(b.runs(), "udp", at, b.members[:2]...)

	// A listener comes and another goes.
	spec.Listeners[1].Port = 81
	b.ready(spec)
	b.answers(b.runs(), "udp", netip.AddrPortFrom(vip, 81), b.members[:2]...)
	if res := b.runs()(probe, "udp", at.String()); res.OK() {
		b.Error("the listener that was removed still answers")
	}

	// A floating IP leads to the VIP.
	floating := b.create("floatingips", object{
		"floating_network_id": b.external.ID(), "port_id": string(made.VIPs[0].Port),
	})
	outside, err := netip.ParseAddr(floating.Text("floating_ip_address"))
	if err != nil {
		b.Fatal(err)
	}
	b.answers(
		func(argv ...string) privatehost.Result { return b.lab.Central.Exec(b.ctx, argv...) },
		"tcp", netip.AddrPortFrom(outside, 80), b.members[1:]...,
	)
	if err := b.api.Delete(b.ctx, "floatingips", floating.ID()); err != nil {
		b.Error(err)
	}

	again := b.ready(spec)
	if again.ID != made.ID || len(again.Listeners) != 2 || len(again.Listeners[0].Pool.Members) != 2 {
		b.Errorf("it is %+v", again)
	}
	b.gone(made.ID)
	b.gone(made.ID)
}

// beyond has a member that is no port of Neutron, beyond the router's gateway: clients in
// the SDN reach it, and those of a floating IP do not, since it answers them past the
// load balancer.
func (b *balancing) beyond() {
	far := netip.MustParsePrefix("203.0.113.12/24") // of neutronlab.External, below what it gives out
	if said := b.h2.Exec(b.ctx, "ip", "addr", "add", far.String(), "dev", "br-ex"); !said.OK() {
		b.Fatal(said)
	}
	b.fresh(func(ctx context.Context) error {
		return b.h2.Exec(ctx, "ip", "addr", "del", far.String(), "dev", "br-ex").Err()
	})
	service, err := b.h2.StartService(b.ctx, "far", nil, []string{probe, "serve", fmt.Sprint(memberPort), "far"}, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = service.Stop(syscall.SIGKILL, limit) })
	spec := b.spec("beyond", b.members[0])
	pool := &spec.Listeners[0].Pool
	pool.Members = append(pool.Members, sdn.Member{Addr: netip.AddrPortFrom(far.Addr(), memberPort)})
	made := b.ready(spec)
	at := netip.AddrPortFrom(made.VIPs[0].Addr, 80)
	b.answers(b.runs(), "tcp", at, b.members[0], &neutronlab.VM{Name: "far"})
	b.pause(3 * time.Second) // times of change are in seconds
	b.ready(spec)
	if calls := b.counted(func() { b.ready(spec) }); len(calls) != 1 {
		b.Errorf("nothing has changed, and Octavia was asked %v", calls)
	}

	floating := b.create("floatingips", object{
		"floating_network_id": b.external.ID(), "port_id": string(made.VIPs[0].Port),
	})
	outside := netip.AddrPortFrom(netip.MustParseAddr(floating.Text("floating_ip_address")), 80)
	central := func(argv ...string) privatehost.Result { return b.lab.Central.Exec(b.ctx, argv...) }
	b.until("no member is reached by the floating IP", func(context.Context) error {
		return central(probe, "tcp", outside.String()).Err()
	})
	pool.Members = pool.Members[1:]
	b.ready(spec)
	b.answers(b.runs(), "tcp", at, &neutronlab.VM{Name: "far"})
	if said := central(probe, "tcp", outside.String()); said.OK() {
		b.Errorf("by the floating IP a member beyond the router answers: %s: tell so in sdn.LoadBalancerCapabilities", said)
	}
	if err := b.api.Delete(b.ctx, "floatingips", floating.ID()); err != nil {
		b.Error(err)
	}
	b.gone(made.ID)
}

// runs runs commands in the client.
func (b *balancing) runs() runner {
	return func(argv ...string) privatehost.Result {
		ctx, cancel := context.WithTimeout(b.ctx, limit)
		defer cancel()
		return b.client.Exec(ctx, argv...)
	}
}

// refusals are what this Octavia and its provider cannot do, and an address that is taken.
func (b *balancing) refusals() {
	taken := b.spec("taken", b.members[0])
	taken.VIPs[0].Addr = b.members[0].Addrs[0].Addr()
	if _, err := b.p.ApplyLoadBalancer(b.ctx, taken); sdn.ReasonOf(err) != sdn.AddressInUse {
		b.Errorf("a VIP that a port has: %v", err)
	}
	absent := b.spec("absent", b.members[0])
	absent.VIPs[0].Subnet = "00000000-0000-4000-8000-000000000000"
	if _, err := b.p.ApplyLoadBalancer(b.ctx, absent); !sdn.IsNotFound(err) {
		b.Errorf("a subnet that is absent: %v", err)
	}
	for field, change := range map[string]func(*sdn.LoadBalancerSpec){
		"listeners[0].sources": func(s *sdn.LoadBalancerSpec) {
			s.Listeners[0].Sources = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
		},
		"listeners[0].pool.algorithm": func(s *sdn.LoadBalancerSpec) { s.Listeners[0].Pool.Algorithm = sdn.RoundRobin },
		"listeners[0].pool.affinity":  func(s *sdn.LoadBalancerSpec) { s.Listeners[0].Pool.Affinity.ClientIP = true },
		"backend":                     func(s *sdn.LoadBalancerSpec) { s.Backend = "hardware" },
	} {
		spec := b.spec("lacking", b.members[0])
		change(&spec)
		if _, err := b.p.ApplyLoadBalancer(b.ctx, spec); !sdn.IsUnsupported(err) || sdn.FieldOf(err) != field {
			b.Errorf("%s: %v (%s)", field, err, sdn.FieldOf(err))
		}
	}
	all, err := sdn.All(b.p.FindLoadBalancers(b.ctx, sdn.LoadBalancerQuery{}))
	if err != nil || len(all) > 0 {
		b.Errorf("refused, and there is %v %v", all, err)
	}
}

// lostAnswer loses the answer to the request that makes a load balancer.
func (b *balancing) lostAnswer() {
	spec := b.spec("lost", b.members[0])
	b.octavia.Cut(neutrontest.Call{Method: http.MethodPost}, 1)
	made := b.ready(spec)
	all, err := sdn.All(b.p.FindLoadBalancers(b.ctx, sdn.LoadBalancerQuery{Match: sdn.Match{Kind: "k8s-service"}}))
	if err != nil || len(all) != 1 {
		b.Errorf("there are %d load balancers: %v", len(all), err)
	}
	b.gone(made.ID)
}

// behindOurBack has an operator delete a load balancer, and change another.
func (b *balancing) behindOurBack() {
	spec := b.spec("back", b.members[0])
	made := b.ready(spec)
	vip := made.VIPs[0].Addr
	pool := "pools/" + string(made.Listeners[0].Pool.ID)
	if err := b.lab.Octavia(b.ctx, http.MethodPut, pool+"/members", object{"members": []object{}}, nil); err != nil {
		b.Fatal(err)
	}
	b.ready(spec)
	b.answers(b.runs(), "tcp", netip.AddrPortFrom(vip, 80), b.members[0])
	if err := b.lab.Octavia(
		b.ctx, http.MethodDelete, "loadbalancers/"+string(made.ID)+"?cascade=true", nil, nil,
	); err != nil {
		b.Fatal(err)
	}
	again := b.ready(spec)
	if again.ID == made.ID {
		b.Error("it was deleted, and has the same id")
	}
	b.answers(b.runs(), "tcp", netip.AddrPortFrom(again.VIPs[0].Addr, 80), b.members[0])
	b.gone(again.ID)
}

// stuckAndBroken has one load balancer stuck while another works, and one in ERROR.
func (b *balancing) stuckAndBroken() {
	stuck, other := b.spec("stuck", b.members[0]), b.spec("other", b.members[1])
	made := b.ready(stuck)
	if err := b.lab.SetState(b.ctx, string(made.ID), "PENDING_UPDATE"); err != nil {
		b.Fatal(err)
	}
	stuck.Listeners[0].Pool.Members = b.spec("", b.members[1]).Listeners[0].Pool.Members
	now, err := b.p.ApplyLoadBalancer(b.ctx, stuck)
	if err != nil || now.Status.Ready || now.Status.RetryAfter == 0 ||
		!strings.Contains(now.Status.Message, "PENDING_UPDATE") {
		b.Errorf("a load balancer that is stuck: %+v %v", now.Status, err)
	}
	if err := b.p.DeleteLoadBalancer(b.ctx, made.ID); !sdn.IsPending(err) || sdn.RetryAfterOf(err) == 0 {
		b.Errorf("deleting one that is stuck: %v", err)
	}
	works := b.ready(other)
	if err := b.lab.SetState(b.ctx, string(made.ID), "ERROR"); err != nil {
		b.Fatal(err)
	}
	anew := b.ready(stuck)
	if anew.ID == made.ID {
		b.Error("one in ERROR was not made anew")
	}
	b.answers(b.runs(), "tcp", netip.AddrPortFrom(anew.VIPs[0].Addr, 80), b.members[1])
	b.gone(anew.ID)
	b.gone(works.ID)
}

// quota is reached, and then raised.
func (b *balancing) quota() {
	quota := func(n int) error {
		return b.lab.Octavia(
			b.ctx, http.MethodPut, "quotas/"+b.lab.Project(),
			object{"quota": object{"load_balancer": n}}, nil,
		)
	}
	if err := quota(0); err != nil {
		b.Fatal(err)
	}
	spec := b.spec("quota", b.members[0])
	if _, err := b.p.ApplyLoadBalancer(b.ctx, spec); sdn.ReasonOf(err) != sdn.NoQuota {
		b.Errorf("over quota: %v", err)
	}
	if err := quota(-1); err != nil {
		b.Fatal(err)
	}
	b.gone(b.ready(spec).ID)
}

// shared has an operator's load balancer serve two Services, and leaves it as it was.
func (b *balancing) shared() {
	var answer struct{ Loadbalancer object }
	body := object{"loadbalancer": object{
		"name": "operators", "vip_subnet_id": string(b.subnet), "project_id": b.lab.Project(),
		"description": "the operator's",
	}}
	if err := b.lab.Octavia(b.ctx, http.MethodPost, "loadbalancers", body, &answer); err != nil {
		b.Fatal(err)
	}
	id := sdn.ID(answer.Loadbalancer.ID())
	one, two := b.spec("one", b.members[0]), b.spec("two", b.members[1])
	two.Listeners[0].Port = 81
	for _, s := range []*sdn.LoadBalancerSpec{&one, &two} {
		s.ID, s.Shared, s.VIPs = id, true, nil
	}
	b.ready(one)
	now := b.ready(two)
	if len(now.Listeners) != 2 || now.Description != "the operator's" || !now.Foreign {
		b.Errorf("it is %+v", now)
	}
	b.answers(b.runs(), "tcp", netip.AddrPortFrom(now.VIPs[0].Addr, 80), b.members[0])
	b.answers(b.runs(), "tcp", netip.AddrPortFrom(now.VIPs[0].Addr, 81), b.members[1])
	clash := two
	clash.Listeners = slices.Clone(one.Listeners)
	if _, err := b.p.ApplyLoadBalancer(b.ctx, clash); sdn.ReasonOf(err) != sdn.Exists {
		b.Errorf("a port that another has: %v", err)
	}
	one.Listeners = nil
	if now = b.ready(one); len(now.Listeners) != 1 || now.Listeners[0].Port != 81 {
		b.Errorf("one gave its listeners up, and there are %+v", now.Listeners)
	}
	b.gone(id)
}

// The whole contract of load balancers takes minutes here; TestOctavia has the heart of it.
func TestOctaviaContract(t *testing.T) {
	contractOfBalancers(t, balanced(t).lab, "ovn", ".")
}

// The same with amphora; TestOctaviaAmphora has the heart of it.
func TestOctaviaAmphoraContract(t *testing.T) {
	t.Parallel()
	// A boot of its own, as TestOctaviaAmphora, which is of another shard of tier 3.
	l := neutronlab.Start(t, neutronlab.Options{Hosts: 1, Keystone: true, Octavia: true, Amphora: true})
	contractOfBalancers(t, l, "amphora", ".")
}

// heart are the contract's tests that an SDN's answers matter most for.
const heart = "^(the_absent|a_VIP_in_use|members_come_and_go)$"

// contractOfBalancers runs tests of the contract's suite of load balancers on a lab's
// Octavia with one of its providers.
func contractOfBalancers(t *testing.T, l *neutronlab.Lab, backend, tests string) {
	ctx, cancel := context.WithTimeout(t.Context(), 25*time.Minute) // where two processors have much else to do
	defer cancel()
	external, err := l.ExternalNetwork(ctx)
	if err != nil {
		t.Fatal(err)
	}
	res := l.Central.Exec(ctx, "env",
		"KURYR_NEUTRON_CLOUD="+neutronlab.CloudPassword, "OS_CLIENT_CONFIG_FILE="+l.CloudsFile(),
		"KURYR_NEUTRON_HOST=h1", "KURYR_NEUTRON_PROJECT="+l.Project(),
		"KURYR_NEUTRON_EXTERNAL="+external.ID(), "KURYR_NEUTRON_LOAD_BALANCER_PROVIDER="+backend,
		built(t), "-test.v", "-test.timeout=24m", "-test.parallel=3",
		"-test.run=^TestContract$/^LoadBalancers$/"+tests)
	t.Log(res.Stdout)
	if !res.OK() {
		t.Error(res.Err())
	}
	if !strings.Contains(res.Stdout, "--- PASS: TestContract/LoadBalancers/") {
		t.Error("no test of the contract has run")
	}
}

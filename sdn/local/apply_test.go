package local

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kuryr/kuryr/datapath/router"
	"github.com/kuryr/kuryr/sdn"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A kernel that fails after the commit: the error says so, the store has the change, a repeat mends it.
func TestKernelFailureIsMendedByTheSameEnsure(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, call := range []string{"shape", "ports"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			fake := newFake()
			p := open(t, Options{Datapath: fake})
			n, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Subnets: []sdn.SubnetSpec{{CIDR: prefix("10.0.0.0/24")}}})
			ok(t, err)
			fake.fail = func(c, _ string) error {
				if c == call {
					return errInjected
				}
				return nil
			}
			spec := sdn.PortSpec{Base: sdn.Base{Key: sdn.Key{Owner: p.Installation(), Kind: "k", Name: "n"}}, Network: n.ID, Host: testHost}
			ports, err := p.EnsurePorts(ctx, []sdn.PortSpec{spec})
			if !sdn.IsUnavailable(err) {
				t.Fatalf("got error %v, want unavailable", err)
			}
			if len(ports) != 1 || ports[0].ID == "" || ports[0].Status != sdn.PortDown {
				t.Fatalf("the answer is %+v, want the port, which is down", ports)
			}
			if stats, err := p.Stats(ctx); err != nil || stats.Unsettled != 1 {
				t.Errorf("unsettled domains: %d, %v", stats.Unsettled, err)
			}
			if _, err := p.EnsurePorts(ctx, []sdn.PortSpec{spec}); !sdn.IsUnavailable(err) {
				t.Errorf("while it fails: got error %v, want unavailable", err)
			}
			fake.fail = nil
			again, err := p.EnsurePorts(ctx, []sdn.PortSpec{spec})
			ok(t, err)
			if again[0].ID != ports[0].ID || again[0].Status != sdn.PortActive {
				t.Errorf("the repeat gave %+v", again[0])
			}
			checkSum(t, p)
		})
	}
}

func TestKernelFailureOnDeleteIsMendedBehind(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	fake := newFake()
	p := open(t, Options{Datapath: fake})
	network, rt, ports := fill(t, p, 5)
	fake.fail = func(string, string) error { return errInjected }
	ok(t, p.DeletePorts(ctx, ports[2:]))
	ok(t, p.DeletePorts(ctx, ports[:1]))
	fake.fail = nil
	if diff, err := p.Check(ctx); err != nil || len(diff) == 0 {
		t.Fatalf("the failing kernel followed: %v, %v", diff, err)
	}
	ok(t, p.sync.retry(ctx))
	checkSum(t, p)
	if _, err := p.Network(ctx, network); err != nil {
		t.Error(err)
	}
	if _, err := p.Router(ctx, rt); err != nil {
		t.Error(err)
	}
}

func TestRunMendsInTheBackground(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sdn.db")
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		fake := newFake()
		p, err := Open(ctx, Options{Path: path, Host: testHost, Datapath: fake, NoSync: true})
		ok(t, err)
		defer p.Close()
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		var failures atomic.Int32
		fake.mu.Lock()
		fake.fail = func(string, string) error {
			if failures.Add(1) <= 4 {
				return errInjected
			}
			return nil
		}
		fake.mu.Unlock()
		n, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Subnets: []sdn.SubnetSpec{{CIDR: prefix("10.0.0.0/24")}}})
		ok(t, err)
		ports, err := p.EnsurePorts(ctx, []sdn.PortSpec{{Network: n.ID, Host: testHost}})
		if !sdn.IsUnavailable(err) {
			t.Fatalf("got error %v, want unavailable", err)
		}
		wait, stop := context.WithTimeout(ctx, time.Hour)
		defer stop()
		ok(t, p.WaitPorts(wait, []sdn.ID{ports[0].ID}, sdn.PortActive))
		checkSum(t, p)
		cancel()
		ok(t, <-done)
	})
}

func TestReconcileSweeps(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "sdn.db")
	p := open(t, Options{Path: path, Datapath: newFake()})
	fill(t, p, 5)
	ok(t, p.Close())
	fake := newFake() // the machine was booted
	_, err := fake.Set(ctx, router.Change{Router: "stale", Shape: &router.Shape{ID: "stale"}})
	ok(t, err)
	p = open(t, Options{Path: path, Datapath: fake})
	if diff, err := p.Check(ctx); err != nil || len(diff) != 2 {
		t.Errorf("Check found %d differences, %v, want the missing and the stale domain", len(diff), err)
	}
	_, err = p.Reconcile(ctx)
	ok(t, err)
	checkSum(t, p)
	if fake.state["stale"] != nil {
		t.Error("the stale domain stayed")
	}
}

func TestUnreachedIsTold(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := open(t, Options{Datapath: newFake()})
	n, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Subnets: []sdn.SubnetSpec{{CIDR: prefix("172.16.0.0/24")}}})
	ok(t, err)
	r, err := p.EnsureRouter(ctx, sdn.RouterSpec{Gateway: &sdn.ExternalGateway{Network: p.Capabilities().ExternalNetwork}})
	ok(t, err)
	ok(t, p.AttachSubnet(ctx, r.ID, n.Subnets[0], netip.Addr{}))
	r, err = p.Router(ctx, r.ID)
	ok(t, err)
	if len(r.Unreached) != 1 || r.Unreached[0].Prefix != prefix("172.16.0.0/24") {
		t.Errorf("unreached: %+v", r.Unreached)
	}
	ok(t, p.DetachSubnet(ctx, r.ID, n.Subnets[0]))
	if r, err = p.Router(ctx, r.ID); err != nil || len(r.Unreached) != 0 {
		t.Errorf("unreached after the range went: %+v, %v", r.Unreached, err)
	}
}

// A network moves with its plugged ports: onto a router, and off it again.
func TestPluggedNetworkMoves(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	fake := newFake()
	p := open(t, Options{Datapath: fake})
	n, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Subnets: []sdn.SubnetSpec{{CIDR: prefix("10.0.0.0/24")}}})
	ok(t, err)
	if len(fake.state) != 0 {
		t.Error("a network without ports has a domain")
	}
	ports, err := p.EnsurePorts(ctx, []sdn.PortSpec{{Network: n.ID, Host: testHost}})
	ok(t, err)
	at := func(want sdn.ID) {
		t.Helper()
		checkSum(t, p)
		port, err := p.Port(ctx, ports[0].ID)
		ok(t, err)
		if got := port.VIF.Details[sdn.DetailNamespace]; got != "/fake/"+string(want) {
			t.Errorf("the port is in %s, want %s", got, want)
		}
		if d := fake.state[string(want)]; d == nil || len(d.ports) != 1 || len(fake.state) != 1 {
			t.Errorf("the data path has %v", fake.state)
		}
	}
	at(n.ID)
	r, err := p.EnsureRouter(ctx, sdn.RouterSpec{})
	ok(t, err)
	ok(t, p.AttachSubnet(ctx, r.ID, n.Subnets[0], netip.Addr{}))
	at(r.ID)
	ok(t, p.DetachSubnet(ctx, r.ID, n.Subnets[0]))
	at(n.ID)
	// Where the router cannot take it, it is not taken from where it is.
	fake.fail = func(call, domain string) error {
		if domain == string(r.ID) {
			return errInjected
		}
		return nil
	}
	if err := p.AttachSubnet(ctx, r.ID, n.Subnets[0], netip.Addr{}); !sdn.IsUnavailable(err) {
		t.Errorf("got error %v, want unavailable", err)
	}
	if len(fake.state[string(n.ID)].ports) != 1 {
		t.Error("the port was lost on the way")
	}
	fake.fail = nil
	ok(t, p.AttachSubnet(ctx, r.ID, n.Subnets[0], netip.Addr{}))
	ok(t, p.sync.retry(ctx))
	at(r.ID)
}

// Many at once, with a data path that fails now and then: when all is mended, it has what the store says.
func TestConcurrentChangesAddUp(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	fake := newFake()
	p := open(t, Options{Datapath: fake, NoSync: true})
	var calls atomic.Int64
	fake.fail = func(string, string) error {
		if calls.Add(1)%11 == 0 {
			return errInjected
		}
		return nil
	}
	fine := func(err error) {
		if err != nil && !sdn.IsUnavailable(err) && !sdn.IsConflict(err) && !sdn.IsNotFound(err) {
			t.Error(err)
		}
	}
	var routers, networks []sdn.ID
	var cidrs []sdn.ID
	for i := range 4 {
		r, err := p.EnsureRouter(ctx, sdn.RouterSpec{Gateway: &sdn.ExternalGateway{Network: p.Capabilities().ExternalNetwork, SNAT: true}})
		fine(err)
		n, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Subnets: []sdn.SubnetSpec{{CIDR: prefix(fmt.Sprintf("10.%d.0.0/24", i))}}})
		fine(err)
		routers, networks, cidrs = append(routers, r.ID), append(networks, n.ID), append(cidrs, n.Subnets[0])
	}
	set, err := p.ApplyAddressGroup(ctx, sdn.AddressGroupSpec{})
	fine(err)
	policy, err := p.ApplyQoSPolicy(ctx, sdn.QoSPolicySpec{})
	fine(err)
	var groups []sdn.ID
	for range 3 {
		g, err := p.ApplySecurityGroup(ctx, sdn.SecurityGroupSpec{Rules: []sdn.Rule{{Direction: sdn.Ingress, RemoteSet: set.ID}}})
		fine(err)
		groups = append(groups, g.ID)
	}
	var clients sync.WaitGroup
	for client := range 8 {
		clients.Go(func() {
			random := rand.New(rand.NewPCG(uint64(client), 2))
			var mine, fips []sdn.ID
			for range 60 {
				i := random.IntN(4)
				switch random.IntN(12) {
				case 8:
					rules := []sdn.Rule{{Direction: sdn.Egress, Protocol: sdn.TCP, Ports: sdn.PortRange{First: uint16(1 + random.IntN(9))}}}
					if random.IntN(2) == 0 {
						rules = append(rules, sdn.Rule{Direction: sdn.Ingress, RemoteSet: set.ID}, sdn.Rule{Direction: sdn.Ingress, RemoteGroup: groups[0]})
					}
					_, err := p.ApplySecurityGroup(ctx, sdn.SecurityGroupSpec{ID: groups[random.IntN(3)], Rules: rules})
					fine(err)
				case 9:
					_, err := p.ApplyAddressGroup(ctx, sdn.AddressGroupSpec{ID: set.ID, Prefixes: []netip.Prefix{prefix(fmt.Sprintf("192.0.2.%d/32", random.IntN(9)))}})
					fine(err)
					_, err = p.ApplyQoSPolicy(ctx, sdn.QoSPolicySpec{ID: policy.ID, Limits: sdn.Limits{EgressKbps: int64(1000 + random.IntN(9))}})
					fine(err)
				case 10:
					if len(mine) > 0 {
						fine(p.AddGroups(ctx, mine[0], groups[random.IntN(3):]))
					}
				case 11:
					if len(mine) > 0 {
						fine(p.RemoveGroups(ctx, mine[0], groups[:random.IntN(3)]))
					}
				case 0:
					fine(p.AttachSubnet(ctx, routers[random.IntN(4)], cidrs[i], netip.Addr{}))
				case 1:
					fine(p.DetachSubnet(ctx, routers[random.IntN(4)], cidrs[i]))
				case 2, 3, 4:
					made, err := p.EnsurePorts(ctx, []sdn.PortSpec{{Network: networks[i], Host: testHost, Groups: groups[random.IntN(3):]}, {Network: networks[i]}, {Network: networks[i], Host: testHost, QoSPolicy: policy.ID}})
					fine(err)
					for _, port := range made {
						if port.ID != "" {
							mine = append(mine, port.ID)
						}
					}
				case 5:
					if len(mine) > 0 {
						fine(p.DeletePorts(ctx, mine[:1]))
						mine = mine[1:]
					}
				case 6:
					if len(mine) > 0 {
						f, err := p.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{Network: p.Capabilities().ExternalNetwork, Address: netip.IPv4Unspecified()})
						fine(err)
						fips = append(fips, f.ID)
						_, err = p.EnsureForwards(ctx, f.ID, []sdn.Forward{{Protocol: sdn.TCP, External: sdn.PortRange{First: uint16(1 + random.IntN(20))}, Target: sdn.Target{Port: mine[0]}, Internal: sdn.PortRange{First: 80}}})
						fine(err)
					}
				case 7:
					if len(fips) > 0 {
						fine(p.DeleteFloatingIP(ctx, fips[0]))
						fips = fips[1:]
					}
					if random.IntN(4) == 0 {
						_, err := p.Reconcile(ctx)
						if err != nil && !sdn.IsUnavailable(err) && !errors.Is(err, errInjected) {
							t.Error(err)
						}
					}
				}
			}
		})
	}
	clients.Wait()
	fake.mu.Lock()
	fake.fail = nil
	fake.mu.Unlock()
	ok(t, p.sync.retry(ctx))
	checkSum(t, p)
	if stats, err := p.Stats(ctx); err != nil || stats.Unsettled != 0 {
		t.Errorf("unsettled: %d, %v", stats.Unsettled, err)
	}
}

// A caller that gives up while others are at work leaves the order of the kernel's calls whole.
func TestGivingUpKeepsTheOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fake := newFake()
		p := open(t, Options{Datapath: fake})
		ctx := context.Background()
		n, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Subnets: []sdn.SubnetSpec{{CIDR: prefix("10.0.0.0/24")}}})
		ok(t, err)
		inside, proceed := make(chan struct{}), make(chan struct{})
		fake.fail = func(call, _ string) error {
			if call == "ports" {
				close(inside)
				<-proceed
			}
			return nil
		}
		first := make(chan error, 1)
		go func() {
			_, err := p.EnsurePorts(ctx, []sdn.PortSpec{{Network: n.ID, Host: testHost}})
			first <- err
		}()
		<-inside
		impatient, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		ports, err := p.EnsurePorts(impatient, []sdn.PortSpec{{Network: n.ID, Host: testHost}})
		if !sdn.IsUnavailable(err) || len(ports) != 1 || ports[0].Status != sdn.PortDown {
			t.Errorf("got %+v, %v, want a port that is down, and unavailable", ports, err)
		}
		fake.fail = nil
		close(proceed)
		ok(t, <-first)
		ok(t, p.sync.retry(ctx)) // may come before the one that gave up was noted
		_, err = p.EnsurePorts(ctx, []sdn.PortSpec{{Network: n.ID, Host: testHost}})
		ok(t, err)
		checkSum(t, p)
	})
}

// A load balancer that the kernel refuses has the ports of its router changed once.
func TestRefusedBalancerLeavesPorts(t *testing.T) {
	t.Parallel()
	w := newOffWorld(t)
	ctx := t.Context()
	made, err := w.p.EnsurePorts(ctx, []sdn.PortSpec{{Network: w.network, Host: testHost}})
	ok(t, err)
	n, err := w.p.Network(ctx, w.network)
	ok(t, err)
	changes := 0
	w.fake.fail = func(call, _ string) error {
		switch call {
		case "ports":
			changes++
		case "frontends":
			return errors.New("refused")
		}
		return nil
	}
	if _, err := w.p.ApplyLoadBalancer(ctx, service(n.Subnets[0], "a", "10.0.0.10:80")); err == nil {
		t.Error("the load balancer is not refused")
	}
	ok(t, w.p.DeletePorts(ctx, []sdn.ID{made[0].ID}))
	if changes != 1 {
		t.Errorf("the ports were changed %d times, want once", changes)
	}
	w.fake.fail = nil
	ok(t, w.p.sync.retry(ctx))
	checkSum(t, w.p)
}

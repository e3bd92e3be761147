package local

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// Load balancers that are written together cost the data path one change. What it refuses is an error of
// every one, and is applied with the next change.
func TestLoadBalancersTogether(t *testing.T) {
	t.Parallel()
	p, fake, subnet, router := vipWorld(t)
	ok(t, p.AttachSubnet(t.Context(), router, subnet, netip.Addr{}))
	calls := map[string]int{}
	refuse := false
	fake.mu.Lock()
	fake.fail = func(call, _ string) error {
		calls[call]++
		if refuse {
			return errors.New("refused")
		}
		return nil
	}
	fake.mu.Unlock()
	applying := func(name string, members ...string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := p.ApplyLoadBalancer(ctx, service(subnet, name, members...))
			return err
		}
	}
	var changes []func(context.Context) error
	for i := range 10 {
		changes = append(changes, applying(fmt.Sprint(i), "10.0.0.5:8080"))
	}
	for _, err := range settleAll(t, changes...) {
		ok(t, err)
	}
	if calls["frontends"] != 1 || calls["vips"] != 1 || len(fake.balancedIn(router)) != 10 {
		t.Errorf("%d load balancers were told by %v", len(fake.balancedIn(router)), calls)
	}

	refuse = true
	for _, err := range settleAll(t, applying("3"), applying("4")) {
		if !sdn.IsUnavailable(err) {
			t.Errorf("the kernel refused, and the error is %v", err)
		}
	}
	refuse = false
	clear(calls)
	for _, err := range settleAll(
		t, applying("5", "10.0.0.6:8080"), applying("5", "10.0.0.7:8080"), applying("6", "10.0.0.7:8080"),
	) {
		ok(t, err)
	}
	if calls["frontends"] != 1 || calls["vips"] > 1 {
		t.Errorf("the kernel was told by %v", calls)
	}
	fake.mu.Lock()
	defer fake.mu.Unlock()
	if n := len(fake.state[string(router)].balanced); n != 10 {
		t.Errorf("%d are balanced", n)
	}
	for _, f := range fake.state[string(router)].balanced {
		l, found, err := sdn.First(p.FindLoadBalancers(t.Context(), sdn.LoadBalancerQuery{Addresses: []netip.Addr{f.Addr}}))
		if err != nil || !found {
			t.Fatalf("%v is nobody's: %v", f.Key, err)
		}
		if want := len(l.Listeners[0].Pool.Members); len(f.Endpoints) != want || want > 0 && f.Endpoints[0] != l.Listeners[0].Pool.Members[0].Addr {
			t.Errorf("%v has %v, and the store %+v", f.Key, f.Endpoints, l.Listeners[0].Pool.Members)
		}
	}
}

// A domain that goes and comes again has one target: two would change the data path side by side.
func TestOneTargetForADomain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.networks[0].ID // it has no domain of its own
	enqueue := func() *claim {
		w.sync.mu.Lock()
		defer w.sync.mu.Unlock()
		c := &claim{target: w.sync.target(id), keys: []partKey{shapeKey}}
		c.busy(1)
		c.enqueue()
		return c
	}
	is := func() *target {
		w.sync.mu.Lock()
		defer w.sync.mu.Unlock()
		return w.sync.domains[id]
	}
	old := enqueue()
	ok(t, w.sync.wait(t.Context(), []*claim{old}))
	if is() != nil {
		t.Fatal("a domain without anything stays")
	}
	pruned := old.target
	next := enqueue()
	w.sync.repeat(old)
	if old.target != next.target || is() != next.target {
		t.Error("the repeated claim is for a target of its own")
	}
	w.sync.mu.Lock()
	w.sync.prune(pruned)
	w.sync.mu.Unlock()
	if is() != next.target {
		t.Error("the old target took the new one away")
	}
	ok(t, w.sync.wait(t.Context(), []*claim{old, next}))
	if is() != nil {
		t.Error("the domain stays")
	}
}

// A load balancer whose address another has on another router does not get the other's errors.
func TestErrorOfSameAddressElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	twin, err := w.EnsureNetwork(ctx, sdn.NetworkSpec{Subnets: []sdn.SubnetSpec{{CIDR: prefix("10.0.0.0/24")}}})
	ok(t, err)
	ok(t, w.AttachSubnet(ctx, w.routers[1], twin.Subnets[0], netip.Addr{}))
	mine, other := service(w.networks[0].Subnets[0], "mine"), service(twin.Subnets[0], "other")
	for _, spec := range []*sdn.LoadBalancerSpec{&mine, &other} {
		spec.VIPs[0].Addr = netip.MustParseAddr("10.0.0.50")
		l, err := w.ApplyLoadBalancer(ctx, *spec)
		ok(t, err)
		spec.ID = l.ID
	}
	w.failIn = string(w.routers[1])
	other.Listeners[0].Port = 81
	if _, err := w.ApplyLoadBalancer(ctx, other); !sdn.IsUnavailable(err) {
		t.Errorf("got %v, want unavailable", err)
	}
	ok(t, stored(t, func(ctx context.Context) error { return w.DeleteLoadBalancer(ctx, mine.ID) }).settle())
	w.failIn = ""
	ok(t, w.sync.retry(ctx))
	checkSum(t, w.Provider)
}

// Changes of a load balancer that the data path refuses do not fill the memory.
func TestRefusedBalancesAreBounded(t *testing.T) {
	t.Parallel()
	p, fake, subnet, router := vipWorld(t)
	ok(t, p.AttachSubnet(t.Context(), router, subnet, netip.Addr{}))
	fake.fail = func(call, _ string) error {
		if call == "frontends" {
			return errInjected
		}
		return nil
	}
	for i := range 20 {
		_, err := p.ApplyLoadBalancer(t.Context(), service(subnet, "a", fmt.Sprintf("10.0.0.5:%d", 8000+i)))
		if !sdn.IsUnavailable(err) {
			t.Fatalf("got %v, want unavailable", err)
		}
	}
	for at, doubts := range p.sync.domains[router].applied.balances.doubt {
		if len(doubts) != 1 || doubts[0].frontends[0].Endpoints != nil {
			t.Errorf("at %v there may be %+v", at, doubts)
		}
	}
	fake.fail = nil
	ok(t, p.sync.retry(t.Context()))
	checkSum(t, p)
}

// retry tries once more what failed. Domains that kept something for others give it up after these.
func (s *syncer) retry(ctx context.Context) error {
	_ = s.wait(ctx, s.retries(func(*target) bool { return true }))
	return s.wait(ctx, s.retries(func(*target) bool { return true }))
}

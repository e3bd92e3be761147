package local

import (
	"context"
	"net/netip"
	"slices"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// What the kernel refused of a port before its network moved is done where the network is by then.
func TestUnfinishedPortMovesWithItsNetwork(t *testing.T) {
	t.Parallel()
	fake := newFake()
	p := open(t, Options{Datapath: fake})
	ctx := t.Context()
	r, err := p.EnsureRouter(ctx, sdn.RouterSpec{Gateway: &sdn.ExternalGateway{Network: p.Capabilities().ExternalNetwork, SNAT: true}})
	ok(t, err)
	n, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Subnets: []sdn.SubnetSpec{{CIDR: prefix("10.0.0.0/24")}}})
	ok(t, err)
	made, err := p.EnsurePorts(ctx, []sdn.PortSpec{{Network: n.ID, Host: testHost}})
	ok(t, err)
	fake.fail = func(call, _ string) error {
		if call == "ports" {
			return errInjected
		}
		return nil
	}
	late, err := p.EnsurePorts(ctx, []sdn.PortSpec{{Network: n.ID, Host: testHost}})
	if !sdn.IsUnavailable(err) {
		t.Fatalf("got %v, want unavailable", err)
	}
	ok(t, p.DeletePorts(ctx, []sdn.ID{made[0].ID}))
	fake.fail = nil
	ok(t, p.AttachSubnet(ctx, r.ID, n.Subnets[0], netip.Addr{}))
	checkSum(t, p)
	if port, err := p.Port(ctx, late[0].ID); err != nil || port.Status != sdn.PortActive {
		t.Errorf("the port is %v, %v; want it active", port.Status, err)
	}
}

// The domain that a network leaves keeps it until the one it comes to has it, also when each is tried by itself.
func TestNetworkIsNotDroppedBeforeItIsFetched(t *testing.T) {
	t.Parallel()
	fake := newFake()
	p := open(t, Options{Datapath: fake})
	ctx := t.Context()
	r, err := p.EnsureRouter(ctx, sdn.RouterSpec{Gateway: &sdn.ExternalGateway{Network: p.Capabilities().ExternalNetwork, SNAT: true}})
	ok(t, err)
	n, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Subnets: []sdn.SubnetSpec{{CIDR: prefix("10.0.0.0/24")}}})
	ok(t, err)
	_, err = p.EnsurePorts(ctx, []sdn.PortSpec{{Network: n.ID, Host: testHost}})
	ok(t, err)
	fake.fail = func(_, domain string) error {
		if domain == string(r.ID) {
			return errInjected
		}
		return nil
	}
	alone := func(domain sdn.ID) error {
		claims := []*claim{{target: p.sync.domains[domain], keys: []partKey{shapeKey}}}
		claims[0].busy(1)
		p.sync.join(claims)
		return p.sync.wait(ctx, claims)
	}
	if err := p.AttachSubnet(ctx, r.ID, n.Subnets[0], netip.Addr{}); !sdn.IsUnavailable(err) {
		t.Fatalf("got %v, want unavailable", err)
	}
	if err := alone(n.ID); err == nil {
		t.Error("the network's own domain went")
	}
	if len(fake.state[string(n.ID)].ports) != 1 {
		t.Error("the port was lost on the way")
	}
	fake.fail = nil
	ok(t, alone(n.ID)) // the router takes the network first
	checkSum(t, p)
}

// A router changes while a network that has left it cannot get a domain of its own. Its ports stay until then.
func TestRouterChangesWhileItsNetworkCannotLeave(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, router := t.Context(), w.routers[0]
	ok(t, w.AttachSubnet(ctx, router, w.networks[2].Subnets[0], netip.Addr{}))
	w.port(t, portSpec(w, 0))
	w.failIn = string(w.networks[0].ID)
	ok(t, w.DetachSubnet(ctx, router, w.networks[0].Subnets[0]))
	if !w.fake.has(w.port(t, portSpec(w, 2))) {
		t.Error("a port of another network is not in the data path")
	}
	routes := []sdn.HostRoute{{Destination: prefix("192.0.2.0/24"), NextHop: netip.MustParseAddr("10.2.0.9")}}
	_, err := w.UpdateRouter(ctx, router, sdn.RouterPatch{Routes: &routes})
	ok(t, err)
	w.failIn = ""
	ok(t, w.sync.retry(ctx))
	checkSum(t, w.Provider)
}

// What a router keeps of a network that no domain has taken over yet is not forgotten: ports that are
// deleted and changed meanwhile leave nothing behind where the network goes.
func TestKeptNetworkIsTakenOverWithItsPorts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, router := t.Context(), w.routers[0]
	ok(t, w.AttachSubnet(ctx, router, w.networks[2].Subnets[0], netip.Addr{}))
	deleted, changed := w.port(t, portSpec(w, 0)), w.port(t, portSpec(w, 0))
	own := w.networks[0].ID
	w.failIn = string(own)
	ok(t, w.DetachSubnet(ctx, router, w.networks[0].Subnets[0]))
	if !slices.Contains(w.sync.holding(own), router) {
		t.Error("the router has forgotten the network")
	}
	w.fake.fail = func(string, string) error { return errInjected }
	ok(t, w.DeletePorts(ctx, []sdn.ID{deleted}))
	_, err := w.UpdatePort(ctx, changed, sdn.PortPatch{AllowedPairs: &[]sdn.AllowedPair{{Prefix: prefix("10.0.0.77/32")}}})
	if !sdn.IsUnavailable(err) {
		t.Errorf("got %v, want unavailable", err)
	}
	w.fake.fail = nil
	ok(t, w.sync.retry(ctx))
	checkSum(t, w.Provider)
	if held := w.sync.holding(own); !slices.Equal(held, []sdn.ID{own}) {
		t.Errorf("the network is in the domains %v, want its own", held)
	}
}

// comeBack lets the network of the first router go to a domain of its own and come back before the router was
// applied without it. A port came and went in between. It returns what is still to be applied, by domain.
func comeBack(t *testing.T, w *world) map[sdn.ID][]*claim {
	t.Helper()
	n := w.networks[0].ID
	claims := map[sdn.ID][]*claim{}
	// change makes a change of the store that is applied in the network's own domain at most.
	change := func(applied bool, call func(context.Context) error) {
		t.Helper()
		for _, c := range stored(t, call).claims {
			if applied && c.target.id == n {
				ok(t, w.sync.await(t.Context(), c))
			} else {
				claims[c.target.id] = append(claims[c.target.id], c)
			}
		}
	}
	router, subnet := w.routers[0], w.networks[0].Subnets[0]
	change(true, func(ctx context.Context) error { return w.DetachSubnet(ctx, router, subnet) })
	spec := portSpec(w, 0)
	spec.Key = sdn.Key{Owner: w.Installation(), Kind: "k", Name: "late"}
	change(true, func(ctx context.Context) error {
		_, err := w.EnsurePorts(ctx, []sdn.PortSpec{spec})
		return err
	})
	found, err := sdn.All(w.FindPorts(t.Context(), sdn.PortQuery{Match: sdn.Match{Owner: spec.Key.Owner, Kind: "k"}}))
	ok(t, err)
	late := found[0].ID
	if !w.fake.has(late) {
		t.Fatal("the network's own domain does not have the port")
	}
	change(false, func(ctx context.Context) error { return w.DeletePorts(ctx, []sdn.ID{late}) })
	change(false, func(ctx context.Context) error { return w.AttachSubnet(ctx, router, subnet, netip.Addr{}) })
	return claims
}

// A port that came and went while its network was elsewhere leaves nothing behind in the router.
func TestNetworkComesBackUnnoticed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.port(t, portSpec(w, 0))
	claims := comeBack(t, w)
	ok(t, w.sync.wait(t.Context(), claims[w.routers[0]]))
	ok(t, w.sync.wait(t.Context(), claims[w.networks[0].ID]))
	checkSum(t, w.Provider)
}

// A router that had a network before, and fails to take it back, does not have it: the domain that has it
// stays.
func TestNetworkFailsToComeBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	port := w.port(t, portSpec(w, 0))
	claims := comeBack(t, w)
	w.failIn = string(w.routers[0])
	for _, id := range []sdn.ID{w.routers[0], w.networks[0].ID} {
		if err := w.sync.wait(t.Context(), claims[id]); err == nil {
			t.Errorf("domain %s has its part", id)
		}
	}
	if !w.fake.has(port) {
		t.Error("the port went with the network's own domain")
	}
	w.failIn = ""
	ok(t, w.sync.retry(t.Context()))
	checkSum(t, w.Provider)
}

// A refused shape is not applied again for each port that needs it.
func TestPortsOfRefusedShape(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, router, network := t.Context(), w.routers[0], w.networks[2]
	for range 20 {
		w.port(t, portSpec(w, 2))
	}
	w.refuse = "shape"
	if err := w.AttachSubnet(ctx, router, network.Subnets[0], netip.Addr{}); !sdn.IsUnavailable(err) {
		t.Fatalf("got %v, want unavailable", err)
	}
	if _, err := w.EnsurePorts(ctx, []sdn.PortSpec{portSpec(w, 2)}); !sdn.IsUnavailable(err) {
		t.Fatalf("got %v, want unavailable", err)
	}
	before := w.fake.calls
	if err := w.sync.retry(ctx); err == nil {
		t.Fatal("the shape was not refused")
	}
	if n := w.fake.calls - before; n >= 21 {
		t.Errorf("one retry of 21 ports and a shape that is refused made %d calls", n)
	}
	w.refuse = ""
	ok(t, w.sync.retry(ctx))
	checkSum(t, w.Provider)
}

// A router that fails to take a network over has none of its ports, though the kernel lets it name them. What
// filters them is changed where they are, or the caller is told.
func TestPortsOfNetworkThatDoesNotCome(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, router, network := t.Context(), w.routers[0], w.networks[2]
	group := w.group(t, "", egress(80))
	policy, err := w.ApplyQoSPolicy(ctx, sdn.QoSPolicySpec{})
	ok(t, err)
	spec := portSpec(w, 2)
	spec.Groups, spec.QoSPolicy = []sdn.ID{group}, policy.ID
	port := w.port(t, spec)
	w.refuse = "shape"
	if err := w.AttachSubnet(ctx, router, network.Subnets[0], netip.Addr{}); !sdn.IsUnavailable(err) {
		t.Fatalf("got %v, want unavailable", err)
	}
	made, err := w.EnsurePorts(ctx, []sdn.PortSpec{spec})
	if !sdn.IsUnavailable(err) || made[0].Status != sdn.PortDown {
		t.Errorf("a new port is %v, %v; want it down, and unavailable", made[0].Status, err)
	}
	_, err = w.UpdatePort(ctx, port, sdn.PortPatch{AllowedPairs: &[]sdn.AllowedPair{{Prefix: prefix("10.2.0.77/32")}}})
	if !sdn.IsUnavailable(err) {
		t.Errorf("an update of a port that stays elsewhere returned %v, want unavailable", err)
	}
	_, err = w.ApplyQoSPolicy(ctx, sdn.QoSPolicySpec{ID: policy.ID, Limits: sdn.Limits{EgressKbps: 1000}})
	if !sdn.IsUnavailable(err) {
		t.Errorf("an update of a QoS policy returned %v, want unavailable", err)
	}
	w.group(t, group, egress(81))
	if rules := w.fake.state[string(network.ID)].groups[string(group)].Rules; len(rules) != 1 || rules[0].First != 81 {
		t.Errorf("where the port is its group has the rules %+v", rules)
	}
	if n := len(w.fake.state[string(router)].ports); n != 0 {
		t.Errorf("the router has %d ports of a network that it does not have", n)
	}
	w.port(t, portSpec(w, 0)) // the router's own network is there
	w.refuse = ""
	ok(t, w.sync.retry(ctx))
	checkSum(t, w.Provider)
}

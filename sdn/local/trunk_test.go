package local

import (
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/datapath/router"
	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

// trunked makes a network with a trunk, whose parent has the host, and so many further ports.
func trunked(t *testing.T, p *Provider, host string, n int) (sdn.Network, sdn.Trunk, []sdn.Port) {
	t.Helper()
	network, err := p.EnsureNetwork(t.Context(), sdn.NetworkSpec{})
	ok(t, err)
	specs := make([]sdn.PortSpec, n+1)
	for i := range specs {
		specs[i] = sdn.PortSpec{Network: network.ID}
	}
	specs[n].Host = host
	made, err := p.EnsurePorts(t.Context(), specs)
	ok(t, err)
	trunk, err := p.EnsureTrunk(t.Context(), sdn.TrunkSpec{Base: sdn.Base{Project: "p"}, Parent: made[n].ID})
	ok(t, err)
	return network, trunk, made[:n]
}

// A subport is where its parent is, also after the parent moved, and says what it is; what leaves is nowhere.
func TestSubportFollowsParent(t *testing.T) {
	t.Parallel()
	p := open(t, Options{})
	network, trunk, ports := trunked(t, p, testHost, 2)
	shows := func(when string, id sdn.ID, host, owner string) {
		t.Helper()
		port, err := p.Port(t.Context(), id)
		if err != nil || port.Host != host || port.DeviceOwner != owner {
			t.Errorf("%s: port %+v, %v; want host %q and owner %q", when, port, err, host, owner)
		}
	}
	_, err := p.AttachSubports(t.Context(), trunk.ID, []sdn.Subport{{Port: ports[0].ID}, {Port: ports[1].ID, VLAN: 5}})
	ok(t, err)
	shows("attached", ports[0].ID, testHost, sdn.OwnerSubport)
	for _, host := range []string{"", testHost, ""} {
		_, err = p.UpdatePort(t.Context(), trunk.Parent, sdn.PortPatch{Host: &host})
		ok(t, err)
		shows("its parent changed", ports[0].ID, host, sdn.OwnerSubport)
		shows("its parent changed", ports[1].ID, host, sdn.OwnerSubport)
	}
	there := testHost
	if _, err := p.UpdatePort(t.Context(), ports[0].ID, sdn.PortPatch{Host: &there}); sdn.ReasonOf(err) != sdn.InUse {
		t.Errorf("a subport plugged by itself: %v", err)
	}
	_, err = p.UpdatePort(t.Context(), trunk.Parent, sdn.PortPatch{Host: &there})
	ok(t, err)
	ok(t, p.DetachSubports(t.Context(), trunk.ID, []sdn.ID{ports[0].ID}))
	shows("detached", ports[0].ID, "", "")
	ok(t, p.DeleteTrunk(t.Context(), trunk.ID))
	shows("its trunk deleted", ports[1].ID, "", "")
	ok(t, p.DeletePorts(t.Context(), []sdn.ID{ports[0].ID, ports[1].ID, trunk.Parent}))
	ok(t, p.DeleteNetwork(t.Context(), network.ID)) // which counts its ports, and those that are plugged
}

// What may be no subport is said why, and no trunk holds it.
func TestNoSubport(t *testing.T) {
	t.Parallel()
	p := open(t, Options{})
	network, trunk, _ := trunked(t, p, "", 0)
	made, err := p.EnsurePorts(t.Context(), []sdn.PortSpec{{Network: network.ID, DeviceID: "vm"}, {Network: p.external}})
	ok(t, err)
	if _, err := p.AttachSubports(t.Context(), trunk.ID, []sdn.Subport{{Port: made[0].ID}}); sdn.ReasonOf(err) != sdn.InUse {
		t.Errorf("a machine's port: %v", err)
	}
	if _, err := p.AttachSubports(t.Context(), trunk.ID, []sdn.Subport{{Port: made[1].ID}}); !sdn.IsUnsupported(err) {
		t.Errorf("a port that cannot be plugged: %v", err)
	}
	rt, err := p.EnsureRouter(t.Context(), sdn.RouterSpec{})
	ok(t, err)
	subnet, err := p.EnsureSubnet(t.Context(), sdn.SubnetSpec{Network: network.ID, CIDR: prefix("10.4.0.0/24")})
	ok(t, err)
	legs, err := p.EnsurePorts(t.Context(), []sdn.PortSpec{{Network: network.ID}, {Network: network.ID}})
	ok(t, err)
	_, err = p.EnsureTrunk(t.Context(), sdn.TrunkSpec{Parent: legs[0].ID})
	ok(t, err)
	if err := p.AttachPort(t.Context(), rt.ID, legs[0].ID); sdn.ReasonOf(err) != sdn.InUse {
		t.Errorf("a trunk's parent as a router's leg: %v", err)
	}
	ok(t, p.AttachPort(t.Context(), rt.ID, legs[1].ID))
	if _, err := p.AttachSubports(t.Context(), trunk.ID, []sdn.Subport{{Port: legs[1].ID}}); sdn.ReasonOf(err) != sdn.InUse {
		t.Errorf("a router's leg as a subport: %v", err)
	}
	if _, err := p.EnsureTrunk(t.Context(), sdn.TrunkSpec{Parent: legs[1].ID}); sdn.ReasonOf(err) != sdn.InUse {
		t.Errorf("a router's leg as a parent: %v", err)
	}
	if got, err := p.Trunk(t.Context(), trunk.ID); err != nil || len(got.Subports) != 0 || got.Revision != trunk.Revision {
		t.Errorf("the trunk is %+v, %v, want it as it was on %s", got, err, subnet.CIDR)
	}
}

// A trunk has as many VLANs as there are, and one that was given back can be had again.
func TestTrunkFills(t *testing.T) {
	t.Parallel()
	p := open(t, Options{NoSync: true, PortsPerNetwork: -1})
	_, trunk, ports := trunked(t, p, "", valid.MaxVLAN+1)
	all := make([]sdn.Subport, valid.MaxVLAN)
	for i := range all {
		all[i].Port = ports[i].ID
	}
	all[7].VLAN = 1 // which no other may be given
	got, err := p.AttachSubports(t.Context(), trunk.ID, all)
	ok(t, err)
	seen := map[int]bool{}
	for _, s := range got {
		seen[s.VLAN] = true
	}
	if len(seen) != valid.MaxVLAN || !seen[1] || !seen[valid.MaxVLAN] || got[7].VLAN != 1 {
		t.Errorf("%d VLANs, and %d for the one asked for", len(seen), got[7].VLAN)
	}
	more := []sdn.Subport{{Port: ports[valid.MaxVLAN].ID}}
	if _, err := p.AttachSubports(t.Context(), trunk.ID, more); !sdn.IsExhausted(err) || sdn.ReasonOf(err) != sdn.NoVLANs {
		t.Errorf("one more: %v", err)
	}
	ok(t, p.DetachSubports(t.Context(), trunk.ID, []sdn.ID{got[99].Port}))
	last, err := p.AttachSubports(t.Context(), trunk.ID, more)
	if err != nil || last[0].VLAN != got[99].VLAN {
		t.Errorf("the last VLAN is %v, %v, want %d", last, err, got[99].VLAN)
	}
}

// Trunks count against their project's quota, are found by it, deleted at a revision, and are there after a restart.
func TestTrunksOfProject(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "sdn.db")
	p, err := Open(t.Context(), Options{Path: path, Host: testHost, Quotas: map[sdn.Noun]int64{sdn.NounTrunk: 1}})
	ok(t, err)
	_, trunk, ports := trunked(t, p, "", 2)
	_, err = p.EnsureTrunk(sdn.WithClient(t.Context(), sdn.Client{}), sdn.TrunkSpec{
		Base: sdn.Base{Project: "p"}, Parent: ports[0].ID,
	})
	if sdn.ReasonOf(err) != sdn.NoQuota {
		t.Errorf("a second trunk: %v", err)
	}
	_, err = p.AttachSubports(t.Context(), trunk.ID, []sdn.Subport{{Port: ports[1].ID, VLAN: 300}, {Port: ports[0].ID, VLAN: 20}})
	ok(t, err)
	ok(t, p.Close())
	p = open(t, Options{Path: path})
	found, err := sdn.All(p.FindTrunks(t.Context(), sdn.TrunkQuery{Match: sdn.Match{Projects: []string{"p"}}}))
	want := []sdn.Subport{{Port: ports[0].ID, VLAN: 20}, {Port: ports[1].ID, VLAN: 300}}
	if err != nil || len(found) != 1 || found[0].ID != trunk.ID || !slices.Equal(found[0].Subports, want) {
		t.Fatalf("the project's trunks are %+v, %v; want one with %v", found, err, want)
	}
	if err := p.DeleteIf(t.Context(), sdn.NounTrunk, trunk.ID, trunk.Revision); sdn.ReasonOf(err) != sdn.Stale {
		t.Errorf("deleted at an old revision: %v", err)
	}
	ok(t, p.DeleteIf(t.Context(), sdn.NounTrunk, trunk.ID, found[0].Revision))
	s, err := p.Stats(t.Context())
	if err != nil || s.Objects[sdn.NounTrunk] != 0 {
		t.Errorf("the figures are %+v, %v", s.Objects, err)
	}
}

// Where the kernel has no VLANs there are no trunks; those that a store has from before hold their ports.
func TestTrunksNeedVLANs(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "sdn.db")
	p, err := Open(t.Context(), Options{Path: path, Host: testHost})
	ok(t, err)
	_, trunk, ports := trunked(t, p, "", 1)
	_, err = p.AttachSubports(t.Context(), trunk.ID, []sdn.Subport{{Port: ports[0].ID}})
	ok(t, err)
	ok(t, p.Close())
	fake := newFake()
	fake.can.VLANs = false
	p = open(t, Options{Path: path, Datapath: fake})
	if p.Capabilities().Trunks {
		t.Error("the capabilities say that there are trunks")
	}
	for what, err := range map[string]error{
		"delete": p.DeleteTrunk(t.Context(), trunk.ID), "detach": p.DetachSubports(t.Context(), trunk.ID, []sdn.ID{ports[0].ID}),
		"delete at a revision": p.DeleteIf(t.Context(), sdn.NounTrunk, trunk.ID, 0),
	} {
		if !sdn.IsUnsupported(err) || !strings.Contains(err.Error(), "8021q") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := p.DeletePort(t.Context(), ports[0].ID, 0); sdn.ReasonOf(err) != sdn.InUse {
		t.Errorf("a subport deleted: %v", err)
	}
}

// What the kernel is told of a trunk: its parent is one, and each subport says what it is reached through, wherever its network is. A change is told of the
// ports that it is of, and of no others.
func TestTrunkProjection(t *testing.T) {
	t.Parallel()
	fake := newFake()
	p := open(t, Options{Datapath: fake})
	ctx := t.Context()
	network, trunk, subports := trunked(t, p, testHost, 2)
	other, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{})
	ok(t, err)
	subnet, err := p.EnsureSubnet(ctx, sdn.SubnetSpec{Network: other.ID, CIDR: prefix("10.4.0.0/24")})
	ok(t, err)
	made, err := p.EnsurePorts(ctx, []sdn.PortSpec{{Network: other.ID}})
	ok(t, err)
	there := made[0].ID
	told := func(domain, port sdn.ID) (router.Port, bool) {
		fake.mu.Lock()
		defer fake.mu.Unlock()
		if fake.state[string(domain)] == nil {
			return router.Port{}, false
		}
		known, is := fake.state[string(domain)].ports[string(port)]
		return known, is
	}
	shows := func(when string, domain, port sdn.ID, vlan int) {
		t.Helper()
		want := router.Trunk{}
		if vlan != 0 {
			want = router.Trunk{Parent: string(trunk.Parent), Network: string(network.ID), VLAN: vlan}
		}
		known, is := told(domain, port)
		if is != (vlan != 0) || known.Trunk != want {
			t.Errorf("%s: port %s is known: %v, as %+v; want %+v", when, port, is, known.Trunk, want)
		}
		if diff, err := p.Check(ctx); err != nil || len(diff) > 0 {
			t.Errorf("%s: the kernel differs: %v, %v", when, diff, err)
		}
	}
	if known, is := told(network.ID, trunk.Parent); !is || !known.Parent {
		t.Errorf("the parent is known as %+v, %v", known, is)
	}
	fake.told = nil
	_, err = p.AttachSubports(ctx, trunk.ID, []sdn.Subport{{Port: subports[0].ID, VLAN: 5}, {Port: there, VLAN: 6}})
	ok(t, err)
	shows("attached", network.ID, subports[0].ID, 5)
	shows("attached", other.ID, there, 6)
	if want := []string{string(subports[0].ID), string(there)}; !slices.Equal(sorted(fake.told), sorted(want)) {
		t.Errorf("the kernel was told of ports %v, want %v", fake.told, want)
	}
	fake.told = nil
	_, err = p.AttachSubports(ctx, trunk.ID, []sdn.Subport{{Port: subports[1].ID, VLAN: 7}})
	ok(t, err)
	ok(t, p.DetachSubports(ctx, trunk.ID, []sdn.ID{subports[1].ID}))
	if want := string(subports[1].ID); !slices.Equal(fake.told, []string{want, want}) {
		t.Errorf("the kernel was told of ports %v, want %s alone", fake.told, want)
	}
	shows("detached", network.ID, subports[1].ID, 0)

	port, err := p.Port(ctx, there)
	mac, perr := p.Port(ctx, trunk.Parent)
	ok(t, perr)
	if err != nil || port.VIF.Type != sdn.VIFVLAN || port.VIF.Details[sdn.DetailVLAN] != "6" || port.VIF.Details[sdn.DetailParentMAC] != mac.MAC.String() || port.Status != sdn.PortActive {
		t.Errorf("a subport is to be bound as %+v, %s, %v", port.VIF, port.Status, err)
	}

	rt, err := p.EnsureRouter(ctx, sdn.RouterSpec{})
	ok(t, err)
	ok(t, p.AttachSubnet(ctx, rt.ID, subnet.ID, netip.Addr{}))
	shows("its network is on a router", rt.ID, there, 6)
	shows("its network is on a router", other.ID, there, 0)

	none := ""
	_, err = p.UpdatePort(ctx, trunk.Parent, sdn.PortPatch{Host: &none})
	ok(t, err)
	shows("the parent is plugged no more", rt.ID, there, 0)
	shows("the parent is plugged no more", network.ID, subports[0].ID, 0)
	here := testHost
	_, err = p.UpdatePort(ctx, trunk.Parent, sdn.PortPatch{Host: &here})
	ok(t, err)
	shows("and again", rt.ID, there, 6)
	ok(t, p.DeleteTrunk(ctx, trunk.ID))
	shows("its trunk is deleted", rt.ID, there, 0)
	if known, is := told(network.ID, trunk.Parent); !is || known.Parent {
		t.Errorf("without its trunk the parent is known as %+v, %v", known, is)
	}
}

// A network whose packets the parent's interface cannot carry has no subports there.
func TestSubportMTU(t *testing.T) {
	t.Parallel()
	p := open(t, Options{})
	_, trunk, _ := trunked(t, p, testHost, 0)
	for _, mtu := range []int{1400, 1500, 1501} {
		n, err := p.EnsureNetwork(t.Context(), sdn.NetworkSpec{MTU: mtu})
		ok(t, err)
		made, err := p.EnsurePorts(t.Context(), []sdn.PortSpec{{Network: n.ID}})
		ok(t, err)
		_, err = p.AttachSubports(t.Context(), trunk.ID, []sdn.Subport{{Port: made[0].ID}})
		if sdn.IsInvalid(err) != (mtu > 1500) || err != nil && mtu <= 1500 {
			t.Errorf("an MTU of %d: %v", mtu, err)
		}
	}
}

func sorted(list []string) []string { return slices.Sorted(slices.Values(list)) }

// A caller that repeats its request is answered when the kernel has what it asked for.
func TestRepeatedRequestsWaitForTheKernel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	parent := w.port(t, portSpec(w, 0))
	subport := w.port(t, sdn.PortSpec{Network: w.networks[1].ID})
	trunk, err := w.EnsureTrunk(ctx, sdn.TrunkSpec{Parent: parent})
	ok(t, err)
	mtu := 1460
	for name, f := range map[string]func() error{
		"UpdateNetwork": func() error {
			_, err := w.UpdateNetwork(ctx, w.networks[0].ID, sdn.NetworkPatch{MTU: &mtu})
			return err
		},
		"AttachSubports": func() error {
			_, err := w.AttachSubports(ctx, trunk.ID, []sdn.Subport{{Port: subport, VLAN: 5}})
			return err
		},
	} {
		w.fake.mu.Lock()
		w.fake.fail = func(string, string) error { return errInjected }
		w.fake.mu.Unlock()
		for range 2 {
			if err := f(); !sdn.IsUnavailable(err) {
				t.Errorf("%s: got %v while the kernel fails, want unavailable", name, err)
			}
		}
		w.fake.mu.Lock()
		w.fake.fail = nil
		w.fake.mu.Unlock()
		ok(t, f())
		checkSum(t, w.Provider)
	}
}

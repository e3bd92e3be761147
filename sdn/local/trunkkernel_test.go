package local

import (
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/datapath/router"
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

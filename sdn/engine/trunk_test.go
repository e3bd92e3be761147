package engine

import (
	"slices"
	"testing"

	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

// trunked makes a network with a trunk, whose parent has the host, and so many further ports.
func trunked(t *testing.T, p *Engine, host string, n int) (sdn.Network, sdn.Trunk, []sdn.Port) {
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
	p := open(t, Options{PortsPerNetwork: -1})
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
	store := newStore(t)
	p := openOn(t, store, Options{Quotas: map[sdn.Noun]int64{sdn.NounTrunk: 1}})
	_, trunk, ports := trunked(t, p, "", 2)
	_, err := p.EnsureTrunk(sdn.WithClient(t.Context(), sdn.Client{}), sdn.TrunkSpec{
		Base: sdn.Base{Project: "p"}, Parent: ports[0].ID,
	})
	if sdn.ReasonOf(err) != sdn.NoQuota {
		t.Errorf("a second trunk: %v", err)
	}
	_, err = p.AttachSubports(t.Context(), trunk.ID, []sdn.Subport{{Port: ports[1].ID, VLAN: 300}, {Port: ports[0].ID, VLAN: 20}})
	ok(t, err)
	p = openOn(t, store, Options{})
	found, err := sdn.All(p.FindTrunks(t.Context(), sdn.TrunkQuery{Match: sdn.Match{Projects: []string{"p"}}}))
	want := []sdn.Subport{{Port: ports[0].ID, VLAN: 20}, {Port: ports[1].ID, VLAN: 300}}
	if err != nil || len(found) != 1 || found[0].ID != trunk.ID || !slices.Equal(found[0].Subports, want) {
		t.Fatalf("the project's trunks are %+v, %v; want one with %v", found, err, want)
	}
	if err := p.DeleteIf(t.Context(), sdn.NounTrunk, trunk.ID, trunk.Revision); sdn.ReasonOf(err) != sdn.Stale {
		t.Errorf("deleted at an old revision: %v", err)
	}
	ok(t, p.DeleteIf(t.Context(), sdn.NounTrunk, trunk.ID, found[0].Revision))
	objects, _, err := p.Count(t.Context())
	if err != nil || objects[sdn.NounTrunk] != 0 {
		t.Errorf("the figures are %+v, %v", objects, err)
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

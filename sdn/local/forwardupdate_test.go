package local

import (
	"net/netip"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// A forwarding that is changed keeps its id, and what cannot be changed stays as it was, in the store and in the data path.
func TestForwardIsChanged(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	fake := newFake()
	p := open(t, Options{Datapath: fake})
	n, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Subnets: []sdn.SubnetSpec{{CIDR: prefix("10.0.0.0/24")}}})
	ok(t, err)
	r, err := p.EnsureRouter(ctx, sdn.RouterSpec{Gateway: &sdn.ExternalGateway{Network: p.Capabilities().ExternalNetwork, SNAT: true}})
	ok(t, err)
	ok(t, p.AttachSubnet(ctx, r.ID, n.Subnets[0], netip.Addr{}))
	ports, err := p.EnsurePorts(ctx, []sdn.PortSpec{{Network: n.ID}, {Network: n.ID}})
	ok(t, err)
	fip, err := p.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{Network: p.Capabilities().ExternalNetwork})
	ok(t, err)
	other, err := p.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{Network: p.Capabilities().ExternalNetwork})
	ok(t, err)
	one := func(port uint16) sdn.PortRange { return sdn.PortRange{First: port, Last: port} }
	made, err := p.EnsureForwards(ctx, fip.ID, []sdn.Forward{
		{Protocol: sdn.TCP, External: one(80), Internal: one(8080), Target: sdn.Target{Port: ports[0].ID}},
		{Protocol: sdn.TCP, External: one(81), Internal: one(8080), Target: sdn.Target{Port: ports[0].ID}},
	})
	ok(t, err)
	want := made[0]
	want.External, want.Target = one(82), sdn.Target{Port: ports[1].ID}
	got, err := p.UpdateForward(ctx, fip.ID, want)
	ok(t, err)
	if want.Target.Addr = ports[1].Addresses[0].Addr; got != want {
		t.Errorf("it is %+v, want %+v", got, want)
	}
	checkSum(t, p)
	taken := got
	taken.External = one(81)
	if _, err := p.UpdateForward(ctx, fip.ID, taken); sdn.ReasonOf(err) != sdn.Exists {
		t.Errorf("the ports of another: %v", err)
	}
	twin := made[1]
	twin.ID = got.ID
	if _, err := p.UpdateForward(ctx, fip.ID, twin); sdn.ReasonOf(err) != sdn.Exists {
		t.Errorf("all as another: %v", err)
	}
	if _, err := p.UpdateForward(ctx, other.ID, got); !sdn.IsNotFound(err) {
		t.Errorf("of another floating IP: %v", err)
	}
	found, err := sdn.All(p.FindForwards(ctx, sdn.ForwardQuery{FloatingIPs: []sdn.ID{fip.ID}}))
	ok(t, err)
	if len(found) != 2 || found[0] != got && found[1] != got {
		t.Errorf("there are %+v, want %+v and %+v", found, got, made[1])
	}
	if again, err := p.UpdateForward(ctx, fip.ID, got); err != nil || again != got {
		t.Errorf("changed to what it is: %+v %v", again, err)
	}
	checkSum(t, p)
}

// What is applied as a whole value loses its name and its description by a patch alone.
func TestMetaIsPatched(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	p := open(t, Options{Datapath: newFake()})
	base := sdn.Base{Name: "n", Description: "d", Tags: []string{"t"}}
	g, err := p.ApplySecurityGroup(ctx, sdn.SecurityGroupSpec{Base: base, Rules: []sdn.Rule{{Direction: sdn.Ingress}}})
	ok(t, err)
	a, err := p.ApplyAddressGroup(ctx, sdn.AddressGroupSpec{Base: base})
	ok(t, err)
	q, err := p.ApplyQoSPolicy(ctx, sdn.QoSPolicySpec{Base: base})
	ok(t, err)
	none := ""
	for noun, m := range map[sdn.Noun]sdn.Meta{sdn.NounSecurityGroup: g.Meta, sdn.NounAddressGroup: a.Meta, sdn.NounQoSPolicy: q.Meta} {
		if err := p.PatchMeta(ctx, noun, m.ID, sdn.Patch{IfRevision: m.Revision + 1, Name: &none}); sdn.ReasonOf(err) != sdn.Stale {
			t.Errorf("%s at another revision: %v", noun, err)
		}
		ok(t, p.PatchMeta(ctx, noun, m.ID, sdn.Patch{IfRevision: m.Revision, Description: &none}))
		if err := p.PatchMeta(ctx, noun, "none", sdn.Patch{}); !sdn.IsNotFound(err) {
			t.Errorf("%s that is not there: %v", noun, err)
		}
	}
	g, err = p.SecurityGroup(ctx, g.ID)
	ok(t, err)
	if g.Name != "n" || g.Description != "" || len(g.Tags) != 1 || len(g.Rules) != 1 {
		t.Errorf("the group is %+v", g)
	}
	if err := p.PatchMeta(ctx, sdn.NounPort, g.ID, sdn.Patch{}); !sdn.IsUnsupported(err) {
		t.Errorf("of a port: %v", err)
	}
}

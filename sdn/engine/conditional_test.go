package engine

import (
	"context"
	"net/netip"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// Every noun can be deleted at a revision, and stays where it is at another.
func TestDeleteAtRevision(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	p := open(t, Options{})
	metas := map[sdn.Noun]sdn.Meta{}
	note := func(noun sdn.Noun, m sdn.Meta, err error) {
		t.Helper()
		ok(t, err)
		metas[noun] = m
	}
	n, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{})
	note(sdn.NounNetwork, n.Meta, err)
	home, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{})
	ok(t, err)
	s, err := p.EnsureSubnet(ctx, sdn.SubnetSpec{Network: home.ID, CIDR: prefix("10.0.0.0/24")})
	note(sdn.NounSubnet, s.Meta, err)
	pool, err := p.EnsureSubnetPool(ctx, sdn.SubnetPoolSpec{Prefixes: []netip.Prefix{prefix("10.0.0.0/8")}})
	note(sdn.NounSubnetPool, pool.Meta, err)
	made, err := p.EnsurePorts(ctx, []sdn.PortSpec{{Network: home.ID, WithoutAddresses: true}})
	note(sdn.NounPort, made[0].Meta, err)
	r, err := p.EnsureRouter(ctx, sdn.RouterSpec{})
	note(sdn.NounRouter, r.Meta, err)
	f, err := p.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{Network: p.external})
	note(sdn.NounFloatingIP, f.Meta, err)
	g, err := p.ApplySecurityGroup(ctx, sdn.SecurityGroupSpec{})
	note(sdn.NounSecurityGroup, g.Meta, err)
	a, err := p.ApplyAddressGroup(ctx, sdn.AddressGroupSpec{})
	note(sdn.NounAddressGroup, a.Meta, err)
	q, err := p.ApplyQoSPolicy(ctx, sdn.QoSPolicySpec{})
	note(sdn.NounQoSPolicy, q.Meta, err)
	there := func() (left int64) {
		statobjects, _, err := p.Count(context.WithoutCancel(ctx))
		ok(t, err)
		for noun := range metas {
			left += statobjects[noun]
		}
		return left
	}
	for noun, m := range metas {
		before := there()
		if err := p.DeleteIf(ctx, noun, m.ID, m.Revision+1); sdn.ReasonOf(err) != sdn.Stale || there() != before {
			t.Errorf("%s at another revision: %v", noun, err)
		}
		for range 2 {
			ok(t, p.DeleteIf(ctx, noun, m.ID, m.Revision))
		}
		if there() >= before {
			t.Errorf("%s is still there", noun)
		}
	}
	if err := p.DeleteIf(ctx, sdn.NounHealthMonitor, "x", 1); !sdn.IsUnsupported(err) {
		t.Errorf("of a health monitor: %v", err)
	}
}

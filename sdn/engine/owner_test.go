package engine

import (
	"context"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// A tenant's object that carries a Key of the installation is not the installation's: it
// is not adopted, not found by the Key, and shown without one; also if it is shared.
func TestKeyOfAnotherProject(t *testing.T) {
	t.Parallel()
	p := open(t, Options{})
	ctx, tenant := t.Context(), sdn.WithClient(t.Context(), sdn.Client{})
	squatted := func(noun string) sdn.Base {
		return sdn.Base{Project: "evil", Key: sdn.Key{Owner: p.installation, Kind: noun, Name: "x"}}
	}
	own := func(noun string) sdn.Base { b := squatted(noun); b.Project = ""; return b }
	mine, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Subnets: []sdn.SubnetSpec{{CIDR: prefix("10.0.0.0/24")}}})
	ok(t, err)
	vip := []sdn.VIP{{Subnet: mine.Subnets[0]}}
	ports, err := p.EnsurePorts(ctx, []sdn.PortSpec{{Network: mine.ID}, {Network: mine.ID}})
	ok(t, err)
	for noun, ensure := range map[string]func(context.Context, sdn.Base) (sdn.Meta, error){
		"network": func(ctx context.Context, b sdn.Base) (sdn.Meta, error) {
			n, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Base: b, Shared: true})
			return n.Meta, err
		},
		"subnet": func(ctx context.Context, b sdn.Base) (sdn.Meta, error) {
			s := sdn.SubnetSpec{Base: b, Network: mine.ID, CIDR: prefix("10.1.0.0/24")}
			if b.Project == "" {
				s.CIDR = prefix("10.2.0.0/24")
			}
			made, err := p.EnsureSubnet(ctx, s)
			return made.Meta, err
		},
		"subnetpool": func(ctx context.Context, b sdn.Base) (sdn.Meta, error) {
			made, err := p.EnsureSubnetPool(ctx, sdn.SubnetPoolSpec{Base: b, Prefixes: pfx("10.8.0.0/16"), Shared: true})
			return made.Meta, err
		},
		"port": func(ctx context.Context, b sdn.Base) (sdn.Meta, error) {
			made, err := p.EnsureAllPorts(ctx, []sdn.PortSpec{{Base: b, Network: mine.ID, WithoutGroups: true}})
			if err != nil {
				return sdn.Meta{}, err
			}
			return made[0].Meta, nil
		},
		"trunk": func(ctx context.Context, b sdn.Base) (sdn.Meta, error) {
			parent := ports[0].ID
			if b.Project == "" {
				parent = ports[1].ID
			}
			made, err := p.EnsureTrunk(ctx, sdn.TrunkSpec{Base: b, Parent: parent})
			return made.Meta, err
		},
		"router": func(ctx context.Context, b sdn.Base) (sdn.Meta, error) {
			made, err := p.EnsureRouter(ctx, sdn.RouterSpec{Base: b})
			return made.Meta, err
		},
		"floatingip": func(ctx context.Context, b sdn.Base) (sdn.Meta, error) {
			made, err := p.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{Base: b, Network: p.external})
			return made.Meta, err
		},
		"security-group": func(ctx context.Context, b sdn.Base) (sdn.Meta, error) {
			made, err := p.ApplySecurityGroup(ctx, sdn.SecurityGroupSpec{Base: b})
			return made.Meta, err
		},
		"address-group": func(ctx context.Context, b sdn.Base) (sdn.Meta, error) {
			made, err := p.ApplyAddressGroup(ctx, sdn.AddressGroupSpec{Base: b})
			return made.Meta, err
		},
		"qos-policy": func(ctx context.Context, b sdn.Base) (sdn.Meta, error) {
			made, err := p.ApplyQoSPolicy(ctx, sdn.QoSPolicySpec{Base: b, Shared: true})
			return made.Meta, err
		},
		"loadbalancer": func(ctx context.Context, b sdn.Base) (sdn.Meta, error) {
			made, err := p.ApplyLoadBalancer(ctx, sdn.LoadBalancerSpec{Base: b, VIPs: vip})
			return made.Meta, err
		},
	} {
		theirs, err := ensure(tenant, squatted(noun))
		if err != nil || theirs.Key != squatted(noun).Key {
			t.Errorf("%s of the tenant: %+v, %v", noun, theirs, err)
			continue
		}
		for range 2 {
			made, err := ensure(ctx, own(noun))
			if err != nil || made.ID == theirs.ID || made.Project != "" || made.Foreign || made.Key != own(noun).Key {
				t.Errorf("%s of the installation: %+v, %v; the tenant's is %s", noun, made, err, theirs.ID)
			}
		}
	}
	key := own("network").Key
	for what, m := range map[string]sdn.Match{
		"Key":            {Keys: []sdn.Key{key}},
		"owner and kind": {Owner: p.installation, Kind: "network"},
		"owner":          {Owner: p.installation, Names: []string{""}},
	} {
		for n, err := range p.FindNetworks(ctx, sdn.NetworkQuery{Match: m}) {
			if err != nil || n.Project != "" {
				t.Errorf("by %s: %+v, %v", what, n, err)
			}
		}
	}
	all, err := sdn.All(p.FindNetworks(tenant, sdn.NetworkQuery{Match: sdn.Match{Keys: []sdn.Key{key}}}))
	if err != nil || len(all) != 2 {
		t.Errorf("a server's client finds %d networks by the Key, %v; want both", len(all), err)
	}
	for _, n := range all {
		if n.Project == "" {
			continue
		}
		seen, err := p.Network(ctx, n.ID)
		if err != nil || !seen.Foreign || !seen.Key.IsZero() || seen.Description != key.String() {
			t.Errorf("the tenant's network is seen as %+v, %v", seen.Meta, err)
		}
		name := "other"
		if seen, err = p.UpdateNetwork(ctx, n.ID, sdn.NetworkPatch{Patch: sdn.Patch{Name: &name}}); err != nil || !seen.Key.IsZero() {
			t.Errorf("after a change it is seen as %+v, %v", seen.Meta, err)
		}
		if kept, err := p.Network(tenant, n.ID); err != nil || kept.Key != key {
			t.Errorf("after a change its Key is %v, %v", kept.Key, err)
		}
	}
}

// A project that the installation itself names is one of its own.
func TestKeyOfANamedProject(t *testing.T) {
	t.Parallel()
	p := open(t, Options{})
	ctx := t.Context()
	b := sdn.Base{Project: "blue", Key: sdn.Key{Owner: p.installation, Kind: "network", Name: "x"}}
	made, err := p.EnsureNetwork(sdn.WithClient(ctx, sdn.Client{Admin: true}), sdn.NetworkSpec{Base: b})
	ok(t, err)
	q := sdn.NetworkQuery{Match: sdn.Match{Keys: []sdn.Key{b.Key}}}
	if n, err := count(p.FindNetworks(ctx, q)); err != nil || n != 0 {
		t.Errorf("%d networks before the project is named, %v", n, err)
	}
	q.Projects = []string{"blue"}
	if n, err := count(p.FindNetworks(ctx, q)); err != nil || n != 1 {
		t.Errorf("%d networks of the project, %v", n, err)
	}
	if n, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Base: b}); err != nil || n.ID != made.ID || n.Foreign {
		t.Errorf("ensured: %+v, %v", n.Meta, err)
	}
	q.Projects = nil
	if n, err := count(p.FindNetworks(ctx, q)); err != nil || n != 1 {
		t.Errorf("%d networks after the project was named, %v", n, err)
	}
}

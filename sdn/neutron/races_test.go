package neutron

import (
	"context"
	"net/netip"
	"sync"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// Two processes that do the same at the same time end with one object: two providers share nothing but the Neutron.
func TestTwoProcesses(t *testing.T) {
	c := realConfig(t)
	one, _ := openReal(t, c)
	two, _ := openReal(t, c)
	key := func(name string) sdn.Base {
		return sdn.Base{Key: sdn.Key{Owner: c.Installation, Kind: "races", Name: name}, Name: name}
	}
	clean := func(what string, f func(context.Context) error) {
		t.Cleanup(func() {
			if err := f(context.Background()); err != nil {
				t.Errorf("cleaning up %s: %v", what, err)
			}
		})
	}
	// both calls f twice in each of two processes, all at once, and gives the ids.
	both := func(t *testing.T, f func(p *Provider) (sdn.ID, error)) sdn.ID {
		t.Helper()
		ids, errs := make([]sdn.ID, 4), make([]error, 4)
		var group sync.WaitGroup
		for i := range ids {
			group.Go(func() { ids[i], errs[i] = f([]*Provider{one, two}[i%2]) })
		}
		group.Wait()
		for i, id := range ids {
			if errs[i] != nil {
				t.Fatal(errs[i])
			}
			if id != ids[0] {
				t.Errorf("one got %s, another %s", ids[0], id)
			}
		}
		return ids[0]
	}
	t.Run("security group", func(t *testing.T) {
		spec := sdn.SecurityGroupSpec{Base: key("group"), Rules: []sdn.Rule{
			{Direction: sdn.Ingress, Protocol: sdn.TCP, Ports: sdn.PortRange{First: 80}}, {Direction: sdn.Egress}, {Direction: sdn.Egress, IPv6: true},
		}}
		id := both(t, func(p *Provider) (sdn.ID, error) {
			g, err := p.ApplySecurityGroup(t.Context(), spec)
			return g.ID, err
		})
		clean("security group", func(ctx context.Context) error { return one.DeleteSecurityGroup(ctx, id) })
		found, err := sdn.All(one.FindSecurityGroups(t.Context(), sdn.SecurityGroupQuery{Match: sdn.Match{Keys: []sdn.Key{spec.Key}}}))
		if err != nil || len(found) != 1 || len(found[0].Rules) != len(spec.Rules) {
			t.Errorf("there are %+v (%v), want one of %d rules", found, err, len(spec.Rules))
		}
	})
	network, err := one.EnsureNetwork(t.Context(), sdn.NetworkSpec{Base: key("network"), Subnets: []sdn.SubnetSpec{{Base: key("subnet"), CIDR: netip.MustParsePrefix("10.7.0.0/24")}}})
	if err != nil {
		t.Fatal(err)
	}
	clean("network", func(ctx context.Context) error { return one.DeleteNetwork(ctx, network.ID) })
	subnet := network.Subnets[0]
	var router sdn.ID
	t.Run("router", func(t *testing.T) {
		router = both(t, func(p *Provider) (sdn.ID, error) {
			r, err := p.EnsureRouter(t.Context(), sdn.RouterSpec{Base: key("router")})
			return r.ID, err
		})
	})
	clean("router", func(ctx context.Context) error { return one.DeleteRouter(ctx, router) })
	for name, addr := range map[string]netip.Addr{"leg": {}, "leg at an address": netip.MustParseAddr("10.7.0.254")} {
		t.Run(name, func(t *testing.T) {
			both(t, func(p *Provider) (sdn.ID, error) { return "", p.AttachSubnet(t.Context(), router, subnet, addr) })
			r, err := two.Router(t.Context(), router)
			if err != nil || len(r.Interfaces) != 1 {
				t.Errorf("the legs are %+v (%v), want one", r.Interfaces, err)
			}
			both(t, func(p *Provider) (sdn.ID, error) { return "", p.DetachSubnet(t.Context(), router, subnet) })
			ports, err := sdn.All(two.FindPorts(t.Context(), sdn.PortQuery{Networks: []sdn.ID{network.ID}, Match: sdn.Match{Owner: c.Installation}}))
			if err != nil || len(ports) != 0 {
				t.Errorf("there are left %+v (%v)", ports, err)
			}
		})
	}
}

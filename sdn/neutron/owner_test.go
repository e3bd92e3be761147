package neutron

import (
	"context"
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// ownerOf is the owner of an installation whose objects are in no project.
func ownerOf(installation string) *owner {
	return &owner{installation: installation, project: func() string { return "" }}
}

// squatted is a double with objects of another project that carry this installation's
// Keys. They are older than any that is made, and the credentials see them: they are
// shared, or the credentials are an administrator's.
func squatted() *double {
	d := newDouble()
	for collection, more := range map[string]map[string]any{
		"networks":    {"id": "evil-net", "shared": true},
		"subnets":     {"id": "evil-subnet", "network_id": "evil-net", "cidr": "10.9.0.0/24", "ip_version": 4.0},
		"subnetpools": {"id": "evil-pool", "shared": true, "prefixes": []any{"10.0.0.0/8"}},
		"routers":     {"id": "evil-router"},
		"floatingips": {"id": "evil-fip", "floating_network_id": "ext", "floating_ip_address": "203.0.113.9"},
	} {
		o := map[string]any{"description": testKey("x").String(), "project_id": "evil", "created_at": "2020-01-01T00:00:00Z"}
		maps.Copy(o, more)
		d.add(collection, o)
	}
	return d
}

// An object of another project that carries a Key of this installation is not adopted,
// not found by the Key, and shown without one.
func TestKeyOfAnotherProject(t *testing.T) {
	t.Parallel()
	for name, tokens := range map[string]map[string]bool{"project of the configuration": nil, "project of the credentials": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := squatted()
			d.tokens = tokens
			p, _ := onDouble(t, d, nil)
			ctx := t.Context()
			b := sdn.Base{Key: testKey("x")}
			// A network that was read is in the cache, where it must not stand for the
			// Key.
			seen, err := p.Network(ctx, "evil-net")
			if err != nil || !seen.Foreign || !seen.Key.IsZero() || seen.Description != b.Key.String() {
				t.Fatalf("another project's network is seen as %+v, %v", seen.Meta, err)
			}
			var own sdn.Network
			for noun, ensure := range map[string]func() (sdn.Meta, error){
				"network": func() (m sdn.Meta, err error) {
					own, err = p.EnsureNetwork(ctx, sdn.NetworkSpec{Base: b})
					return own.Meta, err
				},
				"subnet pool": func() (sdn.Meta, error) {
					made, err := p.EnsureSubnetPool(ctx, sdn.SubnetPoolSpec{Base: b, Prefixes: prefixesOf("10.1.0.0/16")})
					return made.Meta, err
				},
				"router": func() (sdn.Meta, error) {
					made, err := p.EnsureRouter(ctx, sdn.RouterSpec{Base: b})
					return made.Meta, err
				},
				"floating IP": func() (sdn.Meta, error) {
					made, err := p.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{Base: b, Network: "ext"})
					return made.Meta, err
				},
			} {
				first, err := ensure()
				if err != nil || first.Project != "p1" || first.Foreign || first.Key != b.Key {
					t.Errorf("%s: %+v, %v", noun, first, err)
					continue
				}
				if again, err := ensure(); err != nil || again.ID != first.ID {
					t.Errorf("%s once more: %s, then %s, %v", noun, first.ID, again.ID, err)
				}
			}
			if made, err := p.EnsureSubnet(ctx, sdn.SubnetSpec{Base: b, Network: own.ID, CIDR: prefixesOf("10.2.0.0/24")[0]}); err != nil || made.Project != "p1" || made.Network != own.ID {
				t.Errorf("subnet: %+v, %v", made, err)
			}
			for range 2 { // then from the cache
				found, err := sdn.All(p.FindNetworks(ctx, sdn.NetworkQuery{Match: sdn.Match{Keys: []sdn.Key{b.Key}}}))
				if err != nil || len(found) != 1 || found[0].ID != own.ID {
					t.Errorf("by the Key: %+v, %v", found, err)
				}
			}
			for found, err := range p.FindRouters(ctx, sdn.RouterQuery{Match: sdn.Match{Owner: "test", Kind: "t"}}) {
				if err != nil || found.Project != "p1" {
					t.Errorf("by owner and kind: %+v, %v", found, err)
				}
			}
		})
	}
}

// In a project that a call names the Keys are this installation's.
func TestKeyOfANamedProject(t *testing.T) {
	t.Parallel()
	p, _ := onDouble(t, squatted(), nil)
	key := testKey("x")
	find := func(m sdn.Match) int {
		t.Helper()
		found, err := sdn.All(p.FindRouters(t.Context(), sdn.RouterQuery{Match: m}))
		if err != nil {
			t.Fatal(err)
		}
		return len(found)
	}
	if n := find(sdn.Match{Keys: []sdn.Key{key}}); n != 0 {
		t.Errorf("%d routers before the project is named", n)
	}
	r, err := p.EnsureRouter(t.Context(), sdn.RouterSpec{Base: sdn.Base{Key: key, Project: "evil"}})
	if err != nil || r.ID != "evil-router" || r.Foreign {
		t.Errorf("ensured in the project: %+v, %v", r.Meta, err)
	}
	if n := find(sdn.Match{Keys: []sdn.Key{key}}); n != 1 {
		t.Errorf("%d routers after the project was named", n)
	}
	other, _ := onDouble(t, squatted(), nil)
	found, err := sdn.All(other.FindRouters(t.Context(), sdn.RouterQuery{Match: sdn.Match{Keys: []sdn.Key{key}, Projects: []string{"evil"}}}))
	if err != nil || len(found) != 1 {
		t.Errorf("by Key and project: %+v, %v", found, err)
	}
}

// A port of another project does not stand for a Key either, be it older or younger.
func TestPortOfAnotherProject(t *testing.T) {
	t.Parallel()
	d := newPortDouble(100)
	d.ports["evil"] = &portWire{meta: meta{ID: "evil", Project: "evil", Description: testKey("a").String(), Created: stamp{d.now.Add(-time.Hour)}}, Network: doubleNet, MAC: "02:00:00:00:00:98"}
	p, _, _ := onPorts(t, d)
	made := ensurePort(t, p, portSpec("a"))
	if made.ID == "evil" || made.Project != "p1" || made.Key != testKey("a") {
		t.Errorf("the port is %+v", made.Meta)
	}
	if again := ensurePort(t, p, portSpec("a")); again.ID != made.ID || d.count() != 2 {
		t.Errorf("once more it is %s, of %d ports; want %s, and both", again.ID, d.count(), made.ID)
	}
	if port, err := p.Port(t.Context(), "evil"); err != nil || !port.Foreign || !port.Key.IsZero() {
		t.Errorf("another project's port is seen as %+v, %v", port.Meta, err)
	}
}

// A load balancer of another project does not stand for a Key either, and is not deleted
// as a duplicate.
func TestBalancerOfAnotherProject(t *testing.T) {
	t.Parallel()
	o := newOctaviaDouble(amphora)
	p, _, clock := onOctavia(t, o)
	evil := sdn.LoadBalancerSpec{Base: sdn.Base{Key: testKey("web"), Project: "evil"}, VIPs: []sdn.VIP{{Subnet: "s1"}}}
	there, _ := readyBalancer(t, p, clock, evil)
	p.owner.named = nil // as in a process that has not made it
	made, _ := readyBalancer(t, p, clock, balancerSpec("web", "10.0.0.5:80"))
	if made.ID == there.ID || made.Project != "p1" || made.Foreign {
		t.Errorf("the load balancer is %+v; another project's is %s", made.Meta, there.ID)
	}
	found, err := sdn.All(p.FindLoadBalancers(context.Background(), sdn.LoadBalancerQuery{Match: sdn.Match{Keys: []sdn.Key{testKey("web")}}, Outline: true}))
	if err != nil || len(found) != 1 || found[0].ID != made.ID {
		t.Errorf("by the Key: %+v, %v", found, err)
	}
	if seen, err := p.LoadBalancer(t.Context(), there.ID); err != nil || !seen.Foreign {
		t.Errorf("another project's is seen as %+v, %v", seen.Meta, err)
	}
}

func prefixesOf(s string) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix(s)} }

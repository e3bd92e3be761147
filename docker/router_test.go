package docker

import (
	"net/netip"
	"testing"

	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/sdn"
)

func (b *box) routers() []sdn.Router {
	b.t.Helper()
	routers, err := sdn.All(b.provider.FindRouters(b.t.Context(), sdn.RouterQuery{}))
	b.must(err)
	return routers
}

// A host that does not ask for routers gets none, and its containers the subnets' gateways.
func TestUnrouted(t *testing.T) {
	t.Parallel()
	b := newBox(t, unrouted)
	n := b.create(dualNetwork())
	if found := b.routers(); len(found) > 0 {
		t.Errorf("routers %+v", found)
	}
	e := b.run(&endpoint{net: n})
	if e.joined["Gateway"] != n.v4[0].gateway || e.joined["GatewayIPv6"] != n.v6[0].gateway {
		t.Errorf("join %v, gateways %s and %s", e.joined, n.v4[0].gateway, n.v6[0].gateway)
	}
	b.stop(e)
	b.remove(n)
	b.clean()
}

// An existing router is used by its name or its id, keeps its other interfaces, and
// stays.
func TestExistingRouter(t *testing.T) {
	t.Parallel()
	for _, routed := range []bool{false, true} {
		b := newBox(t, func(c *Config) { c.Routed = routed })
		theirs := b.theirs("net", "10.70.0.0/24")
		router, err := b.provider.EnsureRouter(t.Context(), sdn.RouterSpec{Base: sdn.Base{Name: "edge"}})
		b.must(err)
		b.must(b.provider.AttachSubnet(t.Context(), router.ID, b.subnetAt(theirs, "10.70.0.0/24").ID, netip.Addr{}))
		before := b.dump()
		for _, name := range []string{"edge", string(router.ID)} {
			n := b.create(&network{v4: []*pool{{cidr: "10.50.0.0/24"}}, options: m{optRouter: name}})
			found := b.routers()
			if len(found) != 1 || len(found[0].Interfaces) != 2 {
				t.Errorf("routers %+v", found)
			}
			b.restart()
			b.remove(n)
			b.unchanged(before)
		}
		body := b.request(&network{v4: []*pool{{cidr: "10.50.0.0/24"}}, options: m{
			optRouter: "00000000-0000-4000-8000-000000000000",
		}})
		b.contains(b.fails("NetworkDriver.CreateNetwork", body), optRouter)
		b.ok("IpamDriver.ReleasePool", m{"PoolID": b.poolOf("10.50.0.0/24")})
		b.unchanged(before)
	}
}

// Two routers of one name are refused before anything is made.
func TestAmbiguousRouter(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	for range 2 {
		_, err := b.provider.EnsureRouter(t.Context(), sdn.RouterSpec{Base: sdn.Base{Name: "edge"}})
		b.must(err)
	}
	body := b.request(&network{v4: []*pool{{cidr: "10.50.0.0/24"}}, options: m{optRouter: "edge"}})
	before := b.dump()
	b.contains(b.fails("NetworkDriver.CreateNetwork", body), optRouter, "2 routers")
	b.unchanged(before)
}

// A network gets a router of its own with a gateway where it is asked to lead.
func TestExternalNetwork(t *testing.T) {
	t.Parallel()
	b := newBox(t, unrouted)
	external, err := b.provider.Network(t.Context(), b.provider.Capabilities().ExternalNetwork)
	b.must(err)
	for _, name := range []string{external.Name, string(external.ID)} {
		n := b.create(&network{v4: []*pool{{cidr: "10.50.0.0/24"}}, options: m{optExternal: name}})
		found := b.routers()
		if len(found) != 1 || found[0].Gateway == nil || found[0].Gateway.Network != external.ID ||
			found[0].Key != b.driver.daemon.Names.GlobalKey(identity.KindRouter, n.id) {
			t.Errorf("routers %+v", found)
		}
		b.restart()
		b.remove(n)
		b.clean()
	}
	body := b.request(v4Network("10.50.0.0/24"))
	before := b.dump()
	b.theirs("inside")
	body["Options"] = m{optGeneric: m{optExternal: "inside"}}
	b.contains(b.fails("NetworkDriver.CreateNetwork", body), optExternal)
	b.must(b.provider.DeleteNetwork(t.Context(), b.named("inside").ID))
	b.unchanged(before)
}

func (b *box) named(name string) sdn.Network {
	b.t.Helper()
	n, _, err := sdn.First(b.provider.FindNetworks(
		b.t.Context(), sdn.NetworkQuery{Match: sdn.Match{Names: []string{name}}},
	))
	b.must(err)
	return n
}

// A router that an operator put on a network by hand is his to take off: until then the
// network stays, and goes at the next start.
func TestForeignInterfaceStays(t *testing.T) {
	t.Parallel()
	b := newBox(t, unrouted)
	router, err := b.provider.EnsureRouter(t.Context(), sdn.RouterSpec{Base: sdn.Base{Name: "edge"}})
	b.must(err)
	before := b.dump()
	n := b.create(v4Network("10.50.0.0/24"))
	subnet := b.networkOf(n).Subnets[0]
	b.must(b.provider.AttachSubnet(t.Context(), router.ID, subnet, netip.Addr{}))
	b.release(n)
	b.fails("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id})
	if found := b.routers(); len(found) != 1 || len(found[0].Interfaces) != 1 {
		t.Errorf("routers %+v", found)
	}
	b.must(b.provider.DetachSubnet(t.Context(), router.ID, subnet))
	b.reconcile()
	b.unchanged(before)
}

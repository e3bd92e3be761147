package docker

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// Each test here is a defect of kuryr-libnetwork that a front end of its kind must not have. Those of its port drivers,
// of choosing among existing Neutron objects, and of its configuration belong elsewhere.

// A container with addresses of both families starts and leaves nothing.
func TestDefectDualStackJoinFails(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(dualNetwork())
	e := b.run(&endpoint{net: n})
	if len(b.portOf(e.id).Addresses) != 2 || e.joined["Gateway"] == nil || e.joined["GatewayIPv6"] == nil {
		t.Errorf("join %v", e.joined)
	}
	b.stop(e)
	b.remove(n)
	b.clean()
}

// No --subnet works, and releasing an operator's pool never deletes it.
func TestDefectDefaultPoolDeleted(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	operators, err := b.provider.EnsureSubnetPool(t.Context(), sdn.SubnetPoolSpec{
		Base: sdn.Base{Name: "kuryr"}, Prefixes: somePrefixes(), DefaultLen: 24})
	b.must(err)
	n := b.create(&network{v4: []*pool{{}}})
	b.remove(n)
	b.ok("IpamDriver.ReleasePool", m{"PoolID": string(operators.ID)})
	if _, err := b.provider.SubnetPool(t.Context(), operators.ID); err != nil {
		t.Errorf("the operator's pool: %v", err)
	}
}

// No --gateway: the answer is an address, not an empty string.
func TestDefectNoGateway(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	p := &pool{cidr: "10.50.0.0/24"}
	b.requestPool(p, false)
	b.requestGateway(p)
	if p.gateway != "10.50.0.1" {
		t.Errorf("gateway %q", p.gateway)
	}
}

// --aux-address on a new network, inside the ip-range, outside of it, and outside the subnet.
func TestDefectAuxAddress(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(&network{v4: []*pool{{cidr: "10.50.0.0/24", sub: "10.50.0.64/26",
		aux: map[string]string{"in": "10.50.0.64", "out": "10.50.0.9", "far": "10.99.0.1"}}}})
	if e := b.run(&endpoint{net: n}); e.ip4 != "10.50.0.65" {
		t.Errorf("address %s", e.ip4)
	}
	b.fails("IpamDriver.RequestAddress", m{"PoolID": n.v4[0].id, "Address": "10.50.0.9", "Options": m{optMAC: "02:00:00:00:00:07"}})
}

// Releasing one network's pool does not touch another network of the same range.
func TestDefectSharedPoolDeleted(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	one := b.create(&network{v4: []*pool{{cidr: "10.50.0.0/24"}}})
	two := b.create(&network{v4: []*pool{{cidr: "10.50.0.0/24"}}})
	b.remove(one)
	b.stop(b.run(&endpoint{net: two}))
	b.remove(two)
	b.clean()
}

// A CreateNetwork that fails leaves nothing, and its id can be used again.
func TestDefectNoRollback(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.create(&network{v4: []*pool{{cidr: "10.50.0.0/24"}}, options: m{optRouter: "r"}})
	n := &network{v4: []*pool{{cidr: "10.50.0.0/25"}}, options: m{optRouter: "r"}}
	body := b.request(n)
	before := b.dump()
	b.fails("NetworkDriver.CreateNetwork", body)
	if now := b.dump(); now != before {
		t.Errorf("a failed CreateNetwork left\n%s\nbefore\n%s", now, before)
	}
	delete(body["Options"].(m), optGeneric)
	b.ok("NetworkDriver.CreateNetwork", body)
	networks, err := sdn.All(b.provider.FindNetworks(t.Context(), sdn.NetworkQuery{Match: sdn.Match{Keys: []sdn.Key{b.driver.key(kindNetwork, n.id)}}}))
	b.must(err)
	if len(networks) != 1 {
		t.Errorf("%d networks have the id", len(networks))
	}
}

// The same address for two endpoints is refused, and the first keeps it, whatever the engine then releases.
func TestDefectAddressStolen(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(dualNetwork())
	first := b.run(&endpoint{net: n, ip4: "10.50.0.9"})
	b.contains(b.fails("IpamDriver.RequestAddress", m{"PoolID": n.v4[0].id, "Address": "10.50.0.9", "Options": m{optMAC: "02:00:00:00:00:09"}}), "10.50.0.9")
	b.contains(b.fails("IpamDriver.RequestAddress", m{"PoolID": n.v4[0].id, "Address": "", "Options": m{optMAC: first.mac}}), first.mac)
	before := b.dump()
	second := &endpoint{net: n, id: newID(), mac: first.mac, ip4: first.ip4, ip6: first.ip6}
	b.fails("NetworkDriver.CreateEndpoint", second.createBody())
	b.giveBack(second) // the engine's rollback
	if now := b.dump(); now != before || b.binder.count() != 1 {
		t.Errorf("the second endpoint changed\n%s\ninto\n%s", before, now)
	}
	b.stop(first)
	b.remove(n)
	b.clean()
}

// Cleaning calls for what is not there succeed.
func TestDefectNotIdempotent(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	ids := m{"NetworkID": newID(), "EndpointID": newID()}
	for _, method := range []string{"Leave", "DeleteEndpoint", "RevokeExternalConnectivity", "EndpointOperInfo"} {
		b.ok("NetworkDriver."+method, ids)
	}
	b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": newID()})
	b.ok("IpamDriver.ReleaseAddress", m{"PoolID": "gone", "Address": "10.0.0.1"})
	b.ok("IpamDriver.ReleasePool", m{"PoolID": "gone"})
}

// Lengths, host bits, sandbox keys and IPv6 without gateway that its patterns refused.
func TestDefectValidRefused(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	for _, cidr := range []string{"fd50::/109", "fd51::/119", "fd52::5/64"} {
		p := &pool{cidr: cidr}
		b.requestPool(p, true)
		address, _, _ := strings.Cut(cidr, "5/")
		if !strings.HasPrefix(p.cidr, address[:5]) || p.cidr == "fd52::5/64" {
			t.Errorf("%s became %s", cidr, p.cidr)
		}
	}
	p := &pool{cidr: "10.61.0.5/24"}
	if b.requestPool(p, false); p.cidr != "10.61.0.0/24" {
		t.Errorf("host bits: %s", p.cidr)
	}
	n := b.create(&network{v6: []*pool{{cidr: "fd53::/64"}}, skipGw: true})
	e := &endpoint{net: n}
	b.take(e)
	b.ok("NetworkDriver.CreateEndpoint", e.createBody())
	for _, key := range []string{"/run/docker/netns/ee58692b1f39", "/var/run/docker/netns/lb_x", "/srv/exec-root/netns/ingress_sbox"} {
		body := e.body()
		body["SandboxKey"] = key
		b.ok("NetworkDriver.Join", body)
	}
}

// Two RequestPools of one range never make the range unusable.
func TestDefectTwoPoolsOfOneName(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	one := b.create(&network{v4: []*pool{{cidr: "10.50.0.0/24"}}})
	two := b.create(&network{v4: []*pool{{cidr: "10.50.0.0/24"}}})
	three := b.create(&network{v4: []*pool{{cidr: "10.50.0.0/24"}}})
	for _, n := range []*network{two, one, three} {
		b.stop(b.run(&endpoint{net: n}))
		b.remove(n)
	}
	b.clean()
}

// Only the routes of the subnets that the port is on are handed out, and never an empty gateway.
func TestDefectRoutesOfOtherSubnets(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(&network{v4: []*pool{{cidr: "10.78.0.0/24"}, {cidr: "10.79.0.0/24"}}})
	for i, id := range b.networkOf(n).Subnets {
		s, err := b.provider.Subnet(t.Context(), id)
		b.must(err)
		routes := []sdn.HostRoute{{Destination: somePrefixes()[i], NextHop: s.CIDR.Addr().Next().Next()}}
		_, err = b.provider.UpdateSubnet(t.Context(), id, sdn.SubnetPatch{HostRoutes: &routes})
		b.must(err)
	}
	e := b.run(&endpoint{net: n})
	routes, _ := e.joined["StaticRoutes"].([]any)
	if len(routes) != 1 {
		t.Fatalf("routes %v", e.joined)
	}
	if r := routes[0].(map[string]any); r["NextHop"] != "10.78.0.2" || r["RouteType"] != float64(0) {
		t.Errorf("route %v", r)
	}
	inside := b.create(&network{v4: []*pool{{cidr: "10.80.0.0/24"}}, internal: true})
	if j := b.run(&endpoint{net: inside}).joined; j["Gateway"] != nil || j["GatewayIPv6"] != nil {
		t.Errorf("join of an internal network %v", j)
	}
}

// The container's end is never given an address by the plugin: the binder is told no namespace.
func TestDefectAddressInTheHost(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.run(&endpoint{net: b.create(&network{v4: []*pool{{cidr: "10.50.0.0/24"}}, options: m{optMTU: "1400"}})})
	for _, i := range b.binder.plugged {
		if i.Namespace != "" || i.MTU != 1400 {
			t.Errorf("plugged %+v", i)
		}
	}
}

func somePrefixes() []netip.Prefix {
	var list []netip.Prefix
	for _, p := range DefaultPools4 {
		list = append(list, p.Prefix)
	}
	return list
}

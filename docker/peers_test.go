package docker

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/ipproto"
	"github.com/kuryr/kuryr/sdn"
)

// Each test here is a defect of kuryr-libnetwork that a front end of its kind must not
// have, by the number that it has in the list that docs/development.md gives, where the
// others are too: those of port drivers, of existing Neutron objects, and of
// configuration.

// Exposed ports were looked for by a name that the port no longer had, and nothing was done.
func TestPeerB01ExposedPorts(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	e := &endpoint{net: b.create(dualNetwork()), exposed: []m{{"Proto": 6, "Port": 80}, {"Proto": 17, "Port": 53}}}
	b.run(e)
	info := b.ok("NetworkDriver.EndpointOperInfo", e.body())["Value"].(m)
	if got := fmt.Sprint(info["kuryr.port.exposed"]); got != "[53/udp 80/tcp]" {
		t.Errorf("exposed %s", got)
	}
	b.stop(e)
	b.remove(e.net)
	b.clean()
}

// A container with addresses of both families starts and leaves nothing.
func TestPeerB02DualStackJoinFails(t *testing.T) {
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
func TestPeerB04DefaultPoolDeleted(t *testing.T) {
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
func TestPeerB05NoGateway(t *testing.T) {
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
func TestPeerB06AuxAddress(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(&network{v4: []*pool{{cidr: "10.50.0.0/24", sub: "10.50.0.64/26",
		aux: map[string]string{"in": "10.50.0.64", "out": "10.50.0.9", "far": "10.99.0.1"}}}})
	if e := b.run(&endpoint{net: n}); e.ip4 != "10.50.0.65" {
		t.Errorf("address %s", e.ip4)
	}
	b.fails("IpamDriver.RequestAddress", m{
		"PoolID": n.v4[0].id, "Address": "10.50.0.9", "Options": m{optMAC: "02:00:00:00:00:07"},
	})
}

// Releasing one network's pool does not touch another network of the same range.
func TestPeerB07SharedPoolDeleted(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	one := b.create(v4Network("10.50.0.0/24"))
	two := b.create(v4Network("10.50.0.0/24"))
	first, second := b.run(&endpoint{net: one, ip4: "10.50.0.9"}), b.run(&endpoint{net: two, ip4: "10.50.0.9"})
	if b.portOf(first.id).Network == b.portOf(second.id).Network {
		t.Error("both endpoints are on one network")
	}
	b.stop(first)
	b.remove(one)
	if b.portOf(second.id).DeviceID != second.id {
		t.Error("the address of one network was released with the other's")
	}
	b.stop(second)
	b.remove(two)
	b.clean()
}

// A CreateNetwork that fails leaves nothing, and its id can be used again.
func TestPeerB08NoRollback(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.create(&network{v4: []*pool{{cidr: "10.50.0.0/24"}}, options: m{optRouter: "r"}})
	n := &network{v4: []*pool{{cidr: "10.50.0.0/25"}}, options: m{optRouter: "r"}}
	body := b.request(n)
	before := b.dump()
	b.fails("NetworkDriver.CreateNetwork", body)
	b.unchanged(before)
	delete(body["Options"].(m), optGeneric)
	b.ok("NetworkDriver.CreateNetwork", body)
	networks, err := sdn.All(b.provider.FindNetworks(t.Context(), sdn.NetworkQuery{
		Match: sdn.Match{Keys: []sdn.Key{b.driver.daemon.Names.GlobalKey(identity.KindNetwork, n.id)}},
	}))
	b.must(err)
	if len(networks) != 1 {
		t.Errorf("%d networks have the id", len(networks))
	}
}

// The same address for two endpoints is refused, and the first keeps it, whatever the engine then releases.
func TestPeerB09AddressStolen(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(dualNetwork())
	first := b.run(&endpoint{net: n, ip4: "10.50.0.9"})
	b.contains(
		b.fails("IpamDriver.RequestAddress", m{
			"PoolID": n.v4[0].id, "Address": "10.50.0.9", "Options": m{optMAC: "02:00:00:00:00:09"},
		}),
		"10.50.0.9",
	)
	b.contains(
		b.fails("IpamDriver.RequestAddress", m{
			"PoolID": n.v4[0].id, "Address": "", "Options": m{optMAC: first.mac},
		}),
		first.mac,
	)
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

// What cannot be is refused before anything is written.
func TestPeerB10RefusedAfterTagging(t *testing.T) {
	t.Parallel()
	b, c := countedBox(t)
	n := b.create(v4Network("10.50.0.0/24"))
	e := &endpoint{net: n}
	b.take(e)
	c.calls = nil
	for _, options := range []m{{"kuryr.shared": "yes"}, {optGateway: "none", optRouter: "edge"}, {
		optRoutes: "10.9.0.0/16=10.77.0.1",
	}} {
		text := b.fails("NetworkDriver.CreateNetwork", m{"NetworkID": newID(), "Options": m{optGeneric: options},
			"IPv4Data": []m{{"AddressSpace": localSpace, "Pool": "10.50.0.0/24"}}})
		if strings.Contains(text, "%") {
			t.Errorf("an unformatted message: %s", text)
		}
	}
	b.fails("NetworkDriver.CreateEndpoint", asking(e.createBody(), m{"kuryr.group": "web"}))
	if len(c.calls) != 0 {
		t.Errorf("the SDN was asked %v", c.calls)
	}
}

// Cleaning calls for what is not there succeed.
func TestPeerB11NotIdempotent(t *testing.T) {
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
func TestPeerB12ValidRefused(t *testing.T) {
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
	for _, key := range []string{
		"/run/docker/netns/ee58692b1f39", "/var/run/docker/netns/lb_x",
		"/srv/exec-root/netns/ingress_sbox",
	} {
		body := e.body()
		body["SandboxKey"] = key
		b.ok("NetworkDriver.Join", body)
	}
}

// A network that was there before is used by kuryr-libnetwork's options, and neither
// renamed nor deleted nor described; the tags that say who uses it go with the use.
func TestPeerB14ExistingNetworks(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	theirs := b.theirs("theirs", "10.50.0.0/24")
	before := b.dump()
	for _, options := range []m{{optNetName: "theirs"}, {optNetUUID: string(theirs.ID)}} {
		n := b.create(&network{v4: []*pool{{cidr: "10.50.0.0/24"}}, options: options})
		e := b.run(&endpoint{net: n})
		if b.portOf(e.id).Network != theirs.ID {
			t.Error("the network was not used")
		}
		b.idle()
		now, err := b.provider.Network(t.Context(), theirs.ID)
		b.must(err)
		if now.Name != "theirs" || !now.Key.IsZero() || now.Description != theirs.Description ||
			!identity.HasAll(now.Tags, useTags(n.id)) {
			t.Errorf("the network became %+v", now)
		}
		b.stop(e)
		b.remove(n)
		b.idle()
		b.unchanged(before)
	}
}

// Two RequestPools of one range never make the range unusable.
func TestPeerB15TwoPoolsOfOneName(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	one := b.create(v4Network("10.50.0.0/24"))
	two := b.create(v4Network("10.50.0.0/24"))
	three := b.create(v4Network("10.50.0.0/24"))
	for _, n := range []*network{two, one, three} {
		b.stop(b.run(&endpoint{net: n}))
		b.remove(n)
	}
	b.clean()
}

// Nor do two hosts that ask for one range at the same time.
func TestPeerB15TwoHostsAtOnce(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	hosts := []*box{b, boxOn(t, b.provider, func(c *Config) { c.Host = "crate" })}
	pools := []*pool{{cidr: "10.50.0.0/24"}, {cidr: "10.50.0.0/24"}}
	var both sync.WaitGroup
	for i, host := range hosts {
		both.Go(func() {
			_, answer := host.post("IpamDriver.RequestPool", encode(
				m{"AddressSpace": localSpace, "Pool": pools[i].cidr, "SubPool": "", "V6": false},
			))
			pools[i].id, _ = answer["PoolID"].(string)
		})
	}
	both.Wait()
	if pools[0].id == "" || pools[0].id == pools[1].id {
		t.Fatalf("the hosts have the pools %q and %q", pools[0].id, pools[1].id)
	}
	var made []*network
	for i, host := range hosts {
		host.requestGateway(pools[i])
		n := &network{id: newID(), v4: pools[i : i+1]}
		host.ok("NetworkDriver.CreateNetwork", m{
			"NetworkID": n.id, "Options": m{}, "IPv4Data": []m{pools[i].data()}, "IPv6Data": []m{},
		})
		made = append(made, n)
	}
	for i, host := range hosts {
		e := &endpoint{net: made[i]}
		host.take(e)
		host.giveBack(e)
		host.remove(made[i])
	}
	b.clean()
}

// IPv6 subnets say how addresses come about: by Kuryr, not by DHCP or advertisements.
func TestPeerB16IPv6SubnetWithoutMode(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(dualNetwork())
	for _, id := range b.networkOf(n).Subnets {
		if s, err := b.provider.Subnet(t.Context(), id); err != nil || s.Mode != sdn.Static || !s.NoDHCP {
			t.Errorf("subnet %+v, %v", s, err)
		}
	}
}

// Ports of a container are published in both families, and for every protocol.
func TestPeerB17IPv4Only(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	e := b.run(&endpoint{net: b.create(dualNetwork()), published: []m{
		{"Proto": 6, "Port": 80, "HostPort": 8080}, {"Proto": 17, "Port": 53, "HostPort": 5353}, {
			"Proto": 132, "Port": 9, "HostPort": 9009,
		}}})
	forwards, err := sdn.All(b.provider.FindForwards(t.Context(), sdn.ForwardQuery{}))
	b.must(err)
	seen := map[string]bool{}
	for _, f := range forwards {
		seen[ipproto.Name(f.Protocol)+" "+f.Target.Addr.String()] = true
	}
	for _, proto := range []string{"tcp", "udp", "sctp"} {
		if !seen[proto+" "+e.ip4] || !seen[proto+" "+e.ip6] {
			t.Errorf("%s is not published in both families: %v", proto, seen)
		}
	}
}

// A port whose endpoint was deleted has no device, no host and no name of the endpoint.
// It is deleted with its addresses.
func TestPeerB18DeviceStays(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(dualNetwork())
	e := b.run(&endpoint{net: n})
	id := b.portOf(e.id).ID
	b.ok("NetworkDriver.Leave", e.body())
	b.ok("NetworkDriver.DeleteEndpoint", e.body())
	if p, err := b.provider.Port(t.Context(), id); err != nil || p.DeviceID != "" || p.Host != "" ||
		p.Name != identity.UnboundPort {
		t.Errorf("port %+v, %v", p, err)
	}
	b.giveBack(e)
	if _, err := b.provider.Port(t.Context(), id); !sdn.IsNotFound(err) {
		t.Errorf("the port is there still: %v", err)
	}
}

// Only the routes of the subnets that the port is on are handed out, and never an empty gateway.
func TestPeerB20RoutesOfOtherSubnets(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(&network{v4: []*pool{{cidr: "10.78.0.0/24"}, {cidr: "10.79.0.0/24"}}})
	for i, id := range b.networkOf(n).Subnets {
		s, err := b.provider.Subnet(t.Context(), id)
		b.must(err)
		routes := []sdn.HostRoute{{Destination: somePrefixes()[i], NextHop: s.CIDR.Addr().Next().Next().Next()}}
		_, err = b.provider.UpdateSubnet(t.Context(), id, sdn.SubnetPatch{HostRoutes: &routes})
		b.must(err)
	}
	e := b.run(&endpoint{net: n})
	routes, _ := e.joined["StaticRoutes"].([]any)
	if len(routes) != 1 {
		t.Fatalf("routes %v", e.joined)
	}
	if r := routes[0].(map[string]any); r["NextHop"] != "10.78.0.3" || r["RouteType"] != float64(0) {
		t.Errorf("route %v", r)
	}
	inside := b.create(&network{v4: []*pool{{cidr: "10.80.0.0/24"}}, internal: true})
	if j := b.run(&endpoint{net: inside}).joined; j["Gateway"] != nil || j["GatewayIPv6"] != nil {
		t.Errorf("join of an internal network %v", j)
	}
}

// The container's end is never given an address by the plugin: the binder is told no namespace.
func TestPeerB19MTUAndAddressInTheHost(t *testing.T) {
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

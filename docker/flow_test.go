package docker

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/sdn"
)

func TestWholeLives(t *testing.T) {
	t.Parallel()
	swarmID := "s76m6pvzy8v2vvuomn6b3fsth"
	cases := map[string]struct {
		network  network
		endpoint endpoint
		ip4, ip6 string // expected; "" whatever
		gateway4 any    // of Join
		gateway6 any
	}{
		"subnet only": {network{v4: []*pool{{cidr: "10.50.0.0/24"}}}, endpoint{}, "", "", "10.50.0.1", nil},
		"everything": {
			network{
				v4: []*pool{{
					cidr: "10.50.0.0/16", sub: "10.50.8.0/24", gateway: "10.50.0.7",
					aux: map[string]string{"rtr": "10.50.0.2", "db": "10.50.8.9"},
				}},
				v6:      []*pool{{cidr: "fd50::/64", gateway: "fd50::5"}},
				options: m{optMTU: "1400", "lab.opt": "val"},
			},
			endpoint{ip4: "10.50.9.77", ip6: "fd50::77", mac: "02:aa:bb:cc:dd:01"}, "10.50.9.77",
			"fd50::77", "10.50.0.7", "fd50::5",
		},
		"automatic, dual stack": {
			network{v4: []*pool{{}}, v6: []*pool{{}}}, endpoint{}, "", "", "10.200.0.1",
			"fd6b:7572:7972::1",
		},
		"IPv6 only":            {network{v6: []*pool{{cidr: "fd7a::/64"}}}, endpoint{}, "", "", nil, "fd7a::1"},
		"odd length":           {network{v6: []*pool{{cidr: "fd7a::/109"}}}, endpoint{}, "", "", nil, "fd7a::1"},
		"small":                {network{v4: []*pool{{cidr: "10.9.9.8/30"}}}, endpoint{}, "10.9.9.10", "", "10.9.9.9", nil},
		"internal, old engine": {network{v4: []*pool{{cidr: "10.50.0.0/24"}}, internal: true}, endpoint{}, "", "", nil, nil},
		"internal, new engine": {
			network{v4: []*pool{{cidr: "10.50.0.0/24"}}, internal: true, skipGw: true}, endpoint{},
			"", "", nil, nil,
		},
		"a swarm's id": {
			network{id: swarmID, v4: []*pool{{cidr: "10.50.0.0/24"}}}, endpoint{}, "", "",
			"10.50.0.1", nil,
		},
		"several ranges": {
			network{v4: []*pool{{cidr: "10.78.0.0/24"}, {cidr: "10.79.0.0/24"}}}, endpoint{}, "",
			"", "10.78.0.1", nil,
		},
		"shared router": {
			network{v4: []*pool{{cidr: "10.50.0.0/24"}}, options: m{optRouter: "edge"}}, endpoint{},
			"", "", "10.50.0.1", nil,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBox(t)
			n := b.create(&c.network)
			e := c.endpoint
			e.net = n
			b.run(&e)
			if c.ip4 != "" && e.ip4 != c.ip4 || c.ip6 != "" && e.ip6 != c.ip6 {
				t.Errorf("addresses %s %s, want %s %s", e.ip4, e.ip6, c.ip4, c.ip6)
			}
			if e.joined["Gateway"] != c.gateway4 || e.joined["GatewayIPv6"] != c.gateway6 {
				t.Errorf("gateways of %v, want %v and %v", e.joined, c.gateway4, c.gateway6)
			}
			if disabled := e.joined["DisableGatewayService"] == true; disabled != (c.gateway4 == nil) {
				t.Errorf("DisableGatewayService of %v", e.joined)
			}
			names, _ := e.joined["InterfaceName"].(map[string]any)
			if b.binder.count() != 1 {
				t.Errorf("%d ports are plugged", b.binder.count())
			}
			port := b.portOf(e.id)
			if names["SrcName"] != bind.ContainerName(port.ID) || names["DstPrefix"] != "eth" {
				t.Errorf("interface %v", names)
			}
			if port.MAC.String() != e.mac || port.Host != testHost || port.DeviceOwner != sdn.OwnerContainer {
				t.Errorf("port %+v", port)
			}
			b.stop(&e)
			again := &endpoint{net: n}
			b.run(again)
			b.stop(again)
			b.remove(n)
			b.clean()
		})
	}
}

func (b *box) portOf(endpoint string) sdn.Port {
	b.t.Helper()
	p, found, err := sdn.First(b.provider.FindPorts(b.t.Context(), sdn.PortQuery{Devices: []string{endpoint}}))
	b.must(err)
	if !found {
		b.t.Fatalf("endpoint %s has no port", endpoint)
	}
	return p
}

func (b *box) networkOf(n *network) sdn.Network {
	b.t.Helper()
	v, err := b.driver.networks.Find(b.t.Context(), n.id)
	b.must(err)
	found, err := b.provider.Network(b.t.Context(), v.ID)
	b.must(err)
	return found
}

func TestNetworkIsAsAsked(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(&network{
		v4: []*pool{{
			cidr: "10.50.0.0/16", sub: "10.50.8.0/24", gateway: "10.50.0.1",
			aux: map[string]string{"a": "10.50.0.2", "b": "10.50.8.1"},
		}},
		options: m{optMTU: "1400"},
	})
	network := b.networkOf(n)
	if network.MTU != 1400 || network.Name != "kuryr-net-"+n.id[:8] {
		t.Errorf("network %+v", network)
	}
	subnet, err := b.provider.Subnet(t.Context(), network.Subnets[0])
	b.must(err)
	if subnet.Gateway.String() != "10.50.0.1" || len(subnet.Reserved) != 2 || string(subnet.Pool) != n.v4[0].id {
		t.Errorf("subnet %+v", subnet)
	}
	// The ip-range is what automatic addresses come from, without the auxiliary one in it.
	seen := map[string]bool{}
	for range 5 {
		e := b.run(&endpoint{net: n})
		if !strings.HasPrefix(e.ip4, "10.50.8.") || e.ip4 == "10.50.8.1" || seen[e.ip4] {
			t.Errorf("address %s", e.ip4)
		}
		seen[e.ip4] = true
	}
	for _, i := range b.binder.plugged {
		if i.MTU != 1400 {
			t.Errorf("MTU %d reached the binder", i.MTU)
		}
	}
}

func TestRouterOfANetwork(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(v4Network("10.50.0.0/24"))
	router, found, err := sdn.First(b.provider.FindRouters(t.Context(), sdn.RouterQuery{Subnets: b.networkOf(n).Subnets}))
	b.must(err)
	if !found || router.Gateway == nil || !router.Gateway.SNAT ||
		router.Gateway.Network != b.provider.Capabilities().ExternalNetwork {
		t.Errorf("router %+v", router)
	}
	inside := b.create(&network{v4: []*pool{{cidr: "10.50.0.0/24"}}, internal: true})
	_, found, err = sdn.First(b.provider.FindRouters(t.Context(), sdn.RouterQuery{Subnets: b.networkOf(inside).Subnets}))
	b.must(err)
	if found {
		t.Error("an internal network has a router")
	}
}

// An engine whose default IPAM driver gives the addresses: the ports are made and deleted with the endpoints.
func TestOtherIPAM(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	id, ep := newID(), newID()
	b.ok("NetworkDriver.CreateNetwork", m{"NetworkID": id, "Options": m{optGeneric: m{"a": "b"}}, "IPv6Data": []m{},
		"IPv4Data": []m{{"AddressSpace": "LocalDefault", "Gateway": "172.18.0.1/16", "Pool": "172.18.0.0/16"}}})
	a := b.ok("NetworkDriver.CreateEndpoint", m{"NetworkID": id, "EndpointID": ep, "Options": m{},
		"Interface": m{"Address": "172.18.0.2/16", "AddressIPv6": "", "MacAddress": ""}})
	i := a["Interface"].(map[string]any)
	if i["MacAddress"] == nil || i["Address"] != nil {
		t.Errorf("interface %v", i)
	}
	j := b.ok("NetworkDriver.Join", m{
		"NetworkID": id, "EndpointID": ep, "SandboxKey": "/var/run/docker/netns/x", "Options": nil,
	})
	if j["Gateway"] != "172.18.0.1" {
		t.Errorf("join %v", j)
	}
	b.ok("NetworkDriver.Leave", m{"NetworkID": id, "EndpointID": ep})
	b.ok("NetworkDriver.DeleteEndpoint", m{"NetworkID": id, "EndpointID": ep})
	b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": id})
	b.clean()
}

func TestNullIPAM(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	id, ep := newID(), newID()
	b.ok("NetworkDriver.CreateNetwork", m{"NetworkID": id, "Options": m{optGeneric: m{}}, "IPv6Data": []m{},
		"IPv4Data": []m{{"AddressSpace": "null", "Pool": "0.0.0.0/0"}}})
	a := b.ok("NetworkDriver.CreateEndpoint", m{"NetworkID": id, "EndpointID": ep, "Interface": m{
		"Address": "", "AddressIPv6": "", "MacAddress": "",
	}})
	if a["Interface"].(map[string]any)["MacAddress"] == nil {
		t.Errorf("answer %v", a)
	}
	j := b.ok("NetworkDriver.Join", m{"NetworkID": id, "EndpointID": ep, "SandboxKey": "/run/docker/netns/x"})
	if j["Gateway"] != nil || j["DisableGatewayService"] != true {
		t.Errorf("join %v", j)
	}
	b.ok("NetworkDriver.DeleteEndpoint", m{"NetworkID": id, "EndpointID": ep})
	b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": id})
	b.clean()
}

// The IPAM driver alone, for bridge and macvlan networks: no call of the network driver ever comes.
func TestIPAMOnly(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	p := &pool{cidr: "10.121.0.0/24", sub: "10.121.0.8/30", gateway: "10.121.0.9"}
	b.requestPool(p, false)
	b.requestGateway(p)
	b.ok("IpamDriver.RequestAddress", m{"PoolID": p.id, "Address": "10.121.0.10", "Options": nil})
	n := &network{v4: []*pool{p}}
	got := map[string]bool{}
	var live []*endpoint
	for range 2 { // .8 and .11: .9 is the gateway's and .10 auxiliary
		e := &endpoint{net: n}
		b.take(e)
		got[e.ip4] = true
		live = append(live, e)
	}
	if !got["10.121.0.8"] || !got["10.121.0.11"] {
		t.Errorf("addresses %v", got)
	}
	b.fails("IpamDriver.RequestAddress", m{"PoolID": p.id, "Address": "", "Options": m{optMAC: "02:00:00:00:00:09"}})
	b.restart()
	e := &endpoint{net: n, ip4: "10.121.0.200"}
	b.take(e)
	b.fails("IpamDriver.RequestAddress", m{
		"PoolID": p.id, "Address": "10.121.0.200", "Options": m{optMAC: "02:00:00:00:00:09"},
	})
	for _, e := range append(live, e) {
		b.giveBack(e)
	}
	b.ok("IpamDriver.ReleaseAddress", m{"PoolID": p.id, "Address": p.gateway})
	b.ok("IpamDriver.ReleasePool", m{"PoolID": p.id})
	b.clean()
}

func TestAutomaticPools(t *testing.T) {
	t.Parallel()
	routes := []netip.Prefix{
		netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("10.200.0.0/23"),
		netip.MustParsePrefix("10.200.3.4/32"),
	}
	b := newBox(t, func(c *Config) {
		c.HostRoutes = func(context.Context) ([]netip.Prefix, error) { return routes, nil }
	})
	held := map[string]bool{}
	var pools []*pool
	for range 20 {
		p := &pool{}
		b.requestPool(p, false)
		cidr := netip.MustParsePrefix(p.cidr)
		if held[p.id] || held[p.cidr] {
			t.Fatalf("%v was given twice", p)
		}
		if slices.ContainsFunc(routes[1:], cidr.Overlaps) || cidr.Bits() != 24 {
			t.Errorf("range %s", cidr)
		}
		held[p.id], held[p.cidr] = true, true
		pools = append(pools, p)
	}
	if pools[0].cidr != "10.200.2.0/24" || pools[1].cidr != "10.200.4.0/24" {
		t.Errorf("first ranges %s %s", pools[0].cidr, pools[1].cidr)
	}
	for _, p := range pools {
		b.ok("IpamDriver.ReleasePool", m{"PoolID": p.id})
	}
	b.clean()
}

// The calls as kuryr-libnetwork's design document writes them, which differ from what
// engines send: address space global_scope, the gateway asked for without a type, no
// MACs, the pool released last.
func TestDesignDocument(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	const network = "286eddb51ebca09339cb17aaec05e48ffe60659ced6f3fc41b020b0eb506d364"
	const endpoint = "edb23d36d77336d780fe25cdb5cf0411e5edd91b0777982b4b28ad125e28a4dd"
	a := b.ok("IpamDriver.RequestPool", m{
		"AddressSpace": "global_scope", "Pool": "10.0.0.0/16", "SubPool": "10.0.0.0/24",
		"Options": nil, "V6": false,
	})
	id := a["PoolID"]
	if a["Pool"] != "10.0.0.0/16" {
		t.Errorf("pool %v", a)
	}
	if a := b.ok(
		"IpamDriver.RequestAddress", m{"PoolID": id, "Address": "10.0.0.1", "Options": nil},
	); a["Address"] != "10.0.0.1/16" {
		t.Errorf("gateway %v", a)
	}
	b.ok("NetworkDriver.CreateNetwork", m{"NetworkID": network, "IPv6Data": []m{}, "Options": m{optGeneric: m{}},
		"IPv4Data": []m{{"Pool": "10.0.0.0/16", "Gateway": "10.0.0.1/16", "AddressSpace": ""}}})
	if a := b.ok(
		"IpamDriver.RequestAddress", m{"PoolID": id, "Address": "", "Options": nil},
	); a["Address"] != "10.0.0.2/16" {
		t.Errorf("address %v", a)
	}
	ids := m{"NetworkID": network, "EndpointID": endpoint}
	a = b.ok("NetworkDriver.CreateEndpoint", m{"NetworkID": network, "EndpointID": endpoint, "Options": m{},
		"Interface": m{"AddressIPv6": "", "MacAddress": "", "Address": "10.0.0.2/16"}})
	if a["Interface"].(map[string]any)["MacAddress"] == nil {
		t.Errorf("endpoint %v", a)
	}
	j := b.ok("NetworkDriver.Join", m{
		"NetworkID": network, "EndpointID": endpoint,
		"SandboxKey": "/var/run/docker/netns/052b9aa6e9cd", "Options": nil,
	})
	if j["Gateway"] != "10.0.0.1" {
		t.Errorf("join %v", j)
	}
	b.ok("NetworkDriver.Leave", ids)
	b.ok("NetworkDriver.DeleteEndpoint", ids)
	b.ok("IpamDriver.ReleaseAddress", m{"PoolID": id, "Address": "10.0.0.2"})
	b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": network})
	b.ok("IpamDriver.ReleasePool", m{"PoolID": id})
	b.clean()
}

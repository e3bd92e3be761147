package docker

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/sdn"
)

// staticRoutes are the routes of a Join's answer, in order.
func staticRoutes(joined m) []string {
	var list []string
	routes, _ := joined["StaticRoutes"].([]any)
	for _, r := range routes {
		list = append(list, fmt.Sprint(r.(m)["Destination"], " ", r.(m)["RouteType"], " ", r.(m)["NextHop"]))
	}
	slices.Sort(list)
	return list
}

func TestRoutes(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(&network{
		v4: []*pool{{cidr: "10.50.0.0/24"}, {cidr: "10.51.0.0/24"}},
		v6: []*pool{{cidr: "fd50::/64"}},
		options: m{optRoutes: "10.9.0.0/16=10.50.0.5, 10.8.0.0/16=10.51.0.5,192.0.2.0/24=link," +
			"198.51.100.0/24=192.0.2.9,fd09::/32=fd50::5,fd08::/64=link,fd07::/64=fe80::1"},
	})
	want := [][]string{
		{"10.9.0.0/16 10.50.0.5", "192.0.2.0/24 0.0.0.0", "198.51.100.0/24 192.0.2.9"},
		{"10.8.0.0/16 10.51.0.5", "192.0.2.0/24 0.0.0.0", "198.51.100.0/24 192.0.2.9"},
		{"fd07::/64 fe80::1", "fd08::/64 ::", "fd09::/32 fd50::5"},
	}
	for i, id := range b.networkOf(n).Subnets {
		s, err := b.provider.Subnet(t.Context(), id)
		b.must(err)
		var got []string
		for _, r := range s.HostRoutes {
			got = append(got, fmt.Sprint(r.Destination, " ", r.NextHop))
		}
		slices.Sort(got)
		if !slices.Equal(got, want[i]) {
			t.Errorf("%s has the routes %v, want %v", s.CIDR, got, want[i])
		}
	}
	joined := b.run(&endpoint{net: n}).joined
	if got := staticRoutes(joined); !slices.Equal(got, []string{
		"10.9.0.0/16 0 10.50.0.5", "192.0.2.0/24 1 <nil>", "198.51.100.0/24 0 192.0.2.9",
		"fd07::/64 0 fe80::1", "fd08::/64 1 <nil>", "fd09::/32 0 fd50::5",
	}) {
		t.Errorf("Join tells the routes %v", got)
	}
	if joined["Gateway"] != "10.50.0.1" || joined["DisableGatewayService"] == true {
		t.Errorf("join %v", joined)
	}
	// The next hop itself has no such route.
	hop := b.run(&endpoint{net: n, ip4: "10.50.0.5", ip6: "fd50::5"})
	if got := staticRoutes(hop.joined); !slices.Equal(got, []string{
		"192.0.2.0/24 1 <nil>", "198.51.100.0/24 0 192.0.2.9", "fd07::/64 0 fe80::1", "fd08::/64 1 <nil>",
	}) {
		t.Errorf("Join tells the next hop the routes %v", got)
	}
}

// A network without a gateway has no router. The address that an older engine takes for
// the gateway is unused, and not answered.
func TestNoGateway(t *testing.T) {
	t.Parallel()
	for name, skips := range map[string]bool{"engine before 28": false, "engine 28": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBox(t)
			n := b.create(&network{v4: []*pool{{cidr: "10.50.0.0/29"}}, v6: []*pool{{cidr: "fd50::/64"}}, skipGw: skips,
				options: m{optGateway: "none", optRoutes: "0.0.0.0/0=192.0.2.1,192.0.2.0/24=link"}})
			if routers, err := sdn.All(b.provider.FindRouters(t.Context(), sdn.RouterQuery{})); err != nil || len(routers) != 0 {
				t.Errorf("%d routers, %v", len(routers), err)
			}
			seen := map[string]bool{}
			var live []*endpoint
			for range map[bool]int{false: 5, true: 6}[skips] {
				e := b.run(&endpoint{net: n})
				live, seen[e.ip4] = append(live, e), true
				if e.joined["Gateway"] != nil || e.joined["GatewayIPv6"] != nil || e.joined["DisableGatewayService"] != true {
					t.Errorf("join %v", e.joined)
				}
				if got := staticRoutes(e.joined); !slices.Equal(got, []string{"0.0.0.0/0 0 192.0.2.1", "192.0.2.0/24 1 <nil>"}) {
					t.Errorf("routes %v", got)
				}
			}
			if seen["10.50.0.1"] != skips {
				t.Errorf("10.50.0.1 was given: %v", seen["10.50.0.1"])
			}
			b.fails("IpamDriver.RequestAddress", m{
				"PoolID": n.v4[0].id, "Address": "", "Options": m{optMAC: "02:00:00:00:00:99"},
			})
			for _, e := range live {
				b.stop(e)
			}
			b.remove(n)
			b.clean()
		})
	}
}

// asking gives a body of an endpoint with driver options added.
func asking(body m, options m) m {
	all := maps.Clone(body["Options"].(m))
	maps.Copy(all, options)
	body["Options"] = all
	return body
}

func TestInterfaceName(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(dualNetwork())
	e := &endpoint{net: n}
	b.take(e)
	b.ok("NetworkDriver.CreateEndpoint", asking(e.createBody(), m{
		optIfname:                             "wan0",
		"com.docker.network.endpoint.sysctls": "net.ipv4.conf.IFNAME.forwarding=1",
	}))
	b.restart()
	names := b.ok("NetworkDriver.Join", e.joinBody())["InterfaceName"].(m)
	if names["DstName"] != "wan0" || names["DstPrefix"] != "eth" {
		t.Errorf("interface %v", names)
	}
	b.stop(e)
	// The next endpoint of the network asks for itself.
	if names := b.run(&endpoint{net: n}).joined["InterfaceName"].(m); names["DstName"] != nil {
		t.Errorf("interface %v", names)
	}
}

func TestPortSecurity(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(dualNetwork())
	before := b.dump()
	free, vrrp := &endpoint{net: n}, &endpoint{net: n}
	b.take(free)
	b.take(vrrp)
	b.ok("NetworkDriver.CreateEndpoint", asking(free.createBody(), m{optPortSecurity: "false"}))
	asked := asking(vrrp.createBody(), m{
		optAllowed: "10.50.0.200 10.9.0.0/16,fd50::200@00:00:5e:00:02:07", optPortSecurity: "true",
	})
	b.ok("NetworkDriver.CreateEndpoint", asked)
	if p := b.portOf(free.id); !p.NoPortSecurity || len(p.AllowedPairs) != 0 {
		t.Errorf("port %+v", p)
	}
	p := b.portOf(vrrp.id)
	if p.NoPortSecurity || fmt.Sprint(
		p.AllowedPairs,
	) != "[{10.50.0.200/32  false} {10.9.0.0/16  false} {fd50::200/128 00:00:5e:00:02:07 false}]" {
		t.Errorf("port %v %v", p.NoPortSecurity, p.AllowedPairs)
	}
	state := b.dump()
	b.ok("NetworkDriver.CreateEndpoint", asked)
	if now := b.portOf(vrrp.id); now.Revision != p.Revision || b.dump() != state {
		t.Error("the same call twice changed the port")
	}
	// Another container that gets the port before its addresses are released does not inherit what the first one might do.
	for _, e := range []*endpoint{free, vrrp} {
		b.ok("NetworkDriver.DeleteEndpoint", e.body())
		next := &endpoint{net: n, id: newID(), mac: e.mac, ip4: e.ip4, ip6: e.ip6}
		b.ok("NetworkDriver.CreateEndpoint", next.createBody())
		if p := b.portOf(next.id); p.NoPortSecurity || len(p.AllowedPairs) != 0 {
			t.Errorf("the next endpoint's port: unguarded %v, allowed %v", p.NoPortSecurity, p.AllowedPairs)
		}
		b.stop(next)
	}
	b.unchanged(before)
}

// Another IPAM driver's endpoints have the same options.
func TestPortSecurityOfOtherIPAM(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.otherIPAM("172.18.0.0/16")
	e := &endpoint{net: n, id: newID(), ip4: "172.18.0.2", mac: "02:00:00:00:00:01"}
	b.ok("NetworkDriver.CreateEndpoint", asking(e.createBody(), m{optAllowed: "10.9.0.0/16", optIfname: "wan0"}))
	if p := b.portOf(e.id); len(p.AllowedPairs) != 1 || !slices.Contains(p.Tags, identity.TagIfname+"wan0") {
		t.Errorf("port %+v", p)
	}
	b.ok("NetworkDriver.DeleteEndpoint", e.body())
	b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id})
	b.clean()
}

// What a container exposes is remembered, whichever call tells, and costs no call of the SDN where it was told before.
func TestExposedPorts(t *testing.T) {
	t.Parallel()
	b, c := countedBox(t)
	n := b.create(dualNetwork())
	e := &endpoint{net: n}
	b.take(e)
	tcp := func(ports ...int) (list []m) {
		for _, p := range ports {
			list = append(list, m{"Proto": 6, "Port": p})
		}
		return list
	}
	b.ok("NetworkDriver.CreateEndpoint", asking(e.createBody(), m{optExposed: tcp(80)}))
	told := func() string {
		return fmt.Sprint(b.ok("NetworkDriver.EndpointOperInfo", e.body())["Value"].(m)["kuryr.port.exposed"])
	}
	if got := told(); got != "[80/tcp]" {
		t.Errorf("exposed %s", got)
	}
	c.calls = nil
	b.ok("NetworkDriver.Join", asking(e.joinBody(), m{optExposed: tcp(80)}))
	if slices.Contains(c.calls, "UpdatePort") {
		t.Errorf("what was known was written again: %v", c.calls)
	}
	more := asking(e.joinBody(), m{optExposed: append(
		tcp(8002, 80, 8000, 8001, 80), m{"Proto": 17, "Port": 53}, m{"Proto": 132, "Port": 65535},
	)})
	b.ok("NetworkDriver.Join", more)
	for range 2 {
		if got := told(); got != "[53/udp 65535/sctp 80/tcp 8000-8002/tcp]" {
			t.Errorf("exposed %s", got)
		}
		c.calls = nil
		b.restart()
		b.ok("NetworkDriver.Join", more)
		b.ok("NetworkDriver.Join", e.joinBody())
		if slices.Contains(c.calls, "UpdatePort") {
			t.Errorf("what was known was written again: %v", c.calls)
		}
	}
	var all []int
	for p := 1; p < 1000; p += 2 {
		all = append(all, p)
	}
	b.ok("NetworkDriver.Join", asking(e.joinBody(), m{optExposed: tcp(all...)}))
	if got := strings.Fields(told()); len(got) != len(all) {
		t.Errorf("%d exposed ports, want %d", len(got), len(all))
	}
	if floating, err := sdn.All(
		b.provider.FindFloatingIPs(t.Context(), sdn.FloatingIPQuery{}),
	); err != nil || len(floating) != 0 {
		t.Errorf("an exposed port was published: %v %v", floating, err)
	}
	b.stop(e)
	b.remove(n)
	b.clean()
}

// Options of Docker's own drivers are told once for a network, by their names alone.
func TestForeignOptionsAreTold(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	b := newBox(t, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	n := &network{v4: []*pool{{cidr: "10.50.0.0/24"}}, options: m{
		"com.docker.network.bridge.name": "secret", "lab.opt": []int{1}, optMTU: "1400",
	}}
	body := b.request(n)
	body["Options"].(m)["com.docker.network.enable_ipv4"] = true
	body["Options"].(m)["com.docker.network.new"] = "secret"
	b.ok("NetworkDriver.CreateNetwork", body)
	b.ok("NetworkDriver.CreateNetwork", body)
	want := `options="com.docker.network.bridge.name com.docker.network.new lab.opt"`
	if strings.Count(log.String(), "network options without effect") != 1 ||
		!strings.Contains(log.String(), want) || strings.Contains(log.String(), "secret") {
		t.Errorf("the log says\n%s", log.String())
	}
	log.Reset()
	b.ok("IpamDriver.RequestPool", m{
		"AddressSpace": localSpace, "Pool": "10.51.0.0/24",
		"Options": m{"ipam\nopt": "secret", "a": "b"},
	})
	if !strings.Contains(log.String(), `options="a ipam opt"`) || strings.Contains(log.String(), "secret") {
		t.Errorf("the log says\n%s", log.String())
	}
}

// A range with several subnets of each family, each with a gateway, a range and auxiliary addresses of its own.
func TestSeveralRanges(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(&network{
		v4: []*pool{
			{cidr: "10.50.0.0/24", sub: "10.50.0.128/25", aux: map[string]string{"a": "10.50.0.128"}},
			{cidr: "10.51.0.0/24", gateway: "10.51.0.254", aux: map[string]string{"b": "10.51.0.1"}},
		},
		v6: []*pool{{cidr: "fd50::/64"}, {cidr: "fd51::/64"}},
	})
	subnets, err := sdn.All(b.provider.FindSubnets(t.Context(), sdn.SubnetQuery{Networks: []sdn.ID{b.networkOf(n).ID}}))
	b.must(err)
	routers, err := sdn.All(b.provider.FindRouters(t.Context(), sdn.RouterQuery{}))
	b.must(err)
	if len(subnets) != 4 || len(routers) != 1 || len(routers[0].Interfaces) != 4 {
		t.Errorf("%d subnets, routers %+v", len(subnets), routers)
	}
	first := b.run(&endpoint{net: n})
	if first.ip4 != "10.50.0.129" || first.joined["Gateway"] != "10.50.0.1" {
		t.Errorf("address %s, join %v", first.ip4, first.joined)
	}
	// The engine asks the second range only for an address in it, as --ip says.
	second := &endpoint{net: &network{id: n.id, v4: n.v4[1:], v6: n.v6[1:]}, ip4: "10.51.0.77"}
	b.run(second)
	if second.joined["Gateway"] != "10.51.0.254" || second.joined["GatewayIPv6"] != "fd51::1" {
		t.Errorf("join %v", second.joined)
	}
	b.stop(first)
	b.stop(second)
	b.remove(n)
	b.clean()
}

// An engine of 28 and later sends an IPv6-only network without any IPv4Data, or with none in it.
func TestIPv6Only(t *testing.T) {
	t.Parallel()
	for name, v4 := range map[string]any{"empty": []m{}, "null": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBox(t)
			n := &network{v6: []*pool{{cidr: "fd50::/64"}}}
			body := b.request(n)
			body["IPv4Data"] = v4
			body["Options"] = m{"com.docker.network.enable_ipv4": false, "com.docker.network.enable_ipv6": true, optGeneric: m{}}
			b.ok("NetworkDriver.CreateNetwork", body)
			e := b.run(&endpoint{net: n, published: []m{{"Proto": 6, "Port": 80, "HostPort": 8080}}})
			if a := b.portOf(e.id).Addresses; len(a) != 1 || !a[0].Addr.Is6() ||
				e.joined["GatewayIPv6"] != "fd50::1" || e.joined["Gateway"] != nil {
				t.Errorf("addresses %v, join %v", a, e.joined)
			}
			b.stop(e)
			b.remove(n)
			b.clean()
		})
	}
}

// The pools are released and the network deleted in every order there is, with endpoints forgotten or not.
func TestReleasedInEveryOrder(t *testing.T) {
	t.Parallel()
	for i, order := range [][]string{
		{"4", "6", "n"}, {"6", "n", "4"}, {"n", "4", "6"}, {"n", "n", "6", "4", "n", "6"},
		{"4", "n", "6"},
	} {
		for _, forgotten := range []bool{false, true} {
			b := newBox(t)
			n := b.create(dualNetwork())
			e := b.run(&endpoint{net: n, published: []m{{"Proto": 6, "Port": 80, "HostPort": 8080}}})
			if b.take(&endpoint{net: n}); !forgotten {
				b.stop(e)
			}
			for _, what := range order {
				switch what {
				case "4":
					b.ok("IpamDriver.ReleasePool", m{"PoolID": n.v4[0].id})
				case "6":
					b.ok("IpamDriver.ReleasePool", m{"PoolID": n.v6[0].id})
				case "n":
					b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id})
				}
				if i%2 == 0 {
					b.restart()
				}
			}
			b.clean()
		}
	}
}

// The default IPAM driver of an engine may give both families, and one of them may be
// Kuryr's range for another network.
func TestOtherIPAMBothFamilies(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := &network{id: newID(), v4: []*pool{{cidr: "172.18.0.0/16"}}, v6: []*pool{{cidr: "fd18::/64"}}}
	b.ok("NetworkDriver.CreateNetwork", m{
		"NetworkID": n.id,
		"Options":   m{optGeneric: m{optRoutes: "192.0.2.0/24=link,fd09::/64=fd18::9"}},
		"IPv4Data": []m{{
			"AddressSpace": "LocalDefault", "Gateway": "172.18.0.1/16", "Pool": "172.18.0.0/16",
			"AuxAddresses": m{"a": "172.18.0.9/16"},
		}},
		"IPv6Data": []m{{"AddressSpace": "LocalDefault", "Gateway": "fd18::1/64", "Pool": "fd18::/64"}}})
	e := &endpoint{net: n, id: newID(), ip4: "172.18.0.2", ip6: "fd18::2", mac: "02:00:00:00:00:01"}
	b.ok("NetworkDriver.CreateEndpoint", e.createBody())
	e.joined = b.ok("NetworkDriver.Join", e.joinBody())
	if p := b.portOf(e.id); len(p.Addresses) != 2 {
		t.Errorf("%d addresses", len(p.Addresses))
	}
	if got := staticRoutes(e.joined); !slices.Equal(got, []string{"192.0.2.0/24 1 <nil>", "fd09::/64 0 fd18::9"}) {
		t.Errorf("routes %v", got)
	}
	b.ok("NetworkDriver.DeleteEndpoint", e.body())
	b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id})
	b.clean()
}

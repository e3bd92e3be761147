package topology

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/internal/dockerapi"
	"github.com/kuryr/kuryr/sdn/restapi"
)

var update = flag.Bool("update", false, "write the golden files anew")

func ptr[T any](v T) *T { return &v }

func common(id, name string) restapi.Common { return restapi.Common{ID: id, Name: name} }

func subnet(id, network, cidr, gateway string) restapi.Subnet {
	s := restapi.Subnet{Common: common(id, ""), NetworkID: network, CIDR: cidr}
	if gateway != "" {
		s.GatewayIP = &gateway
	}
	return s
}

func port(id, network, mac, device, owner string, addresses ...string) restapi.Port {
	p := restapi.Port{Common: common(id, ""), NetworkID: network, MACAddress: mac, DeviceID: device, DeviceOwner: owner}
	for _, a := range addresses {
		p.FixedIPs = append(p.FixedIPs, restapi.FixedIP{IPAddress: a})
	}
	return p
}

// sample has a dual-stack network and a plain one on a router with NAT, an internal one, and one whose names need escaping.
func sample() Objects {
	front := restapi.Network{Common: common("11111111-aaaa", "kuryr-net-0"), MTU: 1500, Subnets: []string{"s6", "s4"}}
	front.Description = "kuryr/inst/docker-network/0123456789abcdef"
	gw := restapi.Router{Common: common("r1", "web"), Gateway: &restapi.GatewayInfo{EnableSNAT: true, FixedIPs: []restapi.FixedIP{{IPAddress: "100.64.0.2"}, {IPAddress: "fd6b:7572:7570::2"}}}}
	gw.Interfaces = []restapi.Interface{{SubnetID: "s4"}, {SubnetID: "s6"}, {SubnetID: "sb"}}
	gw.Unreached = []restapi.Unreached{{Prefix: "10.2.0.0/24", Reason: "overlaps a route of the host"}}
	return Objects{
		Host: "node1",
		Networks: []restapi.Network{
			front,
			{Common: common("22222222-bbbb", "back"), MTU: 1450, Subnets: []string{"sb"}},
			{Common: common("33333333-cccc", `inter<nal> & "co"`), MTU: 1500, Subnets: []string{"si"}},
			{Common: common("ext", "outside"), External: true},
		},
		Subnets: []restapi.Subnet{
			subnet("s4", "11111111-aaaa", "10.1.0.0/24", "10.1.0.1"), subnet("s6", "11111111-aaaa", "fd00:1::/64", "fd00:1::1"),
			subnet("sb", "22222222-bbbb", "10.2.0.0/24", "10.2.0.1"), subnet("si", "33333333-cccc", "192.168.7.0/28", ""),
		},
		Ports: []restapi.Port{
			port("p10", "11111111-aaaa", "02:42:00:00:00:10", "e10", "compute:kuryr", "10.1.0.10", "fd00:1::10"),
			port("p2", "11111111-aaaa", "02:42:00:00:00:02", "e2", "compute:kuryr", "10.1.0.2"),
			port("gw", "11111111-aaaa", "02:42:00:00:00:01", "r1", "network:router_interface", "10.1.0.1"),
			port("p3", "22222222-bbbb", "02:42:00:00:00:03", "feedfacecafebeef00", "compute:kuryr", "10.2.0.7"),
			port("parked-port-id", "33333333-cccc", "02:42:00:00:00:04", "", "", "192.168.7.2"),
		},
		Routers: []restapi.Router{
			gw, {Common: common("r0", "")},
			{Common: restapi.Common{ID: "r2", Name: "kuryr-router-shop", Description: "kuryr/inst/docker-shared-router/shop"}},
			{Common: restapi.Common{ID: "r3", Name: "kuryr-router-0123", Description: "kuryr/inst/docker-router/0123456789abcdef"}},
		},
		FloatingIPs: []restapi.FloatingIP{
			{Common: common("f1", ""), FloatingIPAddress: "0.0.0.0"}, {Common: common("f2", ""), FloatingIPAddress: "::"},
			{Common: common("f3", ""), FloatingIPAddress: "203.0.113.9", PortID: ptr("p10")},
		},
		Forwards: map[string][]restapi.PortForwarding{
			"f1": {{Protocol: "tcp", ExternalPort: ptr(uint16(8080)), InternalPort: ptr(uint16(80)), InternalPortID: "p2"}},
			"f2": {{Protocol: "tcp", ExternalPort: ptr(uint16(8080)), InternalPort: ptr(uint16(80)), InternalPortID: "p2"}},
		},
		Names: dockerapi.Names{Endpoints: map[string]string{"e2": "web-1", "e10": "web-2-with-a-rather-long-name-that-is-cut"}, Networks: map[string]string{"0123456789abcdef": "front"}},
	}
}

func TestGolden(t *testing.T) {
	t.Parallel()
	g := Build(sample())
	for name, draw := range map[string]func(io.Writer) error{"sample.txt": g.Tree, "sample.svg": g.SVG} {
		var out bytes.Buffer
		if err := draw(&out); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(path, out.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(out.Bytes(), want) {
			t.Errorf("%s differs (go test -update writes it anew):\n%s", name, out.String())
		}
	}
}

func TestOrderOfObjectsDoesNotMatter(t *testing.T) {
	t.Parallel()
	var first string
	for seed := range int64(20) {
		o := sample()
		r := rand.New(rand.NewSource(seed))
		r.Shuffle(len(o.Networks), func(i, j int) { o.Networks[i], o.Networks[j] = o.Networks[j], o.Networks[i] })
		r.Shuffle(len(o.Ports), func(i, j int) { o.Ports[i], o.Ports[j] = o.Ports[j], o.Ports[i] })
		r.Shuffle(len(o.Routers), func(i, j int) { o.Routers[i], o.Routers[j] = o.Routers[j], o.Routers[i] })
		r.Shuffle(len(o.Subnets), func(i, j int) { o.Subnets[i], o.Subnets[j] = o.Subnets[j], o.Subnets[i] })
		r.Shuffle(len(o.FloatingIPs), func(i, j int) { o.FloatingIPs[i], o.FloatingIPs[j] = o.FloatingIPs[j], o.FloatingIPs[i] })
		var out bytes.Buffer
		if err := Build(o).SVG(&out); err != nil {
			t.Fatal(err)
		}
		if first == "" {
			first = out.String()
		}
		if out.String() != first {
			t.Fatalf("another order of the objects gives another picture (seed %d)", seed)
		}
	}
}

func TestSVGIsWellFormed(t *testing.T) {
	t.Parallel()
	o := sample()
	o.Host = "a<b>&\x00\x1b\xff"
	for _, graph := range []Graph{Build(o), Build(Objects{Host: "empty"}), {}} {
		var out bytes.Buffer
		if err := graph.SVG(&out); err != nil {
			t.Fatal(err)
		}
		decoder := xml.NewDecoder(&out)
		for {
			_, err := decoder.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestEmptyTree(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := Build(Objects{Host: "h"}).Tree(&out); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "no networks yet") {
		t.Errorf("tree = %s", out.String())
	}
}

func TestWrap(t *testing.T) {
	t.Parallel()
	got := wrap("uplink 100.64.0.2, fd00::2, NAT", 18)
	if want := "uplink 100.64.0.2,|fd00::2, NAT"; strings.Join(got, "|") != want {
		t.Errorf("wrap = %q, want %q", strings.Join(got, "|"), want)
	}
}

// However the SDN lists them, published ports stand in the order of their numbers.
func TestPublishedPortsAreSorted(t *testing.T) {
	t.Parallel()
	forward := func(protocol string, port uint16) restapi.PortForwarding {
		return restapi.PortForwarding{Protocol: protocol, ExternalPort: &port, InternalPort: &port, InternalPortID: "p"}
	}
	g := Build(Objects{
		Networks:    []restapi.Network{{Common: restapi.Common{ID: "n"}}},
		Ports:       []restapi.Port{{Common: restapi.Common{ID: "p"}, NetworkID: "n", DeviceID: "e", DeviceOwner: "compute:kuryr"}},
		FloatingIPs: []restapi.FloatingIP{{Common: restapi.Common{ID: "f"}, FloatingIPAddress: "0.0.0.0"}},
		Forwards:    map[string][]restapi.PortForwarding{"f": {forward("udp", 53), forward("tcp", 9001), forward("tcp", 80)}},
	})
	if got := strings.Join(g.Networks[0].Ports[0].Published, " "); got != "80→80/tcp 9001→9001/tcp 53→53/udp" {
		t.Errorf("published %s", got)
	}
}

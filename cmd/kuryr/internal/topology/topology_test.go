package topology

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/api"
)

var update = flag.Bool("update", false, "write the golden files anew")

func ptr[T any](v T) *T { return &v }

func common(id, name string) api.Common { return api.Common{ID: id, Name: name} }

func subnet(id, network, cidr, gateway string) api.Subnet {
	s := api.Subnet{Common: common(id, ""), NetworkID: network, CIDR: cidr}
	if gateway != "" {
		s.GatewayIP = &gateway
	}
	return s
}

func port(id, network, mac, device, owner string, addresses ...string) api.Port {
	p := api.Port{Common: common(id, ""), NetworkID: network, MACAddress: mac, DeviceID: device, DeviceOwner: owner}
	for _, a := range addresses {
		p.FixedIPs = append(p.FixedIPs, api.FixedIP{IPAddress: a})
	}
	return p
}

// sample has a dual-stack network and a plain one on a router with NAT, an internal one,
// and one whose names need escaping.
func sample() Objects {
	front := api.Network{Common: common("11111111-aaaa", "kuryr-net-0"), MTU: 1500, Subnets: []string{"s6", "s4"}}
	front.Description = "kuryr/inst/docker-network/0123456789abcdef"
	gw := api.Router{Common: common("r1", "web"), Gateway: &api.GatewayInfo{
		EnableSNAT: true,
		FixedIPs:   []api.FixedIP{{IPAddress: "100.64.0.2"}, {IPAddress: "fd6b:7572:7570::2"}},
	}}
	gw.Interfaces = []api.Interface{{SubnetID: "s4"}, {SubnetID: "s6"}, {SubnetID: "sb"}}
	gw.Unreached = []api.Unreached{{Prefix: "10.2.0.0/24", Reason: "overlaps a route of the host"}}
	return Objects{
		Host: "node1",
		Networks: []api.Network{
			front,
			{Common: common("22222222-bbbb", "back"), MTU: 1450, Subnets: []string{"sb"}},
			{Common: common("33333333-cccc", `inter<nal> & "co"`), MTU: 1500, Subnets: []string{"si"}},
			{Common: common("ext", "outside"), External: true},
		},
		Subnets: []api.Subnet{
			subnet("s4", "11111111-aaaa", "10.1.0.0/24", "10.1.0.1"), subnet("s6", "11111111-aaaa", "fd00:1::/64", "fd00:1::1"),
			subnet("sb", "22222222-bbbb", "10.2.0.0/24", "10.2.0.1"), subnet("si", "33333333-cccc", "192.168.7.0/28", ""),
		},
		Ports: []api.Port{
			port("p10", "11111111-aaaa", "02:42:00:00:00:10", "e10", "compute:kuryr", "10.1.0.10", "fd00:1::10"),
			port("p2", "11111111-aaaa", "02:42:00:00:00:02", "e2", "compute:kuryr", "10.1.0.2"),
			port("gw", "11111111-aaaa", "02:42:00:00:00:01", "r1", "network:router_interface", "10.1.0.1"),
			port("p3", "22222222-bbbb", "02:42:00:00:00:03", "feedfacecafebeef00", "compute:kuryr", "10.2.0.7"),
			port("parked-port-id", "33333333-cccc", "02:42:00:00:00:04", "", "", "192.168.7.2"),
		},
		Routers: []api.Router{
			gw, {Common: common("r0", "")},
			{Common: api.Common{
				ID: "r2", Name: "kuryr-router-shop", Description: "kuryr/inst/docker-shared-router/shop",
			}},
			{Common: api.Common{
				ID: "r3", Name: "kuryr-router-0123", Description: "kuryr/inst/docker-router/0123456789abcdef",
			}},
		},
		FloatingIPs: []api.FloatingIP{
			{Common: common("f1", ""), FloatingIPAddress: "0.0.0.0"}, {Common: common("f2", ""), FloatingIPAddress: "::"},
			{Common: common("f3", ""), FloatingIPAddress: "203.0.113.9", PortID: ptr("p10")},
		},
		Forwards: map[string][]api.PortForwarding{
			"f1": {{Protocol: "tcp", ExternalPort: ptr(uint16(8080)), InternalPort: ptr(uint16(80)), InternalPortID: "p2"}},
			"f2": {{Protocol: "tcp", ExternalPort: ptr(uint16(8080)), InternalPort: ptr(uint16(80)), InternalPortID: "p2"}},
		},
		Names: Names{
			Endpoints: map[string]string{"e2": "web-1", "e10": "web-2-with-a-rather-long-name-that-is-cut"},
			Networks:  map[string]string{"0123456789abcdef": "front"},
		},
	}
}

func TestGolden(t *testing.T) {
	t.Parallel()
	g := Build(sample())
	for name, draw := range map[string]func(io.Writer) error{
		"sample.txt": g.Tree, "sample.svg": g.SVG, "sample.dot": g.DOT,
	} {
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
		r.Shuffle(len(o.FloatingIPs), func(i, j int) {
			o.FloatingIPs[i], o.FloatingIPs[j] = o.FloatingIPs[j], o.FloatingIPs[i]
		})
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
	for _, c := range []struct{ text, want string }{
		{"uplink 100.64.0.2, fd00::2, NAT", "uplink 100.64.0.2,|fd00::2, NAT"},
		{"a-name-that-is-longer-than-a-line x", "a-name-that-is-lon|ger-than-a-line x"},
		{"", ""},
	} {
		if got := strings.Join(wrap(c.text, 18), "|"); got != c.want {
			t.Errorf("wrap = %q, want %q", got, c.want)
		}
	}
}

// A host of some size: 12 routers with 330 ports, one of them with 100.
func TestLargePicture(t *testing.T) {
	t.Parallel()
	var o Objects
	o.Names = Names{Endpoints: map[string]string{}, Networks: map[string]string{}}
	long := "shop-backend-payment-service-with-a-long-name-replica-"
	ports := 0
	for i := range 12 {
		n := fmt.Sprintf("n%d", i)
		name := fmt.Sprintf("net-%d", i+1)
		o.Networks = append(o.Networks, api.Network{Common: common(n, name), MTU: 1500, Subnets: []string{"s" + n}})
		o.Subnets = append(o.Subnets, subnet("s"+n, n, fmt.Sprintf("10.%d.0.0/24", i), fmt.Sprintf("10.%d.0.1", i)))
		o.Routers = append(o.Routers, api.Router{
			Common: common("r"+n, "router-"+name), Interfaces: []api.Interface{{SubnetID: "s" + n}},
		})
		of := 20
		if i == 5 {
			of = 110
		}
		for j := range of {
			ports++
			id := fmt.Sprintf("e%d", ports)
			o.Names.Endpoints[id] = fmt.Sprintf("%s%d", long, ports)
			mac, addr := fmt.Sprintf("02:42:00:00:%02x:%02x", i, j), fmt.Sprintf("10.%d.0.%d", i, j+2)
			o.Ports = append(o.Ports, port("p"+id, n, mac, id, "compute:kuryr", addr))
		}
	}
	var out bytes.Buffer
	if err := Build(o).SVG(&out); err != nil {
		t.Fatal(err)
	}
	var width, height int
	const head = `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d"`
	if _, err := fmt.Sscanf(out.String(), head, &width, &height); err != nil {
		t.Fatal(err)
	}
	if ports != 330 || width > 4000 || height > 4000 || width < height || width > 3*height {
		t.Errorf("the picture of %d ports has %d × %d pixels", ports, width, height)
	}
	if strings.Contains(out.String(), "…") {
		t.Error("a name is cut")
	}
	last := -1
	for i := range 12 {
		at := strings.Index(out.String(), fmt.Sprintf(">router router-net-%d<", i+1))
		if at < last {
			t.Errorf("router %d is not behind router %d", i+1, i)
		}
		last = at
	}
	if n := strings.Count(out.String(), "<circle "); n != ports {
		t.Errorf("%d ports are drawn", n)
	}
	// A network that goes on in the next column is named there.
	if !strings.Contains(out.String(), "(continued)") {
		t.Error("no card goes on in the next column")
	}
	xs := regexp.MustCompile(`<text class="\w+" x="(\d+)"`).FindAllStringSubmatch(out.String(), -1)
	for _, x := range xs {
		if n, _ := strconv.Atoi(x[1]); n > width {
			t.Errorf("a text stands at %d of %d pixels", n, width)
		}
	}
}

// A port that is taller than a column is drawn whole, once.
func TestTallPort(t *testing.T) {
	t.Parallel()
	const published = 100
	p := Port{Name: "web", MAC: "02:42:00:00:00:01", Addresses: []string{"10.0.0.2"}}
	for i := range published {
		p.Published = append(p.Published, fmt.Sprintf("%d→80/tcp", 8000+i))
	}
	n := Network{Name: "blue", MTU: 1500, Ranges: []Range{{CIDR: "10.0.0.0/24"}}, Ports: []Port{p}}
	g := Graph{Host: "h", Routers: []Router{{Name: "r", Networks: []Network{n}}}}
	var out bytes.Buffer
	if err := g.SVG(&out); err != nil {
		t.Fatal(err)
	}
	for i := range published {
		if n := strings.Count(out.String(), fmt.Sprintf(" %d→80/tcp<", 8000+i)); n != 1 {
			t.Errorf("port %d is drawn %d times", 8000+i, n)
		}
	}
}

// A second network on the same range is named with the one that the host reaches.
func TestUnreached(t *testing.T) {
	t.Parallel()
	o := Objects{
		Networks: []api.Network{
			{
				Common:  api.Common{ID: "a", Name: "kuryr-net-a", Description: "kuryr/inst/docker-network/aa"},
				Subnets: []string{"sa"},
			},
			{Common: common("b", "b"), Subnets: []string{"sb"}},
		},
		Subnets: []api.Subnet{subnet("sa", "a", "10.1.0.0/24", ""), subnet("sb", "b", "10.1.0.0/25", "")},
		Routers: []api.Router{
			{Common: common("ra", "ra"), Interfaces: []api.Interface{{SubnetID: "sa"}}},
			{
				Common: common("rb", "rb"), Interfaces: []api.Interface{{SubnetID: "sb"}},
				Unreached: []api.Unreached{{Prefix: "10.1.0.0/25", Reason: "overlaps the host's route"}},
			},
		},
		Names: Names{Networks: map[string]string{"aa": "blue"}},
	}
	got := Unreached(o)
	if len(got) != 1 || strings.Join(got["b"], "|") != "10.1.0.0/25 not reached by the host: overlaps network blue" {
		t.Errorf("Unreached = %q", got)
	}
	const note = "10.1.0.0/25 is not reached from the host: overlaps the host's route (of blue)"
	if notes := Build(o).Routers[1].Notes; strings.Join(notes, "|") != note {
		t.Errorf("notes %q", notes)
	}
}

// However the SDN lists them, published ports stand in the order of their numbers.
func TestPublishedPortsAreSorted(t *testing.T) {
	t.Parallel()
	forward := func(protocol string, port uint16) api.PortForwarding {
		return api.PortForwarding{Protocol: protocol, ExternalPort: &port, InternalPort: &port, InternalPortID: "p"}
	}
	g := Build(Objects{
		Networks: []api.Network{{Common: api.Common{ID: "n"}}},
		Ports: []api.Port{{
			Common: api.Common{ID: "p"}, NetworkID: "n", DeviceID: "e", DeviceOwner: "compute:kuryr",
		}},
		FloatingIPs: []api.FloatingIP{{Common: api.Common{ID: "f"}, FloatingIPAddress: "0.0.0.0"}},
		Forwards: map[string][]api.PortForwarding{
			"f": {forward("udp", 53), forward("tcp", 9001), forward("tcp", 80)},
		},
	})
	if got := strings.Join(g.Networks[0].Ports[0].Published, " "); got != "80→80/tcp 9001→9001/tcp 53→53/udp" {
		t.Errorf("published %s", got)
	}
}

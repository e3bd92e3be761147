//go:build linux

package main

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/api"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/topology"
	"github.com/kuryr/kuryr/docker/engine"
	"github.com/kuryr/kuryr/sdn"
	"golang.org/x/sys/unix"
)

func TestParseTarget(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]target{
		"8.8.8.8":              {addr: netip.MustParseAddr("8.8.8.8"), protocol: unix.IPPROTO_ICMP},
		"2001:db8::1":          {addr: netip.MustParseAddr("2001:db8::1"), protocol: unix.IPPROTO_ICMP},
		"[2001:db8::1]":        {addr: netip.MustParseAddr("2001:db8::1"), protocol: unix.IPPROTO_ICMP},
		"[2001:db8::1]:53/udp": {addr: netip.MustParseAddr("2001:db8::1"), protocol: unix.IPPROTO_UDP, port: 53},
		"8.8.8.8:53/udp":       {addr: netip.MustParseAddr("8.8.8.8"), protocol: unix.IPPROTO_UDP, port: 53},
		"::ffff:192.0.2.1":     {addr: netip.MustParseAddr("192.0.2.1"), protocol: unix.IPPROTO_ICMP},
		"db":                   {name: "db", protocol: unix.IPPROTO_ICMP},
		"db:5432":              {name: "db", protocol: unix.IPPROTO_TCP, port: 5432},
		"my_db.1:5432/tcp":     {name: "my_db.1", protocol: unix.IPPROTO_TCP, port: 5432},
		"host":                 {host: true, protocol: unix.IPPROTO_ICMP},
		"host:65535/udp":       {host: true, protocol: unix.IPPROTO_UDP, port: 65535},
	} {
		want.text = text
		if got, err := parseTarget(text); err != nil || got != want {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	for text, says := range map[string]string{
		"": "want an address", "db:": "a port must follow", "db:0": "from 1 to 65535", "db:70000": "from 1 to 65535", "db:x": "from 1 to 65535", "db:80/": "want tcp or udp", "db:80/sctp": "want tcp or udp",
		"[::1": "bracket", "[db]:80": "want an address", ":80": "want an address", "fe80::1%eth0": "without a zone", "0.0.0.0": "one machine", "224.0.0.1": "one machine", "a:b:80": "want an address",
	} {
		if _, err := parseTarget(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", text, err, says)
		}
	}
}

func tracerOf() *tracer {
	port := func(id, device, network, addr string, tags ...string) api.Port {
		return api.Port{Common: api.Common{ID: id, Tags: tags}, NetworkID: network, DeviceID: device, FixedIPs: []api.FixedIP{{IPAddress: addr}}, VIFDetails: map[string]string{sdn.DetailNamespace: "/ns/" + network}}
	}
	number := func(n uint16) *uint16 { return &n }
	text := func(s string) *string { return &s }
	return &tracer{
		containers: []engine.Container{
			dockerContainerOf("c0ffee0123456789", "web", "endpoint-web-0001", "endpoint-web-0002"),
			dockerContainerOf("c0ffee9999999999", "alone"),
		},
		objects: topology.Objects{
			Networks: []api.Network{{Common: api.Common{ID: "n1", Name: "blue-net"}}, {Common: api.Common{ID: "n2", Name: "red-net"}}},
			Ports: []api.Port{
				port("p1", "endpoint-web-0001", "n1", "10.0.0.2", "kuryr.docker.exposed=443/tcp", "kuryr.docker.exposed=80/tcp"), port("p2", "endpoint-web-0002", "n2", "10.0.0.2"), port("p3", "endpoint-db-00001", "n1", "10.0.0.3"),
				{Common: api.Common{ID: "leg"}, DeviceOwner: sdn.OwnerRouterInterface, FixedIPs: []api.FixedIP{{IPAddress: "10.0.0.1"}}},
			},
			FloatingIPs: []api.FloatingIP{
				{Common: api.Common{ID: "f4"}, FloatingIPAddress: "0.0.0.0"}, {Common: api.Common{ID: "f6"}, FloatingIPAddress: "::"},
				{Common: api.Common{ID: "fl"}, FloatingIPAddress: "127.0.0.1"}, {Common: api.Common{ID: "ff"}, FloatingIPAddress: "203.0.113.9", PortID: text("p3"), FixedIPAddress: text("10.0.0.3")},
			},
			Forwards: map[string][]api.PortForwarding{
				"f4": {{Protocol: "tcp", ExternalPort: number(8080), InternalPort: number(80), InternalPortID: "p1", InternalIPAddress: text("10.0.0.2")},
					{Protocol: "udp", ExternalPortRange: "9000:9001", InternalPortRange: "9000:9001", InternalPortID: "p2", InternalIPAddress: text("10.0.0.2")}},
				"f6": {{Protocol: "tcp", ExternalPort: number(8080), InternalPort: number(80), InternalPortID: "p1", InternalIPAddress: text("fd00::2")}},
				"fl": {{Protocol: "tcp", ExternalPort: number(81), InternalPort: number(80), InternalPortID: "p1", InternalIPAddress: text("10.0.0.2")}},
			},
			Names: topology.Names{Endpoints: map[string]string{"endpoint-web-0001": "web", "endpoint-web-0002": "web"}},
		},
	}
}

func TestPortsOfAWord(t *testing.T) {
	t.Parallel()
	tr := tracerOf()
	for word, want := range map[string][]string{
		"web": {"p1", "p2"}, "c0ffee012345": {"p1", "p2"}, "endpoint-web-0002": {"p2"}, "endpoint-db-0": {"p3"}, "p3": {"p3"}, "10.0.0.3": {"p3"},
	} {
		ports, err := tr.ports(word)
		var ids []string
		for _, p := range ports {
			ids = append(ids, p.ID)
		}
		if err != nil || !slices.Equal(ids, want) {
			t.Errorf("%s: %v, %v; want %v", word, ids, err, want)
		}
	}
	for word, says := range map[string]string{"nobody": "there is no running container", "10.0.0.2": "2 ports have the address", "10.0.0.1": "there is no", "leg": "there is no", "alone": "on no network", "endpoint": "there is no"} {
		if _, err := tr.ports(word); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", word, err, says)
		}
	}
}

func TestPublished(t *testing.T) {
	t.Parallel()
	tr := tracerOf()
	show := func(list []publishedPort) (out []string) {
		for _, p := range list {
			out = append(out, strings.Join([]string{p.Container, p.Network, p.Published, p.To}, " "))
		}
		return out
	}
	want := []string{
		"endpoint-db-00001 blue-net 203.0.113.9 10.0.0.3",
		"web blue-net 0.0.0.0:8080 10.0.0.2:80/tcp", "web blue-net 127.0.0.1:81 10.0.0.2:80/tcp", "web blue-net [::]:8080 [fd00::2]:80/tcp", "web red-net 0.0.0.0:9000-9001 10.0.0.2:9000-9001/udp",
	}
	if got := show(tr.published(tr.objects.Ports, false)); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	// Exposed ports that are published too are told once.
	exposed := show(tr.published(tr.objects.Ports[:1], true))
	if len(exposed) != 4 || exposed[3] != "web blue-net  443/tcp" {
		t.Errorf("exposed:\n%s", strings.Join(exposed, "\n"))
	}
	var out buffer
	a := &app{out: &out}
	if err := a.printLikeDocker("web", tr.published(tr.objects.Ports[:1], true)); err != nil || out.String() != "80/tcp -> 0.0.0.0:8080\n80/tcp -> 127.0.0.1:81\n80/tcp -> [::]:8080\n443/tcp\n" {
		t.Errorf("%v:\n%s", err, out.String())
	}
	if err := a.printLikeDocker("db", nil); err == nil {
		t.Error("nothing is published, and it says so to nobody")
	}
}

func dockerContainerOf(id, name string, endpoints ...string) engine.Container {
	c := engine.Container{ID: id, Name: name}
	for _, e := range endpoints {
		c.Endpoints = append(c.Endpoints, engine.Endpoint{ID: e})
	}
	return c
}

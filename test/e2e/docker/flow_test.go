//go:build e2e

package docker_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// The main flow: networks of every kind, and two containers on each that talk to each
// other, to the outside and to the host.
func TestFlow(t *testing.T) {
	t.Parallel()
	flow(t, newRig(t))
}

func flow(t *testing.T, r rig) {
	for _, c := range []struct {
		name    string
		args    []string
		within4 string // where the containers' addresses are
		gate4   string
		within6 string
		gate6   string
		kuryr   bool // needs Kuryr
	}{
		{name: "no-subnet"},
		{name: "subnet", args: []string{wayOut, "--subnet", "10.20.0.0/24"}, within4: "10.20.0.0/24", gate4: "10.20.0.1"},
		{
			name:    "gateway",
			args:    []string{"--subnet", "10.21.0.0/16", "--gateway", "10.21.255.254"},
			within4: "10.21.0.0/16", gate4: "10.21.255.254",
		},
		{
			name: "ip-range",
			args: []string{
				"--subnet", "10.22.0.0/16", "--gateway", "10.22.0.1", "--ip-range", "10.22.8.0/24",
			},
			within4: "10.22.8.0/24", gate4: "10.22.0.1",
		},
		{name: "no-zero-bits", args: []string{"--subnet", "10.23.4.192/27"}, within4: "10.23.4.192/27", gate4: "10.23.4.193"},
		{
			name: "ipv6", args: []string{"--ipv6", "--subnet", "fd20::/64"}, within6: "fd20::/64",
			gate6: "fd20::1", kuryr: true,
		},
		{name: "dual", args: []string{
			wayOut, "--ipv6", "--subnet", "10.24.0.0/24", "--gateway", "10.24.0.254", "--subnet",
			"fd24::/64", "--gateway", "fd24::ffff",
		},
			within4: "10.24.0.0/24", gate4: "10.24.0.254", within6: "fd24::/64", gate6: "fd24::ffff"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.kuryr {
				onlyKuryr(t)
			}
			net := "flow-" + c.name
			r.network(t, net, c.args...)
			a, b := r.run(t, net+"-a", net), r.run(t, net+"-b", net)
			if a.ip4 == b.ip4 || a.mac == b.mac {
				t.Fatalf("the containers share an address: %v %v", a, b)
			}
			inside(t, c.within4, a.ip4, b.ip4)
			inside(t, c.within6, a.ip6, b.ip6)
			hasRoute(t, a, "-4", c.gate4)
			hasRoute(t, a, "-6", c.gate6)
			for i, to := range b.addresses() {
				reaches(t, a.in, to, a.addresses()[i])
				reaches(t, b.in, a.addresses()[i], to)
				r.reachedByHost(t, to) // host to container
			}
			getsOut(t, a)
			if a.ip6.IsValid() && driver == "kuryr" {
				getsOut6(t, a)
			}
		})
	}
}

func inside(t *testing.T, prefix string, addrs ...netip.Addr) {
	t.Helper()
	if prefix == "" {
		return
	}
	p := netip.MustParsePrefix(prefix)
	for _, a := range addrs {
		if !p.Contains(a) {
			t.Errorf("address %s is not in %s", a, p)
		}
	}
}

func hasRoute(t *testing.T, b box, family, via string) {
	t.Helper()
	if via == "" {
		return
	}
	if res := b.in("ip", family, "route", "show", "default"); !strings.Contains(res.Stdout, "via "+via+" ") {
		t.Errorf("the default route is not via %s: %s", via, res)
	}
}

// What docker shows and how containers come and go.
func TestObjects(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	t.Run("inspect", func(t *testing.T) {
		r.network(t, "seen", wayOut, "--subnet", "10.30.0.0/24", "--label", "team=blue")
		a := r.run(t, "seen-a", "seen")
		var info []struct {
			Driver     string
			IPAM       struct{ Driver string }
			Containers map[string]struct{ Name, MacAddress, IPv4Address string }
		}
		text := r.docker(t, "network", "inspect", "seen")
		if err := json.Unmarshal([]byte(text), &info); err != nil {
			t.Fatal(err)
		}
		if driver == "kuryr" && info[0].IPAM.Driver != "kuryr" || info[0].Driver != driver {
			t.Errorf("wrong drivers:\n%s", text)
		}
		for _, c := range info[0].Containers {
			if c.Name != "seen-a" || c.IPv4Address != a.ip4.String()+"/24" || c.MacAddress != a.mac {
				t.Errorf("want %+v:\n%s", a, text)
			}
		}
		if len(info[0].Containers) != 1 {
			t.Errorf("want one container:\n%s", text)
		}
		if driver == "kuryr" {
			if topology := r.must(t, kuryr, "topology"); !strings.Contains(topology, a.ip4.String()) {
				t.Errorf("the topology does not show %s:\n%s", a.ip4, topology)
			}
			for _, noun := range []string{"network", "subnet", "port", "router"} {
				if len(r.list(t, noun)) == 0 {
					t.Errorf("kuryr %s list is empty", noun)
				}
			}
		}
	})
	t.Run("connect and disconnect", func(t *testing.T) {
		r.network(t, "one", wayOut, "--subnet", "10.31.1.0/24")
		r.network(t, "two", "--subnet", "10.31.2.0/24")
		a, b := r.run(t, "both", "one"), r.run(t, "second", "two")
		cut(t, a.in, b.ip4)
		r.docker(t, "network", "connect", "two", "both")
		reaches(t, a.in, b.ip4, r.look(t, "both", "two").ip4)
		getsOut(t, a)
		r.docker(t, "network", "disconnect", "two", "both")
		cut(t, a.in, b.ip4)
		getsOut(t, a)
		if res := a.in("ip", "-br", "link"); strings.Contains(res.Stdout, "eth1") {
			t.Errorf("the interface stays: %s", res)
		}
		r.docker(t, "network", "connect", "--ip", "10.31.2.77", "two", "both")
		if again := r.look(t, "both", "two"); again.ip4.String() != "10.31.2.77" {
			t.Errorf("the address asked for was not given: %v", again.ip4)
		}
	})
	t.Run("names", func(t *testing.T) {
		r.network(t, "names", "--subnet", "10.32.0.0/24")
		r.run(t, "names-a", "names")
		b := r.run(t, "names-b", "names", "--network-alias", "other")
		for _, name := range []string{"names-b", "other"} {
			if got := r.docker(
				t, "exec", "names-a", "ping", "-c", "1", "-W", "10", name,
			); !strings.Contains(got, b.ip4.String()) {
				t.Errorf("%s is not %s:\n%s", name, b.ip4, got)
			}
		}
	})
	t.Run("restart", func(t *testing.T) {
		r.network(t, "again", "--subnet", "10.33.0.0/24")
		r.run(t, "again-a", "again")
		b := r.run(t, "again-b", "again")
		for range 3 {
			r.docker(t, "restart", "-t", "0", "again-a")
		}
		a := r.look(t, "again-a", "again")
		reaches(t, a.in, b.ip4, a.ip4)
		reaches(t, b.in, a.ip4, b.ip4)
	})
	t.Run("static addresses", func(t *testing.T) {
		r.network(t, "static", "--ipv6", "--subnet", "10.34.0.0/16", "--ip-range", "10.34.1.0/24", "--subnet", "fd34::/64")
		args := []string{"--ip", "10.34.9.9", "--ip6", "fd34::99", "--mac-address", "02:aa:bb:cc:dd:01"}
		a := r.run(t, "static-a", "static", args...)
		b := r.run(t, "static-b", "static")
		if a.ip4.String() != "10.34.9.9" || a.ip6.String() != "fd34::99" || a.mac != "02:aa:bb:cc:dd:01" {
			t.Errorf("not as asked for: %+v", a)
		}
		if res := a.in("ip", "link", "show", "eth0"); !strings.Contains(res.Stdout, "02:aa:bb:cc:dd:01") {
			t.Errorf("the interface has another MAC: %s", res)
		}
		reaches(t, b.in, a.ip4, b.ip4)
		reaches(t, a.in, b.ip6, a.ip6)
		t.Cleanup(func() { r.sh("docker", "rm", "-f", "static-c") })
		r.refused(
			t, []string{"in use"}, "run", "--name", "static-c", "--network", "static", "--ip",
			"10.34.9.9", "box", "true",
		)
		r.sh("docker", "rm", "-f", "static-c")
		r.refused(t, nil, "run", "--name", "static-c", "--network", "static", "--ip", "10.99.9.9", "box", "true")
		r.sh("docker", "rm", "-f", "static-c")
		r.docker(t, "rm", "-f", "static-a")
		if c := r.run(t, "static-c", "static", "--ip", "10.34.9.9"); c.ip4.String() != "10.34.9.9" {
			t.Errorf("an address that was given back is not given: %v", c.ip4)
		}
	})
	t.Run("aux address and exhaustion", func(t *testing.T) {
		// Of eight addresses the first and last are no hosts', one is the gateway's, two are aux: three remain.
		r.network(
			t, "small", "--subnet", "10.35.0.0/29", "--gateway", "10.35.0.1", "--aux-address",
			"one=10.35.0.2", "--aux-address", "two=10.35.0.4",
		)
		got := map[string]bool{}
		for i := range 3 {
			got[r.run(t, fmt.Sprintf("small-%d", i), "small").ip4.String()] = true
		}
		for _, want := range []string{"10.35.0.3", "10.35.0.5", "10.35.0.6"} {
			if !got[want] {
				t.Errorf("%s was not given: %v", want, got)
			}
		}
		t.Cleanup(func() { r.sh("docker", "rm", "-f", "small-x") })
		r.refused(t, nil, "run", "--name", "small-x", "--network", "small", "box", "true")
		r.docker(t, "rm", "-f", "small-x", "small-1")
		r.run(t, "small-y", "small")
	})
	t.Run("MTU", func(t *testing.T) {
		r.network(t, "mtu", wayOut, "--subnet", "10.36.0.0/24", "-o", "com.docker.network.driver.mtu=1300")
		a, b := r.run(t, "mtu-a", "mtu"), r.run(t, "mtu-b", "mtu")
		if res := a.in("ip", "link", "show", "eth0"); !strings.Contains(res.Stdout, "mtu 1300 ") {
			t.Errorf("not the MTU asked for: %s", res)
		}
		for size, passes := range map[string]bool{"1272": true, "1273": false} { // 1300 less the IP and ICMP headers
			for _, to := range []netip.Addr{b.ip4, out4} {
				res := a.in("ping", "-n", "-c", "2", "-i", "0.2", "-W", "1", "-M", "do", "-s", size, to.String())
				if strings.Contains(res.Stdout, "bytes from") != passes {
					t.Errorf("%s bytes to %s: want passing %v: %s", size, to, passes, res)
				}
			}
		}
	})
	t.Run("bad requests leave nothing", func(t *testing.T) {
		onlyKuryr(t)
		before := len(r.list(t, "network"))
		r.refused(
			t, []string{"mtu"},
			createArgs(
				"bad", "--subnet", "10.37.0.0/24", "-o", "com.docker.network.driver.mtu=much",
			)...,
		)
		r.refused(t, []string{"gateway"}, createArgs("bad", "--subnet", "10.37.0.0/24", "--gateway", "10.99.0.1")...)
		r.refused(t, nil, createArgs("bad", "--subnet", "10.37.0.0/24", "-o", "kuryr.nonsense=1")...)
		if after := len(r.list(t, "network")); after != before {
			t.Errorf("%d networks before, %d after", before, after)
		}
		r.network(t, "good", "--subnet", "10.37.0.0/24")
	})
}

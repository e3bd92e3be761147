//go:build e2e

package docker_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// links are the names of a container's interfaces but lo.
func (b box) links(t *testing.T) []string {
	t.Helper()
	res := b.in("ip", "-o", "link")
	if !res.OK() {
		t.Fatal(res)
	}
	var names []string
	for line := range strings.Lines(res.Stdout) {
		name := strings.TrimSuffix(strings.Fields(line)[1], ":")
		name, _, _ = strings.Cut(name, "@")
		// The kernel puts these into every namespace where their modules are loaded.
		if name != "lo" && !slices.Contains(
			[]string{
				"tunl0", "gre0", "gretap0", "erspan0", "sit0", "ip6tnl0", "ip6gre0", "ip_vti0",
				"ip6_vti0",
			},
			name,
		) {
			names = append(names, name)
		}
	}
	return names
}

// only checks that a container has as many interfaces as networks, and that the engine
// made no network of its own to give it more.
func (b box) only(t *testing.T, n int) {
	t.Helper()
	if links := b.links(t); len(links) != n {
		t.Errorf("container %s has the interfaces %v, want %d", b.name, links, n)
	}
	if networks := b.docker(t, "network", "ls", "--format", "{{.Name}}"); strings.Contains(networks, "docker_gwbridge") {
		t.Errorf("the engine made a network of its own:\n%s", networks)
	}
}

func (b box) add(t *testing.T, args ...string) {
	t.Helper()
	if res := b.in(append([]string{"ip"}, args...)...); !res.OK() {
		t.Fatal(res)
	}
}

// answers checks that a further address of a container answers ping and TCP, and sees the
// caller as seen. To UDP the probe answers with whichever address the kernel prefers.
func repliesFrom(t *testing.T, from box, to, seen netip.Addr) {
	t.Helper()
	if res := ping(from.in, to); !strings.Contains(res.Stdout, "bytes from") {
		t.Errorf("no ping: %s", res)
	}
	if res := from.in(probe, "tcp", netip.AddrPortFrom(to, 7000).String()); !res.OK() || res.Out() != seen.String() {
		t.Errorf("%s does not answer %s by TCP: %s", to, seen, res)
	}
}

// portsOf are the ports of containers that kuryr lists with an address.
func (r rig) portsOf(t *testing.T, address netip.Addr) (found []map[string]any) {
	t.Helper()
	for _, p := range r.list(t, "port") {
		if p["device_owner"] == "compute:kuryr" &&
			strings.Contains(fmt.Sprint(p["fixed_ips"]), "ip_address:"+address.String()+" ") {
			found = append(found, p)
		}
	}
	return found
}

// Options of networks.
func TestNetworkOptions(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	r := newRig(t)

	t.Run("routes", func(t *testing.T) {
		r.network(t, "routed", "--ipv6", "--subnet", "10.60.0.0/24", "--subnet", "fd60::/64",
			"-o",
			"kuryr.routes=10.69.0.0/16=10.60.0.5,192.0.2.0/24=link,203.0.113.0/24=192.0.2.7,"+
				"fd69::/64=fd60::5,fd68::/64=link")
		// The next hop, and who answers on the link, have addresses that are not theirs by the SDN.
		hop := r.attach(
			t, "routed-hop", "routed",
			"kuryr.allowed_addresses=10.69.0.0/16 192.0.2.7 203.0.113.7 fd69::/64 fd68::7", "--ip",
			"10.60.0.5", "--ip6", "fd60::5",
		)
		hop.add(t, "addr", "add", "10.69.1.1/32", "dev", "lo")
		hop.add(t, "addr", "add", "192.0.2.7/32", "dev", "eth0")
		hop.add(t, "addr", "add", "203.0.113.7/32", "dev", "lo")
		hop.add(t, "addr", "add", "fd69::1/128", "dev", "lo")
		hop.add(t, "addr", "add", "fd68::7/128", "dev", "eth0", "nodad")
		a := r.run(t, "routed-a", "routed")
		for family, want := range map[string][]string{
			"-4": {
				"10.69.0.0/16 via 10.60.0.5 dev eth0", "192.0.2.0/24 dev eth0 ",
				"203.0.113.0/24 via 192.0.2.7 dev eth0", "default via 10.60.0.1 dev eth0",
			},
			"-6": {"fd69::/64 via fd60::5 dev eth0", "fd68::/64 dev eth0 ", "default via fd60::1 dev eth0"},
		} {
			routes := a.in("ip", family, "route").Stdout
			for _, w := range want {
				if !strings.Contains(routes, w) {
					t.Errorf("no route %q in\n%s", w, routes)
				}
			}
		}
		for _, to := range []string{"10.69.1.1", "192.0.2.7", "203.0.113.7"} {
			repliesFrom(t, a, netip.MustParseAddr(to), a.ip4)
		}
		for _, to := range []string{"fd69::1", "fd68::7"} {
			repliesFrom(t, a, netip.MustParseAddr(to), a.ip6)
		}
		getsOut(t, a)
		a.only(t, 1)
	})

	t.Run("no gateway", func(t *testing.T) {
		r.network(t, "dry", "--subnet", "10.61.0.0/29", "-o", "kuryr.gateway=none")
		a, b := r.run(t, "dry-a", "dry"), r.run(t, "dry-b", "dry")
		reaches(t, a.in, b.ip4, a.ip4)
		if routes := a.in("ip", "route").Stdout; strings.Contains(routes, "default") {
			t.Errorf("a default route:\n%s", routes)
		}
		a.only(t, 1)
		cut(t, a.in, out4)
		cut(t, r.sh, a.ip4)
		// Nor by the address that engines before 28 take for a gateway, which is nobody's
		// then. Later ones take none, and it is a container's.
		first := netip.MustParseAddr("10.61.0.1")
		major, err := privatehost.EngineMajor(privatehost.Options{})
		if err != nil {
			t.Fatal(err)
		}
		room, via := 5, first
		if major >= 28 {
			room, via = 6, b.ip4
		} else {
			cut(t, a.in, first)
		}
		a.add(t, "route", "add", "default", "via", via.String())
		cut(t, a.in, out4)
		for _, s := range r.list(t, "subnet") {
			if s["cidr"] == "10.61.0.0/29" && s["gateway_ip"] != nil {
				t.Errorf("the subnet has a gateway: %v", s)
			}
		}
		got := map[netip.Addr]bool{a.ip4: true, b.ip4: true}
		for i := range room - 2 {
			got[r.run(t, fmt.Sprint("dry-", i), "dry").ip4] = true
		}
		if len(got) != room || got[first] != (room == 6) {
			t.Errorf("addresses %v", got)
		}
		t.Cleanup(func() { r.sh("docker", "rm", "-f", "dry-x") })
		r.refused(t, nil, "run", "--name", "dry-x", "--network", "dry", "box", "true")
	})

	t.Run("own interfaces only", func(t *testing.T) {
		r.network(t, "way-out", wayOut, "--subnet", "10.62.1.0/24")
		r.network(t, "no-way", "--subnet", "10.62.2.0/24", "-o", "kuryr.gateway=none")
		r.network(t, "inner", "--subnet", "10.62.3.0/24", "--internal")
		r.run(t, "own-inner", "inner").only(t, 1)
		a := r.run(t, "own", "no-way")
		a.only(t, 1)
		r.docker(t, "network", "connect", "inner", "own")
		a.only(t, 2)
		r.docker(t, "network", "connect", "way-out", "own")
		a.only(t, 3)
		getsOut(t, r.look(t, "own", "way-out"))
		r.docker(t, "restart", "-t", "0", "own")
		a = r.look(t, "own", "no-way")
		a.only(t, 3)
		getsOut(t, r.look(t, "own", "way-out"))
		r.docker(t, "network", "disconnect", "way-out", "own")
		a.only(t, 2)
		cut(t, a.in, out4)
		r.docker(t, "network", "disconnect", "no-way", "own")
		a.only(t, 1)
	})

	t.Run("several ranges", func(t *testing.T) {
		needs(t, severalRanges)
		r.network(t, "wide", "--subnet", "10.63.0.0/24", "--gateway", "10.63.0.254", "--aux-address", "one=10.63.0.1",
			"--subnet", "10.64.0.0/24", "--ip-range", "10.64.0.128/25", "--gateway", "10.64.0.1")
		// The docker command gives the engine the ranges in any order, and the first of them serves those who do not ask.
		a, b := r.run(t, "wide-a", "wide", "--ip", "10.63.0.9"), r.run(t, "wide-b", "wide", "--ip", "10.64.0.9")
		c := r.run(t, "wide-c", "wide")
		if first := netip.MustParsePrefix("10.63.0.0/24"); !first.Contains(c.ip4) {
			inside(t, "10.64.0.128/25", c.ip4)
		}
		reaches(t, c.in, a.ip4, c.ip4)
		reaches(t, c.in, b.ip4, c.ip4)
		hasRoute(t, a, "-4", "10.63.0.254")
		hasRoute(t, b, "-4", "10.64.0.1")
		reaches(t, a.in, b.ip4, a.ip4)
		getsOut(t, b)
	})

	t.Run("from a configuration", func(t *testing.T) {
		r.create(
			t, "conf", "network", "create", "--config-only", "--ipam-driver", "kuryr", "--subnet",
			"10.65.0.0/24", "--ip-range", "10.65.0.64/26",
			"-o", "com.docker.network.driver.mtu=1400", "-o", "kuryr.routes=192.0.2.0/24=link", "conf")
		r.create(t, "configured", "network", "create", "-d", "kuryr", "--config-from", "conf", "configured")
		a, b := r.run(t, "configured-a", "configured"), r.run(t, "configured-b", "configured")
		inside(t, "10.65.0.64/26", a.ip4, b.ip4)
		reaches(t, a.in, b.ip4, a.ip4)
		if res := a.in("ip", "link", "show", "eth0"); !strings.Contains(res.Stdout, "mtu 1400 ") {
			t.Errorf("not the MTU of the configuration: %s", res)
		}
		if routes := a.in("ip", "route").Stdout; !strings.Contains(routes, "192.0.2.0/24 dev eth0") {
			t.Errorf("not the routes of the configuration:\n%s", routes)
		}
	})

	t.Run("macvlan", func(t *testing.T) {
		r.must(t, "ip", "link", "add", "parent0", "type", "veth", "peer", "name", "parent1")
		t.Cleanup(func() { r.must(t, "ip", "link", "del", "parent0") })
		r.must(t, "ip", "link", "set", "parent1", "up")
		r.must(t, "ip", "link", "set", "parent0", "up")
		r.create(t, "vlan", "network", "create", "-d", "macvlan", "--ipam-driver", "kuryr", "-o", "parent=parent0",
			"--subnet", "10.66.0.0/24", "--ip-range", "10.66.0.128/25", "--aux-address", "a=10.66.0.128", "vlan")
		a, b := r.run(t, "vlan-a", "vlan"), r.run(t, "vlan-b", "vlan")
		inside(t, "10.66.0.128/25", a.ip4, b.ip4)
		if a.ip4.String() == "10.66.0.128" || b.ip4.String() == "10.66.0.128" {
			t.Error("the auxiliary address was given")
		}
		reaches(t, a.in, b.ip4, a.ip4)
	})

	t.Run("foreign options are told", func(t *testing.T) {
		r.network(
			t, "bridged", "--subnet", "10.67.0.0/24", "-o", "com.docker.network.bridge.name=br7",
			"-o", "com.docker.network.bridge.enable_icc=false",
			"--ipam-opt", "some.opt=x")
		a, b := r.run(t, "bridged-a", "bridged"), r.run(t, "bridged-b", "bridged")
		reaches(t, a.in, b.ip4, a.ip4)
		log := r.Logs(1000)
		for _, want := range []string{
			`options="com.docker.network.bridge.enable_icc com.docker.network.bridge.name"`,
			"options=some.opt",
		} {
			if strings.Count(log, want) != 1 {
				t.Errorf("the log does not say %s once", want)
			}
		}
	})

	t.Run("refused", func(t *testing.T) {
		before := len(r.list(t, "network"))
		for option, word := range map[string]string{
			"kuryr.routs=10.0.0.0/8=link":        "did you mean kuryr.routes?",
			"kuryr.routes=10.0.0.1/8=link":       "did you mean 10.0.0.0/8?",
			"kuryr.routes=10.9.0.0/16=10.77.0.1": "10.77.0.1",
			"kuryr.gateway=10.68.0.1":            "--gateway",
		} {
			r.refused(t, []string{word}, createArgs("bad", "--subnet", "10.68.0.0/24", "-o", option)...)
		}
		if after := len(r.list(t, "network")); after != before {
			t.Errorf("%d networks before, %d after", before, after)
		}
	})
}

// attach starts a container with a driver option of its endpoint.
func (r rig) attach(t *testing.T, name, network, option string, args ...string) box {
	t.Helper()
	t.Cleanup(func() { r.sh("docker", "rm", "-f", name) })
	end := `name=` + network + `,"driver-opt=` + option + `"`
	for i := 0; i < len(args); i += 2 { // an address is part of the endpoint too
		end += "," + strings.TrimPrefix(args[i], "--") + "=" + args[i+1]
	}
	r.docker(t, "run", "-d", "--name", name, "--network", end, "--stop-timeout", "1", "box", "probe", "serve", port)
	return r.look(t, name, network)
}

// Driver options of endpoints, by what the container can then send.
func TestEndpointOptions(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	r := newRig(t)
	r.network(t, "lan", append(r.open(t), "--ipv6", "--subnet", "10.70.0.0/24", "--subnet", "fd70::/64")...)
	r.network(t, "side", "--subnet", "10.70.9.0/24")
	victim := r.run(t, "victim", "lan")
	const strange = "02:66:66:66:66:66"

	t.Run("port security off", func(t *testing.T) {
		guarded, free := r.run(t, "guarded", "lan"), r.attach(t, "free", "lan", "kuryr.port_security=false")
		caught := catch(t, victim, func() {
			for _, b := range []box{guarded, free} {
				for text, f := range map[string]struct{ mac, src string }{
					"honest": {b.mac, b.ip4.String()}, "address": {b.mac, "192.0.2.1"},
					"mac": {strange, b.ip4.String()},
				} {
					r.docker(t, "exec", b.name, "probe", "forge", "udp", "-src-mac", f.mac, "-dst-mac", victim.mac,
						"-src", f.src, "-dst", victim.ip4.String(), "-port", "9000", "-text", b.name+"-"+text)
				}
			}
		})
		for text, passes := range map[string]bool{"guarded-honest": true, "guarded-address": false, "guarded-mac": false,
			"free-honest": true, "free-mac": true} {
			if strings.Contains(caught, text) != passes {
				t.Errorf("%s: want passing %v; the victim got:\n%s", text, passes, caught)
			}
		}
		reaches(t, guarded.in, victim.ip4, guarded.ip4)
	})

	t.Run("allowed addresses", func(t *testing.T) {
		virtual4, virtual6 := netip.MustParseAddr("10.70.0.200"), netip.MustParseAddr("fd70::200")
		master := r.run(t, "master", "side")
		r.docker(
			t, "network", "connect", "--driver-opt",
			"kuryr.allowed_addresses=10.70.0.200 fd70::200 10.71.0.0/16", "lan", "master",
		)
		thief := r.run(t, "thief", "lan")
		for _, b := range []box{thief, master} {
			dev := b.links(t)[len(b.links(t))-1]
			b.add(t, "addr", "add", virtual4.String()+"/32", "dev", dev)
			b.add(t, "addr", "add", virtual6.String()+"/128", "dev", dev, "nodad")
			if b.name == "thief" { // nobody hears of it
				cut(t, victim.in, virtual4)
				cut(t, victim.in, virtual6)
				b.add(t, "addr", "del", virtual4.String()+"/32", "dev", dev)
				b.add(t, "addr", "del", virtual6.String()+"/128", "dev", dev)
			}
		}
		victim.in("ip", "neigh", "flush", "dev", "eth0")
		repliesFrom(t, victim, virtual4, victim.ip4)
		repliesFrom(t, victim, virtual6, victim.ip6)
		// Without the container the option is gone too.
		r.docker(t, "network", "disconnect", "lan", "master")
		cut(t, victim.in, virtual4)
	})

	t.Run("refused", func(t *testing.T) {
		before := len(r.list(t, "port"))
		side := r.run(t, "side-a", "side")
		r.refused(
			t, []string{"did you mean kuryr.port_security?"}, "network", "connect", "--driver-opt",
			"kuryr.port_securty=false", "lan", "side-a",
		)
		r.refused(
			t, []string{"true or false"}, "network", "connect", "--driver-opt",
			"kuryr.port_security=off", "lan", "side-a",
		)
		r.refused(
			t, []string{"did you mean 10.0.0.0/8?"}, "network", "connect", "--driver-opt",
			"kuryr.allowed_addresses=10.0.0.1/8", "lan", "side-a",
		)
		side.only(t, 1)
		r.docker(t, "rm", "-f", "side-a")
		if after := len(r.list(t, "port")); after != before {
			t.Errorf("%d ports before, %d after", before, after)
		}
	})

	t.Run("interface name and sysctls", func(t *testing.T) {
		// Docker 20.10 knows neither; it passes both on, and the container starts.
		name, logged := "eth0", "0"
		if major, err := privatehost.EngineMajor(privatehost.Options{}); err != nil {
			t.Fatal(err)
		} else if major >= 29 {
			name, logged = "wan0", "1"
		}
		a := r.attach(t, "named", "lan", "com.docker.network.endpoint.ifname=wan0")
		reaches(t, a.in, victim.ip4, a.ip4)
		ports := r.portsOf(t, a.ip4)
		if len(ports) != 1 || !strings.Contains(fmt.Sprint(ports[0]["tags"]), "kuryr.docker.ifname=wan0") {
			t.Errorf("the name is not remembered: %v", ports)
		}
		if links := a.links(t); len(links) != 1 || links[0] != name {
			t.Errorf("the container's interfaces are %v, want %s", links, name)
		}
		b := r.attach(t, "tuned", "lan", "com.docker.network.endpoint.sysctls=net.ipv4.conf.IFNAME.log_martians=1")
		reaches(t, b.in, victim.ip4, b.ip4)
		if res := b.in("cat", "/proc/sys/net/ipv4/conf/eth0/log_martians"); res.Out() != logged {
			t.Errorf("want log_martians %s: %s", logged, res)
		}
	})

	t.Run("exposed ports", func(t *testing.T) {
		a := r.run(t, "exposed", "lan", "--expose", port, "--expose", "53/udp", "--expose", "8000-8002")
		ports := r.portsOf(t, a.ip4)
		if len(ports) != 1 {
			t.Fatalf("%d ports have %s", len(ports), a.ip4)
		}
		major, err := privatehost.EngineMajor(privatehost.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{
			"kuryr.docker.exposed=" + port + "/tcp", "kuryr.docker.exposed=53/udp",
			"kuryr.docker.exposed=8000-8002/tcp",
		} {
			// Docker 29 sends exposed ports with Join, which makes no request of the SDN.
			if has := strings.Contains(fmt.Sprint(ports[0]["tags"]), want); has != (major < 29) {
				t.Errorf("tag %s among %v: %t", want, ports[0]["tags"], has)
			}
		}
		for _, proto := range []string{"tcp", "udp"} { // nothing was published
			if res := r.outside("timeout", "1", probe, proto, netip.AddrPortFrom(host4, 7000).String()); res.OK() {
				t.Errorf("%s passed: %s", proto, res)
			}
		}
		reaches(t, victim.in, a.ip4, victim.ip4)
	})
}

// Addresses that are asked for, one port for each endpoint, and containers that come again by themselves.
func TestAddressesAsked(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	r := newRig(t)
	r.network(t, "asked", append(r.open(t), "--ipv6", "--subnet", "10.72.0.0/24", "--subnet", "fd72::/64")...)

	t.Run("one port for an endpoint", func(t *testing.T) {
		a := r.run(t, "one", "asked", "--ip", "10.72.0.77", "--ip6", "fd72::77", "--mac-address", "02:00:00:72:00:77")
		ports := r.portsOf(t, a.ip4)
		if len(ports) != 1 || ports[0]["mac_address"] != "02:00:00:72:00:77" ||
			ports[0]["id"] != r.portsOf(t, a.ip6)[0]["id"] {
			t.Errorf("ports %v", ports)
		}
		for name, args := range map[string][]string{
			"address":      {"--ip", "10.72.0.77"},
			"IPv6 address": {"--ip6", "fd72::77"},
			"gateway":      {"--ip", "10.72.0.1"},
			"MAC":          {"--mac-address", "02:00:00:72:00:77"},
		} {
			t.Cleanup(func() { r.sh("docker", "rm", "-f", "taken") })
			r.refused(
				t, []string{"in use"},
				append(
					append([]string{"run", "--name", "taken", "--network", "asked"}, args...),
					"box", "true",
				)...,
			)
			r.docker(t, "rm", "-f", "taken")
			if now := r.portsOf(t, a.ip4); len(now) != 1 || now[0]["device_id"] != ports[0]["device_id"] {
				t.Errorf("after a taken %s was refused the port is %v", name, now)
			}
		}
		b := r.run(t, "two", "asked")
		reaches(t, b.in, a.ip4, b.ip4)
		reaches(t, b.in, a.ip6, b.ip6)
	})

	t.Run("link-local", func(t *testing.T) {
		// The engine configures it and tells no driver. The guard knows it by the option only.
		linkLocal := func(name, address, option string) box {
			t.Helper()
			t.Cleanup(func() { r.sh("docker", "rm", "-f", name) })
			r.docker(t, "create", "--name", name, "--network", "none", "--stop-timeout", "1", "box", "probe", "serve", port)
			r.docker(t, "network", "disconnect", "none", name)
			r.docker(
				t,
				append(
					append(
						[]string{"network", "connect", "--link-local-ip", address},
						strings.Fields(option)...,
					),
					"asked", name,
				)...,
			)
			r.docker(t, "start", name)
			return r.look(t, name, "asked")
		}
		a := linkLocal("ll-a", "169.254.7.1", "--driver-opt kuryr.allowed_addresses=169.254.7.1")
		b := linkLocal("ll-b", "169.254.7.2", "--driver-opt kuryr.allowed_addresses=169.254.7.2")
		c := linkLocal("ll-c", "169.254.7.3", "")
		for box, address := range map[box]string{a: "169.254.7.1/16", b: "169.254.7.2/16", c: "169.254.7.3/16"} {
			if res := box.in("ip", "-4", "addr", "show", "eth0"); !strings.Contains(res.Stdout, address) {
				t.Errorf("no %s: %s", address, res)
			}
		}
		reaches(t, a.in, netip.MustParseAddr("169.254.7.2"), netip.MustParseAddr("169.254.7.1"))
		cut(t, a.in, netip.MustParseAddr("169.254.7.3"))
		reaches(t, a.in, c.ip4, netip.Addr{})
	})

	t.Run("restart policies", func(t *testing.T) {
		b := r.run(t, "steady", "asked")
		for policy, args := range map[string][]string{
			"always":         {"--restart", "always", "--ip", "10.72.0.90", "--mac-address", "02:00:00:72:00:90"},
			"unless-stopped": {"--restart", "unless-stopped"},
			"on-failure":     {"--restart", "on-failure:3", "--ip6", "fd72::90"},
		} {
			a := r.run(t, "again-"+policy, "asked", args...)
			r.must(t, "kill", "-9", a.pid)
			var again box
			eventually(t, 20*time.Second, func() string {
				state := r.docker(
					t, "inspect", "-f",
					"{{.State.Running}} {{.State.Pid}} {{range "+
						".NetworkSettings.Networks}}{{.IPAddress}}{{end}}",
					a.name,
				)
				words := strings.Fields(state)
				if len(words) < 3 || words[0] != "true" || words[1] == "0" || words[1] == a.pid {
					return state
				}
				again = r.look(t, a.name, "asked")
				return ""
			})
			if len(args) > 2 && policy == "always" && (again.ip4 != a.ip4 || again.mac != a.mac) {
				t.Errorf("%s: came again as %s %s, not %s %s", policy, again.ip4, again.mac, a.ip4, a.mac)
			}
			reaches(t, b.in, again.ip4, b.ip4)
			reaches(t, again.in, b.ip6, again.ip6)
			if n := len(r.portsOf(t, again.ip4)); n != 1 {
				t.Errorf("%s: %d ports have %s", policy, n, again.ip4)
			}
		}
	})
}

// docker.delete_empty_subnets: subnets come and go with their containers, whatever else happens.
func TestEmptySubnets(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	r := newRig(t).kuryrWith(t, nil, []string{"KURYR_DOCKER_DELETE_EMPTY_SUBNETS=true"})
	cidrs := func() (found []string) {
		for _, s := range r.list(t, "subnet") {
			found = append(found, fmt.Sprint(s["cidr"]))
		}
		slices.Sort(found)
		return found
	}
	r.network(
		t, "fleeting", wayOut, "--ipv6", "--subnet", "10.73.0.0/24", "--gateway", "10.73.0.9",
		"--ip-range", "10.73.0.128/25", "--subnet", "fd73::/64",
		"-o", "kuryr.routes=192.0.2.0/24=link")
	full := []string{"10.73.0.0/24", "fd73::/64"}
	for round := range 3 {
		a, b := r.run(t, "fleeting-a", "fleeting"), r.run(t, "fleeting-b", "fleeting")
		if now := cidrs(); !slices.Equal(now, full) {
			t.Errorf("with containers there are the subnets %v", now)
		}
		inside(t, "10.73.0.128/25", a.ip4, b.ip4)
		hasRoute(t, a, "-4", "10.73.0.9")
		if routes := a.in("ip", "route").Stdout; !strings.Contains(routes, "192.0.2.0/24 dev eth0") {
			t.Errorf("no route:\n%s", routes)
		}
		reaches(t, a.in, b.ip4, a.ip4)
		reaches(t, a.in, b.ip6, a.ip6)
		getsOut(t, a)
		getsOut6(t, a)
		r.reachedByHost(t, a.ip4)
		r.docker(t, "rm", "-f", "fleeting-a")
		getsOut(t, b)
		if now := cidrs(); !slices.Equal(now, full) {
			t.Errorf("with a container there are the subnets %v", now)
		}
		r.docker(t, "rm", "-f", "fleeting-b")
		if now := cidrs(); len(now) != 0 {
			t.Errorf("without a container there are the subnets %v", now)
		}
		if round == 1 {
			r.consistent(t)
		}
	}
}

//go:build e2e

package docker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// server starts a container that answers on port with the caller's address and its own name.
func (r rig) server(t *testing.T, name, network string, args ...string) box {
	t.Helper()
	t.Cleanup(func() { r.sh("docker", "rm", "-f", name) })
	argv := append([]string{"run", "-d", "--name", name, "--network", network, "--stop-timeout", "1"}, args...)
	r.docker(t, append(argv, "box", "probe", "serve", port, name)...)
	return r.look(t, name, network)
}

// both publishes a port by TCP and by UDP.
func both(ports ...string) (args []string) {
	for _, p := range ports {
		args = append(args, "-p", p, "-p", p+"/udp")
	}
	return args
}

// servedAs checks who answers at an address and as whom it sees the caller, by TCP and UDP; "" is nobody.
func (r rig) servedAs(t *testing.T, from runner, to, want string) {
	t.Helper()
	want = r.asSeen(t, want)
	for _, proto := range []string{"tcp", "udp"} {
		tries := 20
		if want == "" {
			tries = 1
		}
		var res privatehost.Result
		for range tries { // a container that has just started does not listen yet
			if res = from("timeout", "3", probe, proto, to); res.Out() == want && res.OK() == (want != "") {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		if res.Out() != want || res.OK() != (want != "") {
			t.Errorf("%s %s: want %q: %s", proto, to, want, res)
		}
	}
}

// asSeen is who answers and as whom it sees the caller, "CALLER CONTAINER": where ports
// are not translated but carried by the proxy, the container sees an address of its own.
func (r rig) asSeen(t *testing.T, want string) string {
	t.Helper()
	caller, name, ok := strings.Cut(want, " ")
	if has(translation) || !ok {
		return want
	}
	for _, own := range strings.Fields(r.docker(
		t, "inspect", "-f",
		"{{range .NetworkSettings.Networks}}{{.IPAddress}} {{.GlobalIPv6Address}} {{end}}", name,
	)) {
		if netip.MustParseAddr(own).Is4() == netip.MustParseAddr(caller).Is4() {
			return own + " " + name
		}
	}
	t.Fatalf("container %s has no address of %s's family", name, caller)
	return ""
}

// uplink is the host's address on the links to its routers, which those see whose address cannot be kept.
func (r rig) uplink(t *testing.T) (four, six string) {
	t.Helper()
	if !has(translation) {
		return "127.0.0.1", "::1" // asSeen has an address for it
	}
	six = regexp.MustCompile(`\bfd[0-9a-f:]+::1\b`).FindString(
		r.must(t, "sh", "-c", "ip -6 -o addr show scope global | grep ' kr'"),
	)
	if six == "" {
		t.Fatal("no uplink has an IPv6 address")
	}
	return "100.64.0.1", six
}

// listens tells whether a program of the host can listen at an address, as a server does.
func (r rig) listens(port string) bool { return r.sh(probe, "listen", port).OK() }

// How published ports are reached: from everywhere, by every address of the host or by one.
func TestPublish(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	r := newRig(t)
	dev := device(r.sh, host4)
	r.must(t, "sh", "-c", "ip addr add 198.51.100.77/24 dev "+dev+" && ip -6 addr add 2001:db8:1::77/64 dev "+dev+" nodad")
	t.Cleanup(func() {
		r.must(t, "sh", "-c", "ip addr del 198.51.100.77/24 dev "+dev+" && ip -6 addr del 2001:db8:1::77/64 dev "+dev)
	})
	r.network(t, "pub", "--ipv6", "--subnet", "10.70.0.0/24", "--subnet", "fd70::/64")
	r.network(t, "same", "--ipv6", "--subnet", "10.70.0.0/24", "--subnet", "fd70::/64") // another router, the same ranges
	at4, at6 := fmt.Sprintf("%s:", host4), fmt.Sprintf("[%s]:", host6)

	all := r.server(t, "all", "pub", both("8080:7000")...)
	friend := r.server(
		t, "friend", "pub",
		both(
			"127.0.0.1:8081:7000", "[::1]:8081:7000", host4.String()+":8082:7000",
			"["+host6.String()+"]:8082:7000",
		)...,
	)
	other := r.server(
		t, "other", "same",
		both(
			host4.String()+":8081:7000", "["+host6.String()+"]:8081:7000",
			"198.51.100.77:8082:7000", "[2001:db8:1::77]:8082:7000",
		)...,
	)
	// behind the router of 8082 on the host's address
	again := r.server(t, "again", "pub", both("127.0.0.1:8082:7000", "[::1]:8082:7000")...)
	up4, up6 := r.uplink(t)

	t.Run("every address", func(t *testing.T) {
		containers := map[string]bool{
			"itself": true, "itself IPv6": true, "neighbour": true, "neighbour IPv6": true,
			"another router": true, "another router IPv6": true,
		}
		for from, c := range map[string]struct {
			run  runner
			to   string
			seen string
		}{
			"outside":             {r.outside, at4, out4.String()},
			"outside IPv6":        {r.outside, at6, out6.String()},
			"outside, second":     {r.outside, "198.51.100.77:", out4.String()},
			"host":                {r.sh, at4, host4.String()},
			"host IPv6":           {r.sh, at6, host6.String()},
			"host by 127.0.0.1":   {r.sh, "127.0.0.1:", up4},
			"host by 127.9.9.9":   {r.sh, "127.9.9.9:", up4},
			"host by ::1":         {r.sh, "[::1]:", up6},
			"itself":              {all.in, at4, up4},
			"itself IPv6":         {all.in, at6, up6},
			"neighbour":           {friend.in, at4, up4},
			"neighbour IPv6":      {friend.in, at6, up6},
			"another router":      {other.in, at4, up4},
			"another router IPv6": {other.in, at6, up6},
		} {
			t.Run(from, func(t *testing.T) {
				if containers[from] {
					needs(t, hostRoutes)
				}
				r.servedAs(t, c.run, c.to+"8080", c.seen+" all")
			})
		}
		r.servedAs(t, r.outside, at4+"8079", "")
	})
	t.Run("one address", func(t *testing.T) {
		for _, c := range []struct {
			run  runner
			to   string
			want string
		}{
			{r.sh, "127.0.0.1:8081", up4 + " friend"},
			{r.sh, "[::1]:8081", up6 + " friend"},
			{r.sh, at4 + "8081", host4.String() + " other"},
			{r.outside, at4 + "8081", out4.String() + " other"},
			{r.outside, at6 + "8081", out6.String() + " other"},
			{r.outside, at4 + "8082", out4.String() + " friend"},
			{r.outside, at6 + "8082", out6.String() + " friend"},
			{r.outside, "198.51.100.77:8082", out4.String() + " other"},
			{r.outside, "[2001:db8:1::77]:8082", out6.String() + " other"},
			{r.outside, "198.51.100.77:8081", ""},
			{r.outside, "[2001:db8:1::77]:8081", ""},
			{r.sh, "127.0.0.1:8082", up4 + " again"},
			{r.sh, "[::1]:8082", up6 + " again"},
		} {
			r.servedAs(t, c.run, c.to, c.want)
		}
		if has(hostRoutes) {
			r.servedAs(t, again.in, at4+"8082", up4+" friend")
			r.servedAs(t, friend.in, at4+"8082", up4+" friend")
			r.servedAs(t, other.in, at4+"8082", up4+" friend")
			r.servedAs(t, other.in, at6+"8082", up6+" friend")
		}
	})
	t.Run("loopback from the wire", func(t *testing.T) {
		target := r.server(
			t, "wire", "pub", "-p", "127.0.0.1:8085:9000/udp", "-p", "[::1]:8085:9000/udp", "-p",
			"8086:9000/udp", "-p", host4.String()+":8087:9000/udp",
		)
		mac := regexp.MustCompile(`([0-9a-f]{2}:){5}[0-9a-f]{2}`).FindString(r.must(t, "ip", "-o", "link", "show", dev))
		outside := device(r.outside, out4)
		forge := func(src, dst, port, text string) {
			t.Helper()
			if res := r.outside(
				probe, "forge", "udp", "-dev", outside, "-dst-mac", mac, "-src", src, "-dst", dst,
				"-port", port, "-text", text,
			); !res.OK() {
				t.Error(res)
			}
		}
		caught := catch(t, target, func() {
			for _, port := range []string{"8085", "8086", "8087"} {
				forge(out4.String(), "127.0.0.1", port, "bad-to4-"+port)
				forge(out6.String(), "::1", port, "bad-to6-"+port)
				forge("127.0.0.1", host4.String(), port, "bad-from4-"+port)
				forge("::1", host6.String(), port, "bad-from6-"+port)
			}
			forge(out4.String(), host4.String(), "8085", "bad-published-on-loopback")
			forge(out4.String(), "198.51.100.77", "8087", "bad-other-address")
			forge(out4.String(), host4.String(), "8086", "control4")
			forge(out6.String(), host6.String(), "8086", "control6")
			forge(out4.String(), host4.String(), "8087", "control-one")
		})
		for _, want := range []string{"control4", "control6", "control-one"} {
			if !strings.Contains(caught, want) {
				t.Errorf("%s did not arrive:\n%s", want, caught)
			}
		}
		if strings.Contains(caught, "bad") {
			t.Errorf("what must not arrived:\n%s", caught)
		}
	})
	t.Run("ranges and chosen ports", func(t *testing.T) {
		r.server(t, "range-a", "pub", both("8100-8101:7000-7001", "9000-9010:7000")...)
		r.server(t, "range-b", "same", both("9000-9010:7000")...)
		r.servedAs(t, r.outside, at4+"8100", out4.String()+" range-a")
		r.servedAs(t, r.outside, at4+"8101", "") // nobody listens at 7001
		r.servedAs(t, r.outside, at6+"9000", out6.String()+" range-a")
		r.servedAs(t, r.outside, at6+"9001", out6.String()+" range-b")
		r.server(t, "chosen", "pub", "-P", "--expose", "7000", "--expose", "7000/udp", "-p", "127.0.0.1::7000")
		var found []struct{ Container, Protocol, Published string }
		text := r.must(t, kuryr, "port", "published", "chosen", "-o", "json")
		if err := json.Unmarshal([]byte(text), &found); err != nil || len(found) != 3 {
			t.Fatalf("want udp of both families, and tcp on 127.0.0.1: %v\n%s", err, text)
		}
		for _, f := range found {
			at, err := netip.ParseAddrPort(f.Published)
			if err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
			to, seen := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), at.Port()), up4
			if at.Addr().Is6() {
				to, seen = netip.AddrPortFrom(netip.IPv6Loopback(), at.Port()), up6
			}
			eventually(t, 5*time.Second, func() string {
				if res := r.sh(probe, f.Protocol, to.String()); f.Container != "chosen" ||
					res.Out() != r.asSeen(t, seen+" chosen") {
					return fmt.Sprintf("chosen port %+v: %s", f, res)
				}
				return ""
			})
		}
	})
	t.Run("SCTP", func(t *testing.T) {
		needs(t, translation)
		if res := r.sh("test", "-e", "/proc/sys/net/netfilter/nf_conntrack_sctp_timeout_closed"); !res.OK() {
			t.Skip("this kernel does not track SCTP")
		}
		target := r.server(t, "sctp", "pub", "-p", "8400:9000/sctp", "-p", host4.String()+":8401:9001/sctp")
		s := target.sniff(t, "sctp")
		for _, to := range []string{at4 + "8399", at4 + "9000", at4 + "8400", at6 + "8401", at6 + "8400", at4 + "8401"} {
			if res := r.outside(probe, "init", to); !res.OK() {
				t.Fatal(res)
			}
		}
		came := func(caller, container netip.Addr, port string) string {
			return fmt.Sprintf("%s.5000 > %s.%s: sctp", caller, container, port)
		}
		seen := s.until(t, came(out4, target.ip4, "9001"))
		for _, want := range []string{came(out4, target.ip4, "9000"), came(out6, target.ip6, "9000")} {
			if len(holding(seen, want, "[INIT]")) != 1 {
				t.Errorf("want %q once, there came\n%s", want, strings.Join(seen, "\n"))
			}
		}
		if len(holding(seen, "[INIT]")) != 2 {
			t.Errorf("more than what was published came:\n%s", strings.Join(seen, "\n"))
		}
		if list := r.must(t, kuryr, "port", "published", "sctp"); !strings.Contains(
			list, "9000/sctp -> 0.0.0.0:8400",
		) || !strings.Contains(list, "9001/sctp -> "+at4+"8401") {
			t.Errorf("kuryr port published:\n%s", list)
		}
	})
	t.Run("undone", func(t *testing.T) {
		r.server(t, "brief", "pub", both("8300:7000", "127.0.0.1:8301:7000")...)
		state := func(when string, there bool) {
			t.Helper()
			want := ""
			if there {
				want = out4.String() + " brief"
			}
			r.servedAs(t, r.outside, at4+"8300", want)
			for _, port := range []string{"8300", "8301"} {
				if r.listens(port) == there {
					t.Errorf("%s: a program can listen at %s: %v", when, port, !there)
				}
			}
		}
		state("run", true)
		r.docker(t, "stop", "-t", "0", "brief")
		state("stopped", false)
		r.docker(t, "start", "brief")
		state("started", true)
		r.docker(t, "network", "disconnect", "pub", "brief")
		state("disconnected", false)
		r.docker(t, "network", "connect", "pub", "brief")
		state("connected", true)
		r.docker(t, "rm", "-f", "brief")
		state("removed", false)
	})
}

// device is the name of the link that has an address.
func device(in runner, a netip.Addr) string {
	fields := strings.Fields(in("ip", "-o", "addr", "show", "to", a.String()).Out())
	if len(fields) < 2 {
		return "no-device"
	}
	return fields[1]
}

// A port that somebody has is refused, with who it is, and one that is published nobody
// else gets: neither a container nor a program, also when Kuryr was killed.
func TestPublishedPortsAreKept(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	r := newRig(t)
	r.network(t, "kept", "--ipv6", "--subnet", "10.71.0.0/24", "--subnet", "fd71::/64")
	refused := func(words []string, args ...string) {
		t.Helper()
		argv := append([]string{"run", "-d", "--name", "bad", "--network", "kept"}, args...)
		r.refused(t, words, append(argv, "box", "probe", "serve", port)...)
		r.sh("docker", "rm", "-f", "bad")
	}
	r.server(t, "web", "kept", both("8080:7000", "127.0.0.1:8081:7000")...)
	refused([]string{"8080/tcp is already allocated", "another endpoint"}, "-p", "8080:7000")
	refused([]string{"127.0.0.1:8080/udp is already allocated", "another endpoint"}, "-p", "127.0.0.1:8080:7000/udp")
	refused([]string{"8081/tcp is already allocated", "another endpoint"}, "-p", "8081:7000")
	refused([]string{"203.0.113.9", "cannot assign requested address"}, "-p", "203.0.113.9:8082:7000")
	refused([]string{"2001:db8::9", "cannot assign requested address"}, "-p", "[2001:db8::9]:8082:7000")

	stop := r.listen(t, "8090")
	refused(
		[]string{
			"8090/tcp is already allocated", "a program of this host uses it", "probe (process ",
		},
		"-p", "8090:7000",
	)
	refused([]string{"127.0.0.1:8090/udp is already allocated", "probe (process "}, "-p", "127.0.0.1:8090:7000/udp")
	r.server(t, "past", "kept", both("8090-8095:7000")...) // the next one is taken
	r.servedAs(t, r.outside, host4.String()+":8091", out4.String()+" past")
	stop()

	// Docker's own driver: its ports are not ours, nor ours its.
	r.docker(t, "run", "-d", "--name", "bridged", "-p", "8200:7000", "box", "probe", "serve", port)
	t.Cleanup(func() { r.sh("docker", "rm", "-f", "bridged") })
	refused([]string{"8200/tcp is already allocated", "another driver's network", "docker"}, "-p", "8200:7000")
	t.Cleanup(func() { r.sh("docker", "rm", "-f", "bridged2") })
	r.refused(
		t, []string{"8080", "already"}, "run", "-d", "--name", "bridged2", "-p", "8080:7000", "box",
		"probe", "serve", port,
	)

	kept := func(when string, want bool) {
		t.Helper()
		for _, port := range []string{"8080", "8081"} {
			eventually(t, 10*time.Second, func() string {
				if r.listens(port) == want {
					return fmt.Sprintf("%s a program can listen at %s: %v", when, port, !want)
				}
				return ""
			})
		}
	}
	kept("published", true)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	restart := func() {
		t.Helper()
		if err := r.StartKuryr(ctx, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.KillKuryr(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	restart()
	kept("after a kill", true)

	// One that takes a port meanwhile is told of, and the container is reached all the
	// same, where the port needs nobody who listens.
	lost := "published port not reserved again"
	if !has(translation) {
		lost = "published port not restored"
	}
	if err := r.KillKuryr(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	stop = r.listen(t, "8080")
	restart()
	eventually(t, 10*time.Second, func() string {
		if log := r.Logs(200); !strings.Contains(log, lost) || !strings.Contains(log, "probe (process ") {
			return "the log does not tell who has taken the port:\n" + log
		}
		return ""
	})
	if res := r.outside(probe, "tcp", at(host4, 8080)); has(translation) && res.Out() != out4.String()+" web" {
		t.Errorf("the published port: %s", res)
	}
	stop()
	r.docker(t, "rm", "-f", "web")
	kept("removed", false)
}

// listen has a program of the host listen at a port, TCP and UDP.
func (r rig) listen(t *testing.T, port string) (stop func()) {
	t.Helper()
	cmd := r.Command(context.Background(), probe, "serve", port)
	if err := r.StartCommand(cmd); err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(stop)
	eventually(t, 10*time.Second, func() string {
		if res := r.sh(probe, "tcp", "127.0.0.1:"+port); !res.OK() {
			return "the program does not answer: " + res.String()
		}
		return ""
	})
	return stop
}

//go:build e2e

package docker_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// What engines ask for since Docker 20.10.
func TestModern(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	fromEngine(t, 29)
	r := newRig(t)

	t.Run("IPv6 only", func(t *testing.T) {
		r.networkByAPI(t, "six", object{"EnableIPv4": false, "EnableIPv6": true}, "fd31::/64")
		a, b := r.run(t, "six-a", "six"), r.run(t, "six-b", "six", "-p", "8061:7000")
		if res := a.in("ip", "-4", "-o", "addr", "show", "dev", "eth0"); a.ip4.IsValid() || res.Out() != "" {
			t.Errorf("the container has an IPv4 address %s: %s", a.ip4, res)
		}
		inside(t, "fd31::/64", a.ip6, b.ip6)
		hasRoute(t, a, "-6", "fd31::1")
		reaches(t, a.in, b.ip6, a.ip6)
		getsOut6(t, a)
		r.reachedByHost(t, a.ip6)
		answers(t, r, host6, 8061)
		if res := r.outside(probe, "tcp", at(host4, 8061)); res.OK() {
			t.Errorf("a container without IPv4 answers to it: %s", res)
		}
		r.sh("docker", "rm", "-f", "six-b")
		silent(t, r, host6, 8061)
	})
	t.Run("IPv6 only, a range of Kuryr's choice", func(t *testing.T) {
		r.networkByAPI(t, "six-auto", object{"EnableIPv4": false, "EnableIPv6": true})
		a, b := r.run(t, "six-auto-a", "six-auto"), r.run(t, "six-auto-b", "six-auto")
		reaches(t, a.in, b.ip6, a.ip6)
		getsOut6(t, a)
	})
	t.Run("no gateway is taken where none is needed", func(t *testing.T) {
		r.networkByAPI(t, "closed", object{"Internal": true, "EnableIPv6": true}, "10.91.1.0/24", "fd91:1::/64")
		r.networkByAPI(t, "open", object{"EnableIPv6": true}, "10.91.2.0/24", "fd91:2::/64")
		for name, want := range map[string]string{"closed": "", "open": "10.91.2.1 fd91:2::1"} {
			if got := r.docker(
				t, "network", "inspect", "-f", "{{range .IPAM.Config}}{{.Gateway}} {{end}}", name,
			); strings.TrimSpace(got) != want {
				t.Errorf("%s has the gateways %q, not %q", name, got, want)
			}
		}
		a := r.run(t, "closed-a", "closed", "--ip", "10.91.1.1", "--ip6", "fd91:1::1")
		b := r.run(t, "closed-b", "closed")
		reaches(t, b.in, a.ip4, b.ip4)
		reaches(t, b.in, a.ip6, b.ip6)
		if res := b.in("sh", "-c", "ip route show default; ip -6 route show default"); res.Out() != "" {
			t.Errorf("an internal network has a way out: %s", res)
		}
		cut(t, b.in, out4)
		cut(t, b.in, out6)
	})
	t.Run("published ports follow the gateway", func(t *testing.T) { gatewayPriority(t, r) })
}

func at(a netip.Addr, p int) string { return netip.AddrPortFrom(a, uint16(p)).String() }

// answers checks that the neighbour gets an answer from a published port, which sees the neighbour's own address.
func answers(t *testing.T, r rig, to netip.Addr, hostPort int) {
	t.Helper()
	caller := out4
	if to.Is6() {
		caller = out6
	}
	eventually(t, 5*time.Second, func() string { // what was started just now may not listen yet
		res := r.outside(probe, "tcp", at(to, hostPort))
		if !has(translation) && res.OK() {
			return ""
		}
		if res.Out() != caller.String() {
			return fmt.Sprintf("port %d does not answer, or not to %s: %s", hostPort, caller, res)
		}
		return ""
	})
}

// silent checks that nothing answers at a port of the host, and that nothing of a publication is left.
func silent(t *testing.T, r rig, to netip.Addr, hostPort int) {
	t.Helper()
	if res := r.outside("timeout", "1", probe, "tcp", at(to, hostPort)); res.OK() {
		t.Errorf("port %d still answers: %s", hostPort, res)
	}
	if left := r.list(t, "floatingip"); len(left) > 0 {
		t.Errorf("publications stay: %v", left)
	}
	if !has(translation) {
		return
	}
	if rules := r.must(t, "nft", "list", "table", "inet", "kuryr"); strings.Contains(
		rules, fmt.Sprintf(". %d :", hostPort),
	) {
		t.Errorf("port %d is still translated:\n%s", hostPort, rules)
	}
}

// gatewayPriority moves a container's default route between networks; what is published moves with it.
func gatewayPriority(t *testing.T, r rig) {
	for i, name := range []string{"low", "high", "higher"} {
		r.networkByAPI(
			t, name, object{"EnableIPv6": true}, fmt.Sprintf("10.92.%d.0/24", i+1),
			fmt.Sprintf("fd92:%d::/64", i+1),
		)
	}
	r.runByAPI(t, "moved", object{"low": object{}}, bindings(8062))
	through := func(network string, n int) {
		t.Helper()
		b := r.look(t, "moved", network)
		hasRoute(t, b, "-4", fmt.Sprintf("10.92.%d.1", n))
		hasRoute(t, b, "-6", fmt.Sprintf("fd92:%d::1", n))
		answers(t, r, host4, 8062)
		answers(t, r, host6, 8062)
		getsOut(t, b)
		if left := r.list(t, "floatingip"); has(translation) && len(left) != 2 {
			t.Errorf("%d publications for two families: %v", len(left), left)
		}
	}
	join := func(network string, priority int) {
		t.Helper()
		r.api(t, http.MethodPost, "/networks/"+network+"/connect",
			object{"Container": "moved", "EndpointConfig": object{"GwPriority": priority}})
	}
	leave := func(network string) {
		t.Helper()
		r.api(t, http.MethodPost, "/networks/"+network+"/disconnect", object{"Container": "moved"})
	}
	through("low", 1)
	join("high", 10)
	through("high", 2)
	join("higher", 20)
	through("higher", 3)
	leave("high") // not the gateway: nothing moves
	through("higher", 3)
	leave("higher")
	through("low", 1)
	join("high", -5) // below: nothing moves
	through("low", 1)
	leave("low")
	through("high", 2)
	r.docker(t, "restart", "-t", "0", "moved")
	through("high", 2)
	leave("high")
	silent(t, r, host4, 8062)
}

// Docker 29 never revokes what was published before it restarted: Leave and DeleteEndpoint must.
func TestModernLiveRestore(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	fromEngine(t, 29)
	r := ownHost(t, "engine flags", privatehost.Options{DockerFlags: []string{"--live-restore"}})
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	r.network(t, "stays", "--ipv6", "--subnet", "10.93.0.0/24", "--subnet", "fd93::/64")
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		for end, argv := range map[string][]string{
			"rm": {"docker", "rm", "-f", "stays-a"}, "stop": {"docker", "stop", "-t", "0", "stays-a"},
			"disconnect": {"docker", "network", "disconnect", "-f", "stays", "stays-a"},
		} {
			t.Run(fmt.Sprint(sig, " ", end), func(t *testing.T) {
				a := r.run(t, "stays-a", "stays", "-p", "8063:7000")
				b := r.run(t, "stays-b", "stays")
				answers(t, r, host4, 8063)
				s := a.pingOn(t, b.ip4)
				if err := r.StopDocker(sig); err != nil {
					t.Fatal(err)
				}
				answers(t, r, host4, 8063)
				if err := r.StartDocker(ctx); err != nil {
					t.Fatal(err)
				}
				answers(t, r, host4, 8063)
				answers(t, r, host6, 8063)
				if sent, lost := s.lost(t); lost > 1 || sent < 5 {
					t.Errorf("%d of %d packets lost", lost, sent)
				}
				r.must(t, argv...)
				silent(t, r, host4, 8063)
				r.sh("docker", "rm", "-f", "stays-a")
				r.run(t, "stays-a", "stays", "-p", "8063:7000")
				answers(t, r, host4, 8063)
			})
		}
	}
}

// An engine that dies with its containers leaves them to its next start, which ends their
// endpoints without revoking what they published, and gives those that restart others.
func TestModernKilled(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	fromEngine(t, 29)
	r := newRig(t)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	r.network(t, "dies", "--ipv6", "--subnet", "10.94.0.0/24", "--subnet", "fd94::/64")
	r.run(t, "dies-always", "dies", "-p", "8064:7000", "--restart", "always")
	r.run(t, "dies-static", "dies", "--ip", "10.94.0.77", "--restart", "always")
	r.run(t, "dies-once", "dies", "-p", "8065:7000")
	for range 2 {
		if err := r.StopDocker(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := r.StartDocker(ctx); err != nil {
			t.Fatal(err)
		}
		r.backOn(t, "dies-always", "dies")
		if s := r.backOn(t, "dies-static", "dies"); s.ip4.String() != "10.94.0.77" {
			t.Errorf("an address asked for was not given again: %s", s.ip4)
		}
		eventually(t, 15*time.Second, func() string {
			if res := r.outside(probe, "tcp", at(host4, 8064)); !res.OK() {
				return res.String()
			}
			return ""
		})
		answers(t, r, host6, 8064)
		if res := r.outside("timeout", "1", probe, "tcp", at(host4, 8065)); res.OK() {
			t.Errorf("the port of a dead container answers: %s", res)
		}
		if left := r.list(t, "floatingip"); has(translation) && len(left) != 2 {
			t.Errorf("publications of one container in two families: %v", left)
		}
		agree(t, r, "dies", 2)
		r.consistent(t)
	}
}

// With Docker's nftables backend all that passes and all that does not is as with iptables.
func TestModernFirewall(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	fromEngine(t, 29)
	// With this backend the engine turns forwarding on for nobody, and does not start
	// without, unless told to leave that to others: to Kuryr.
	flags := []string{"--firewall-backend=nftables", "--ip-forward=false"}
	r := ownHost(t, "engine flags", privatehost.Options{DockerFlags: flags})
	if tables := r.must(t, "nft", "list", "tables"); !strings.Contains(tables, "docker-bridges") {
		t.Fatalf("the engine has no table of its own:\n%s", tables)
	}
	t.Run("flow", func(t *testing.T) { flow(t, r) })
	t.Run("isolation", func(t *testing.T) { isolation(t, r) })
	t.Run("published", func(t *testing.T) {
		r.network(t, "shown", "--ipv6", "--subnet", "10.95.0.0/24", "--subnet", "fd95::/64")
		a := r.run(t, "shown-a", "shown", "-p", "8066:7000")
		for _, to := range []netip.Addr{host4, host6} {
			answers(t, r, to, 8066)
		}
		for _, to := range []string{"127.0.0.1", "198.51.100.1"} {
			if res := r.sh(probe, "tcp", net.JoinHostPort(to, "8066")); !res.OK() {
				t.Errorf("the host itself does not reach it: %s", res)
			}
		}
		if res := a.in(probe, "tcp", at(host4, 8066)); !res.OK() {
			t.Errorf("the container does not reach its own published port: %s", res)
		}
		r.docker(t, "rm", "-f", "shown-a")
		silent(t, r, host4, 8066)
	})
	t.Run("Docker's own bridge is as it was", func(t *testing.T) {
		r.docker(t, "network", "create", "-d", "bridge", "--subnet", "10.95.1.0/24", "bridged")
		r.removed(t, "bridged")
		b := r.run(t, "bridged-a", "bridged", "-p", "8067:7000")
		reaches(t, b.in, out4, host4)
		if res := r.outside(probe, "tcp", at(host4, 8067)); !res.OK() {
			t.Errorf("its published port is shut: %s", res)
		}
		r.routeOutside(t, "10.95.1.0/24", host4)
		cut(t, r.outside, b.ip4)
	})
}

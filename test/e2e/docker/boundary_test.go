//go:build e2e

package docker_test

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// udp7000 is how tcpdump shows a datagram to or from the port: it takes it for another protocol's.
const udp7000 = "[|rx]"

// boundary checks that nothing enters a network from beside the published door: with
// packets that are seen to come as far as the host, and are not seen by the container,
// whether or not something listens there. It is part of isolation.
func boundary(t *testing.T, r rig) {
	onlyKuryr(t)
	t.Run("unpublished ports from the LAN", func(t *testing.T) {
		needs(t, hostRoutes)
		r.network(t, "lan", "--ipv6", "--subnet", "10.46.0.0/24", "--subnet", "fd46::/64")
		a := r.run(t, "lan-a", "lan", "-p", "8046:7000")
		for i, to := range a.addresses() {
			host, caller, subnet := host4, out4, "10.46.0.0/24"
			if to.Is6() {
				host, caller, subnet = host6, out6, "fd46::/64"
			}
			r.routeOutside(t, subnet, host)
			router := routerAddress(t, r, to)
			r.routeOutside(t, router.String(), host)
			arrives := r.sniff(t, privatehost.Uplink, fmt.Sprintf(
				"src host %s and (dst host %s or dst host %s)", caller, to, router,
			))
			enters := a.sniff(t, fmt.Sprintf("host %s", caller))
			cut(t, r.outside, to)
			cut(t, r.outside, router) // of the router itself, where the published port is translated to
			if res := r.outside("timeout", "1", probe, "tcp", at(host, 7000)); res.OK() {
				t.Errorf("the container's port answers unpublished: %s", res)
			}
			// What was published does come, and what the container itself asks for.
			answers(t, r, host, 8046)
			reaches(t, a.in, []netip.Addr{out4, out6}[i], host)
			came := arrives.seen()
			for what, words := range map[string][]string{
				"ping": {": ICMP", "echo request"}, "TCP": {".7000: Flags [S]"},
				"UDP": {".7000: ", udp7000},
			} {
				for _, target := range []netip.Addr{to, router} {
					if len(holding(came, append(words, "> "+target.String())...)) == 0 {
						t.Errorf("no %s came to the host for %s, so nothing was tried:\n%s", what, target, strings.Join(came, "\n"))
					}
				}
			}
			ports := map[string]bool{} // of connections made from outside, which the container saw
			for _, line := range enters.until(t, a.asked(to)) {
				if strings.Contains(line, caller.String()+" > ") && !strings.Contains(line, "echo reply") {
					t.Errorf("a packet from outside came in: %s", line)
				}
				if m := regexp.MustCompile(
					regexp.QuoteMeta(caller.String()) + `\.(\d+) > ` +
						regexp.QuoteMeta(to.String()) + `\.7000: `,
				).FindStringSubmatch(line); m != nil {
					ports[m[1]] = true
				}
			}
			if len(ports) != 1 {
				t.Errorf("the container saw %d connections, not the published one alone: %v", len(ports), ports)
			}
		}
	})

	t.Run("network to network by way of the host", func(t *testing.T) {
		needs(t, hostRoutes)
		r.network(t, "near", "--ipv6", "--subnet", "10.47.1.0/24", "--subnet", "fd47:1::/64")
		r.network(t, "far", "--ipv6", "--subnet", "10.47.2.0/24", "--subnet", "fd47:2::/64")
		a, b := r.run(t, "near-a", "near"), r.run(t, "far-a", "far", "-p", "8047:7000")
		for i, to := range b.addresses() {
			from, host, gateway := a.addresses()[i], host4, netip.MustParseAddr("10.47.2.1")
			if to.Is6() {
				host, gateway = host6, netip.MustParseAddr("fd47:2::1")
			}
			leaves := r.sniff(t, "any", fmt.Sprintf("dst host %s", to))
			enters := b.sniff(t, fmt.Sprintf("dst host %s", to))
			cut(t, a.in, to)
			cut(t, a.in, gateway)
			cut(t, a.in, routerAddress(t, r, to))
			if res := a.in("timeout", "1", probe, "tcp", at(host, 7000)); res.OK() {
				t.Errorf("the other network's port answers at the host's address, unpublished: %s", res)
			}
			// Nor is the host a better way there than the network's own gateway.
			a.in("ip", "route", "replace", to.String(), "via", host.String(), "dev", "eth0", "onlink")
			cut(t, a.in, to)
			a.in("ip", "route", "del", to.String())
			// What was published answers anyone.
			if res := a.in(probe, "tcp", at(host, 8047)); !res.OK() {
				t.Errorf("the published port is shut: %s", res)
			}
			if len(holding(leaves.seen(), "echo request")) == 0 {
				t.Errorf("no packet for %s came to the host, so nothing was tried", to)
			}
			r.reachedByHost(t, to) // the host's own, after all the others
			for _, line := range enters.until(t, hostRoute(t, r, to, "src")+" > "+to.String()) {
				if strings.Contains(line, from.String()) || strings.Contains(line, udp7000) {
					t.Errorf("a packet of the other network came in: %s", line)
				}
			}
		}
	})

	t.Run("internal both ways", func(t *testing.T) {
		r.network(t, "inside", "--internal", "--ipv6", "--subnet", "10.48.1.0/24", "--subnet", "fd48:1::/64")
		r.network(t, "beside", wayOut, "--ipv6", "--subnet", "10.48.2.0/24", "--subnet", "fd48:2::/64")
		a, b, c := r.run(t, "inside-a", "inside"), r.run(t, "inside-b", "inside"),
			r.run(t, "beside-a", "beside", "-p", "8048:7000")
		for i, to := range a.addresses() {
			host, caller, gateway, subnet := host4, out4, "10.48.1.1", "10.48.1.0/24"
			if to.Is6() {
				host, caller, gateway, subnet = host6, out6, "fd48:1::1", "fd48:1::/64"
			}
			seen := host
			if onNeutron {
				seen = netip.Addr{} // a gateway of the router's own
			}
			r.routeOutside(t, subnet, host)
			arrives := r.sniff(t, privatehost.Uplink, fmt.Sprintf("src host %s and dst host %s", caller, to))
			enters := a.sniff(t, fmt.Sprintf("dst host %s", to))
			if to.Is4() || has(outIPv6) { // the way out that the internal one has not
				reaches(t, c.in, caller, seen)
			}
			cut(t, r.outside, to)
			cut(t, c.in, to)
			// Also with a way that the container makes itself.
			for _, via := range []string{gateway, b.addresses()[i].String()} {
				a.in("ip", "route", "replace", "default", "via", via, "dev", "eth0", "onlink")
				for _, target := range []netip.Addr{caller, c.addresses()[i], host} {
					cut(t, a.in, target)
				}
				if res := a.in("timeout", "1", probe, "tcp", at(host, 8048)); res.OK() {
					t.Errorf("an internal network reaches the host's published ports: %s", res)
				}
			}
			if len(arrives.seen()) == 0 {
				t.Errorf("no packet for %s came to the host, so nothing was tried", to)
			}
			reaches(t, b.in, to, b.addresses()[i])
			for _, line := range enters.until(t, b.addresses()[i].String()+" > "+to.String()) {
				if strings.Contains(line, caller.String()) || strings.Contains(line, c.addresses()[i].String()) {
					t.Errorf("a packet from outside came in: %s", line)
				}
			}
		}
	})
}

// routerAddress is where the host's route to a container leads: the address of the
// network's router on the link to the host.
func routerAddress(t *testing.T, r rig, to netip.Addr) netip.Addr {
	t.Helper()
	return netip.MustParseAddr(hostRoute(t, r, to, "via"))
}

// hostRoute is what the host's route to a container says of its next hop ("via") or of
// the host's own address on the way ("src").
func hostRoute(t *testing.T, r rig, to netip.Addr, what string) string {
	t.Helper()
	fields := strings.Fields(r.must(t, "ip", "route", "get", to.String()))
	for i, f := range fields[:len(fields)-1] {
		if f == what {
			return fields[i+1]
		}
	}
	t.Fatalf("the host's route to %s has no %q: %v", to, what, fields)
	return ""
}

// asked is how the line of the container's own question begins that reaches asks last.
func (b box) asked(from netip.Addr) string {
	to := out4
	if from.Is6() {
		to = out6
	}
	return fmt.Sprintf("> %s.7000:  %s", to, udp7000)
}

//go:build e2e

package docker_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// Each half of the plugin works with Docker's other half.
func TestHalves(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	r := newRig(t)
	for _, c := range []struct {
		name, within string
		args         []string
	}{
		{"driver", "", []string{"-d", "kuryr", wayOut}},
		{"driver-asked", "10.60.0.128/25", []string{
			"-d", "kuryr", "--subnet", "10.60.0.0/24", "--ip-range", "10.60.0.128/25", "--gateway",
			"10.60.0.9",
		}},
		{"ipam", "10.200.0.0/13", []string{"-d", "bridge", "--ipam-driver", "kuryr"}},
		{"ipam-asked", "10.61.0.128/25", []string{
			"-d", "bridge", "--ipam-driver", "kuryr", "--subnet", "10.61.0.0/24", "--ip-range",
			"10.61.0.128/25",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := len(r.list(t, "subnet"))
			t.Cleanup(func() { // the last of all cleanups
				if after := len(r.list(t, "subnet")); after != before {
					t.Errorf("%d subnets before, %d after", before, after)
				}
			})
			ours := slices.Contains(c.args[:2], "kuryr")
			r.create(t, c.name, append(append([]string{"network", "create"}, askingOut(c.args)...), c.name)...)
			a, b := r.run(t, c.name+"-a", c.name), r.run(t, c.name+"-b", c.name)
			inside(t, c.within, a.ip4, b.ip4)
			reaches(t, a.in, b.ip4, a.ip4)
			if !ours { // a bridge of Docker's
				reaches(t, a.in, out4, host4)
				reaches(t, r.sh, b.ip4, netip.Addr{})
				return
			}
			getsOut(t, a)
			r.reachedByHost(t, b.ip4)
		})
	}
}

// A network whose range the host routes elsewhere works but for the host, and the host's user is told.
func TestOverlapWithTheHost(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	needs(t, hostRoutes)
	r := newRig(t)
	r.must(t, "ip", "route", "add", "10.62.0.0/16", "dev", privatehost.Uplink)
	t.Cleanup(func() { r.must(t, "ip", "route", "del", "10.62.0.0/16") })
	r.network(t, "covered", "--subnet", "10.62.1.0/24")
	a, b := r.run(t, "covered-a", "covered"), r.run(t, "covered-b", "covered")
	reaches(t, a.in, b.ip4, a.ip4)
	getsOut(t, a)
	cut(t, r.sh, a.ip4)
	for _, command := range []string{"status", "topology"} {
		said := r.must(t, kuryr, command)
		if !strings.Contains(said, "10.62.1.0/24") || !strings.Contains(
			said, "overlaps the host's route 10.62.0.0/16 by "+privatehost.Uplink,
		) || !strings.Contains(said, "of covered") {
			t.Errorf("kuryr %s does not say that the host cannot reach the network:\n%s", command, said)
		}
	}
}

// Without an MTU asked for, both ends of everything have that of the host's uplink.
func TestNarrowUplink(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	needs(t, uplinkMTU)
	r := ownHost(t, "the uplink has an MTU of its own when Kuryr starts", privatehost.Options{KuryrLater: true})
	r.must(t, "ip", "link", "set", privatehost.Uplink, "mtu", "1400")
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if err := r.StartKuryr(ctx, nil, nil); err != nil {
		t.Fatal(err)
	}
	r.network(t, "narrow", "--ipv6", "--subnet", "10.63.0.0/24", "--subnet", "fd63::/64")
	a, b := r.run(t, "narrow-a", "narrow"), r.run(t, "narrow-b", "narrow")
	links := a.in("ip", "-o", "link").Stdout + r.must(
		t, "sh", "-c",
		"ip -o link | grep ' kr'; for n in /run/kuryr/netns/*; do nsenter --net=$n ip -o link; "+
			"done",
	)
	found := 0
	for line := range strings.Lines(links) {
		if strings.Contains(line, " lo:") {
			continue
		}
		found++
		if !strings.Contains(line, " mtu 1400 ") {
			t.Errorf("not the uplink's MTU: %s", line)
		}
	}
	// The container's, the host's end of the router's uplink and the router's own, the bridge, two ports.
	if found != 6 {
		t.Errorf("%d links, want 6:\n%s", found, links)
	}
	for _, to := range []struct {
		netip.Addr
		fits string
	}{{b.ip4, "1372"}, {out4, "1372"}, {b.ip6, "1352"}} {
		if res := a.in(
			"ping", "-n", "-c", "2", "-i", "0.2", "-W", "1", "-M", "do", "-s", to.fits, to.String(),
		); !strings.Contains(res.Stdout, "bytes from") {
			t.Errorf("a full packet does not pass: %s", res)
		}
	}
}

// Containers move from a network of Docker's bridge to one of Kuryr's while they run, and
// what they publish moves with them, as docs/moving.md tells; and back.
func TestMoving(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	r := newRig(t)
	r.create(t, "old", "network", "create", "-d", "bridge", "--subnet", "10.64.1.0/24", "old")
	web, db := r.run(t, "moves-web", "old", "-p", "8064:7000"), r.run(t, "moves-db", "old")
	reaches(t, web.in, db.ip4, web.ip4)
	r.network(t, "new", wayOut, "--subnet", "10.64.2.0/24")
	for _, to := range []string{"new", "old"} {
		from := map[string]string{"new": "old", "old": "new"}[to]
		r.docker(t, "network", "connect", to, "moves-web")
		r.docker(
			t, "network", "connect", "--ip",
			map[string]string{"new": "10.64.2.10", "old": "10.64.1.10"}[to], to, "moves-db",
		)
		r.docker(t, "network", "disconnect", from, "moves-web")
		r.docker(t, "network", "disconnect", from, "moves-db")
		works := func(when string) {
			t.Helper()
			web, db = r.look(t, "moves-web", to), r.look(t, "moves-db", to)
			reaches(t, web.in, db.ip4, web.ip4)
			if to == "new" {
				getsOut(t, web)
			} else {
				reaches(t, web.in, out4, host4)
			}
			web.only(t, 1)
			eventually(t, 10*time.Second, func() string {
				if res := r.outside(probe, "tcp", at(host4, 8064)); !res.OK() {
					return when + " the published port does not answer: " + res.String()
				}
				return ""
			})
			if got := r.docker(
				t, "exec", "moves-web", "ping", "-c", "1", "-W", "10", "moves-db",
			); !strings.Contains(got, db.ip4.String()) {
				t.Errorf("%s the name is not known:\n%s", when, got)
			}
		}
		works("on " + to)
		r.docker(t, "restart", "-t", "0", "moves-web", "moves-db")
		works("restarted on " + to)
	}
	r.docker(t, "network", "rm", "new")
	for _, noun := range []string{"network", "port", "floatingip"} {
		for _, left := range r.list(t, noun) {
			if strings.Contains(fmt.Sprint(left), "10.64.2.") || noun == "floatingip" {
				t.Errorf("kuryr %s list: %v", noun, left)
			}
		}
	}
}

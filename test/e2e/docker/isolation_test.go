//go:build e2e

package docker_test

import (
	"net/netip"
	"strings"
	"testing"
)

// What must not pass does not, and what joins on purpose does.
func TestIsolation(t *testing.T) {
	t.Parallel()
	isolation(t, newRig(t))
}

func isolation(t *testing.T, r rig) {
	t.Run("two networks", func(t *testing.T) {
		r.network(t, "left", wayOut, "--ipv6", "--subnet", "10.40.1.0/24", "--subnet", "fd40:1::/64")
		r.network(t, "right", wayOut, "--ipv6", "--subnet", "10.40.2.0/24", "--subnet", "fd40:2::/64")
		a, b := r.run(t, "left-a", "left"), r.run(t, "right-a", "right")
		c := r.run(t, "left-b", "left")
		reaches(t, a.in, c.ip4, a.ip4) // so that what follows is not a dead container's silence
		getsOut(t, a)
		for i, to := range b.addresses() {
			if to.Is6() && driver != "kuryr" {
				continue // Docker's bridge does not filter IPv6 here
			}
			cut(t, a.in, to)
			cut(t, b.in, a.addresses()[i])
		}
	})

	t.Run("from outside by way of the host", func(t *testing.T) {
		r.network(t, "hidden", wayOut, "--ipv6", "--subnet", "10.41.0.0/24", "--subnet", "fd41::/64")
		a := r.run(t, "hidden-a", "hidden")
		r.routeOutside(t, "10.41.0.0/24", host4)
		r.routeOutside(t, "fd41::/64", host6)
		reaches(t, a.in, out4, netip.Addr{})
		cut(t, r.outside, a.ip4)
		if driver == "kuryr" { // Docker's bridge does not filter IPv6 here
			cut(t, r.outside, a.ip6)
			// Nor by giving the packet to a router namespace's own address on the way.
			cut(t, r.outside, netip.MustParseAddr("10.41.0.1"))
		}
	})

	t.Run("internal", func(t *testing.T) {
		r.network(t, "inner", "--internal", "--subnet", "10.42.0.0/24")
		a, b := r.run(t, "inner-a", "inner"), r.run(t, "inner-b", "inner")
		reaches(t, a.in, b.ip4, a.ip4)
		cut(t, a.in, out4)
		r.routeOutside(t, "10.42.0.0/24", host4)
		cut(t, r.outside, a.ip4)
		// Nor when the container is given a default route of its own.
		a.in("ip", "route", "replace", "default", "via", "10.42.0.1")
		cut(t, a.in, out4)
	})

	t.Run("boundary", func(t *testing.T) { boundary(t, r) })

	t.Run("the same subnet twice", func(t *testing.T) {
		onlyKuryr(t)
		r.network(t, "same1", wayOut, "--subnet", "10.43.0.0/24")
		r.network(t, "same2", wayOut, "--subnet", "10.43.0.0/24")
		a1, b1 := r.run(t, "same1-a", "same1", "--ip", "10.43.0.10"), r.run(t, "same1-b", "same1", "--ip", "10.43.0.11")
		a2, b2 := r.run(t, "same2-a", "same2", "--ip", "10.43.0.10"), r.run(t, "same2-b", "same2", "--ip", "10.43.0.12")
		reaches(t, a1.in, b1.ip4, a1.ip4)
		reaches(t, a2.in, b2.ip4, a2.ip4)
		cut(t, a1.in, b2.ip4)
		cut(t, a2.in, b1.ip4)
		for _, b := range []box{a1, b1, a2, b2} {
			getsOut(t, b)
		}
	})

	t.Run("one router for two networks", func(t *testing.T) {
		onlyKuryr(t)
		r.network(t, "joined1", "--ipv6", "--subnet", "10.44.1.0/24", "--subnet", "fd44:1::/64", "-o", "kuryr.router=shared")
		r.network(t, "joined2", "--ipv6", "--subnet", "10.44.2.0/24", "--subnet", "fd44:2::/64", "-o", "kuryr.router=shared")
		r.network(t, "apart", "--subnet", "10.44.3.0/24", "-o", "kuryr.router=other")
		a, b, c := r.run(t, "joined1-a", "joined1"), r.run(t, "joined2-a", "joined2"), r.run(t, "apart-a", "apart")
		for i, to := range b.addresses() {
			reaches(t, a.in, to, a.addresses()[i])
			reaches(t, b.in, a.addresses()[i], to)
		}
		if has(sharedGateway) {
			getsOut(t, a)
			getsOut(t, b)
		}
		cut(t, a.in, c.ip4)
		cut(t, c.in, b.ip4)
		// A router takes no second network that overlaps its first.
		r.refused(t, []string{"overlap"}, createArgs("joined3", "--subnet", "10.44.1.128/25", "-o", "kuryr.router=shared")...)
		// One of the two goes, the other stays whole.
		r.docker(t, "rm", "-f", "joined1-a")
		r.docker(t, "network", "rm", "joined1")
		d := r.run(t, "joined2-b", "joined2")
		reaches(t, b.in, d.ip4, b.ip4)
		if has(sharedGateway) {
			getsOut(t, b)
		}
	})

	t.Run("beside Docker's own bridge", func(t *testing.T) {
		onlyKuryr(t)
		r.docker(t, "network", "create", "-d", "bridge", "--subnet", "10.45.1.0/24", "dockers")
		t.Cleanup(func() { r.sh("docker", "network", "rm", "dockers") })
		r.network(t, "ours", wayOut, "--subnet", "10.45.2.0/24")
		a, b := r.run(t, "dockers-a", "dockers"), r.run(t, "ours-a", "ours")
		cut(t, a.in, b.ip4)
		cut(t, b.in, a.ip4)
		reaches(t, a.in, out4, host4)
		getsOut(t, b)
		if rules := r.must(t, "iptables-save"); strings.Contains(rules, "DOCKER-USER") &&
			has(ownKernel) && !strings.Contains(rules, "--comment kuryr") {
			t.Errorf("the owners' tool no longer reads the rules:\n%s", rules)
		}
	})
}

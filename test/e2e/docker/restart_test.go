//go:build e2e

package docker_test

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// Forty containers started at once (fewer on Neutron) all have addresses of their own and all talk.
func TestFortyAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := 40
	// the lab's makes two or three ports a second, and a start waits for its own as long
	// as a call of Docker's does
	if onNeutron {
		n = 8
	}
	r.network(t, "crowd", "--subnet", "10.60.0.0/24")
	var wg sync.WaitGroup
	results := make([]privatehost.Result, n)
	for i := range n {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
			defer cancel()
			results[i] = r.Docker(
				ctx, "run", "-d", "--name", fmt.Sprintf("crowd-%d", i), "--network", "crowd", "box",
				"probe", "serve", port,
			)
		})
	}
	wg.Wait()
	names := []string{"docker", "rm", "-f"}
	for i, res := range results {
		if !res.OK() {
			t.Errorf("container %d: %s", i, res)
		}
		names = append(names, fmt.Sprintf("crowd-%d", i))
	}
	t.Cleanup(func() { r.sh(names...) })
	if t.Failed() {
		return
	}
	boxes := make([]box, n)
	seen4, seenMAC := map[netip.Addr]string{}, map[string]string{}
	for i := range n {
		b := r.look(t, fmt.Sprintf("crowd-%d", i), "crowd")
		if other := seen4[b.ip4] + seenMAC[b.mac]; other != "" {
			t.Errorf("%s has an address of %s: %s %s", b.name, other, b.ip4, b.mac)
		}
		seen4[b.ip4], seenMAC[b.mac] = b.name, b.name
		boxes[i] = b
	}
	for i, b := range boxes {
		to := boxes[(i+1)%n]
		if res := b.in(probe, "tcp", netip.AddrPortFrom(to.ip4, 7000).String()); res.Out() != b.ip4.String() {
			t.Errorf("%s to %s: %s", b.name, to.name, res)
		}
	}
	getsOut(t, boxes[0])
	// They also all go at once, and their addresses with them.
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if res := r.Exec(ctx, names...); !res.OK() {
		t.Error(res)
	}
	if driver == "kuryr" {
		eventually(t, 10*time.Second, func() string {
			for _, p := range r.list(t, "port") {
				if text := fmt.Sprint(p); strings.Contains(text, "10.60.0.") &&
					!strings.Contains(text, "10.60.0.1 ") && !strings.Contains(text, "10.60.0.1]") {
					return "a port stays: " + text
				}
			}
			return ""
		})
	}
	removeCrowd(ctx, t, r)
}

// removeCrowd removes the network of many that went at once. Docker 20.10 may lose count
// of its endpoints then, and says "has active endpoints" of a network on which it has
// none; it counts them again, and tells so in its log, when it starts. Nothing else
// excuses it.
func removeCrowd(ctx context.Context, t *testing.T, r rig) {
	t.Helper()
	res := r.sh("docker", "network", "rm", "crowd")
	if res.OK() {
		return
	}
	if !strings.Contains(res.Stderr, "has active endpoints") {
		t.Fatal(res)
	}
	if n := r.must(t, "docker", "network", "inspect", "-f", "{{len .Containers}}", "crowd"); strings.TrimSpace(n) != "0" {
		t.Fatalf("%s\nwith %s containers on it", res, n)
	}
	if err := r.StopDocker(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := r.StartDocker(ctx); err != nil {
		t.Fatal(err)
	}
	if log := r.Logs(2000); !strings.Contains(log, "Fixing inconsistent endpoint_cnt") {
		t.Errorf("the engine had not lost count, yet: %s", res)
	}
	if res := r.sh("docker", "network", "rm", "crowd"); !res.OK() {
		t.Error(res)
	}
}

// Kuryr goes and comes back, the engine goes and comes back, the machine reboots: containers keep talking, or do again.
func TestRestarts(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	r := ownHost(t, "reboots the host", privatehost.Options{})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	r.created(t, createArgs("steady", wayOut, "--ipv6", "--subnet", "10.70.0.0/24", "--subnet", "fd70::/64")...)
	a := r.run(t, "steady-a", "steady", "--restart", "always")
	b := r.run(t, "steady-b", "steady", "--restart", "always")
	reaches(t, a.in, b.ip4, a.ip4)
	reaches(t, a.in, b.ip6, a.ip6)
	getsOut(t, a)

	// quiet pings between the containers and outwards while f happens.
	quiet := func(t *testing.T, f func()) {
		t.Helper()
		inner, outer, six := a.pingOn(t, b.ip4), a.pingOn(t, out4), a.pingOn(t, b.ip6)
		time.Sleep(300 * time.Millisecond)
		f()
		time.Sleep(300 * time.Millisecond)
		for what, s := range map[string]*stream{
			"between containers": inner, "outwards": outer, "between containers, IPv6": six,
		} {
			if sent, lost := s.lost(t); lost > 1 || sent < 5 {
				t.Errorf("%s: %d of %d packets lost", what, lost, sent)
			}
		}
	}
	start := func(t *testing.T) {
		t.Helper()
		if err := r.StartKuryr(ctx, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	// works checks that the network takes a new container after what happened.
	works := func(t *testing.T, name string) {
		t.Helper()
		c := r.run(t, name, "steady")
		if slices.Contains([]netip.Addr{a.ip4, b.ip4}, c.ip4) {
			t.Errorf("%s has the address of another: %s", name, c.ip4)
		}
		reaches(t, c.in, a.ip4, c.ip4)
		reaches(t, c.in, a.ip6, c.ip6)
		getsOut(t, c)
		r.reachedByHost(t, c.ip4)
		r.consistent(t)
	}

	t.Run("kill -9", func(t *testing.T) {
		quiet(t, func() {
			if err := r.KillKuryr(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			time.Sleep(500 * time.Millisecond)
			start(t)
		})
		works(t, "after-kill")
	})
	t.Run("SIGTERM", func(t *testing.T) {
		quiet(t, func() {
			if err := r.KillKuryr(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			time.Sleep(500 * time.Millisecond)
			reaches(t, a.in, b.ip4, a.ip4) // also new connections
			getsOut(t, a)
			start(t)
		})
		works(t, "after-term")
	})
	t.Run("a container removed while Kuryr was away", func(t *testing.T) {
		r.run(t, "orphan", "steady", "--ip", "10.70.0.200")
		if err := r.KillKuryr(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		// The engine tries for a while, then forgets the endpoint; Kuryr is never told again.
		done := make(chan privatehost.Result, 1)
		go func() { done <- r.Docker(ctx, "rm", "-f", "orphan") }()
		time.Sleep(500 * time.Millisecond)
		start(t)
		if res := <-done; !res.OK() {
			t.Error(res)
		}
		works(t, "after-orphan")
	})
	t.Run("firewall flushed", func(t *testing.T) {
		for _, flush := range [][]string{{"iptables", "-F"}, {"nft", "flush", "ruleset"}} {
			r.must(t, flush...)
			for _, to := range []netip.Addr{out4, out6} {
				if to == out6 && !has(outIPv6) {
					continue
				}
				eventually(t, 15*time.Second, func() string {
					if res := ping(a.in, to); !strings.Contains(res.Stdout, "bytes from") {
						return fmt.Sprintf("after %s nothing gets out: %s", strings.Join(flush, " "), res)
					}
					return ""
				})
			}
			getsOut(t, a)
		}
	})
	t.Run("engine restarted", func(t *testing.T) {
		if err := r.StopDocker(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := r.StartDocker(ctx); err != nil {
			t.Fatal(err)
		}
		a, b = r.back(t, "steady-a"), r.back(t, "steady-b")
		reaches(t, a.in, b.ip4, a.ip4)
		works(t, "after-engine")
	})
	t.Run("reboot", func(t *testing.T) {
		if err := r.Reboot(ctx); err != nil {
			t.Fatal(err)
		}
		a, b = r.back(t, "steady-a"), r.back(t, "steady-b")
		reaches(t, a.in, b.ip4, a.ip4)
		reaches(t, a.in, b.ip6, a.ip6)
		works(t, "after-reboot")
	})
	t.Run("all removed", func(t *testing.T) {
		r.sh("sh", "-c", "docker ps -aq | xargs -r docker rm -f")
		r.docker(t, "network", "rm", "steady")
		eventually(t, 15*time.Second, func() string {
			if left := r.list(t, "network"); len(left) > 0 {
				return fmt.Sprint("networks stay: ", left)
			}
			if left := r.list(t, "port"); len(left) > 0 {
				return fmt.Sprint("ports stay: ", left)
			}
			return ""
		})
	})
}

// back waits for a container that restarts by itself.
func (r rig) back(t *testing.T, name string) box {
	t.Helper()
	return r.backOn(t, name, "steady")
}

func (r rig) backOn(t *testing.T, name, network string) box {
	t.Helper()
	eventually(t, 30*time.Second, func() string {
		if res := r.sh("docker", "inspect", "-f", "{{.State.Running}}", name); res.Out() != "true" {
			return name + " does not run: " + res.String()
		}
		return ""
	})
	return r.look(t, name, network)
}

// With live restore the engine leaves its containers alone, and so does Kuryr.
func TestLiveRestore(t *testing.T) {
	t.Parallel()
	r := ownHost(t, "engine flags", privatehost.Options{DockerFlags: []string{"--live-restore"}})
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	r.network(t, "live", "--subnet", "10.71.0.0/24")
	a, b := r.run(t, "live-a", "live"), r.run(t, "live-b", "live")
	s := a.pingOn(t, b.ip4)
	if err := r.StopDocker(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := r.StartDocker(ctx); err != nil {
		t.Fatal(err)
	}
	if sent, lost := s.lost(t); lost > 1 || sent < 5 {
		t.Errorf("%d of %d packets lost", lost, sent)
	}
	c := r.run(t, "live-c", "live")
	reaches(t, c.in, a.ip4, c.ip4)
}

// ourNames are names that Kuryr makes for one object: of links, namespaces and firewall elements.
var ourNames = regexp.MustCompile(`\b(kr|tap)[-_]?[0-9a-f]{4,}`)

// Whatever was made is taken away: with the objects what belongs to them, and by "kuryr down --purge" everything.
func TestNothingIsLeft(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	r := ownHost(t, "compares with a host on which Kuryr never ran", privatehost.Options{KuryrLater: true})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	look := func() privatehost.Snapshot {
		t.Helper()
		s, err := r.Snapshot(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	bare := look()
	if err := r.StartKuryr(ctx, nil, nil); err != nil {
		t.Fatal(err)
	}
	r.must(t, kuryr, "status")
	up := look()
	for i := range 3 {
		name := fmt.Sprintf("gone-%d", i)
		r.created(
			t,
			createArgs(
				name, wayOut, "--ipv6", "--subnet", fmt.Sprintf("10.80.%d.0/24", i), "--subnet",
				fmt.Sprintf("fd80:%d::/64", i),
			)...,
		)
		a, b := r.run(t, name+"-a", name), r.run(t, name+"-b", name)
		reaches(t, a.in, b.ip4, a.ip4)
		getsOut(t, a)
	}
	if diff := up.Diff(look(), privatehost.Namespaces, privatehost.Links); len(diff) < 3 {
		t.Errorf("three networks leave hardly a trace, so their end cannot be seen either: %q", diff)
	}
	for i := range 3 {
		name := fmt.Sprintf("gone-%d", i)
		r.docker(t, "rm", "-f", name+"-a", name+"-b")
		r.docker(t, "network", "rm", name)
	}
	eventually(t, 15*time.Second, func() string {
		now := look()
		diff := up.Diff(
			now, privatehost.Links, privatehost.Addresses, privatehost.Routes, privatehost.Rules,
			privatehost.Namespaces,
		)
		for _, line := range up.Diff(now, privatehost.Firewall) {
			if strings.HasPrefix(line, "+") && (ourNames.MatchString(line) ||
				strings.Contains(line, "10.80.") || regexp.MustCompile(`fd80:[0-2]::`).MatchString(line)) {
				diff = append(diff, line)
			}
		}
		return strings.Join(diff, "\n")
	})
	for _, noun := range []string{"network", "subnet", "port", "router"} {
		if left := r.list(t, noun); len(left) > 0 {
			t.Errorf("kuryr %s list: %v", noun, left)
		}
	}
	r.must(t, kuryr, "status")
	if err := r.KillKuryr(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if has(ownKernel) {
		r.must(t, kuryr, "down", "--purge")
	}
	eventually(t, 5*time.Second, func() string { return strings.Join(bare.Diff(look()), "\n") })
	if res := r.sh(kuryr, "status"); res.OK() {
		t.Errorf("kuryr is down, and its status is fine: %s", res)
	}
}

// Docker that starts after Kuryr finds forwarding on, and relies on it: it stays on when
// Kuryr leaves, and the command says so.
func TestBootOrder(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	needs(t, ownKernel)
	r := ownHost(t, "reboots, with Kuryr before Docker", privatehost.Options{KuryrLater: true})
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if err := r.StartKuryr(ctx, nil, nil); err != nil {
		t.Fatal(err)
	}
	r.network(t, "blue", "--subnet", "10.74.0.0/24")
	if err := r.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	r.docker(t, "network", "rm", "blue")
	r.docker(t, "run", "-d", "--name", "bridged", "box", "probe", "serve", port)
	out := r.must(t, kuryr, "down", "--purge")
	if !strings.Contains(out, "net.ipv4.ip_forward stays 1, for docker0") {
		t.Errorf("down --purge does not say that forwarding stays: %s", out)
	}
	if res := r.sh("docker", "exec", "bridged", "probe", "tcp", at(out4, 7000)); !res.OK() {
		t.Errorf("a container on docker0 lost the outside: %s", res)
	}
}

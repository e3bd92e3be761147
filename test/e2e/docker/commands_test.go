//go:build e2e

package docker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// agree checks that Docker and Kuryr know the same containers, so many, by their addresses on a network.
func agree(t *testing.T, r rig, network string, want int) {
	t.Helper()
	eventually(t, 10*time.Second, func() string {
		var docker []struct {
			Containers map[string]struct{ IPv4Address, MacAddress string }
		}
		text := r.docker(t, "network", "inspect", network)
		if err := json.Unmarshal([]byte(text), &docker); err != nil {
			t.Fatal(err)
		}
		all, ports := r.list(t, "port"), 0
		for _, p := range all {
			if !strings.HasPrefix(fmt.Sprint(p["device_owner"]), "network:") {
				ports++
			}
		}
		for _, c := range docker[0].Containers {
			addr, _, _ := strings.Cut(c.IPv4Address, "/")
			found := false
			for _, p := range all {
				found = found || p["mac_address"] == c.MacAddress && strings.Contains(fmt.Sprint(p["fixed_ips"]), addr)
			}
			if !found {
				return fmt.Sprintf("Kuryr has no port %s with %s: %v", c.MacAddress, addr, all)
			}
		}
		if len(docker[0].Containers) != want || ports != want {
			return fmt.Sprintf(
				"Docker has %d containers on %s, Kuryr %d ports, want %d:\n%s\n%v",
				len(docker[0].Containers), network, ports, want, text, all,
			)
		}
		return ""
	})
}

// The commands of a container's life, but for those that TestObjects has.
func TestCommands(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	r := newRig(t)

	t.Run("pause", func(t *testing.T) {
		r.network(t, "paused", "--subnet", "10.110.0.0/24")
		a, b := r.run(t, "paused-a", "paused"), r.run(t, "paused-b", "paused")
		r.docker(t, "pause", "paused-b")
		if res := a.in("timeout", "1", probe, "tcp", at(b.ip4, 7000)); res.OK() {
			t.Errorf("a paused container answers: %s", res)
		}
		agree(t, r, "paused", 2)
		r.docker(t, "unpause", "paused-b")
		reaches(t, a.in, b.ip4, a.ip4)
	})
	t.Run("rename", func(t *testing.T) {
		r.network(t, "renamed", "--subnet", "10.110.1.0/24")
		a, b := r.run(t, "renamed-a", "renamed"), r.run(t, "renamed-b", "renamed", "-p", "8110:7000")
		t.Cleanup(func() { r.sh("docker", "rm", "-f", "renamed-c") })
		r.docker(t, "rename", "renamed-b", "renamed-c")
		if got := r.docker(
			t, "exec", "renamed-a", "ping", "-c", "1", "-W", "10", "renamed-c",
		); !strings.Contains(got, b.ip4.String()) {
			t.Errorf("the new name is not known:\n%s", got)
		}
		reaches(t, a.in, b.ip4, a.ip4)
		answers(t, r, host4, 8110)
		r.docker(t, "restart", "-t", "0", "renamed-c")
		answers(t, r, host4, 8110)
		r.docker(t, "rm", "-f", "renamed-c")
		agree(t, r, "renamed", 1)
		silent(t, r, host4, 8110)
	})
	t.Run("connected while it stands still", func(t *testing.T) { standsStill(t, r) })
	t.Run("a namespace of two, of the host, of none", func(t *testing.T) {
		r.network(t, "lent", "--subnet", "10.112.0.0/24")
		a, b := r.run(t, "lent-a", "lent"), r.run(t, "lent-b", "lent")
		t.Cleanup(func() { r.sh("docker", "rm", "-f", "guest") })
		r.docker(t, "run", "-d", "--name", "guest", "--network", "container:lent-a", "box", "probe", "serve", "7001")
		agree(t, r, "lent", 2)
		if res := b.in(probe, "tcp", at(a.ip4, 7001)); res.Out() != b.ip4.String() {
			t.Errorf("the guest does not answer at its host's address: %s", res)
		}
		r.docker(t, "rm", "-f", "guest")
		reaches(t, b.in, a.ip4, b.ip4)
		if got := r.docker(
			t, "run", "--rm", "--network", "host", "box", "ip", "addr",
		); !strings.Contains(got, privatehost.Uplink) {
			t.Errorf("a container in the host's namespace does not see its links:\n%s", got)
		}
		if got := r.docker(t, "run", "--rm", "--network", "none", "box", "ip", "link"); strings.Contains(got, "eth0") {
			t.Errorf("a container without network has one:\n%s", got)
		}
		if res := r.sh("docker", "network", "connect", "lent", "guest"); res.OK() {
			t.Errorf("a container that is gone was connected: %s", res)
		}
		agree(t, r, "lent", 2)
	})
	t.Run("cp and exec", func(t *testing.T) {
		r.network(t, "copied", wayOut, "--subnet", "10.113.0.0/24")
		a := r.run(t, "copied-a", "copied")
		file := filepath.Join(t.TempDir(), "note")
		if err := os.WriteFile(file, []byte("hello"), 0o644); err != nil {
			t.Fatal(err)
		}
		r.docker(t, "cp", file, "copied-a:/tmp/note")
		if got := r.docker(t, "exec", "copied-a", "cat", "/tmp/note"); got != "hello" {
			t.Errorf("copied: %q", got)
		}
		r.docker(t, "cp", "copied-a:/tmp/note", file+"2")
		getsOut(t, a)
		r.docker(t, "exec", "copied-a", "ping", "-c", "1", "-W", "10", out4.String())
	})
	t.Run("on-failure", func(t *testing.T) {
		r.network(t, "fails", wayOut, "--subnet", "10.114.0.0/24")
		t.Cleanup(func() { r.sh("docker", "rm", "-f", "fails-a") })
		r.docker(
			t, "run", "-d", "--name", "fails-a", "--network", "fails", "--restart", "on-failure:3",
			"-p", "8114:7000", "box", "sh", "-c",
			"for i in 1 2 3 4 5 6 7 8 9; do ping -c 1 -W 2 "+out4.String()+" && exit 3; done",
		)
		within := 20 * time.Second
		if onNeutron {
			within = 4 * patience // each start has a new port, which waits for its way out
		}
		eventually(t, within, func() string {
			if got := r.docker(
				t, "inspect", "-f", "{{.RestartCount}} {{.State.Status}} {{.State.ExitCode}}",
				"fails-a",
			); got != "3 exited 3" {
				return "the container's restarts, state and exit status: " + got
			}
			return ""
		})
		agree(t, r, "fails", 0)
		silent(t, r, host4, 8114)
	})
	t.Run("a start that fails", func(t *testing.T) {
		r.network(t, "taken", "--subnet", "10.118.0.0/24")
		r.run(t, "taken-a", "taken", "-p", "8118:7000")
		t.Cleanup(func() { r.sh("docker", "rm", "-f", "taken-b") })
		// The engine leaves once or twice then, by its version, and deletes the endpoint.
		r.refused(
			t, []string{"8118"}, "run", "-d", "--name", "taken-b", "--network", "taken", "-p",
			"8118:7000", "box", "probe", "serve", port,
		)
		agree(t, r, "taken", 1)
		answers(t, r, host4, 8118)
		// started again, it would have no network on Docker 29, nor one on a bridge
		r.docker(t, "rm", "-f", "taken-a", "taken-b")
		r.run(t, "taken-b", "taken", "-p", "8118:7000")
		agree(t, r, "taken", 1)
		answers(t, r, host4, 8118)
		r.docker(t, "rm", "-f", "taken-b")
		silent(t, r, host4, 8118)
		r.refused(t, nil, "run", "-d", "--name", "taken-b", "--network", "taken", "-p", "8118:7000", "box", "no-such-program")
		agree(t, r, "taken", 0)
		silent(t, r, host4, 8118)
	})
	t.Run("prune", func(t *testing.T) {
		r.network(t, "used", "--subnet", "10.115.1.0/24")
		r.run(t, "used-a", "used")
		before := len(r.list(t, "network"))
		for i := range 3 {
			r.docker(t, createArgs(fmt.Sprintf("idle-%d", i), "--subnet", fmt.Sprintf("10.115.%d.0/24", i+2))...)
		}
		if said := r.docker(t, "network", "prune", "-f"); strings.Count(said, "idle-") != 3 ||
			strings.Contains(said, "used") {
			t.Errorf("not the idle networks alone: %s", said)
		}
		for noun, want := range map[string]int{"network": before, "subnet": before, "subnetpool": before} {
			if left := r.list(t, noun); len(left) != want {
				t.Errorf("kuryr has %d of %s, want %d: %v", len(left), noun, want, left)
			}
		}
		r.docker(t, createArgs("idle", "--subnet", "10.115.9.0/24")...)
		r.run(t, "idle-a", "idle", "-p", "8115:7000")
		r.docker(t, "stop", "-t", "0", "idle-a")
		if said := r.docker(t, "system", "prune", "-f"); !strings.Contains(said, "idle") || strings.Contains(said, "used") {
			t.Errorf("not what is idle alone: %s", said)
		}
		if left := r.list(t, "network"); len(left) != before {
			t.Errorf("%d networks, want %d: %v", len(left), before, left)
		}
		silent(t, r, host4, 8115)
		a := r.look(t, "used-a", "used")
		getsOut(t, a)
	})
}

// standsStill connects and disconnects a container that does not run, which takes effect at its start.
func standsStill(t *testing.T, r rig) {
	for i, name := range []string{"fore", "mid", "aft"} {
		r.network(t, name, "--subnet", fmt.Sprintf("10.116.%d.0/24", i+1))
	}
	b, c := r.run(t, "mid-b", "mid"), r.run(t, "aft-c", "aft")
	t.Cleanup(func() { r.sh("docker", "rm", "-f", "still") })
	r.docker(
		t, "create", "--name", "still", "--network", "fore", "--ip", "10.116.1.50",
		"--stop-timeout", "1", "box", "probe", "serve", port,
	)
	r.docker(t, "network", "connect", "--alias", "db", "--ip", "10.116.2.50", "mid", "still")
	r.docker(t, "start", "still")
	a, second := r.look(t, "still", "fore"), r.look(t, "still", "mid")
	if a.ip4.String() != "10.116.1.50" || second.ip4.String() != "10.116.2.50" {
		t.Errorf("not the addresses asked for: %s, %s", a.ip4, second.ip4)
	}
	reaches(t, a.in, b.ip4, second.ip4)
	getsOut(t, a)
	cut(t, a.in, c.ip4)
	if got := r.docker(t, "exec", "mid-b", "ping", "-c", "1", "-W", "10", "db"); !strings.Contains(got, "10.116.2.50") {
		t.Errorf("the alias is not known:\n%s", got)
	}
	r.docker(t, "stop", "-t", "0", "still")
	r.docker(t, "network", "connect", "aft", "still")
	r.docker(t, "network", "disconnect", "mid", "still")
	if ports := r.list(t, "port"); strings.Contains(fmt.Sprint(ports), "10.116.2.50") {
		t.Errorf("a container that stands still has a port: %v", ports)
	}
	r.docker(t, "start", "still")
	a = r.look(t, "still", "fore")
	reaches(t, a.in, c.ip4, r.look(t, "still", "aft").ip4)
	getsOut(t, a)
	cut(t, a.in, b.ip4)
	r.docker(t, "rm", "-f", "still", "mid-b", "aft-c")
	agree(t, r, "fore", 0)
}

// Docker comes back with the containers that its restart policies name, and with the same networks.
func TestPolicies(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	r := newRig(t)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	r.network(t, "kept", "--ipv6", "--subnet", "10.117.0.0/24", "--subnet", "fd17::/64")
	for i, policy := range []string{"always", "on-failure", "unless-stopped", "no"} {
		r.run(
			t, "kept-"+policy, "kept", "--restart", policy, "--ip",
			fmt.Sprintf("10.117.0.%d", 100+i), "-p", fmt.Sprintf("%d:7000", 8117+i),
		)
	}
	r.run(t, "kept-halted", "kept", "--restart", "unless-stopped")
	r.docker(t, "stop", "-t", "0", "kept-halted")
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(sig.String(), func(t *testing.T) {
			if err := r.StopDocker(sig); err != nil {
				t.Fatal(err)
			}
			if err := r.StartDocker(ctx); err != nil {
				t.Fatal(err)
			}
			running := 0
			var last box
			for i, policy := range []string{"always", "on-failure", "unless-stopped", "no"} {
				name := "kept-" + policy
				if policy == "always" { // which of the others Docker starts depends on how it ended
					r.backOn(t, name, "kept")
				}
				if r.docker(t, "inspect", "-f", "{{.State.Running}}", name) != "true" {
					if res := r.outside("timeout", "1", probe, "tcp", at(host4, 8117+i)); res.OK() {
						t.Errorf("the port of %s, which does not run, answers: %s", name, res)
					}
					continue
				}
				running++
				last = r.look(t, name, "kept")
				if want := fmt.Sprintf("10.117.0.%d", 100+i); last.ip4.String() != want {
					t.Errorf("%s has %s, not %s", name, last.ip4, want)
				}
				eventually(t, 10*time.Second, func() string {
					if res := r.outside(probe, "tcp", at(host4, 8117+i)); !res.OK() {
						return res.String()
					}
					return ""
				})
				getsOut(t, last)
			}
			agree(t, r, "kept", running)
			if got := r.docker(t, "inspect", "-f", "{{.State.Running}}", "kept-halted"); got != "false" {
				t.Error("a stopped container runs")
			}
			if left := r.list(t, "floatingip"); has(translation) && len(left) != 2*running {
				t.Errorf("publications of %d containers in two families: %v", running, left)
			}
			// What does not run has given its address back.
			if r.docker(t, "inspect", "-f", "{{.State.Running}}", "kept-no") == "false" {
				if c := r.run(t, "kept-new", "kept", "--ip", "10.117.0.103"); last.name != "" {
					reaches(t, c.in, last.ip4, netip.MustParseAddr("10.117.0.103"))
				}
				r.docker(t, "rm", "-f", "kept-new")
			}
			r.consistent(t)
		})
	}
}

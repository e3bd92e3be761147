//go:build e2e

package docker_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// managed is Kuryr's name as a managed plugin: Docker adds the tag, and wants it in the names of drivers.
const managed = "kuryr:latest"

// newPluginRig boots a host for one test alone. Its engine has Kuryr as a managed plugin, which is not enabled yet.
// Commands in before are run before the engine starts.
func newPluginRig(t *testing.T, opts privatehost.Options, before ...[]string) rig {
	t.Helper()
	onlyKuryr(t)
	needs(t, managedPlugin)
	t.Log("boots a host of its own: the engine starts without Kuryr and has it as a managed plugin")
	folder := pluginFolder(t)
	opts.Dockerd = os.Getenv("KURYR_E2E_DOCKERD")
	opts.DockerFlags = append(opts.DockerFlags, strings.Fields(os.Getenv("KURYR_E2E_DOCKERD_FLAGS"))...)
	r := rig{Host: privatehost.Start(t, opts)}
	r.shareMounts(t)
	for _, argv := range before {
		r.must(t, argv...)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := r.StartDocker(ctx); err != nil {
		t.Fatal(err)
	}
	if err := importBox(ctx, r.Host); err != nil {
		t.Fatal(err)
	}
	r.serveOutside(t)
	r.docker(t, "plugin", "create", "kuryr", folder)
	return r
}

func pluginFolder(t *testing.T) string {
	t.Helper()
	folder := filepath.Join(filepath.Dir(kuryr), "docker-plugin")
	if _, err := os.Stat(filepath.Join(folder, "config.json")); err != nil {
		t.Fatal("no plugin to test, run \"make docker-plugin\" first: ", err)
	}
	return folder
}

// shareMounts makes the host's mounts shared, as init does on every machine at boot, and
// has a runc there that the engine's plugins start with.
func (r rig) shareMounts(t *testing.T) {
	t.Helper()
	r.must(t, "mount", "--make-rshared", "/")
	runc, err := pluginRunc()
	if err != nil {
		t.Fatal(err)
	}
	if runc != "" {
		r.must(t, "mount", "--bind", runc, debianRunc)
	}
}

const debianRunc = "/usr/sbin/runc"

// timeless is a runc for those from before 1.2, which refuse what they do not know:
// Docker 29 gives plugins a time namespace, whatever it is told of them (containers it
// spares). It is taken out of the configuration, and all else is as the engine wants it.
const timeless = `#!/bin/sh
last=
for word; do
  case $last in --bundle | -b) sed -i 's/,{"type":"time"}//; s/{"type":"time"},//' "$word/config.json" ;; esac
  last=$word
done
exec "%s" "$@"
`

// pluginRunc is the runc that goes before Debian's, "" where that one will do. KURYR_E2E_RUNC names another.
var pluginRunc = sync.OnceValues(func() (string, error) {
	if runc := os.Getenv("KURYR_E2E_RUNC"); runc != "" {
		return runc, nil
	}
	major, err := privatehost.EngineMajor(privatehost.Options{})
	if err != nil || major < 29 {
		return "", err
	}
	said, err := exec.CommandContext(context.Background(), debianRunc, "--version").Output()
	if err != nil || !regexp.MustCompile(`^runc version 1\.[01]\b`).Match(said) {
		return "", err
	}
	dir := filepath.Dir(probe) // goes with the last test
	program, err := os.ReadFile(debianRunc)
	if err != nil {
		return "", err
	}
	own := filepath.Join(dir, "runc-own")
	if err := os.WriteFile(own, program, 0o755); err != nil {
		return "", err
	}
	script := filepath.Join(dir, "runc")
	return script, os.WriteFile(script, fmt.Appendf(nil, timeless, own), 0o755)
})

// pluginPid is the plugin's process as the host sees it.
func (r rig) pluginPid(t *testing.T) string {
	t.Helper()
	for line := range strings.Lines(r.must(t, "ps", "-eo", "pid,args")) {
		if f := strings.Fields(line); len(f) == 3 && f[1] == "/usr/bin/kuryr" && f[2] == "docker" {
			return f[0]
		}
	}
	t.Fatal("the plugin has no process")
	return ""
}

// pluginClean checks what the host's command says of the plugin through the socket that it has in the host's /run.
func (r rig) pluginClean(t *testing.T) {
	t.Helper()
	if res := r.sh(kuryr, "status"); !res.OK() || has(ownKernel) && !strings.Contains(res.Stdout, "none: packets pass") {
		t.Errorf("not clean: %s", res)
	}
	r.consistent(t)
}

// nothingForgotten checks that nothing was removed for Docker's having forgotten it, nor
// would be: on demand what is due is too.
func (r rig) nothingForgotten(t *testing.T) {
	t.Helper()
	r.healthy(t)
	if d := r.doctor(t, "--fix", "--now"); d.Verdict != "ok" || len(d.Fixed)+len(d.Failed) > 0 {
		t.Errorf("--fix does something: %+v", d)
	}
	for line := range strings.Lines(
		r.must(t, "curl", "-s", "--unix-socket", "/run/kuryr/kuryr.sock", "http://kuryr/metrics"),
	) {
		if strings.HasPrefix(line, `kuryr_intent_orphans_total{`) && !strings.HasSuffix(line, " 0\n") {
			t.Errorf("removed: %s", line)
		}
	}
}

// answers waits until the plugin's Kuryr is there, by its command.
func (r rig) answers(t *testing.T) {
	t.Helper()
	eventually(t, 20*time.Second, func() string {
		if res := r.sh(kuryr, "status"); !res.OK() {
			return res.String()
		}
		return ""
	})
}

// running waits for a container that restarts by itself.
func (r rig) running(t *testing.T, name string) {
	t.Helper()
	eventually(t, 30*time.Second, func() string {
		if res := r.sh("docker", "inspect", "-f", "{{.State.Running}}", name); res.Out() != "true" {
			return name + " does not run: " + res.String()
		}
		return ""
	})
}

// A managed plugin is killed, disabled, replaced by another, and the engine around it
// stops: what runs on its networks notices nothing.
func TestManagedPlugin(t *testing.T) {
	t.Parallel()
	r := newPluginRig(t, privatehost.Options{})
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	bare, err := r.Snapshot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	r.refused(t, []string{"KURYR_RUN_DIR"}, "plugin", "set", "kuryr", "KURYR_RUN_DIR=/tmp")
	r.docker(t, "plugin", "set", "kuryr", "KURYR_LOG_LEVEL=debug")
	r.docker(t, "plugin", "enable", "kuryr")
	r.pluginClean(t)
	r.docker(
		t, "network", "create", "-d", managed, "--ipam-driver", managed, "--ipv6", "--subnet",
		"10.90.0.0/24", "--subnet", "fd90::/64", "steady",
	)
	a := r.run(t, "steady-a", "steady", "--restart", "always")
	b := r.run(t, "steady-b", "steady", "--restart", "always", "-p", "8090:7000")

	// quiet pings while f happens, and loses nothing.
	quiet := func(t *testing.T, f func()) {
		t.Helper()
		streams := map[string]*stream{
			"between containers":       a.pingOn(t, b.ip4),
			"between containers, IPv6": a.pingOn(t, b.ip6), "outwards": a.pingOn(t, out4),
		}
		time.Sleep(300 * time.Millisecond)
		f()
		time.Sleep(300 * time.Millisecond)
		for what, s := range streams {
			if sent, lost := s.lost(t); lost > 0 || sent < 5 {
				t.Errorf("%s: %d of %d packets lost", what, lost, sent)
			}
		}
	}
	works := func(t *testing.T, name string) {
		t.Helper()
		c := r.run(t, name, "steady")
		reaches(t, c.in, a.ip4, c.ip4)
		reaches(t, c.in, a.ip6, c.ip6)
		getsOut(t, c)
		if res := r.outside(probe, "tcp", host4.String()+":8090"); !res.OK() {
			t.Errorf("the published port: %s", res)
		}
		r.pluginClean(t)
	}
	works(t, "first")
	r.noted(t, "steady")
	r.nothingForgotten(t)

	t.Run("kill -9", func(t *testing.T) {
		before := r.pluginPid(t)
		quiet(t, func() {
			r.must(t, "kill", "-9", before)
			eventually(t, 20*time.Second, func() string {
				if res := r.sh(kuryr, "status"); !res.OK() {
					return "the engine does not start it again: " + res.String()
				}
				return ""
			})
		})
		if r.pluginPid(t) == before {
			t.Error("it was not killed")
		}
		// The engine registers the driver anew in its own time, and from 29 on forgets
		// then which endpoints the one before had: a container that is just starting
		// fails.
		eventually(t, 10*time.Second, func() string {
			if res := r.sh("docker", "run", "--rm", "--network", "steady", "box", "true"); !res.OK() {
				return res.String()
			}
			return ""
		})
		works(t, "after-kill")
	})
	t.Run("disabled and enabled", func(t *testing.T) {
		r.refused(t, []string{"in use"}, "plugin", "disable", "kuryr")
		quiet(t, func() {
			r.docker(t, "plugin", "disable", "-f", "kuryr")
			if res := r.sh(kuryr, "status"); res.OK() {
				t.Errorf("something still answers: %s", res)
			}
			if d := r.doctor(t); !d.of("docker plugin", managed+" is disabled") || d.exit {
				t.Errorf("the doctor: %+v", d)
			}
			reaches(t, a.in, b.ip4, a.ip4) // new connections too
			r.docker(t, "plugin", "enable", "kuryr")
		})
		works(t, "after-disable")
	})
	t.Run("replaced", func(t *testing.T) {
		quiet(t, func() {
			r.docker(t, "plugin", "disable", "-f", "kuryr")
			r.docker(t, "plugin", "rm", "-f", "kuryr")
			r.docker(t, "plugin", "create", "kuryr", pluginFolder(t))
			r.docker(t, "plugin", "enable", "kuryr")
		})
		works(t, "after-replacement")
	})
	t.Run("engine restarted", func(t *testing.T) {
		if err := r.StopDocker(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := r.StartDocker(ctx); err != nil {
			t.Fatal(err)
		}
		r.running(t, "steady-a")
		r.running(t, "steady-b")
		a, b = r.look(t, "steady-a", "steady"), r.look(t, "steady-b", "steady")
		reaches(t, a.in, b.ip4, a.ip4)
		works(t, "after-engine")
	})
	t.Run("engine killed", func(t *testing.T) {
		if err := r.StopDocker(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := r.StartDocker(ctx); err != nil {
			t.Fatal(err)
		}
		r.running(t, "steady-a")
		r.running(t, "steady-b")
		a, b = r.look(t, "steady-a", "steady"), r.look(t, "steady-b", "steady")
		reaches(t, a.in, b.ip4, a.ip4)
		works(t, "after-engine-kill")
	})
	t.Run("reboot", func(t *testing.T) {
		if err := r.RebootBare(ctx); err != nil {
			t.Fatal(err)
		}
		r.shareMounts(t)
		if err := r.StartDocker(ctx); err != nil {
			t.Fatal(err)
		}
		r.running(t, "steady-a")
		r.running(t, "steady-b")
		a, b = r.look(t, "steady-a", "steady"), r.look(t, "steady-b", "steady")
		reaches(t, a.in, b.ip4, a.ip4)
		reaches(t, a.in, b.ip6, a.ip6)
		works(t, "after-reboot")
	})
	t.Run("taken away", func(t *testing.T) {
		r.sh("sh", "-c", "docker ps -aq | xargs -r docker rm -f")
		r.docker(t, "network", "rm", "steady")
		r.docker(t, "plugin", "disable", "kuryr")
		r.must(t, kuryr, "down", "--purge")
		r.docker(t, "plugin", "rm", "kuryr")
		now, err := r.Snapshot(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range bare.Diff(
			now, privatehost.Links, privatehost.Routes, privatehost.Rules, privatehost.Namespaces,
		) {
			if !strings.Contains(line, "docker") && !strings.Contains(line, "172.17.") {
				t.Errorf("left behind: %s", line)
			}
		}
		for _, line := range now[privatehost.Firewall] {
			if ourNames.MatchString(line) || strings.Contains(line, "kuryr") {
				t.Errorf("left behind: %s", line)
			}
		}
	})
}

// With live restore the engine goes and comes back, and leaves both plugin and containers alone.
func TestManagedPluginLiveRestore(t *testing.T) {
	t.Parallel()
	r := newPluginRig(t, privatehost.Options{DockerFlags: []string{"--live-restore"}})
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	r.docker(t, "plugin", "enable", "kuryr")
	r.docker(t, "network", "create", "-d", managed, "--ipam-driver", managed, "--subnet", "10.91.0.0/24", "live")
	a, b := r.run(t, "live-a", "live"), r.run(t, "live-b", "live")
	s := a.pingOn(t, b.ip4)
	if err := r.StopDocker(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	r.pluginClean(t) // it runs on, with its namespaces pinned
	r.must(t, "kill", "-9", r.pluginPid(t))
	if err := r.StartDocker(ctx); err != nil {
		t.Fatal(err)
	}
	r.answers(t)
	c := r.run(t, "live-c", "live")
	reaches(t, c.in, a.ip4, c.ip4)
	if sent, lost := s.lost(t); lost > 0 || sent < 5 {
		t.Errorf("%d of %d packets lost", lost, sent)
	}
	r.pluginClean(t)
}

// Where the host's mounts are private, namespaces go with the plugin: it says so.
func TestManagedPluginOnPrivateMounts(t *testing.T) {
	t.Parallel()
	r := newPluginRig(t, privatehost.Options{})
	r.must(t, "mount", "--make-rprivate", "/")
	r.docker(t, "plugin", "enable", "kuryr")
	if res := r.sh(kuryr, "status"); !strings.Contains(res.Stdout, "pinned") ||
		!strings.Contains(res.Stdout, "make-rshared") {
		t.Errorf("status says nothing of it: %s", res)
	}
	r.docker(t, "plugin", "disable", "kuryr")
	r.shareMounts(t)
	r.docker(t, "plugin", "enable", "kuryr")
	r.pluginClean(t)
}

// The plugin opens its door in the tables that the host's iptables uses, also where those are the legacy ones.
func TestManagedPluginOnLegacyIptables(t *testing.T) {
	t.Parallel()
	legacy := [][]string{
		{"update-alternatives", "--set", "iptables", "/usr/sbin/iptables-legacy"},
		{"update-alternatives", "--set", "ip6tables", "/usr/sbin/ip6tables-legacy"},
	}
	r := newPluginRig(t, privatehost.Options{}, legacy...)
	if res := r.sh("iptables", "-S", "FORWARD"); !strings.Contains(res.Stdout, "DOCKER") {
		t.Fatalf("the engine does not use the legacy tables: %s", res)
	}
	r.docker(t, "plugin", "enable", "kuryr")
	r.docker(t, "network", "create", "-d", managed, "--ipam-driver", managed, "--subnet", "10.92.0.0/24", "old")
	works := func(a box) {
		t.Helper()
		getsOut(t, a)
		if res := r.outside(probe, "tcp", host4.String()+":8092"); !res.OK() {
			t.Errorf("the published port: %s", res)
		}
	}
	if d := r.doctor(t); !d.of("forwarding and firewalls", "is the legacy one") || d.Verdict != "warning" || !d.exit {
		t.Errorf("the doctor: %+v", d)
	}
	works(r.run(t, "old-a", "old", "-p", "8092:7000", "--restart", "always"))
	if res := r.sh("iptables", "-S", "FORWARD"); !strings.Contains(
		res.Stdout, "-i kr+ -m comment --comment kuryr -j ACCEPT",
	) {
		t.Errorf("no door in the legacy table: %s", res)
	}
	if res := r.sh("iptables-nft", "-S", "FORWARD"); strings.Contains(res.Stdout, "kr+") {
		t.Errorf("a door where there is no wall: %s", res)
	}
	// At boot the plugin comes before the engine's rules.
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := r.RebootBare(ctx); err != nil {
		t.Fatal(err)
	}
	r.shareMounts(t)
	for _, argv := range legacy {
		r.must(t, argv...)
	}
	if err := r.StartDocker(ctx); err != nil {
		t.Fatal(err)
	}
	r.running(t, "old-a")
	// Nobody tells of what the engine writes there; Kuryr looks once the engine answers.
	eventually(t, 20*time.Second, func() string {
		res := r.sh("iptables", "-S", "FORWARD")
		if strings.Contains(res.Stdout, "-P FORWARD DROP") &&
			!strings.Contains(res.Stdout, "-i kr+ -m comment --comment kuryr -j ACCEPT") {
			return res.String()
		}
		return ""
	})
	works(r.look(t, "old-a", "old"))
	r.docker(t, "rm", "-f", "old-a")
	r.docker(t, "network", "rm", "old")
	r.docker(t, "plugin", "disable", "kuryr")
	r.must(t, kuryr, "down", "--purge") // by the host's own iptables
	if res := r.sh("iptables-save"); strings.Contains(res.Stdout, "kr+") {
		t.Errorf("left behind: %s", res)
	}
}

//go:build e2e

package docker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// diagnosis is what kuryr doctor prints as JSON.
type diagnosis struct {
	Verdict  string
	Fixed    []string
	Failed   []string
	Findings []struct {
		Check, Verdict, What, Mend string
		Details                    []string
	}
	exit bool
}

func (r rig) doctor(t *testing.T, args ...string) diagnosis {
	t.Helper()
	res := r.sh(append([]string{kuryr, "doctor", "-o", "json"}, args...)...)
	d := diagnosis{exit: res.OK()}
	if err := json.Unmarshal([]byte(res.Stdout), &d); err != nil {
		t.Fatalf("%v: %s", err, res)
	}
	return d
}

// of are the findings of a check that are not well, and whether one has all of the words.
func (d diagnosis) of(check string, words ...string) bool {
	for _, f := range d.Findings {
		has := f.Check == check && f.Verdict != "ok" && f.Mend != ""
		for _, w := range words {
			has = has && strings.Contains(f.What+"\n"+strings.Join(f.Details, "\n"), w)
		}
		if has {
			return true
		}
	}
	return false
}

// healthy fails unless the doctor finds nothing.
func (r rig) healthy(t *testing.T) {
	t.Helper()
	eventually(t, 15*time.Second, func() string {
		if d := r.doctor(t); d.Verdict != "ok" || !d.exit {
			return fmt.Sprintf("%+v", d)
		}
		return ""
	})
}

// Whatever is broken, the doctor names it; --fix mends it; and the next look finds nothing.
func TestDoctor(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	const reason = "breaks the host's firewall and replaces Kuryr's store"
	r := ownHost(t, reason, privatehost.Options{KuryrArgs: []string{"up", "--docker-forget-after", "1h"}})
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	r.network(t, "sick", "--subnet", "10.98.0.0/24")
	a := r.run(t, "sick-a", "sick", "-p", "8098:7000")
	b := r.run(t, "sick-b", "sick")
	r.noted(t, "sick")
	works := func(t *testing.T) {
		t.Helper()
		reaches(t, a.in, b.ip4, a.ip4)
		getsOut(t, a)
		if res := r.outside(probe, "tcp", host4.String()+":8098"); !res.OK() {
			t.Errorf("the published port: %s", res)
		}
	}
	works(t)
	r.healthy(t)

	var space string // of the network's router
	in := func(argv ...string) string {
		t.Helper()
		return r.must(t, append([]string{"nsenter", "--net=/run/kuryr/netns/" + space}, argv...)...)
	}
	var bridge, tap string
	if has(ownKernel) {
		space = strings.TrimSpace(r.must(t, "sh", "-c", "ls /run/kuryr/netns | head -1"))
		bridge = strings.TrimSpace(in("sh", "-c", "ip -br link show type bridge | head -1 | cut -d' ' -f1"))
		tap = strings.TrimSpace(in("sh", "-c", "ip -br link show master "+bridge+" | head -1 | cut -d' ' -f1 | cut -d@ -f1"))
	}
	for _, broken := range []struct {
		name  string
		do    func()
		check string
		words []string
	}{
		{"a route", func() {
			in("ip", "route", "del", "default")
		}, "store and kernel", []string{"route"}},
		{
			"a bridge's address", func() { in("ip", "addr", "flush", "dev", bridge) },
			"store and kernel", []string{"10.98.0.1"},
		},
		{"an element of a set", func() {
			in(
				"sh", "-c",
				`e=$(nft list set bridge kuryr ip4 | sed -n 's/.*elements = { \("tap[^,`+
					`}]*\).*/\1/p'); nft delete element bridge kuryr ip4 "{ $e }"`,
			)
		}, "store and kernel", []string{"ip4"}},
		{"a table in the router", func() { in("nft", "flush", "ruleset") }, "store and kernel", nil},
	} {
		t.Run(broken.name, func(t *testing.T) {
			needs(t, ownKernel)
			broken.do()
			if d := r.doctor(t); !d.of(broken.check, broken.words...) || d.exit {
				t.Errorf("the doctor does not see it: %+v", d)
			}
			if d := r.doctor(t, "--fix"); len(d.Fixed) == 0 || len(d.Failed) > 0 || d.Verdict != "ok" {
				t.Errorf("--fix: %+v", d)
			}
			r.healthy(t)
			works(t)
		})
	}
	t.Run("a bridge's port", func(t *testing.T) {
		needs(t, ownKernel)
		in("ip", "link", "set", tap, "nomaster")
		if d := r.doctor(t); !d.of("docker's memory", "not on its bridge") || d.exit {
			t.Errorf("the doctor does not see it: %+v", d)
		}
		if d := r.doctor(t, "--fix"); len(d.Fixed) == 0 || d.Verdict != "ok" {
			t.Errorf("--fix: %+v", d)
		}
		works(t)
	})
	t.Run("the forwarding switch", func(t *testing.T) {
		needs(t, ownKernel)
		r.must(t, "sysctl", "-qw", "net.ipv4.ip_forward=0")
		eventually(t, 5*time.Second, func() string {
			if res := r.sh("sysctl", "-n", "net.ipv4.ip_forward"); res.Out() != "1" {
				return "Kuryr does not turn forwarding on again: " + res.String()
			}
			return ""
		})
		r.healthy(t)
		works(t)
	})
	t.Run("a published port", func(t *testing.T) {
		needs(t, ownKernel)
		// What others take from the table in the host Kuryr puts back by itself, too; either way it is well at the end.
		r.must(t, "nft", "delete", "element", "inet", "kuryr", "published4", "{ tcp . 8098 }")
		if d := r.doctor(t, "--fix"); d.Verdict != "ok" {
			t.Errorf("--fix: %+v", d)
		}
		r.healthy(t)
		works(t)
	})
	t.Run("firewall flushed", func(t *testing.T) {
		needs(t, ownKernel)
		// The same.
		r.must(t, "iptables", "-F", "FORWARD")
		r.must(t, "iptables", "-F", "DOCKER-USER")
		r.doctor(t, "--fix")
		r.healthy(t)
		works(t)
	})
	t.Run("Docker is away", func(t *testing.T) {
		if err := r.StopDocker(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		d := r.doctor(t)
		if !d.of("docker", "does not answer") || !d.of("docker's memory", "could not compare") || d.exit {
			t.Errorf("%+v", d)
		}
		if err := r.StartDocker(ctx); err != nil {
			t.Fatal(err)
		}
		r.docker(t, "start", "sick-a", "sick-b")
		a, b = r.look(t, "sick-a", "sick"), r.look(t, "sick-b", "sick")
		r.healthy(t)
		works(t)
	})
	t.Run("kuryr is away, and Docker forgets", func(t *testing.T) {
		r.docker(t, createArgs("lost", "--subnet", "10.99.0.0/24")...)
		r.noted(t, "lost")
		if err := r.KillKuryr(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		d := r.doctor(t)
		if !d.of("kuryr", "not running") || d.exit || d.of("kernel") {
			t.Errorf("%+v", d)
		}
		long, cancel := context.WithTimeout(ctx, 3*time.Minute)
		defer cancel()
		if res := r.Docker(long, "network", "rm", "lost"); !res.OK() {
			t.Error(res)
		}
		// A leftover that Docker would follow, and one that is not Kuryr's.
		r.must(t, "mkdir", "-p", "/etc/docker/plugins")
		r.must(t, "sh", "-c", "echo unix:///run/old/kuryr.sock >/etc/docker/plugins/kuryr.spec")
		if err := r.StartKuryr(ctx, []string{"up", "--docker-forget-after", "1h"}, nil); err != nil {
			t.Fatal(err)
		}
		eventually(t, 10*time.Second, func() string {
			if d = r.doctor(t); !d.of(
				"docker's memory", "network", "is forgotten", "it will be removed in 59m",
			) || !d.of("docker plugin", "/run/old/kuryr.sock") {
				return fmt.Sprintf("%+v", d)
			}
			return ""
		})
		if !d.exit {
			t.Errorf("a warning is no problem: %+v", d)
		}
		if d := r.doctor(t, "--fix"); !d.of("docker's memory", "is forgotten") || d.of("docker plugin") {
			t.Errorf("--fix: %+v", d)
		}
		if d := r.doctor(t, "--fix", "--now"); len(d.Fixed) == 0 || d.Verdict != "ok" {
			t.Errorf("--fix --now: %+v", d)
		}
		r.healthy(t)
		works(t)
	})
	t.Run("a socket open to others", func(t *testing.T) {
		r.must(t, "chmod", "0666", "/run/kuryr/kuryr.sock")
		if d := r.doctor(t); !d.of("permissions", "/run/kuryr/kuryr.sock") {
			t.Errorf("%+v", d)
		}
		r.must(t, "chmod", "go-rwx", "/run/kuryr/kuryr.sock")
		r.healthy(t)
	})
	t.Run("a network that the SDN lost", func(t *testing.T) {
		needs(t, ownKernel)
		if err := r.KillKuryr(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		r.must(t, "mv", "/var/lib/kuryr/kuryr.db", "/var/lib/kuryr/aside")
		if err := r.StartKuryr(ctx, nil, nil); err != nil {
			t.Fatal(err)
		}
		eventually(t, 10*time.Second, func() string {
			if d := r.doctor(t); !d.of("docker's memory", "network sick of this driver") || d.exit {
				return fmt.Sprintf("%+v", d)
			}
			return ""
		})
		if err := r.KillKuryr(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		r.must(t, "mv", "/var/lib/kuryr/aside", "/var/lib/kuryr/kuryr.db")
		if err := r.StartKuryr(ctx, nil, nil); err != nil {
			t.Fatal(err)
		}
		// The links went with the networks, and only Docker can give a container another.
		eventually(t, 10*time.Second, func() string {
			if d := r.doctor(t); !d.of("docker's memory", "container sick-a", "its interface is gone") || d.exit {
				return fmt.Sprintf("%+v", d)
			}
			return ""
		})
		r.docker(t, "restart", "-t", "0", "sick-a", "sick-b")
		a, b = r.look(t, "sick-a", "sick"), r.look(t, "sick-b", "sick")
		r.healthy(t)
		works(t)
	})
}

// A plugin socket that nobody listens at, in the place where Docker looks first.
func TestDoctorFindsShadow(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	const socket = "/run/elsewhere/kuryr.sock"
	r := ownHost(t, "a socket without a listener is where Kuryr's should be", privatehost.Options{KuryrLater: true})
	r.must(t, "mkdir", "-p", "/etc/docker/plugins", "/run/docker/plugins", filepath.Dir(socket))
	r.must(t, "sh", "-c", "echo unix://"+socket+" >/etc/docker/plugins/kuryr.spec")
	l, err := net.Listen("unix", r.Path("/run/docker/plugins/kuryr.sock"))
	if err != nil {
		t.Skip(err) // the path is too long here
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = l.Close()
	res := r.sh(kuryr, "doctor")
	if res.OK() || !strings.Contains(res.Stdout, "nobody listens at it") {
		t.Errorf("%s", res)
	}
}

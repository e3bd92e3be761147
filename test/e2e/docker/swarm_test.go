//go:build e2e

package docker_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// tasks waits until a service has n running containers on the network, no more and no less, and looks at them.
func (r rig) tasks(t *testing.T, service, network string, n int) []box {
	t.Helper()
	var names []string
	eventually(t, time.Minute, func() string {
		all := r.docker(t, "ps", "-q", "--filter", "label=com.docker.swarm.service.name="+service)
		names = strings.Fields(r.docker(
			t, "ps", "--format", "{{.Names}}", "--filter", "status=running", "--filter",
			"label=com.docker.swarm.service.name="+service,
		))
		if len(names) != n || len(strings.Fields(all)) != n {
			return fmt.Sprintf(
				"%d tasks of %s run, want %d\n%s", len(names), service, n,
				r.sh("docker", "service", "ps", "--no-trunc", service),
			)
		}
		return ""
	})
	if t.Failed() {
		t.FailNow()
	}
	boxes := []box{}
	for _, name := range names {
		boxes = append(boxes, r.look(t, name, network))
	}
	return boxes
}

// service creates a service of containers that answer on port.
func (r rig) service(t *testing.T, name, network string, args ...string) {
	t.Helper()
	argv := append(
		[]string{
			"service", "create", "--detach", "--name", name, "--network", network,
			"--no-resolve-image", "--stop-grace-period", "1s",
		},
		args...,
	)
	r.docker(t, append(argv, "box", "probe", "serve", port)...)
}

// A swarm of one node, by the managed plugin with global scope.
func TestSwarm(t *testing.T) {
	t.Parallel()
	// The engine asks a registry for each image before it takes the one it has: it shall hear at once that there is none.
	r := newPluginRig(t, privatehost.Options{}, []string{"sh", "-c", "echo nameserver 127.0.0.1 >/etc/resolv.conf"})
	r.docker(t, "plugin", "set", "kuryr", "KURYR_DOCKER_CAPABILITY_SCOPE=global")
	// much of a swarm's no container has: none of it is forgotten
	r.docker(t, "plugin", "set", "kuryr", "KURYR_DOCKER_FORGET_AFTER=2s")
	r.docker(t, "plugin", "enable", "kuryr")
	r.docker(t, "swarm", "init", "--advertise-addr", host4.String())
	r.docker(
		t, "network", "create", "-d", managed, "--ipam-driver", managed, "--attachable", "--subnet",
		"10.93.0.0/24", "wide",
	)

	r.service(t, "rr", "wide", "--endpoint-mode", "dnsrr", "--replicas", "2")
	r.service(t, "vip", "wide", "--replicas", "2")
	rr, vip := r.tasks(t, "rr", "wide", 2), r.tasks(t, "vip", "wide", 2)
	a := r.run(t, "attached", "wide")
	everybody := append(append([]box{a}, rr...), vip...)
	seen := map[netip.Addr]string{}
	for _, b := range everybody {
		if other := seen[b.ip4]; other != "" {
			t.Errorf("%s has the address of %s", b.name, other)
		}
		seen[b.ip4] = b.name
		reaches(t, a.in, b.ip4, a.ip4)
		reaches(t, b.in, rr[0].ip4, b.ip4)
	}
	getsOut(t, rr[0])
	if res := rr[0].in("ip", "-br", "link"); len(strings.Split(res.Out(), "\n")) != 2 {
		t.Errorf("a task has more than its loopback and its port: %s", res)
	}
	r.service(t, "open", "wide", "--replicas", "1", "--publish", "mode=host,target=7000,published=8093")
	open := r.tasks(t, "open", "wide", 1)[0]
	if res := r.outside(probe, "tcp", host4.String()+":8093"); res.Out() != out4.String() {
		t.Errorf("the published port of a service: %s", res)
	}
	reaches(t, a.in, open.ip4, a.ip4)
	resolves := func(name string, want ...netip.Addr) {
		t.Helper()
		eventually(t, 10*time.Second, func() string {
			res := r.sh("docker", "exec", "attached", "nslookup", name)
			for _, address := range want {
				if !strings.Contains(res.Stdout, "Address: "+address.String()+"\n") {
					return fmt.Sprintf("%s is not resolved to %s: %s", name, address, res)
				}
			}
			return ""
		})
	}
	resolves("rr", rr[0].ip4, rr[1].ip4)
	resolves("tasks.vip", vip[0].ip4, vip[1].ip4)

	// The kernel here may lack IPVS, which carries packets to a service's address; but that address is nobody else's.
	var end struct{ VirtualIPs []struct{ Addr netip.Prefix } }
	if err := json.Unmarshal(
		[]byte(r.docker(t, "service", "inspect", "-f", "{{json .Endpoint}}", "vip")), &end,
	); err != nil || len(end.VirtualIPs) != 1 {
		t.Fatalf("the service's address: %v %+v", err, end)
	}
	virtual := end.VirtualIPs[0].Addr.Addr()
	if other := seen[virtual]; other != "" || !netip.MustParsePrefix("10.93.0.0/24").Contains(virtual) {
		t.Errorf("the service's address %s is that of %q", virtual, other)
	}
	resolves("vip", virtual)
	r.refused(t, nil, "run", "--rm", "--network", "wide", "--ip", virtual.String(), "box", "true")

	r.nothingForgotten(t)
	t.Run("plugin killed", func(t *testing.T) {
		s := a.pingOn(t, rr[0].ip4)
		r.must(t, "kill", "-9", r.pluginPid(t))
		r.answers(t)
		if sent, lost := s.lost(t); lost > 0 || sent < 2 {
			t.Errorf("%d of %d packets lost", lost, sent)
		}
		r.pluginClean(t)
	})
	t.Run("scaled and renewed", func(t *testing.T) {
		r.docker(t, "service", "scale", "--detach", "rr=4")
		four := r.tasks(t, "rr", "wide", 4)
		for _, b := range four {
			reaches(t, a.in, b.ip4, a.ip4)
		}
		r.docker(t, "service", "scale", "--detach", "rr=1")
		r.tasks(t, "rr", "wide", 1)
		r.docker(t, "service", "update", "--detach", "--force", "vip")
		eventually(t, time.Minute, func() string {
			now := strings.Fields(r.docker(
				t, "ps", "--format", "{{.Names}}", "--filter",
				"label=com.docker.swarm.service.name=vip",
			))
			if len(now) != 2 || slices.Contains(now, vip[0].name) || slices.Contains(now, vip[1].name) {
				return fmt.Sprint("not renewed: ", now)
			}
			return ""
		})
		for _, b := range r.tasks(t, "vip", "wide", 2) {
			reaches(t, a.in, b.ip4, a.ip4)
		}
		r.nothingForgotten(t)
		reaches(t, a.in, open.ip4, a.ip4)
		if ports := fmt.Sprint(r.list(t, "port")); !strings.Contains(ports, virtual.String()+" ") &&
			!strings.Contains(ports, virtual.String()+"]") {
			t.Errorf("the service's address %s is free: %s", virtual, ports)
		}
		r.pluginClean(t)
	})
	t.Run("removed", func(t *testing.T) {
		r.docker(t, "service", "rm", "rr", "vip", "open")
		r.docker(t, "rm", "-f", "attached")
		eventually(t, 30*time.Second, func() string {
			if left := r.docker(t, "ps", "-aq"); left != "" {
				return "containers are left: " + left
			}
			return ""
		})
		eventually(t, 30*time.Second, func() string {
			if res := r.sh("docker", "network", "rm", "wide"); !res.OK() && !strings.Contains(res.Stderr, "not found") {
				return res.String()
			}
			return ""
		})
		eventually(t, 30*time.Second, func() string {
			for _, noun := range []string{"network", "subnetpool", "port", "router"} {
				if left := r.list(t, noun); len(left) > 0 {
					return fmt.Sprintf("kuryr %s list: %v", noun, left)
				}
			}
			if left := r.must(t, "ls", "/run/kuryr/netns"); left != "" {
				return "namespaces: " + left
			}
			return ""
		})
		r.docker(t, "swarm", "leave", "--force")
		r.pluginClean(t)
	})
}

//go:build e2e

package neutron_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/test/e2e/neutronlab"
)

// swarm makes the hosts a swarm whose networks are Kuryr's, h1 its manager. They share an installation.
func (r *rig) swarm() {
	r.Helper()
	for _, h := range []host{r.h1, r.h2} {
		// The engine asks a registry for each image before it takes the one it has: it shall hear at once that there is none.
		if err := os.WriteFile(h.Path("/etc/resolv.conf"), []byte("nameserver 127.0.0.1\n"), 0o644); err != nil {
			r.Fatal(err)
		}
		h.installPlugin(
			"KURYR_PROVIDER=neutron", "KURYR_NEUTRON_AUTH_TYPE=none",
			"KURYR_NEUTRON_ENDPOINT="+neutronlab.Endpoint,
			"KURYR_NEUTRON_PROJECT="+r.lab.Project(), "KURYR_INSTALLATION=swarm", "KURYR_DOCKER_CAPABILITY_SCOPE=global",
			"KURYR_DOCKER_FORGET_AFTER=2s") // much of a swarm's no container has: none of it is forgotten
	}
	r.h1.docker("swarm", "init", "--advertise-addr", r.h1.Address().String())
	r.h2.docker(
		"swarm", "join", "--advertise-addr", r.h2.Address().String(), "--token",
		r.h1.docker("swarm", "join-token", "-q", "worker"), r.h1.Address().String()+":2377",
	)
	r.until("not both nodes are ready", func(context.Context) error {
		if ready := r.h1.docker("node", "ls", "-q", "--filter", "role=worker"); ready == "" {
			return fmt.Errorf("no worker")
		}
		if status := r.h1.docker("node", "ls", "--format", "{{.Status}}"); status != "Ready\nReady" {
			return fmt.Errorf("%s", status)
		}
		return nil
	})
	// Docker joins a node to its own networks of a swarm when it comes to that.
	r.until("the nodes do not come to rest", func(ctx context.Context) error {
		for _, h := range []host{r.h1, r.h2} {
			if res := h.sh("ip", "-br", "link", "show", "docker_gwbridge", "up"); !strings.Contains(res.Stdout, " UP ") {
				return fmt.Errorf("on %s the bridge of the swarm's sandbox is not up: %s", h.Name, res)
			}
		}
		before, err := look(ctx, r.lab)
		if err != nil {
			return err
		}
		now, err := look(ctx, r.lab)
		if diff := before.diff(now); err == nil && len(diff) > 0 {
			err = fmt.Errorf("it changes: %v", diff)
		}
		return err
	})
}

// tasks waits until a service has n running containers on each host, no more and no less,
// and looks at them. A task that failed, as where Neutron was slow, has another in its
// place, and leaves its container until the service goes: where there are to be none, no
// such must be there.
func (r *rig) tasks(service, network string, n int) (boxes []box) {
	r.Helper()
	for _, h := range []host{r.h1, r.h2} {
		var names []string
		r.until("the tasks of "+service, func(context.Context) error {
			of := []string{"ps", "--format", "{{.Names}}", "--filter", "label=com.docker.swarm.service.name=" + service}
			all := strings.Fields(h.docker(append(of, "-a")...))
			names = strings.Fields(h.docker(append(of, "--filter", "status=running")...))
			if len(names) != n || n == 0 && len(all) != 0 {
				return fmt.Errorf("on %s run %v of %v, want %d\n%s", h.Name, names, all, n, r.h1.sh(
					"docker", "service", "ps", "--no-trunc", service,
				))
			}
			return nil
		})
		for _, name := range names {
			boxes = append(boxes, h.look(name, network))
		}
	}
	return boxes
}

// A swarm of two hosts: a service's tasks are Neutron ports on either host and reach one
// another, and what was there for them goes with them.
func TestSwarm(t *testing.T) {
	t.Parallel()
	// A boot of its own: the engines become a swarm, and Kuryr is a managed plugin in both.
	l := neutronlab.Start(t, neutronlab.Options{Hosts: 2, Docker: true, Kuryr: kuryr})
	if err := furnish(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	r := freeRig(t, l)
	r.swarm()
	r.leavesNothing()
	r.h1.network("wide", "--attachable", "--subnet", "10.111.0.0/24", "--gateway", "10.111.0.1")
	r.h1.docker(
		"service", "create", "--detach", "--name", "rr", "--network", "wide", "--endpoint-mode",
		"dnsrr", "--replicas", "2", "--replicas-max-per-node", "2",
		"--no-resolve-image", "--stop-grace-period", "1s", "box", "probe", "serve", fmt.Sprint(port))
	r.fresh(func(ctx context.Context) error { return r.h1.gone(ctx, "service", "rm", "rr") })

	pair := r.tasks("rr", "wide", 1)
	r.meet(pair)
	network := pair[0].port().Text("network_id")
	for _, b := range pair {
		p := b.port()
		for field, want := range map[string]string{
			"network_id": network, "binding:host_id": b.Name, "device_owner": "compute:kuryr",
			"status": "ACTIVE",
		} {
			if got := p.Text(field); got != want {
				t.Errorf("the port of %s has %s %q, not %q", b.name, field, got, want)
			}
		}
	}
	// Docker tells every host of all tasks.
	for _, b := range pair {
		for _, other := range pair {
			r.until("a task's name has not all addresses", func(context.Context) error {
				res := b.sh("docker", "exec", b.name, "nslookup", "rr")
				if !strings.Contains(res.Stdout, "Address: "+other.ip4.String()+"\n") {
					return fmt.Errorf("on %s not %s: %s", b.Name, other.ip4, res)
				}
				return nil
			})
		}
	}
	// A container that is none of the service's, on the host that is no manager.
	r.until("the network is not known to the worker", func(context.Context) error {
		return r.h2.sh("docker", "run", "--rm", "--network", "wide", "box", "true").Err()
	})
	attached := r.h2.run("attached", "wide")
	r.meet(append(pair, attached))

	for _, h := range []host{r.h2, r.h1} {
		s := pair[0].pings(pair[1].ip4)
		h.killPlugin()
		if lost, sent := s.lost(r); interrupted(lost, nil, sent) || sent < 2 {
			t.Errorf("the plugin of %s was killed: %d of %d pings were lost", h.Name, len(lost), sent)
		}
	}
	r.h1.docker("service", "scale", "--detach", "rr=4")
	four := r.tasks("rr", "wide", 2)
	r.meet(append(four, attached))
	seen := map[netip.Addr]string{}
	for _, b := range append(four, attached) {
		if other := seen[b.ip4]; other != "" {
			t.Errorf("%s has the address of %s", b.name, other)
		}
		seen[b.ip4] = b.name
	}
	r.h1.docker("service", "scale", "--detach", "rr=2")
	r.meet(append(r.tasks("rr", "wide", 1), attached))

	r.h1.docker("service", "rm", "rr")
	r.h2.docker("rm", "-f", "attached")
	r.tasks("rr", "wide", 0)
	r.h1.docker("network", "rm", "wide")
	r.until("the network is still in Neutron", func(context.Context) error {
		if left := r.find("networks", "id="+network); len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	})
}

// meet checks that each reaches every other.
func (r *rig) meet(boxes []box) {
	r.Helper()
	for _, from := range boxes {
		for _, to := range boxes {
			r.reaches(from.in, to.ip4, from.ip4)
		}
	}
}

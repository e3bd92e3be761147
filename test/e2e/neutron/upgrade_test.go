//go:build e2e

package neutron_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/kuryr/kuryr/test/e2e/neutronlab"
	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// mixed is a lab whose hosts run different versions of Kuryr, with state that begins with the
// test.
type mixed struct {
	*rig
	env []string
}

// newMixed starts a program on each host, until the test ends.
func newMixed(r *rig, programs map[string]string, env []string) *mixed {
	r.Helper()
	state := "/var/lib/kuryr/" + strings.ReplaceAll(r.Name(), "/", "-")
	env = append(env, "KURYR_STATE_DIR="+state, "KURYR_DOCKER_FORGET_AFTER=2s")
	x := &mixed{rig: r, env: env}
	for _, h := range []host{r.h1, r.h2} {
		r.fresh(func(ctx context.Context) error {
			h.UseKuryr(kuryr)
			return errors.Join(h.KillKuryr(syscall.SIGTERM), h.StartKuryr(ctx))
		})
		h.UseKuryr(programs[h.Name])
		x.restart(h)
	}
	return x
}

// restart kills the host's Kuryr and starts it.
func (x *mixed) restart(h host) {
	x.Helper()
	if err := errors.Join(h.KillKuryr(syscall.SIGKILL), h.StartKuryr(x.ctx, x.env...)); err != nil {
		x.Fatal(err)
	}
}

// collectable makes a subnet pool that no engine knows, as an engine does that is killed
// before it has the answer.
func (h host) collectable(cidr string) {
	h.rig.Helper()
	if _, err := h.call("IpamDriver.RequestPool", object{"AddressSpace": "local_scope", "Pool": cidr}); err != nil {
		h.rig.Fatal(err)
	}
}

// inventory returns the project's objects, each with what tells whose it is.
func (r *rig) inventory() map[string]string {
	r.Helper()
	all := map[string]string{}
	for _, nouns := range []string{"networks", "subnets", "subnetpools", "ports", "routers", "floatingips"} {
		for _, o := range r.find(nouns, "project_id="+r.lab.Project()) {
			all[nouns+" "+o.ID()] = fmt.Sprint(o["name"], o["description"], o["device_id"], o["fixed_ips"], o["binding:host_id"])
		}
	}
	return all
}

// collectorsRun restarts both versions, waits until the garbage collector of each has removed
// what its engine does not know, and checks that everything else is unchanged.
func (x *mixed) collectorsRun(what string) {
	r := x.rig
	r.Helper()
	before := r.inventory()
	for i, h := range []host{r.h1, r.h2} {
		h.collectable(fmt.Sprintf("10.12%d.0.0/24", 8+i))
		x.restart(h)
	}
	r.until(what+": the collectors do not end", func(context.Context) error {
		now := r.inventory()
		for key, was := range before {
			if is, ok := now[key]; !ok || is != was {
				r.Fatalf("%s: %s was %s and is %q", what, key, was, is)
			}
		}
		if extra := len(now) - len(before); extra > 0 {
			return fmt.Errorf("%d objects are not collected", extra)
		}
		return nil
	})
}

// TestOldAndNewHost runs the landed version on one host and this one on the other, both with
// one Neutron and a short grace time: neither disturbs what the other has.
func TestOldAndNewHost(t *testing.T) {
	for _, one := range []bool{true, false} {
		name, env := "two installations", []string(nil)
		if one {
			name, env = "one installation", []string{"KURYR_INSTALLATION=mixed"}
		}
		t.Run(name, func(t *testing.T) { oldAndNewHost(shared(t), one, env) })
	}
}

func oldAndNewHost(r *rig, one bool, env []string) {
	r.Helper()
	network, subnets := r.ownNetwork("mixed", "10.120.0.0/24")
	theirs := r.create("ports", object{
		"name": "theirs", "network_id": network.ID(), "fixed_ips": []object{{"ip_address": "10.120.0.20"}},
	})
	x := newMixed(r, map[string]string{"h1": privatehost.Earlier(r), "h2": kuryr}, env)
	hosts := []host{r.h1, r.h2}
	boxes := map[string]box{}
	ranges := map[string]string{}
	for i, h := range hosts {
		h.use("mixed", network, subnets)
		h.network("automatic")
		h.network("same", "--subnet", "10.121.0.0/24")
		h.network("empty", "--subnet", fmt.Sprintf("10.12%d.0.0/24", 2+i))
		boxes[h.Name] = h.run("mixed-"+h.Name, "mixed", "-p", "8120:7000")
		h.run("automatic-"+h.Name, "automatic")
		h.run("same-"+h.Name, "same")
		h.run("stopped-"+h.Name, "mixed")
		h.docker("stop", "stopped-"+h.Name)
		ranges[h.Name] = h.docker("network", "inspect", "-f", "{{(index .IPAM.Config 0).Subnet}}", "automatic")
	}
	onTheirs := r.h2.run("mixed-theirs", "mixed", "--ip", "10.120.0.20", "--mac-address", theirs.Text("mac_address"))
	if one && ranges["h1"] == ranges["h2"] {
		r.Errorf("both hosts have the automatic range %s", ranges["h1"])
	}
	a, b := boxes["h1"], boxes["h2"]
	r.reaches(a.in, b.ip4, a.ip4)
	r.reaches(a.in, onTheirs.ip4, a.ip4)

	pings := a.pings(b.ip4)
	x.collectorsRun("with containers")
	for _, h := range hosts {
		h.docker("start", "stopped-"+h.Name)
		again := h.look("stopped-"+h.Name, "mixed")
		r.reaches(a.in, again.ip4, a.ip4)
		r.until("a published port is not reached", func(context.Context) error {
			return asks(h.sh, "tcp", h.Address(), 8120).Err()
		})
	}
	if lost, sent := pings.lost(r); interrupted(lost, nil, sent) || sent < 5 {
		r.Errorf("%d of %d pings between the hosts were lost", len(lost), sent)
	}
	// Each host leaves the network, and the other keeps it.
	for i, h := range hosts {
		other := hosts[1-i]
		names := strings.Fields(h.docker("ps", "-aq"))
		h.docker(append([]string{"rm", "-f"}, names...)...)
		h.docker("network", "rm", "mixed", "automatic", "same", "empty")
		x.collectorsRun("after " + h.Name + " has left")
		if i == 0 {
			next := other.run("next", "mixed")
			r.reaches(next.in, b.ip4, next.ip4)
		}
	}
	r.until("the operator's network keeps tags", func(context.Context) error {
		if tags := fmt.Sprint(r.get("networks", network.ID())["tags"]); tags != "[]" {
			return errors.New(tags)
		}
		return nil
	})
	now := r.get("ports", theirs.ID())
	if now.Text("name") != "theirs" || now.Text("binding:host_id") != "" || fmt.Sprint(now["tags"]) != "[]" {
		r.Errorf("the operator's port was not restored: %v", now)
	}
}

// earlierPlugin makes a managed plugin of the landed version and returns its folder.
func (r *rig) earlierPlugin() string {
	r.Helper()
	folder := filepath.Join(r.TempDir(), "docker-plugin")
	cmd := exec.CommandContext(r.ctx, "../../../hack/docker-plugin.sh", folder, privatehost.Earlier(r))
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		r.Fatalf("make the earlier plugin: %v", err)
	}
	return folder
}

// TestSwarmOfOldAndNew runs a swarm's manager on the landed version and its worker on this
// one, and the reverse. Each label names the host of the landed version.
func TestSwarmOfOldAndNew(t *testing.T) {
	for _, old := range []string{"h1", "h2"} {
		t.Run(map[string]string{"h1": "manager", "h2": "worker"}[old], func(t *testing.T) {
			// A boot of its own: the engines become a swarm.
			l := neutronlab.Start(t, neutronlab.Options{Hosts: 2, Docker: true, Kuryr: kuryr})
			if err := furnish(t.Context(), l); err != nil {
				t.Fatal(err)
			}
			r := freeRig(t, l)
			r.plugins = map[string]string{old: r.earlierPlugin()}
			r.swarm()
			r.leavesNothing()
			swarmOfOldAndNew(r)
		})
	}
}

func swarmOfOldAndNew(r *rig) {
	r.Helper()
	r.h1.network("wide", "--attachable", "--subnet", "10.131.0.0/24", "--gateway", "10.131.0.1")
	r.h1.network("other", "--attachable")
	r.h1.docker("service", "create", "--detach", "--name", "rr", "--network", "wide",
		"--endpoint-mode", "dnsrr", "--replicas", "2", "--replicas-max-per-node", "2", "--no-resolve-image",
		"--stop-grace-period", "1s", "box", "probe", "serve", fmt.Sprint(port))
	r.fresh(func(ctx context.Context) error { return r.h1.gone(ctx, "service", "rm", "rr") })
	pair := r.tasks("rr", "wide", 1)
	network := pair[0].port().Text("network_id")
	r.until("the network is not known to the worker", func(context.Context) error {
		return r.h2.sh("docker", "run", "--rm", "--network", "wide", "box", "true").Err()
	})
	boxes := slices.Concat(pair, []box{r.h2.run("attached-h2", "wide"), r.h1.run("attached-h1", "wide")})
	r.meet(boxes)
	addresses := map[string]string{}
	for _, b := range boxes {
		if other := addresses[b.ip4.String()]; other != "" {
			r.Errorf("%s has the address of %s", b.name, other)
		}
		addresses[b.ip4.String()] = b.name
	}
	for _, h := range []host{r.h2, r.h1} {
		s := pair[0].pings(pair[1].ip4)
		h.killPlugin()
		if lost, sent := s.lost(r); interrupted(lost, nil, sent) || sent < 2 {
			r.Errorf("the plugin of %s was killed: %d of %d pings were lost", h.Name, len(lost), sent)
		}
	}
	r.h1.docker("service", "scale", "--detach", "rr=4")
	r.meet(append(r.tasks("rr", "wide", 2), boxes[2:]...))
	r.h1.docker("service", "rm", "rr")
	r.h2.docker("rm", "-f", "attached-h2")
	r.h1.docker("rm", "-f", "attached-h1")
	r.tasks("rr", "wide", 0)
	r.h1.docker("network", "rm", "wide", "other")
	r.until("the network is still in Neutron", func(context.Context) error {
		if left := r.find("networks", "id="+network); len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	})
}

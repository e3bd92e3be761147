//go:build e2e

package neutron_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/kuryr/kuryr/test/e2e/neutronlab"
)

// bounds limit the calls of Neutron that Docker waits for in a command. Neutron has no tags at
// creation here, so an object with tags costs two calls.
type bounds struct {
	create, remove int // of a network
	first          int // the first start on a network
	start, stop    int
}

// A network costs four calls and one for its subnet pool; a second family or a router of its own
// costs two more, and an external network that is named one more. A bound above that is what the
// command costs until docker/ is rebuilt on the intent store; the goal stands beside it.
var (
	ownNetwork = bounds{
		create: 5, remove: 4, start: 3, stop: 2,
		first: 5, // 3, without a look for the subnet and the tag of use
	}
	ownRouter = bounds{
		start: 3, stop: 2,
		create: 8, remove: 4,
		first: 5, // 3
	}
	twoFamilies = bounds{
		start: 4, stop: 3, remove: 4,
		create: 8, // 7
		first:  4,
	}
	existingNetwork = bounds{create: 5, remove: 4, first: 3, start: 3, stop: 2}
	existingPort    = bounds{create: 5, remove: 4, first: 5, start: 5, stop: 3}
	nestedPort      = bounds{start: 5, stop: 3}
)

// counted lets the host's Kuryr speak with Neutron through a proxy that counts, until the test ends.
func (r *rig) counted(h host) counter {
	r.Helper()
	c := r.counter()
	r.restarted(h, c.env()...)
	return c
}

// counter is a proxy before Neutron that counts, until the test ends.
type counter struct{ *neutronlab.Counter }

func (r *rig) counter() counter {
	r.Helper()
	c, err := r.lab.NewCounter(r.ctx)
	if err != nil {
		r.Fatal(err)
	}
	r.fresh(func(context.Context) error { return c.Close() })
	return counter{c}
}

// env has Kuryr use the proxy, and never ask Docker, so that what it does by itself (the
// comparison with Docker) adds no calls.
func (c counter) env() []string {
	return []string{"KURYR_NEUTRON_ENDPOINT=" + c.Endpoint, "KURYR_DOCKER_API="}
}

// costs runs a command of Docker's, which may cost so many calls.
func (c counter) costs(h host, s step) {
	h.rig.Helper()
	c.Take()
	c.TakeUnawaited()
	h.docker(s.args...)
	calls, spent := c.Take()
	if s.most == 0 {
		return
	}
	what := strings.Join(s.args[:2], " ")
	h.rig.Logf("docker %s: %d calls, %s of Neutron\n  %s", what, len(calls), spent, strings.Join(calls, "\n  "))
	if len(calls) > s.most {
		h.rig.Errorf("docker %s: %d calls of Neutron, at most %d are allowed", what, len(calls), s.most)
	}
}

// restarted ends the host's Kuryr and starts it with env added, until the test ends.
func (r *rig) restarted(h host, env ...string) {
	r.Helper()
	again := func(ctx context.Context, env ...string) error {
		if err := h.KillKuryr(syscall.SIGTERM); err != nil {
			return err
		}
		return h.StartKuryr(ctx, env...)
	}
	r.fresh(func(ctx context.Context) error { return again(ctx) })
	if err := again(r.ctx, env...); err != nil {
		r.Fatal(err)
	}
}

// step is a command of Docker's and how many calls of Neutron it may cost; 0 is not counted.
type step struct {
	most int
	args []string
}

// life is what is done with a container: made, started and stopped twice, removed.
func (b bounds) life(args ...string) []step {
	create := append([]string{"create", "--name", "calls", "--network", "calls", "--stop-timeout", "1"}, args...)
	return []step{
		{0, append(create, "box", "probe", "serve", "7000")},
		{b.first, []string{"start", "calls"}},
		{b.stop, []string{"stop", "calls"}},
		{b.start, []string{"start", "calls"}},
		{b.stop, []string{"stop", "calls"}},
		{0, []string{"rm", "calls"}},
	}
}

// What Docker waits for costs few calls of Neutron, whoever made the network and the port.
func TestCalls(t *testing.T) {
	r := shared(t)
	counter := r.counted(r.h1)
	existing, subnets := r.ownNetwork("calls", "10.72.0.0/24")
	uuid, subnet := existing.ID(), subnets[0].ID()
	zun := r.create("ports", object{
		"name": "zun", "network_id": uuid, "device_owner": "compute:kuryr",
		"device_id": "container", "binding:host_id": r.h1.Name,
		"fixed_ips": []object{{"subnet_id": subnet, "ip_address": "10.72.0.20"}}})
	bare := r.create("ports", object{"name": "bare", "network_id": uuid, "fixed_ips": []object{
		{"subnet_id": subnet, "ip_address": "10.72.0.21"},
	}})
	// The first of everything finds out what Neutron can do.
	r.h1.network("warm", "--subnet", "10.70.0.0/24", "--gateway", "10.70.0.1")
	r.h1.docker("run", "--rm", "--network", "warm", "box", "true")
	r.h1.docker("network", "rm", "warm")
	create := []string{"network", "create", "-d", "kuryr", "--ipam-driver", "kuryr"}
	own := []string{"--subnet", "10.71.0.0/24", "--gateway", "10.71.0.1"}
	theirs := []string{"--subnet", "10.72.0.0/24", "--gateway", "10.72.0.1"}
	id := []string{"-o", "neutron.net.uuid=" + uuid}
	ofSubnet := []string{"-o", "neutron.subnet.uuid=" + subnet, "--ipam-opt", "neutron.subnet.uuid=" + subnet}
	at := func(address string, port object) []string {
		return []string{"--ip", address, "--mac-address", port.Text("mac_address")}
	}
	zuns := []string{"-o", "neutron.net.shared=False", "--ipam-opt", "neutron.net.shared=False"}
	for _, c := range []struct {
		name   string
		bounds bounds
		create []string
		run    []string
	}{
		{"own", ownNetwork, own, nil},
		{"own with a router", ownRouter, append(own, "-o", "kuryr.external_network=external"), nil},
		{"own of two families", twoFamilies, append(own, "--ipv6", "--subnet", "fd71::/64", "--gateway", "fd71::1"), nil},
		{"existing", existingNetwork, slices.Concat(theirs, id, ofSubnet, zuns), nil},
		{"existing named", existingNetwork, append(theirs, "-o", "neutron.net.name=calls"), nil},
		{"port of Zun", existingPort, slices.Concat(theirs, id, ofSubnet), at("10.72.0.20", zun)},
		{"port that is bare", existingPort, slices.Concat(theirs, id), at("10.72.0.21", bare)},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			h := host{r.h1.Host, &rig{T: t, ctx: r.ctx, lab: r.lab, api: r.api}}
			h.rig.fresh(func(ctx context.Context) error { return h.gone(ctx, "network", "rm", "calls") })
			h.rig.fresh(func(ctx context.Context) error { return h.gone(ctx, "rm", "-f", "calls") })
			made := step{c.bounds.create, slices.Concat(create, c.create, []string{"calls"})}
			removed := step{c.bounds.remove, []string{"network", "rm", "calls"}}
			for _, s := range slices.Concat([]step{made}, c.bounds.life(c.run...), []step{removed}) {
				counter.costs(h, s)
				if s.args[0] == "network" && !strings.HasPrefix(c.name, "own") {
					h.tellsUse(existing, subnets[0], s.args[1] == "create")
					later := counter.TakeUnawaited()
					t.Logf("%d calls that it did not wait for\n  %s", len(later), strings.Join(later, "\n  "))
				}
			}
		})
	}
}

// tellsUse waits until a network and its subnet tell by kuryr-libnetwork's tags that the
// Docker network "calls" uses them, or that nobody does.
func (h host) tellsUse(network, subnet object, used bool) {
	h.rig.Helper()
	if !used {
		h.rig.wears("networks", network)
		h.rig.wears("subnets", subnet)
		return
	}
	id := h.docker("network", "inspect", "-f", "{{.Id}}", "calls")
	h.rig.wears("networks", network, append(halves("kuryr.net.uuid", id), "kuryr.net.existing:"+id[:12])...)
	h.rig.until("the subnet does not tell its pool", func(context.Context) error {
		if tags, _ := h.rig.get("subnets", subnet.ID())["tags"].([]any); len(tags) != 1 {
			return fmt.Errorf("it has tags %v", tags)
		}
		return nil
	})
}

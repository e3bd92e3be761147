//go:build e2e

package neutron_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Zun's sequence: a Docker network named for the Neutron network, ports made beforehand, containers started with their
// addresses. What Zun made stays as it was.
func TestZun(t *testing.T) {
	r := shared(t)
	network, subnets := r.ownNetwork("tenant", "10.50.0.0/24")
	name, before := network.ID(), r.get("networks", network.ID())
	for _, h := range []host{r.h1, r.h2} {
		h.network(name, "--subnet", "10.50.0.0/24", "--gateway", "10.50.0.1",
			"-o", "neutron.net.uuid="+network.ID(), "-o", "neutron.net.shared=False", "-o",
			"neutron.subnet.uuid="+subnets[0].ID(),
			"--ipam-opt", "neutron.net.shared=False", "--ipam-opt", "neutron.subnet.uuid="+subnets[0].ID())
	}
	ports := map[string]object{}
	boxes := map[string]box{}
	for i, h := range []host{r.h1, r.h2} {
		p := r.create("ports", object{
			"name": "zun-" + h.Name, "network_id": network.ID(), "device_owner": "compute:kuryr",
			"device_id":       "container-" + h.Name,
			"binding:host_id": h.Name, "fixed_ips": []object{
				{"subnet_id": subnets[0].ID(), "ip_address": fmt.Sprintf("10.50.0.%d", 20+i)},
			}})
		ports[h.Name] = p
		boxes[h.Name] = h.run(
			"zun-"+h.Name, name, "--ip", fmt.Sprintf("10.50.0.%d", 20+i), "--mac-address",
			p.Text("mac_address"),
		)
		if boxes[h.Name].mac != p.Text("mac_address") {
			t.Errorf("the container has MAC %s, its port %s", boxes[h.Name].mac, p.Text("mac_address"))
		}
		r.one("ports", "mac_address="+p.Text("mac_address")) // no other was made
	}
	r.reaches(boxes["h1"].in, boxes["h2"].ip4, boxes["h1"].ip4)
	// One host's leaving does not disturb the other's.
	r.h1.docker("rm", "-f", "zun-h1")
	r.h1.docker("network", "rm", name)
	again := r.h2.run("zun-again", name)
	r.reaches(again.in, boxes["h2"].ip4, again.ip4)
	r.h2.docker("rm", "-f", "zun-again", "zun-h2")
	r.h2.docker("network", "rm", name)
	for h, was := range ports {
		r.until("the port is not released", func(context.Context) error {
			now := r.get("ports", was.ID())
			if tags := fmt.Sprint(now["tags"]); tags != "[]" {
				return fmt.Errorf("it has tags %s", tags)
			}
			if now.Text("name") != was.Text("name") {
				return fmt.Errorf("it was renamed to %q", now.Text("name"))
			}
			if owner := now.Text("device_owner"); owner != "" && owner != "compute:kuryr" {
				return fmt.Errorf("its owner on %s is %q", h, owner)
			}
			return nil
		})
	}
	r.until("the network is not as it was", func(context.Context) error {
		now := r.get("networks", network.ID())
		for _, field := range []string{"name", "description", "tags", "mtu", "shared"} {
			if fmt.Sprint(now[field]) != fmt.Sprint(before[field]) {
				return fmt.Errorf("its %s is %v, and was %v", field, now[field], before[field])
			}
		}
		return nil
	})
}

// A port is asked for by its id.
func TestPortByID(t *testing.T) {
	r := shared(t)
	network, subnets := r.ownNetwork("byid", "10.51.0.0/24")
	r.h1.use("byid", network, subnets)
	p := r.create("ports", object{"name": "byid", "network_id": network.ID()})
	box := r.h1.run(
		"byid-box", "byid", "--driver-opt", "neutron.port.uuid="+p.ID(), "--ip",
		p["fixed_ips"].([]any)[0].(map[string]any)["ip_address"].(string),
	)
	if id := box.port().ID(); id != p.ID() {
		t.Errorf("the container is on port %s, not %s", id, p.ID())
	}
	vm := r.vm(r.h2, "byid-vm", network.ID(), nil)
	r.reaches(box.in, vm.Addrs[0].Addr(), box.ip4)
	r.h1.docker("rm", "-f", "byid-box")
	if now := r.get("ports", p.ID()); now.Text("name") != "byid" || now.Text("device_id") != "" {
		t.Errorf("the port is not as it was: name %q, device %q", now.Text("name"), now.Text("device_id"))
	}
}

// An address that a port has whose owner is another, or that is bound elsewhere, is
// refused, and the port stays as it is.
func TestPortsOfOthers(t *testing.T) {
	r := shared(t)
	network, subnets := r.ownNetwork("others", "10.52.0.0/24")
	r.h1.use("others", network, subnets)
	vm := r.vm(r.h2, "others-vm", network.ID(), nil)
	elsewhere := r.create("ports", object{
		"name": "elsewhere", "network_id": network.ID(), "device_owner": "compute:kuryr",
		"device_id": "somebody", "binding:host_id": "h2",
	})
	for _, p := range []object{vm.Port, elsewhere} {
		before := r.get("ports", p.ID())
		ip := before["fixed_ips"].([]any)[0].(map[string]any)["ip_address"].(string)
		r.h1.refused([]string{ip}, "run", "--rm", "--network", "others", "--ip", ip, "box", "true")
		after := r.get("ports", p.ID())
		for _, field := range []string{
			"name", "device_id", "device_owner", "binding:host_id", "mac_address", "tags",
			"description",
		} {
			if fmt.Sprint(before[field]) != fmt.Sprint(after[field]) {
				t.Errorf("the port of %s: %s is %v, and was %v", before.Text("name"), field, after[field], before[field])
			}
		}
	}
}

// What does not fit is refused before anything is made or changed, in a message that names it.
func TestRefusals(t *testing.T) {
	r := shared(t)
	network, _ := r.ownNetwork("refuse", "10.53.0.0/24")
	_, elsewhere := r.ownNetwork("elsewhere", "10.54.0.0/24")
	create := []string{"network", "create", "-d", "kuryr", "--ipam-driver", "kuryr"}
	for _, c := range []struct {
		name  string
		words []string
		args  []string
	}{
		{"subnet not in the network", []string{elsewhere[0].ID()}, []string{
			"--subnet", "10.54.0.0/24", "--gateway", "10.54.0.1", "-o",
			"neutron.net.uuid=" + network.ID(),
			"-o", "neutron.subnet.uuid=" + elsewhere[0].ID(), "--ipam-opt", "neutron.subnet.uuid=" + elsewhere[0].ID()}},
		{"shared differs", []string{"shared"}, []string{
			"--subnet", "10.53.0.0/24", "--gateway", "10.53.0.1", "-o",
			"neutron.net.uuid=" + network.ID(),
			"-o", "neutron.net.shared=true", "--ipam-opt", "neutron.net.shared=true"}},
		{"network not there", []string{"no-such-network"}, []string{
			"--subnet", "10.55.0.0/24", "--gateway", "10.55.0.1", "-o",
			"neutron.net.name=no-such-network",
		}},
		{"subnet not there", []string{"no-such-subnet"}, []string{
			"--subnet", "10.53.0.0/24", "--gateway", "10.53.0.1", "-o",
			"neutron.net.uuid=" + network.ID(),
			"-o", "neutron.subnet.name=no-such-subnet", "--ipam-opt", "neutron.subnet.name=no-such-subnet"}},
		{"pool not there", []string{"no-such-pool"}, []string{"--subnet", "10.55.0.0/24", "--gateway", "10.55.0.1",
			"-o", "neutron.pool.name=no-such-pool", "--ipam-opt", "neutron.pool.name=no-such-pool"}},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			h := host{r.h1.Host, &rig{T: t, ctx: r.ctx, lab: r.lab, api: r.api}}
			before, err := look(r.ctx, r.lab)
			if err != nil {
				t.Fatal(err)
			}
			h.refused(c.words, append(slices.Clone(create), append(c.args, "refuse")...)...)
			h.rig.until("the refusal left something", func(ctx context.Context) error {
				after, err := look(ctx, r.lab)
				if diff := before.diff(after); err == nil && len(diff) > 0 {
					err = fmt.Errorf("%s", strings.Join(diff, "\n"))
				}
				return err
			})
		})
	}
}

// A subnet pool of the operator's, who has a subnet of it himself: another range of it
// can be had, and his cannot. The pool stays.
func TestOperatorsPool(t *testing.T) {
	r := shared(t)
	pool := r.create("subnetpools", object{
		"name": "tenants", "prefixes": []string{"10.56.0.0/16"}, "default_prefixlen": 24,
	})
	network := r.create("networks", object{"name": "tenants"})
	r.create("subnets", object{
		"name": "tenants", "network_id": network.ID(), "ip_version": 4, "cidr": "10.56.1.0/24",
		"subnetpool_id": pool.ID(),
	})
	named := []string{"-o", "neutron.pool.name=tenants", "--ipam-opt", "neutron.pool.name=tenants"}
	r.h1.refused(
		[]string{"10.56.1.0/24"},
		append(
			[]string{
				"network", "create", "-d", "kuryr", "--ipam-driver", "kuryr", "--subnet",
				"10.56.1.0/24",
			},
			append(named, "pooled")...,
		)...,
	)
	r.h1.network("pooled", append([]string{"--subnet", "10.56.7.0/24", "--gateway", "10.56.7.1"}, named...)...)
	box := r.h1.run("pooled-box", "pooled")
	subnet := r.one("subnets", "network_id="+box.port().Text("network_id"))
	if subnet.Text("subnetpool_id") != pool.ID() {
		t.Errorf("the subnet is of pool %q, not %s", subnet.Text("subnetpool_id"), pool.ID())
	}
	r.h1.docker("rm", "-f", "pooled-box")
	r.h1.docker("network", "rm", "pooled")
	now := r.get("subnetpools", pool.ID())
	if now.Text("name") != "tenants" || fmt.Sprint(now["tags"]) != "[]" {
		t.Errorf("the pool is not as it was: %v", now)
	}
}

// A pool of Kuryr's that is in use when Docker gives it back: a virtual machine has an
// address of its subnet. The machine keeps it, the range can be had anew meanwhile, and
// pool and network go when the machine has gone.
func TestSubnetPoolInUse(t *testing.T) {
	r := shared(t)
	r.restarted(r.h1, "KURYR_DOCKER_FORGET_AFTER=1s")
	ranged := []string{"--subnet", "10.67.0.0/24", "--gateway", "10.67.0.1"}
	r.h1.network("inuse", ranged...)
	id := r.h1.docker("network", "inspect", "-f", "{{.Id}}", "inuse")
	network := r.one("networks", "tags="+halves("kuryr.net.uuid", id)[0])
	pool := r.one("subnets", "network_id="+network.ID()).Text("subnetpool_id")
	vm := r.vm(r.h2, "inuse-vm", network.ID(), nil)
	r.h1.sh("docker", "network", "rm", "inuse") // Docker forgets it whatever the driver says
	r.get("subnetpools", pool)
	if now := r.get("ports", vm.Port.ID()); fmt.Sprint(now["fixed_ips"]) != fmt.Sprint(vm.Port["fixed_ips"]) {
		t.Errorf("the machine has now %v, and had %v", now["fixed_ips"], vm.Port["fixed_ips"])
	}
	r.h1.network("inuse", ranged...)
	a, b := r.h1.run("inuse-a", "inuse"), r.h1.run("inuse-b", "inuse")
	r.reaches(a.in, b.ip4, a.ip4)
	r.h1.docker("rm", "-f", "inuse-a", "inuse-b")
	r.h1.docker("network", "rm", "inuse")
	r.get("networks", network.ID())
	// What is owed is done when it can be: leavesNothing waits for it.
}

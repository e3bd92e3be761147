//go:build e2e

package neutron_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/kuryr/kuryr/test/e2e/neutronlab"
	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// machine is a virtual machine with a Docker engine, for one test.
type machine struct {
	host
	vm *neutronlab.Machine
}

// machine starts a virtual machine on a host, with the port of a network that gets a
// router to the outside, and in it Kuryr, nested in the mode.
func (r *rig) machine(h host, name, mode string, network, subnet object) machine {
	r.Helper()
	external, err := r.lab.ExternalNetwork(r.ctx)
	if err != nil {
		r.Fatal(err)
	}
	router := r.create("routers", object{"name": name, "external_gateway_info": object{"network_id": external.ID()}})
	if err := r.api.Act(
		r.ctx, "routers/"+router.ID()+"/add_router_interface", object{"subnet_id": subnet.ID()},
	); err != nil {
		r.Fatal(err)
	}
	r.fresh(func(ctx context.Context) error {
		return r.api.Act(ctx, "routers/"+router.ID()+"/remove_router_interface", object{"subnet_id": subnet.ID()})
	})
	body := object{"project_id": r.lab.Project(), "security_groups": []string{r.group(name, everything...).ID()}}
	inner, err := h.NewMachine(r.ctx, name, network.ID(), body, "KURYR_BIND_NESTED="+mode)
	if err != nil {
		r.Fatal(err)
	}
	r.fresh(inner.Remove)
	r.Cleanup(func() {
		if r.Failed() {
			r.Logf("%s", inner.Logs(40))
		}
	})
	if err := inner.ImportImage(r.ctx, "box", map[string]string{"probe": probe}); err != nil {
		r.Fatal(err)
	}
	if err := inner.StartKuryr(r.ctx); err != nil {
		r.Fatal(err)
	}
	m := machine{host{inner.Host, r}, inner}
	m.leavesNothing()
	return m
}

// leavesNothing sees to it that the end of the test finds the machine's kernel as it is now.
func (m machine) leavesNothing() {
	r := m.rig
	r.Helper()
	before, err := m.Snapshot(r.ctx)
	if err != nil {
		r.Fatal(err)
	}
	r.fresh(func(ctx context.Context) error {
		return neutronlab.Until(ctx, func(ctx context.Context) error {
			now, err := m.Snapshot(ctx)
			if err != nil {
				return err
			}
			if diff := before.Diff(
				now, privatehost.Links, privatehost.Addresses, privatehost.Routes,
				privatehost.Namespaces, privatehost.Firewall,
			); len(diff) > 0 {
				return errors.New("the machine is not as it was before the test:\n" + strings.Join(diff, "\n"))
			}
			return nil
		})
	})
}

// pairs waits until the machine's port lets pass what these containers send, and nothing else.
func (m machine) pairs(boxes ...box) {
	m.rig.Helper()
	want := []string{}
	for _, b := range boxes {
		for _, a := range b.addrs() {
			if a.IsValid() { // some are of one family
				want = append(want, a.String()+" "+b.mac)
			}
		}
	}
	slices.Sort(want)
	m.rig.until("the allowed address pairs of the machine's port", func(context.Context) error {
		got := []string{}
		pairs, _ := m.rig.get("ports", m.vm.Port.ID())["allowed_address_pairs"].([]any)
		for _, p := range pairs {
			pair, _ := p.(map[string]any)
			got = append(
				got,
				strings.TrimSuffix(
					strings.TrimSuffix(object(pair).Text("ip_address"), "/32"), "/128",
				)+" "+object(pair).Text("mac_address"),
			)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Errorf("%v, want %v", got, want)
		}
		return nil
	})
}

// Docker in a virtual machine, by macvlan: its containers are on the network of the
// machine's port, reach and are reached.
func TestNestedMacvlan(t *testing.T) {
	r := shared(t)
	network, subnets := r.ownNetwork("nested", "10.112.0.0/24", "fd70::/64")
	counter := r.counter() // which ends after the machine
	m := r.machine(r.h2, "inner", "macvlan", network, subnets[0])
	r.h1.use("nested", network, subnets)
	r.h2.use("nested", network, subnets)
	m.use("nested", network, subnets)
	m.use("nested-four", network, subnets[:1])
	group := []string{"--driver-opt", "kuryr.security_groups=" + r.group("nested", everything...).ID()}
	far, near := r.h1.run("nested-far", "nested", group...), r.h2.run("nested-near", "nested", group...)
	a := m.run("nested-a", "nested", "-p", "8112:7000", "--restart", "always")
	c := m.run("nested-c", "nested")
	// meet checks all ways to and from a container of the machine.
	meet := func(x box) {
		t.Helper()
		for _, other := range []box{far, near, c} {
			for i, to := range other.addrs() {
				r.reaches(x.in, to, x.addrs()[i])
				r.reaches(other.in, x.addrs()[i], to)
			}
		}
	}
	// alone checks that nobody plugs the ports, and that OVN sends what is for their MACs
	// to the machine's port and nowhere else.
	alone := func(boxes ...box) {
		t.Helper()
		for _, x := range boxes {
			if p := x.port(); p.Text("binding:vnic_type") != "baremetal" ||
				p.Text("binding:host_id") != "" || p.Text("status") != "DOWN" {
				t.Errorf("the port of %s is not one that nobody plugs: %v", x.name, p)
			}
			res := r.lab.Central.Exec(
				r.ctx, "ovn-nbctl", "--timeout=20", "--bare", "--columns=type,options", "find",
				"Logical_Switch_Port", "name="+x.port().ID(),
			)
			if !res.OK() || !strings.HasPrefix(res.Out(), "external") || strings.Contains(res.Out(), "virtual-parents") {
				t.Errorf("the port of %s is not external to OVN: %s", x.name, res)
			}
		}
	}
	m.pairs(a, c)
	meet(a)
	meet(c)
	alone(a, c)
	published := netip.AddrPortFrom(m.vm.Addrs[0].Addr(), 8112)
	r.until("a published port of the machine is not reached", func(context.Context) error {
		return asks(far.in, "tcp", published.Addr(), int(published.Port())).Err()
	})
	// The machine's own network only.
	m.network("elsewhere", "--subnet", "10.113.0.0/24", "--gateway", "10.113.0.1")
	m.refused(
		[]string{"macvlan", network.ID(), "bind.nested: vlan"}, "run", "--rm", "--network",
		"elsewhere", "box", "true",
	)

	s := far.pings(a.ip4)
	if err := m.KillKuryr(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := m.StartKuryr(r.ctx, counter.env()...); err != nil {
		t.Fatal(err)
	}
	b := m.run("nested-b", "nested")
	meet(b)
	alone(a, b, c)
	if lost, sent := s.lost(r); interrupted(lost, nil, sent) || sent < 2 {
		t.Errorf("Kuryr was killed in the machine: %d of %d pings were lost", len(lost), sent)
	}
	m.pairs(a, b, c)
	d := m.run("nested-d", "nested-four")
	m.pairs(a, b, c, d)
	for range 2 {
		counter.costs(m.host, step{nestedPort.stop, []string{"stop", "nested-d"}})
		counter.costs(m.host, step{nestedPort.start, []string{"start", "nested-d"}})
	}
	counter.costs(m.host, step{nestedPort.stop + 1, []string{"stop", "nested-b"}}) // of two families
	counter.costs(m.host, step{nestedPort.start + 1, []string{"start", "nested-b"}})
	m.pairs(a, m.look("nested-b", "nested"), c, m.look("nested-d", "nested-four"))
	m.docker("rm", "-f", "nested-b", "nested-c", "nested-d")
	m.pairs(a)

	if err := m.Reboot(r.ctx); err != nil {
		t.Fatal(err)
	}
	r.until("the container does not come back", func(context.Context) error {
		res := m.sh("docker", "inspect", "-f", "{{.State.Running}}", "nested-a")
		if res.Out() != "true" {
			return fmt.Errorf("%s", res)
		}
		return nil
	})
	a, c = m.look("nested-a", "nested"), m.run("nested-c", "nested")
	meet(a)
	m.docker("rm", "-f", "nested-a", "nested-c")
	m.pairs()
}

// trunked is a virtual machine by VLANs, and the network "tagged" for its containers. It
// refuses containers as long as its port has no trunk.
func (r *rig) trunked(name string) (m machine, trunk object) {
	r.Helper()
	network, subnets := r.ownNetwork("trunk", "10.114.0.0/24")
	tagged, inside := r.ownNetwork("tagged", "10.115.0.0/24")
	m = r.machine(r.h2, name, "vlan", network, subnets[0])
	m.use("tagged", tagged, inside)
	r.h1.use("tagged", tagged, inside)
	m.refused([]string{m.vm.Port.ID(), "trunk"}, "run", "--rm", "--network", "tagged", "box", "true")
	return m, r.create("trunks", object{"name": name, "port_id": m.vm.Port.ID()})
}

// makesVLANs tells whether the kernel makes VLAN links.
func (h host) makesVLANs() bool {
	h.rig.Helper()
	able := h.sh("ip", "link", "add", "link", "lo", "name", "vlans", "type", "vlan", "id", "4094").OK()
	if able {
		h.sh("ip", "link", "del", "vlans")
	}
	return able
}

// bare checks that a trunk has no subports.
func (r *rig) bare(trunk object) {
	r.Helper()
	if subports := fmt.Sprint(r.get("trunks", trunk.ID())["sub_ports"]); subports != "[]" {
		r.Errorf("the trunk still has subports: %s", subports)
	}
}

// Docker in a virtual machine, by VLANs of a trunk.
func TestNestedVLAN(t *testing.T) {
	r := shared(t)
	if !r.h1.makesVLANs() {
		t.Skip("this kernel makes no VLAN links: it has no 8021q")
	}
	m, trunk := r.trunked("trunked")
	far := r.h1.run("tagged-far", "tagged")
	a := m.run("tagged-a", "tagged")
	r.reaches(a.in, far.ip4, a.ip4)
	r.reaches(far.in, a.ip4, far.ip4)
	if p := a.port(); p.Text("status") != "ACTIVE" {
		t.Errorf("the container's port is not plugged: %v", p)
	}
	m.docker("rm", "-f", "tagged-a")
	r.bare(trunk)
}

// Where the kernel has no VLANs, what is missing is said, and nothing is left.
func TestNestedVLANMissing(t *testing.T) {
	r := shared(t)
	if r.h1.makesVLANs() {
		t.Skip("this kernel makes VLAN links")
	}
	m, trunk := r.trunked("trunkless")
	m.refused([]string{"vlan", "8021q"}, "run", "--rm", "--network", "tagged", "box", "true")
	r.bare(trunk)
}

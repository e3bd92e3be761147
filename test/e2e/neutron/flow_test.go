//go:build e2e

package neutron_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
)

// The main flow: containers of two hosts and a virtual machine on one Neutron network, IPv4 and IPv6, over Geneve.
func TestHostsAndMachines(t *testing.T) {
	r := shared(t)
	network, subnets := r.ownNetwork("flow", "10.40.0.0/24", "fd40::/64")
	r.h1.use("flow", network, subnets)
	r.h2.use("flow", network, subnets)
	group := r.group("flow", everything...)
	vm := r.vm(r.h2, "flow-vm", network.ID(), nil)
	a := r.h1.run("flow-a", "flow", "--driver-opt", "kuryr.security_groups="+group.ID())
	b := r.h2.run("flow-b", "flow", "--driver-opt", "kuryr.security_groups="+group.ID())
	c := r.h1.run("flow-c", "flow", "--driver-opt", "kuryr.security_groups="+group.ID())
	for _, x := range []box{a, b, c} {
		if !x.ip4.IsValid() || !x.ip6.IsValid() {
			t.Fatalf("container %s has not both addresses: %v %v", x.name, x.ip4, x.ip6)
		}
	}
	for _, way := range []struct {
		from runner
		self []netip.Addr
		to   []netip.Addr
	}{
		{a.in, a.addrs(), c.addrs()},              // of one host
		{a.in, a.addrs(), b.addrs()},              // over Geneve
		{b.in, b.addrs(), a.addrs()},              // and back
		{b.in, b.addrs(), bare(vm.Addrs)},         // to a machine of the same host
		{a.in, a.addrs(), bare(vm.Addrs)},         // of another
		{r.inside(vm), bare(vm.Addrs), a.addrs()}, // from a machine
		{r.inside(vm), bare(vm.Addrs), b.addrs()},
	} {
		for _, to := range way.to {
			r.reaches(way.from, to, sameFamily(way.self, to))
		}
	}
	// Neutron knows each as what it is.
	for _, x := range []box{a, b, c} {
		p := x.port()
		for field, want := range map[string]string{
			"network_id": network.ID(), "binding:host_id": x.Name, "device_owner": "compute:kuryr",
			"mac_address": x.mac, "status": "ACTIVE",
		} {
			if got := p.Text(field); got != want {
				t.Errorf("the port of %s has %s %q, not %q", x.name, field, got, want)
			}
		}
	}
	// Without an IPAM driver a container gets the addresses of its port.
	r.h1.networkBy("null", "flow-null", "-o", "neutron.net.uuid="+network.ID())
	d := r.h1.run("flow-d", "flow-null", "--driver-opt", "kuryr.security_groups="+group.ID())
	if !d.ip4.IsValid() || !d.ip6.IsValid() || d.port().Text("network_id") != network.ID() {
		t.Errorf("container %s has addresses %v and %v, port %v", d.name, d.ip4, d.ip6, d.port())
	}
	for _, to := range b.addrs() {
		r.reaches(d.in, to, sameFamily(d.addrs(), to))
	}
	// Packets as large as the network takes, and no larger, pass the tunnel.
	mtu := int(network["mtu"].(float64))
	if res := a.in("ping", "-n", "-c3", "-i0.2", "-W5", "-M", "do", "-s", fmt.Sprint(mtu-28), b.ip4.String()); !res.OK() {
		t.Error(res)
	}
	if res := a.in("ping", "-n", "-c1", "-W1", "-M", "do", "-s", fmt.Sprint(mtu-27), b.ip4.String()); res.OK() {
		t.Errorf("a packet larger than the network's MTU passed: %s", res)
	}
}

// A network that Kuryr makes in Neutron, and what it makes there.
func TestOwnNetwork(t *testing.T) {
	r := shared(t)
	r.h1.network("own", "--subnet", "10.41.0.0/24", "--gateway", "10.41.0.1")
	id := r.h1.docker("network", "inspect", "-f", "{{.Id}}", "own")
	network := r.one("networks", "tags=kuryr.net.uuid.lh:"+id[:32]+",kuryr.net.uuid.uh:"+id[32:])
	if want := "kuryr-net-" + id[:8]; network.Text("name") != want {
		t.Errorf("the network is named %q, not %q", network.Text("name"), want)
	}
	subnet := r.one("subnets", "network_id="+network.ID())
	if want := "kuryr-subnet-10.41.0.0/24"; subnet.Text("name") != want {
		t.Errorf("the subnet is named %q, not %q", subnet.Text("name"), want)
	}
	pool := r.get("subnetpools", subnet.Text("subnetpool_id"))
	if want := "kuryrPool-10.41.0.0/24"; pool.Text("name") != want {
		t.Errorf("the subnet pool is named %q, not %q", pool.Text("name"), want)
	}
	a, b := r.h1.run("own-a", "own"), r.h1.run("own-b", "own")
	// The project's default group lets its own members in.
	r.reaches(a.in, b.ip4, a.ip4)
	r.until("the port is not tagged as the peer's are", func(context.Context) error {
		return tagged(a.port(), "compute:kuryr")
	})
	r.h1.docker("stop", "own-b")
	r.h1.docker("start", "own-b")
	b = r.h1.look("own-b", "own")
	r.reaches(b.in, a.ip4, b.ip4)
}

func (b box) addrs() []netip.Addr { return []netip.Addr{b.ip4, b.ip6} }

func bare(prefixes []netip.Prefix) (addrs []netip.Addr) {
	for _, p := range prefixes {
		addrs = append(addrs, p.Addr())
	}
	return addrs
}

// sameFamily is the address of to's family.
func sameFamily(of []netip.Addr, to netip.Addr) netip.Addr {
	for _, a := range of {
		if a.Is4() == to.Is4() {
			return a
		}
	}
	return netip.Addr{}
}

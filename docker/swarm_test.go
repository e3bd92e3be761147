package docker

import (
	"net/netip"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

func TestSwarmIsOneAllocation(t *testing.T) {
	t.Parallel()
	b := newSwarm(t)[0]
	n := b.allocate(&network{v4: []*pool{{cidr: "10.130.0.0/24"}}, options: m{"x": "y", optMTU: "1400"}})
	b.expect(1, 0, 0)
	vip, task := b.task(n), b.task(n)
	b.expect(1, 0, 2)
	node := b.onNode(n)
	b.expect(1, 1, 2)
	e := b.run(&endpoint{net: node, ip4: task})
	b.expect(1, 1, 2)
	if e.joined["Gateway"] != "10.130.0.1" {
		t.Errorf("joined %v", e.joined)
	}
	port, found, err := b.driver.port(t.Context(), e.id)
	if err != nil || !found || port.Addresses[0].Addr.String() != task || port.MAC.String() != e.mac || port.Host != testHost {
		t.Errorf("port %+v %v", port, err)
	}
	if network, err := b.driver.network(t.Context(), n.id); err != nil || network.MTU != 1400 {
		t.Errorf("network %+v %v", network, err)
	}
	b.stop(e)
	b.expect(1, 1, 2) // the manager holds both addresses
	b.addressRelease(n.v4[0], task)
	b.addressRelease(n.v4[0], vip)
	b.expect(1, 1, 0)
	b.remove(node)
	b.expect(1, 1, 0)
	b.unallocate(n)
	b.clean()
}

// The manager's and the node's releases come in any order. Here is what is left after each.
func TestSwarmReleases(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		order []string
		left  []int // ports
	}{
		{"node first", []string{"endpoint", "node", "manager"}, []int{1, 1, 0}},
		{"manager first", []string{"manager", "endpoint", "node"}, []int{1, 1, 0}},
		{"manager before the node's", []string{"endpoint", "manager", "node"}, []int{1, 0, 0}},
		{"DeleteEndpoint lost", []string{"node", "manager"}, []int{1, 0}},
		{"DeleteEndpoint lost, manager first", []string{"manager", "node"}, []int{1, 0}},
		{"DeleteEndpoint late", []string{"node", "endpoint", "manager"}, []int{1, 1, 0}},
		{"everything twice", []string{"endpoint", "endpoint", "node", "node", "manager", "manager"}, []int{1, 1, 1, 1, 0, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newSwarm(t)[0]
			n := b.allocate(&network{v4: []*pool{{cidr: "10.130.0.0/24"}}})
			node := b.onNode(n)
			e := b.run(&endpoint{net: node, ip4: b.task(n)})
			for i, what := range c.order {
				b.restart()
				switch what {
				case "endpoint":
					b.ok("NetworkDriver.Leave", e.body())
					b.ok("NetworkDriver.DeleteEndpoint", e.body())
				case "node":
					b.addressRelease(node.v4[0], e.ip4)
				case "manager":
					b.addressRelease(n.v4[0], e.ip4)
				}
				if b.expect(1, 1, c.left[i]); t.Failed() {
					t.Fatalf("after %v", c.order[:i+1])
				}
			}
			if len(c.order) > 0 && b.binder.count() > 0 {
				t.Error("still plugged")
			}
			b.unallocate(n)
			b.remove(node)
			b.clean()
		})
	}
}

// When the last task of a node goes, its engine deletes the network there; the manager's stays, with its VIPs.
func TestSwarmNodeLeavesAndComesBack(t *testing.T) {
	t.Parallel()
	b := newSwarm(t)[0]
	n := b.allocate(&network{v4: []*pool{{cidr: "10.130.0.0/24"}}})
	vip := b.task(n)
	for range 2 {
		node := b.onNode(n)
		lost := b.run(&endpoint{net: node, ip4: b.task(n)}) // its DeleteEndpoint never comes
		b.remove(node)
		b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id})
		if b.binder.count() != 0 {
			t.Error("still plugged")
		}
		b.addressRelease(n.v4[0], lost.ip4)
		b.expect(1, 1, 1)
	}
	b.contains(b.fails("IpamDriver.RequestAddress", m{"PoolID": n.v4[0].id, "Address": vip, "Options": serialOption}), "in use")
	b.unallocate(n)
	b.clean()
}

// Freed while a node has it, the network goes with the node's part; without a node's part at once.
func TestSwarmFreed(t *testing.T) {
	t.Parallel()
	b := newSwarm(t)[0]
	n := b.allocate(&network{v4: []*pool{{cidr: "10.130.0.0/24"}, {cidr: "10.131.0.0/24"}}})
	b.task(n)
	b.ok("NetworkDriver.FreeNetwork", m{"NetworkID": n.id})
	b.ok("NetworkDriver.FreeNetwork", m{"NetworkID": n.id})
	b.expect(0, 0, 0)
	b.release(n)
	b.clean()

	n = b.allocate(&network{v4: []*pool{{cidr: "10.130.0.0/24"}}})
	node := b.onNode(n)
	e := b.run(&endpoint{net: node, ip4: b.task(n)})
	b.unallocate(n)
	b.expect(1, 1, 1)
	b.ok("NetworkDriver.EndpointOperInfo", e.body())
	b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id})
	b.expect(0, 0, 0)
	b.stop(e)
	b.release(node)
	b.clean()

	// Pools first.
	n = b.allocate(&network{v4: []*pool{{cidr: "10.130.0.0/24"}}})
	node = b.onNode(n)
	b.release(n)
	b.expect(1, 1, 0)
	b.ok("NetworkDriver.FreeNetwork", m{"NetworkID": n.id})
	b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id})
	b.release(node)
	b.clean()
}

// What a manager is refused it undoes with releases alone; what it was not told of it undoes alike.
func TestSwarmAllocationUndone(t *testing.T) {
	t.Parallel()
	b := newSwarm(t)[0]
	n := &network{id: swarmID(), v4: []*pool{{cidr: "10.130.0.0/24"}}}
	b.managerPools(n)
	body := n.allocateBody()
	body["Options"] = m{"kuryr.rooter": "x"}
	b.contains(b.fails("NetworkDriver.AllocateNetwork", body), "did you mean kuryr.router")
	b.release(n)
	b.clean()

	n = b.allocate(&network{v4: []*pool{{cidr: "10.130.0.0/24"}, {cidr: "10.131.0.0/24"}}})
	b.release(n)
	b.clean()

	// It tries again, and has another range by then.
	n = b.allocate(&network{v4: []*pool{{cidr: "10.130.0.0/24"}}})
	again := b.allocate(&network{id: n.id, v4: []*pool{{cidr: "10.131.0.0/24"}}})
	b.expect(1, 0, 0)
	b.release(n)
	b.unallocate(again)
	b.clean()
}

// A manager that is restarted, or another that leads now, takes all again that it had.
func TestSwarmManagerAgain(t *testing.T) {
	t.Parallel()
	for _, host := range []int{0, 1} {
		boxes := newSwarm(t, "other")
		b, leader := boxes[0], boxes[host]
		n := b.allocate(&network{v4: []*pool{{cidr: "10.130.0.0/24"}}, options: m{optRouter: "edge"}})
		vip, task := b.task(n), b.task(n)
		node := b.onNode(n)
		e := b.run(&endpoint{net: node, ip4: task})

		again := leader.allocate(&network{id: n.id, options: n.options, v4: []*pool{{cidr: "10.130.0.0/24", gateway: "10.130.0.1"}}})
		if again.v4[0].id == n.v4[0].id {
			t.Errorf("pool %q twice", n.v4[0].id)
		}
		for _, address := range []string{vip, task} {
			body := m{"PoolID": again.v4[0].id, "Address": address, "Options": serialOption}
			leader.ok("IpamDriver.RequestAddress", body)
			leader.contains(leader.fails("IpamDriver.RequestAddress", body), "in use")
		}
		fresh := leader.task(again)
		b.expect(1, 1, 3)

		// The range is this network's alone. Undoing what was refused takes nothing from it.
		other := &network{id: swarmID(), v4: []*pool{{cidr: "10.130.0.0/24"}}}
		leader.managerPools(other)
		leader.contains(leader.fails("NetworkDriver.AllocateNetwork", other.allocateBody()), "another network's: "+n.id)
		leader.release(other)
		leader.task(again)
		b.must(b.driver.Reconcile(t.Context()))
		b.expect(1, 1, 4)
		if port, found, err := b.driver.port(t.Context(), e.id); err != nil || !found || port.Addresses[0].Addr.String() != task {
			t.Errorf("port %+v %v", port, err)
		}
		leader.addressRelease(again.v4[0], fresh)
		leader.addressRelease(again.v4[0], task)
		b.expect(1, 1, 3) // a VIP, an address that nobody has, and the endpoint's
		leader.unallocate(again)
		b.stop(e)
		b.remove(node)
		b.clean()
	}
}

// An engine that was killed makes its networks once more, and never ends the endpoints that it had.
func TestSwarmEngineKilled(t *testing.T) {
	t.Parallel()
	b := newSwarm(t)[0]
	n := b.allocate(&network{v4: []*pool{{cidr: "10.130.0.0/24"}}})
	node := b.onNode(n)
	lost := b.run(&endpoint{net: node, ip4: b.task(n)})
	alive := b.run(&endpoint{net: node, ip4: b.task(n)})
	released := b.run(&endpoint{net: node, ip4: b.task(n)})
	b.addressRelease(n.v4[0], released.ip4)
	for id, i := range b.binder.plugged {
		if i.Port.DeviceID != alive.id {
			delete(b.binder.plugged, id) // with the container
		}
	}
	b.expect(1, 1, 3)
	b.onNode(n)
	b.expect(1, 1, 2) // the manager still holds the address of one that is lost
	if _, found, err := b.driver.port(t.Context(), lost.id); err != nil || found {
		t.Errorf("the lost endpoint: %v %v", found, err)
	}
	if _, found, err := b.driver.port(t.Context(), alive.id); err != nil || !found {
		t.Errorf("the endpoint of a container: %v %v", found, err)
	}
	b.addressRelease(n.v4[0], lost.ip4)
	b.expect(1, 1, 1)
	b.stop(alive)
	b.remove(node)
	b.unallocate(n)
	b.clean()
}

// The node's engine is another host's, and so is a second one's.
func TestSwarmOfThreeHosts(t *testing.T) {
	t.Parallel()
	boxes := newSwarm(t, "two", "three")
	manager, two, three := boxes[0], boxes[1], boxes[2]
	n := manager.allocate(&network{v4: []*pool{{cidr: "10.130.0.0/24"}}})
	nodes := [2]*network{two.onNode(n), three.onNode(n)}
	a := two.run(&endpoint{net: nodes[0], ip4: manager.task(n)})
	c := three.run(&endpoint{net: nodes[1], ip4: manager.task(n)})
	manager.expect(1, 1, 2)
	two.contains(two.fails("IpamDriver.RequestAddress", m{"PoolID": nodes[0].v4[0].id, "Address": c.ip4}), "in use")
	two.addressRelease(nodes[0].v4[0], c.ip4) // an endpoint of another host is none of this one's
	two.remove(nodes[0])                      // with an endpoint whose end was lost
	manager.expect(1, 1, 2)
	if two.binder.count() != 0 || three.binder.count() != 1 {
		t.Errorf("%d and %d plugged", two.binder.count(), three.binder.count())
	}
	if port, found, err := three.driver.port(t.Context(), c.id); err != nil || !found || port.Host != "three" {
		t.Errorf("port %+v %v", port, err)
	}
	two.stop(a)
	manager.unallocate(n)
	manager.expect(1, 1, 2)
	three.stop(c)
	three.remove(nodes[1])
	manager.clean()
}

// With Docker's own IPAM driver, nothing is asked of Kuryr before a node creates the network.
func TestSwarmOfOtherIPAM(t *testing.T) {
	t.Parallel()
	boxes := newSwarm(t, "two")
	one, two := boxes[0], boxes[1]
	n := &network{id: swarmID(), options: m{"x": "y"}, v4: []*pool{{cidr: "10.0.1.0/24", gateway: "10.0.1.1"}}}
	for range 2 {
		a := one.ok("NetworkDriver.AllocateNetwork", n.allocateBody())
		if o, _ := a["Options"].(map[string]any); o["x"] != "y" {
			t.Errorf("answered %v", a)
		}
		one.clean()
	}
	create := m{"NetworkID": n.id, "Options": m{optGeneric: n.options}, "IPv4Data": []m{{"AddressSpace": "LocalDefault", "Gateway": "10.0.1.1/24", "Pool": "10.0.1.0/24"}}}
	for _, b := range boxes {
		b.ok("NetworkDriver.CreateNetwork", create)
	}
	one.ok("NetworkDriver.AllocateNetwork", n.allocateBody())
	e := &endpoint{id: newID(), mac: "02:00:00:00:00:09", net: n, ip4: "10.0.1.5"}
	two.ok("NetworkDriver.CreateEndpoint", e.createBody())
	two.ok("NetworkDriver.Join", e.joinBody())
	one.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id})
	one.ok("NetworkDriver.FreeNetwork", m{"NetworkID": n.id})
	one.expect(1, 1, 1)
	two.ok("NetworkDriver.Leave", e.body())
	two.ok("NetworkDriver.DeleteEndpoint", e.body())
	two.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id})
	one.clean()
	two.clean()
}

// A network of another driver takes its addresses from Kuryr, in the global space of the manager.
func TestSwarmAddressesAlone(t *testing.T) {
	t.Parallel()
	b := newSwarm(t)[0]
	n := &network{v4: []*pool{{cidr: "10.140.0.0/24"}}}
	b.managerPools(n)
	first := bareAddress(b, b.ok("IpamDriver.RequestAddress", m{"PoolID": n.v4[0].id, "Address": "10.140.0.7", "Options": serialOption})["Address"])
	second := b.task(n)
	b.restart()
	again := &network{v4: []*pool{{cidr: "10.140.0.0/24", gateway: "10.140.0.1"}}}
	b.managerPools(again)
	for _, a := range []string{first, second} {
		b.ok("IpamDriver.RequestAddress", m{"PoolID": again.v4[0].id, "Address": a, "Options": serialOption})
	}
	b.addressRelease(again.v4[0], second)
	b.expect(1, 0, 1)
	b.release(again)
	b.clean()
}

// Only nodes are told that a network is internal.
func TestSwarmInternal(t *testing.T) {
	t.Parallel()
	b := newSwarm(t)[0]
	n := b.allocate(&network{v4: []*pool{{cidr: "10.130.0.0/24"}}, internal: true})
	node := b.onNode(n)
	e := b.run(&endpoint{net: node, ip4: b.task(n)})
	b.expect(1, 0, 1)
	if e.joined["Gateway"] != nil || e.joined["DisableGatewayService"] != true {
		t.Errorf("joined %v", e.joined)
	}
	b.fails("IpamDriver.RequestAddress", m{"PoolID": n.v4[0].id, "Address": n.v4[0].gateway, "Options": serialOption})
	b.unallocate(n)
	b.stop(e)
	b.remove(node)
	b.clean()
}

// The sandbox in which the engine balances a network's services answers for their VIPs.
func TestSwarmBalancer(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"/var/run/docker/netns/lb_p579wyat0", "/run/docker/netns/ingress_sbox"} {
		b := newSwarm(t)[0]
		n := b.allocate(&network{v4: []*pool{{cidr: "10.130.0.0/24"}}})
		node := b.onNode(n)
		e := &endpoint{net: node, ip4: b.task(n)}
		b.take(e)
		b.ok("NetworkDriver.CreateEndpoint", e.createBody())
		pairs := func() []sdn.AllowedPair {
			port, found, err := b.driver.portAt(t.Context(), b.subnet(n), netip.MustParseAddr(e.ip4))
			if err != nil || !found {
				t.Fatal(found, err)
			}
			return port.AllowedPairs
		}
		body := e.joinBody()
		b.ok("NetworkDriver.Join", body)
		if got := pairs(); len(got) != 0 {
			t.Errorf("a container may send as %v", got)
		}
		b.ok("NetworkDriver.Leave", e.body())
		body["SandboxKey"] = key
		for range 2 {
			b.ok("NetworkDriver.Join", body)
			if got := pairs(); len(got) != 1 || got[0].Prefix.String() != "10.130.0.0/24" || got[0].MAC != nil {
				t.Errorf("a balancer may send as %v", got)
			}
		}
		for _, i := range b.binder.plugged {
			if len(i.Port.AllowedPairs) != 1 {
				t.Errorf("plugged %+v", i.Port)
			}
		}
		b.ok("NetworkDriver.Leave", e.body())
		if got := pairs(); len(got) != 0 {
			t.Errorf("after Leave %v", got)
		}
		b.ok("NetworkDriver.Join", body)
		b.ok("NetworkDriver.DeleteEndpoint", e.body())
		if got := pairs(); len(got) != 0 {
			t.Errorf("after DeleteEndpoint %v", got)
		}
		b.unallocate(n)
		b.remove(node)
		b.clean()
	}
}

// Networks of one host only are none of the swarm's, and a host that is of no swarm may have any range.
func TestSwarmAndOtherNetworks(t *testing.T) {
	t.Parallel()
	boxes := newSwarm(t, "two")
	swarm, alone := boxes[0], boxes[1]
	alone.config.Scope = Local
	alone.restart()
	n := swarm.allocate(&network{v4: []*pool{{cidr: "10.130.0.0/24"}}})
	same := alone.create(&network{v4: []*pool{{cidr: "10.130.0.0/24"}}})
	e := alone.run(&endpoint{net: same})
	other := swarm.create(&network{v4: []*pool{{cidr: "10.131.0.0/24"}}})
	global := swarm.create(&network{v4: []*pool{{cidr: "10.132.0.0/24", space: globalSpace}}})
	f := swarm.run(&endpoint{net: global})
	swarm.expect(4, 3, 2)
	swarm.unallocate(n)
	swarm.expect(3, 3, 2)
	swarm.stop(f)
	swarm.remove(global)
	swarm.remove(other)
	alone.stop(e)
	alone.remove(same)
	swarm.clean()
}

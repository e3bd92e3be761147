package swarm

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/sdn"
)

func TestOneAllocation(t *testing.T) {
	t.Parallel()
	e := newSwarm(t)[0]
	n := e.allocate(&docknet{pools: ranges("10.130.0.0/24"), options: api.NetworkOptions{MTU: 1400}})
	e.expect(1, 0, 0)
	vip, addr := e.any(n), e.any(n)
	e.expect(1, 0, 2)
	node := e.onNode(n)
	e.expect(1, 1, 2)
	r := e.run(node, addr)
	e.expect(1, 1, 2)
	if r.joined.Gateway != "10.130.0.1" {
		t.Errorf("joined %+v", r.joined)
	}
	p, found := e.port(n, addr)
	if !found || p.DeviceID != r.id || p.MAC.String() != r.mac.String() || p.Host != firstHost {
		t.Errorf("port %+v", p)
	}
	if v, err := e.Find(t.Context(), n.id); err != nil || v.MTU != 1400 || len(v.Subnets) != 1 {
		t.Errorf("view %+v, error %v", v, err)
	}
	e.halt(r)
	e.expect(1, 1, 2) // the manager holds both addresses
	e.must(e.releaseAddress(n.pools[0].id, addr))
	e.must(e.releaseAddress(n.pools[0].id, vip))
	e.expect(1, 1, 0)
	e.remove(node)
	e.expect(1, 1, 0)
	e.unallocate(n)
	e.clean()
}

// The manager's and the node's releases come in any order. The ports that are left after
// each.
func TestReleases(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		order []string
		left  []int
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
			e := newSwarm(t)[0]
			n := e.allocate(&docknet{pools: ranges("10.130.0.0/24")})
			node := e.onNode(n)
			r := e.run(node, e.any(n))
			for i, what := range c.order {
				e.restart()
				switch what {
				case "endpoint":
					e.must(e.endpoints.Leave(t.Context(), r.id))
					e.must(e.endpoints.Delete(t.Context(), r.id))
				case "node":
					e.must(e.releaseAddress(r.pool.id, r.addr))
				case "manager":
					e.must(e.releaseAddress(n.pools[0].id, r.addr))
				}
				if e.expect(1, 1, c.left[i]); t.Failed() {
					t.Fatalf("after %v", c.order[:i+1])
				}
			}
			if e.binder.count() > 0 {
				t.Error("still plugged")
			}
			e.unallocate(n)
			e.remove(node)
			e.clean()
		})
	}
}

// When the last task of a node goes, its engine deletes the network there. The manager's
// stays, with its VIPs.
func TestNodeLeavesAndComesBack(t *testing.T) {
	t.Parallel()
	e := newSwarm(t)[0]
	n := e.allocate(&docknet{pools: ranges("10.130.0.0/24")})
	vip := e.any(n)
	for range 2 {
		node := e.onNode(n)
		lost := e.run(node, e.any(n)) // its DeleteEndpoint never comes
		e.remove(node)
		e.must(e.DeleteNetwork(t.Context(), n.id))
		if e.binder.count() != 0 {
			t.Error("still plugged")
		}
		e.must(e.releaseAddress(n.pools[0].id, lost.addr))
		e.expect(1, 1, 1)
	}
	_, err := e.take(n, vip)
	e.refused(err, "in use")
	e.unallocate(n)
	e.clean()
}

// Freed while a node has it, the network goes with the node's part; without a node's part
// it goes immediately.
func TestFreed(t *testing.T) {
	t.Parallel()
	e := newSwarm(t)[0]
	n := e.allocate(&docknet{pools: ranges("10.130.0.0/24", "10.131.0.0/24")})
	e.any(n)
	e.must(e.tryFree(n))
	e.must(e.tryFree(n))
	e.expect(0, 0, 0)
	e.must(e.tryReleaseRanges(n))
	e.clean()

	n = e.allocate(&docknet{pools: ranges("10.130.0.0/24")})
	node := e.onNode(n)
	r := e.run(node, e.any(n))
	e.unallocate(n)
	e.expect(1, 1, 1)
	e.must(e.DeleteNetwork(t.Context(), n.id))
	e.expect(0, 0, 0)
	e.halt(r)
	e.must(e.tryReleaseRanges(node))
	e.clean()

	// Pools first.
	n = e.allocate(&docknet{pools: ranges("10.130.0.0/24")})
	node = e.onNode(n)
	e.must(e.tryReleaseRanges(n))
	e.expect(1, 1, 0)
	e.must(e.tryFree(n))
	e.must(e.DeleteNetwork(t.Context(), n.id))
	e.must(e.tryReleaseRanges(node))
	e.clean()
}

// A manager undoes by releases alone what it was refused, and what it was not told of.
func TestAllocationUndone(t *testing.T) {
	t.Parallel()
	e := newSwarm(t)[0]
	n := &docknet{pools: ranges("10.130.0.0/24"), options: api.NetworkOptions{Groups: []string{"missing"}}}
	e.refused(e.tryAllocate(n), "there is no security group")
	e.must(e.tryReleaseRanges(n))
	e.clean()

	n = e.allocate(&docknet{pools: ranges("10.130.0.0/24", "10.131.0.0/24")})
	e.must(e.tryReleaseRanges(n))
	e.clean()

	// It tries again, and has another range by then.
	n = e.allocate(&docknet{pools: ranges("10.130.0.0/24")})
	again := e.allocate(&docknet{id: n.id, pools: ranges("10.131.0.0/24")})
	e.expect(1, 0, 0)
	e.must(e.tryReleaseRanges(n))
	e.unallocate(again)
	e.clean()
}

// The ranges of a network that a node has stay.
func TestOtherRanges(t *testing.T) {
	t.Parallel()
	e := newSwarm(t)[0]
	n := e.allocate(&docknet{pools: ranges("10.130.0.0/24")})
	node := e.onNode(n)
	other := &docknet{id: n.id, pools: ranges("10.131.0.0/24")}
	e.refused(e.tryAllocate(other), "has the range 10.130.0.0/24 already")
	e.must(e.tryReleaseRanges(other))
	r := node.request(api.LocalSpace)
	r.Ranges[0].Pool = netip.MustParsePrefix("10.131.0.0/24")
	e.refused(e.CreateNetwork(t.Context(), &r), "has no range 10.131.0.0/24")
	e.expect(1, 1, 0)
	e.remove(node)
	e.unallocate(n)
	e.clean()
}

// A manager that is restarted, or another that leads now, takes all again that it had.
func TestManagerAgain(t *testing.T) {
	t.Parallel()
	for _, host := range []int{0, 1} {
		envs := newSwarm(t, "other")
		e, leader := envs[0], envs[host]
		n := e.allocate(&docknet{pools: ranges("10.130.0.0/24"), options: api.NetworkOptions{Router: "edge"}})
		vip, addr := e.any(n), e.any(n)
		node := e.onNode(n)
		r := e.run(node, addr)

		again := &docknet{id: n.id, options: n.options, pools: ranges("10.130.0.0/24")}
		again.pools[0].gateway = netip.MustParseAddr("10.130.0.1")
		leader.allocate(again)
		if again.pools[0].id == n.pools[0].id {
			t.Errorf("pool %q twice", n.pools[0].id)
		}
		for _, a := range []netip.Addr{vip, addr} {
			_, err := leader.take(again, a)
			leader.must(err)
			_, err = leader.take(again, a)
			leader.refused(err, "in use")
		}
		fresh := leader.any(again)
		e.expect(1, 1, 3)

		// The range is this network's alone. Undoing what was refused takes nothing from it.
		other := &docknet{pools: ranges("10.130.0.0/24")}
		leader.refused(leader.tryAllocate(other), "another network's: "+n.id)
		leader.must(leader.tryReleaseRanges(other))
		leader.any(again)
		e.expect(1, 1, 4)
		if p, found := e.port(n, addr); !found || p.DeviceID != r.id {
			t.Errorf("port %+v", p)
		}
		leader.must(leader.releaseAddress(again.pools[0].id, fresh))
		leader.must(leader.releaseAddress(again.pools[0].id, addr))
		e.expect(1, 1, 3) // a VIP, an address that no task has, and the endpoint's
		leader.unallocate(again)
		e.halt(r)
		e.remove(node)
		cleanAll(envs)
	}
}

// An engine that was killed creates its networks again, and never ends the endpoints that
// it had.
func TestEngineKilled(t *testing.T) {
	t.Parallel()
	e := newSwarm(t)[0]
	n := e.allocate(&docknet{pools: ranges("10.130.0.0/24")})
	node := e.onNode(n)
	lost, alive, released := e.run(node, e.any(n)), e.run(node, e.any(n)), e.run(node, e.any(n))
	e.must(e.releaseAddress(n.pools[0].id, released.addr))
	for id, i := range e.binder.plugged {
		if i.Port.DeviceID != alive.id {
			delete(e.binder.plugged, id) // with the container
		}
	}
	e.expect(1, 1, 3)
	e.onNode(n)
	e.expect(1, 1, 2) // the manager still holds the address of one that is lost
	if p, found := e.port(n, lost.addr); !found || p.DeviceID != "" {
		t.Errorf("the lost endpoint has port %+v", p)
	}
	if p, found := e.port(n, alive.addr); !found || p.DeviceID != alive.id {
		t.Errorf("the endpoint of a container: port %+v", p)
	}
	e.must(e.releaseAddress(n.pools[0].id, lost.addr))
	e.expect(1, 1, 1)
	e.halt(alive)
	e.remove(node)
	e.unallocate(n)
	e.clean()
}

// A new endpoint gets the MAC of one that is gone, though the manager holds its port.
func TestMACIsYielded(t *testing.T) {
	t.Parallel()
	e := newSwarm(t)[0]
	n := e.allocate(&docknet{pools: ranges("10.130.0.0/24")})
	node := e.onNode(n)
	first := e.run(node, e.any(n))
	e.halt(first)
	second := &task{net: node, addr: e.any(n), mac: first.mac}
	e.must(e.tryRun(second))
	if p, found := e.port(n, second.addr); !found || p.MAC.String() != first.mac.String() {
		t.Errorf("port %+v, want MAC %s", p, first.mac)
	}
	e.halt(second)
	e.remove(node)
	e.unallocate(n)
	e.clean()
}

// The node's engine is another host's, and so is a second one's.
func TestThreeHosts(t *testing.T) {
	t.Parallel()
	envs := newSwarm(t, "two", "three")
	manager, two, three := envs[0], envs[1], envs[2]
	n := manager.allocate(&docknet{pools: ranges("10.130.0.0/24")})
	nodes := [2]*docknet{two.onNode(n), three.onNode(n)}
	a := two.run(nodes[0], manager.any(n))
	c := three.run(nodes[1], manager.any(n))
	manager.expect(1, 1, 2)
	_, err := two.requestAddress(&api.RequestAddressRequest{PoolID: nodes[0].pools[0].id, Address: c.addr})
	two.refused(err, "in use")
	two.must(two.releaseAddress(nodes[0].pools[0].id, c.addr)) // an endpoint of another host
	two.remove(nodes[0])                                       // with an endpoint whose end was lost
	manager.expect(1, 1, 2)
	if two.binder.count() != 0 || three.binder.count() != 1 {
		t.Errorf("%d and %d plugged", two.binder.count(), three.binder.count())
	}
	if p, found := three.port(n, c.addr); !found || p.DeviceID != c.id || p.Host != "three" {
		t.Errorf("port %+v", p)
	}
	two.halt(a)
	manager.unallocate(n)
	manager.expect(1, 1, 2)
	three.halt(c)
	three.remove(nodes[1])
	cleanAll(envs)
}

// With Docker's own IPAM driver, nothing is asked of Kuryr before a node creates the
// network.
func TestOtherIPAM(t *testing.T) {
	t.Parallel()
	envs := newSwarm(t, "two")
	one, two := envs[0], envs[1]
	n := &docknet{id: swarmID(), pools: ranges("10.0.1.0/24")}
	n.pools[0].gateway = netip.MustParseAddr("10.0.1.1")
	allocate := func() {
		t.Helper()
		_, err := one.AllocateNetwork(t.Context(), &api.AllocateNetworkRequest{CreateNetworkRequest: n.request("")})
		one.must(err)
	}
	allocate()
	one.clean()
	create := n.request("LocalDefault")
	for _, e := range envs {
		e.must(e.CreateNetwork(t.Context(), &create))
	}
	allocate()
	r := &task{id: endpointID(), net: n, pool: n.pools[0]}
	_, err := two.endpoints.Create(t.Context(), &api.CreateEndpointRequest{
		EndpointRequest: r.request(), Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.1.5/24")},
	})
	two.must(err)
	two.must(two.join(r, "/sandbox"))
	one.must(one.DeleteNetwork(t.Context(), n.id))
	one.must(one.tryFree(n))
	one.expect(1, 1, 1)
	two.must(two.endpoints.Leave(t.Context(), r.id))
	two.must(two.endpoints.Delete(t.Context(), r.id))
	two.must(two.DeleteNetwork(t.Context(), n.id))
	cleanAll(envs)
}

// A network of another driver takes its addresses from Kuryr, in the global space of the
// manager.
func TestAddressesAlone(t *testing.T) {
	t.Parallel()
	e := newSwarm(t)[0]
	n := &docknet{pools: ranges("10.140.0.0/24")}
	e.must(e.requestRanges(n, api.GlobalSpace))
	first, err := e.take(n, netip.MustParseAddr("10.140.0.7"))
	if err != nil || first.String() != "10.140.0.7" {
		t.Fatal(first, err)
	}
	second := e.any(n)
	e.restart()
	again := &docknet{pools: ranges("10.140.0.0/24")}
	again.pools[0].gateway = netip.MustParseAddr("10.140.0.1")
	e.must(e.requestRanges(again, api.GlobalSpace))
	for _, a := range []netip.Addr{first, second} {
		_, err := e.take(again, a)
		e.must(err)
	}
	e.must(e.releaseAddress(again.pools[0].id, second))
	e.expect(1, 0, 1)
	e.must(e.tryReleaseRanges(again))
	e.clean()
}

// Only nodes are told that a network is internal.
func TestInternal(t *testing.T) {
	t.Parallel()
	e := newSwarm(t)[0]
	n := e.allocate(&docknet{pools: ranges("10.130.0.0/24"), internal: true})
	node := e.onNode(n)
	r := e.run(node, e.any(n))
	e.expect(1, 0, 1)
	if r.joined.Gateway != "" || !r.joined.DisableGatewayService {
		t.Errorf("joined %+v", r.joined)
	}
	_, err := e.take(n, n.pools[0].gateway)
	e.refused(err, "it is the gateway")
	e.unallocate(n)
	e.halt(r)
	e.remove(node)
	e.clean()
}

// The sandbox in which the engine balances a network's services answers for their VIPs.
func TestBalancer(t *testing.T) {
	t.Parallel()
	for _, sandbox := range []string{"/var/run/docker/netns/lb_p579wyat0", "/run/docker/netns/ingress_sbox"} {
		e := newSwarm(t)[0]
		n := e.allocate(&docknet{pools: ranges("10.130.0.0/24")})
		node := e.onNode(n)
		r := e.run(node, e.any(n))
		pairs := func() []sdn.AllowedPair {
			p, found := e.port(n, r.addr)
			if !found {
				t.Fatal("no port")
			}
			return p.AllowedPairs
		}
		if got := pairs(); len(got) != 0 {
			t.Errorf("a container may send as %v", got)
		}
		e.must(e.endpoints.Leave(t.Context(), r.id))
		for range 2 {
			e.must(e.join(r, sandbox))
			if got := pairs(); len(got) != 1 || got[0].Prefix.String() != "10.130.0.0/24" || got[0].MAC != nil {
				t.Errorf("a balancer may send as %v", got)
			}
		}
		e.must(e.endpoints.Leave(t.Context(), r.id))
		if got := pairs(); len(got) != 0 {
			t.Errorf("after Leave %v", got)
		}
		e.must(e.join(r, sandbox))
		e.must(e.endpoints.Delete(t.Context(), r.id))
		if got := pairs(); len(got) != 0 {
			t.Errorf("after DeleteEndpoint %v", got)
		}
		e.unallocate(n)
		e.remove(node)
		e.clean()
	}
}

// A task of two families has two addresses of the manager, and one port.
func TestTwoFamilies(t *testing.T) {
	t.Parallel()
	e := newSwarm(t)[0]
	n := e.allocate(&docknet{pools: ranges("10.130.0.0/24", "fd00:130::/64")})
	node := e.onNode(n)
	var addrs []netip.Addr
	var given []netip.Prefix
	r := &task{id: endpointID(), net: node}
	for i, p := range n.pools {
		a, err := e.takeOf(p, netip.Addr{})
		e.must(err)
		_, err = e.requestAddress(&api.RequestAddressRequest{PoolID: node.pools[i].id, Address: a})
		e.must(err)
		addrs, given = append(addrs, a), append(given, netip.PrefixFrom(a, p.cidr.Bits()))
	}
	e.expect(1, 1, 2)
	_, err := e.endpoints.Create(t.Context(), &api.CreateEndpointRequest{EndpointRequest: r.request(), Addresses: given})
	e.must(err)
	e.expect(1, 1, 1)
	p, _ := e.port(n, addrs[0])
	if len(p.Addresses) != 2 || len(heldBy(p)) != 1 || p.DeviceID != r.id {
		t.Errorf("port %+v", p)
	}
	e.must(e.endpoints.Delete(t.Context(), r.id))
	for i, a := range addrs {
		e.must(e.releaseAddress(node.pools[i].id, a))
	}
	e.expect(1, 1, 1)
	for i, a := range addrs {
		e.must(e.releaseAddress(n.pools[i].id, a))
	}
	e.expect(1, 1, 0)
	e.remove(node)
	e.unallocate(n)
	e.clean()
}

// A bridge network of one node that has the range of a swarm's network shares its
// addresses.
func TestRangeOfOneNode(t *testing.T) {
	t.Parallel()
	e := newSwarm(t)[0]
	n := e.allocate(&docknet{pools: ranges("10.130.0.0/24")})
	held := e.any(n)
	bridge := &docknet{pools: ranges("10.130.0.0/24")}
	e.must(e.requestRanges(bridge, api.LocalSpace))
	id := bridge.pools[0].id
	a, err := e.requestAddress(&api.RequestAddressRequest{PoolID: id})
	if err != nil || a == held {
		t.Errorf("address %v, error %v; the manager holds %v", a, err, held)
	}
	if _, err := e.take(n, a); err == nil {
		t.Errorf("the manager got %v too", a)
	}
	e.must(e.releaseAddress(id, a))
	e.expect(1, 0, 1)
	e.must(e.releasePool(id))
	e.unallocate(n)
	e.clean()
}

// The previous version's hosts and this one's share the tags.
func TestTagsOfOtherHosts(t *testing.T) {
	t.Parallel()
	e := newSwarm(t)[0]
	n := e.allocate(&docknet{pools: ranges("10.130.0.0/24")})
	found, _, err := e.network(t.Context(), n.id)
	e.must(err)
	tag := func(change func(tags []string) []string) {
		t.Helper()
		found, err = e.TagNetwork(t.Context(), found, change(slices.Clone(found.Tags)))
		e.must(err)
	}
	tag(func(tags []string) []string { return append(tags, identity.TagNode+"elsewhere") })
	e.unallocate(n)
	e.expect(1, 0, 0) // a node of the previous version has it
	found, _, err = e.network(t.Context(), n.id)
	e.must(err)
	// That node leaves, and is killed before it deletes the network.
	tag(func(tags []string) []string {
		return append(identity.Without(tags, identity.TagNode+"elsewhere"), identity.TagDeleted)
	})
	e.restart()
	e.clean()

	// What the previous version has left of an allocation and of a leave on this host.
	n = e.allocate(&docknet{pools: ranges("10.130.0.0/24")})
	found, _, err = e.network(t.Context(), n.id)
	e.must(err)
	tag(func(tags []string) []string { return append(tags, e.leavingTag()) })
	e.restart()
	if !eventually(func() bool {
		found, _, err = e.network(t.Context(), n.id)
		e.must(err)
		return len(nodes(found.Tags)) == 0
	}) {
		t.Errorf("tags %v", found.Tags)
	}
	tag(func(tags []string) []string { return append(tags, e.allocatingTag()) })
	e.restart()
	if !eventually(func() bool { return e.counts() == [3]int{} }) {
		t.Error("the allocation that was not answered is there")
	}
	e.must(e.tryReleaseRanges(n))
	e.clean()
}

package docker

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
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
	if port := b.portOf(e.id); port.Addresses[0].Addr.String() != task || port.MAC.String() != e.mac || port.Host != testHost {
		t.Errorf("port %+v", port)
	}
	if network := b.networkOf(n); network.MTU != 1400 {
		t.Errorf("network %+v", network)
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

// What a manager is refused, it undoes by releases alone.
func TestSwarmOptionRefused(t *testing.T) {
	t.Parallel()
	b := newSwarm(t)[0]
	n := &network{id: swarmID(), v4: []*pool{{cidr: "10.130.0.0/24"}}}
	b.managerPools(n)
	body := n.allocateBody()
	body["Options"] = m{"kuryr.rooter": "x"}
	b.contains(b.fails("NetworkDriver.AllocateNetwork", body), "did you mean kuryr.router")
	b.release(n)
	b.clean()
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

// The calls of a swarm that take down come in any order, some more than once, from the manager and
// two nodes, and nothing is left.
func TestSwarmTakenDownInAnyOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		boxes := newSwarm(t, "two", "three")
		type call struct {
			on     int
			method string
			body   m
		}
		n := boxes[0].allocate(&network{v4: []*pool{{cidr: "10.130.0.0/24"}, {cidr: "10.131.0.0/24"}}})
		calls := []call{{0, "NetworkDriver.FreeNetwork", m{"NetworkID": n.id}}}
		for _, p := range n.v4 {
			calls = append(calls, call{0, "IpamDriver.ReleaseAddress", m{"PoolID": p.id, "Address": p.gateway}},
				call{0, "IpamDriver.ReleasePool", m{"PoolID": p.id}})
		}
		boxes[0].task(n) // a VIP that is never released: the pool is
		for i, b := range boxes {
			if !rapid.Bool().Draw(r, "a node") {
				continue
			}
			node := b.onNode(n)
			for range rapid.IntRange(0, 2).Draw(r, "endpoints") {
				e := b.run(&endpoint{net: node, ip4: boxes[0].task(n)})
				calls = append(calls,
					call{i, "NetworkDriver.RevokeExternalConnectivity", e.body()}, call{i, "NetworkDriver.Leave", e.body()},
					call{i, "NetworkDriver.DeleteEndpoint", e.body()},
					call{i, "IpamDriver.ReleaseAddress", m{"PoolID": node.v4[0].id, "Address": e.ip4}})
				if rapid.Bool().Draw(r, "released by the manager") {
					calls = append(calls, call{0, "IpamDriver.ReleaseAddress", m{"PoolID": n.v4[0].id, "Address": e.ip4}})
				}
			}
			for _, p := range node.v4 {
				calls = append(calls, call{i, "IpamDriver.ReleaseAddress", m{"PoolID": p.id, "Address": p.gateway}},
					call{i, "IpamDriver.ReleasePool", m{"PoolID": p.id}})
			}
			calls = append(calls, call{i, "NetworkDriver.DeleteNetwork", m{"NetworkID": n.id}})
		}
		some := calls[:rapid.IntRange(0, len(calls)).Draw(r, "repeated")]
		order := rapid.Permutation(slices.Concat(calls, some)).Draw(r, "calls")
		for i, c := range order {
			boxes[c.on].ok(c.method, c.body)
			if i%5 == 2 {
				boxes[c.on].restart()
			}
		}
		for _, b := range boxes {
			b.clean()
		}
		if t.Failed() {
			for _, c := range order {
				r.Log(c.on, c.method, c.body)
			}
			r.FailNow()
		}
	})
}

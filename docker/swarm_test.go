package docker

import "testing"

// Networks of one host only are none of the swarm's, and a host that is of no swarm may have any range.
func TestSwarmAndOtherNetworks(t *testing.T) {
	t.Parallel()
	boxes := newSwarm(t, "two")
	swarm, alone := boxes[0], boxes[1]
	alone.config.Scope = Local
	alone.restart()
	n := swarm.allocate(v4Network("10.130.0.0/24"))
	same := alone.create(v4Network("10.130.0.0/24"))
	e := alone.run(&endpoint{net: same})
	other := swarm.create(v4Network("10.131.0.0/24"))
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

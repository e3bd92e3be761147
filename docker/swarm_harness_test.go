package docker

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/docker/dockertest"
	"github.com/kuryr/kuryr/sdn"
)

// newSwarm are hosts on one SDN, the first of which has the manager.
func newSwarm(t testing.TB, hosts ...string) []*box {
	t.Helper()
	return widen(newBox(t, func(c *Config) { c.Scope = Global }), hosts...)
}

// widen adds hosts to the one of a box.
func widen(first *box, hosts ...string) []*box {
	first.t.Helper()
	first.provider = dockertest.NewHosts(first.provider, testHost)
	first.config.Provider = first.provider
	first.restart()
	boxes := []*box{first}
	for _, host := range hosts {
		b := *first
		b.binder = &fakeBinder{plugged: map[sdn.ID]bind.Interface{}}
		b.config.Binder, b.config.Host = b.binder, host
		b.forget() // each host has a database of its own
		boxes = append(boxes, &b)
	}
	return boxes
}

var serialOption = m{optSerial: "true"}

// pools asks for the ranges and gateways of a network as a swarm's manager does.
func (b *box) managerPools(n *network) {
	b.t.Helper()
	for _, p := range n.v4 {
		p.space = globalSpace
		b.requestPool(p, false)
		a := b.ok("IpamDriver.RequestAddress", m{"PoolID": p.id, "Address": p.gateway,
			"Options": m{optAddressType: addressGateway, optSerial: "true"}})
		p.gateway = bareAddress(b, a["Address"])
	}
}

// allocateBody is what a manager says of a network: neither address space nor whether it is internal.
func (n *network) allocateBody() m {
	var data []m
	for _, p := range n.v4 {
		d := p.data()
		d["AddressSpace"] = ""
		data = append(data, d)
	}
	options := n.options
	if options == nil {
		options = m{}
	}
	return m{"NetworkID": n.id, "Options": options, "IPv4Data": data, "IPv6Data": nil}
}

// swarmID is an id as a manager makes it.
func swarmID() string { return fmt.Sprintf("p579wyat0ycxjdmds%s", newID()[56:]) }

// allocate is docker network create on a swarm's manager.
func (b *box) allocate(n *network) *network {
	b.t.Helper()
	if n.id == "" {
		n.id = swarmID()
	}
	b.managerPools(n)
	a := b.ok("NetworkDriver.AllocateNetwork", n.allocateBody())
	if o, _ := a["Options"].(map[string]any); len(o) != len(n.options) {
		b.t.Errorf("AllocateNetwork answered %v", a)
	}
	return n
}

// task takes an address as a manager does, for a task or as a VIP.
func (b *box) task(n *network) string {
	b.t.Helper()
	return bareAddress(
		b,
		b.ok("IpamDriver.RequestAddress", m{
			"PoolID": n.v4[0].id, "Address": "", "Options": serialOption,
		})["Address"],
	)
}

// onNode is a manager's network as a node asks for it.
func (b *box) onNode(n *network) *network {
	b.t.Helper()
	node := &network{id: n.id, options: n.options, internal: n.internal}
	for _, p := range n.v4 {
		node.v4 = append(node.v4, &pool{cidr: p.cidr, gateway: p.gateway, sub: p.sub})
	}
	b.create(node)
	for i, p := range node.v4 {
		if p.id == n.v4[i].id || poolOf(p.id) != poolOf(n.v4[i].id) {
			b.t.Errorf("the node's pool is %q, the manager's %q", p.id, n.v4[i].id)
		}
	}
	return node
}

// unallocate is docker network rm on a manager.
func (b *box) unallocate(n *network) {
	b.t.Helper()
	b.ok("NetworkDriver.FreeNetwork", m{"NetworkID": n.id})
	b.release(n)
}

func (b *box) addressRelease(p *pool, address string) {
	b.t.Helper()
	b.ok("IpamDriver.ReleaseAddress", m{"PoolID": p.id, "Address": address})
}

// counts are how many networks, routers and containers' ports there are.
func (b *box) counts() [3]int {
	dump := b.dump()
	return [3]int{
		strings.Count("\n"+dump, "\nnetwork ") - strings.Count("\n"+b.empty, "\nnetwork "),
		strings.Count(dump, "router "),
		strings.Count(dump, "docker-port") + strings.Count(dump, "docker-endpoint")}
}

func (b *box) expect(networks, routers, ports int) {
	b.t.Helper()
	if got, want := b.counts(), [3]int{networks, routers, ports}; got != want {
		b.t.Errorf("%v networks, routers and ports, want %v\n%s", got, want, b.dump())
	}
}

// poolOf is the id of the subnet pool in a PoolID.
func poolOf(id string) sdn.ID {
	id, _, _ = strings.Cut(id, "/")
	return sdn.ID(id)
}

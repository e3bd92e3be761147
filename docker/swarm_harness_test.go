package docker

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/sdn"
)

// wide is an SDN of several hosts, made of the embedded one, which serves one: it keeps the hosts of ports itself.
type wide struct {
	sdn.Provider
	mu    sync.Mutex
	hosts map[sdn.ID]string
}

func (w *wide) show(p sdn.Port) sdn.Port {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.Host != "" {
		p.Host = w.hosts[p.ID]
	}
	return p
}

func (w *wide) EnsurePorts(ctx context.Context, specs []sdn.PortSpec) ([]sdn.Port, error) {
	host := specs[0].Host // the driver asks for one at a time
	specs = slices.Clone(specs)
	if host != "" {
		specs[0].Host = testHost
	}
	ports, err := w.Provider.EnsurePorts(ctx, specs)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	w.hosts[ports[0].ID] = host
	w.mu.Unlock()
	return []sdn.Port{w.show(ports[0])}, nil
}

func (w *wide) UpdatePort(ctx context.Context, id sdn.ID, patch sdn.PortPatch) (sdn.Port, error) {
	host := patch.Host
	if host != nil && *host != "" {
		there := testHost
		patch.Host = &there
	}
	p, err := w.Provider.UpdatePort(ctx, id, patch)
	if err == nil && host != nil {
		w.mu.Lock()
		w.hosts[id] = *host
		w.mu.Unlock()
	}
	return w.show(p), err
}

func (w *wide) Port(ctx context.Context, id sdn.ID) (sdn.Port, error) {
	p, err := w.Provider.Port(ctx, id)
	return w.show(p), err
}

func (w *wide) FindPorts(ctx context.Context, q sdn.PortQuery) iter.Seq2[sdn.Port, error] {
	hosts := q.Hosts
	q.Hosts = nil
	return func(yield func(sdn.Port, error) bool) {
		for p, err := range w.Provider.FindPorts(ctx, q) {
			p = w.show(p)
			if (err != nil || hosts == nil || slices.Contains(hosts, p.Host)) && !yield(p, err) {
				return
			}
		}
	}
}

// newSwarm are hosts on one SDN, the first of which has the manager.
func newSwarm(t testing.TB, hosts ...string) []*box {
	t.Helper()
	return widen(newBox(t, func(c *Config) { c.Scope = Global }), hosts...)
}

// widen adds hosts to the one of a box.
func widen(first *box, hosts ...string) []*box {
	first.t.Helper()
	first.provider = &wide{Provider: first.provider, hosts: map[sdn.ID]string{}}
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
	return bareAddress(b, b.ok("IpamDriver.RequestAddress", m{"PoolID": n.v4[0].id, "Address": "", "Options": serialOption})["Address"])
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
	return [3]int{strings.Count("\n"+dump, "\nnetwork ") - strings.Count("\n"+b.empty, "\nnetwork "), strings.Count(dump, "router "),
		strings.Count(dump, "docker-port") + strings.Count(dump, "docker-endpoint")}
}

func (b *box) expect(networks, routers, ports int) {
	b.t.Helper()
	if got, want := b.counts(), [3]int{networks, routers, ports}; got != want {
		b.t.Errorf("%v networks, routers and ports, want %v\n%s", got, want, b.dump())
	}
}

func (b *box) subnet(n *network) sdn.Subnet {
	b.t.Helper()
	s, found, err := b.driver.subnetOf(b.t.Context(), poolOf(n.v4[0].id))
	if err != nil || !found {
		b.t.Fatal(found, err)
	}
	return s
}

// poolOf is the id of the subnet pool in a PoolID.
func poolOf(id string) sdn.ID {
	id, _, _ = strings.Cut(id, "/")
	return sdn.ID(id)
}

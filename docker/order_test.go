package docker

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/kuryr/kuryr/docker/dockertest"
	"github.com/kuryr/kuryr/sdn"
)

// step is one call of a life.
type step struct {
	method string
	body   m
}

// life is every call of a network with two endpoints, each of which is asked for with addresses of its own.
func life(b *box, n *network, endpoints ...*endpoint) (up, down []step) {
	create := b.request(n)
	up = append(up, step{"NetworkDriver.CreateNetwork", create})
	for _, e := range endpoints {
		e.net, e.id = n, newID()
		for family, address := range []string{e.ip4, e.ip6} {
			pools := [][]*pool{n.v4, n.v6}[family]
			if len(pools) > 0 {
				up = append(up, step{"IpamDriver.RequestAddress", m{
					"PoolID": pools[0].id, "Address": address, "Options": m{optMAC: e.mac},
				}})
				down = append(down, step{"IpamDriver.ReleaseAddress", m{"PoolID": pools[0].id, "Address": address}})
			}
		}
		up = append(up,
			step{"NetworkDriver.CreateEndpoint", e.createBody()},
			step{"NetworkDriver.Join", e.joinBody()},
			step{"NetworkDriver.ProgramExternalConnectivity", e.programBody()},
			step{"NetworkDriver.EndpointOperInfo", e.body()})
		down = append(down,
			step{"NetworkDriver.RevokeExternalConnectivity", e.body()},
			step{"NetworkDriver.Leave", e.body()},
			step{"NetworkDriver.DeleteEndpoint", e.body()})
	}
	for _, p := range slices.Concat(n.v4, n.v6) {
		down = append(down,
			step{"IpamDriver.ReleaseAddress", m{"PoolID": p.id, "Address": p.gateway}},
			step{"IpamDriver.ReleasePool", m{"PoolID": p.id}})
	}
	return up, append(down, step{"NetworkDriver.DeleteNetwork", m{"NetworkID": n.id}})
}

func twoEndpoints() []*endpoint {
	return []*endpoint{
		{mac: "02:00:00:00:00:01", ip4: "10.50.0.10", ip6: "fd50::10", published: []m{
			{"Proto": 6, "Port": 80, "HostPort": 8080, "HostPortEnd": 8080},
		}},
		{mac: "02:00:00:00:00:02", ip4: "10.50.0.11", ip6: "fd50::11", published: []m{{"Proto": 17, "Port": 53}}},
	}
}

// Every call twice, with the plugin restarted between the two.
func TestEveryCallTwice(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	up, down := life(b, dualNetwork(), twoEndpoints()...)
	for _, s := range slices.Concat(up, down) {
		first := b.ok(s.method, s.body)
		state := b.dump()
		b.restart()
		second := b.ok(s.method, s.body)
		if fmt.Sprint(first) != fmt.Sprint(second) && !strings.HasSuffix(s.method, "OperInfo") {
			t.Errorf("%s: first %v, then %v", s.method, first, second)
		}
		b.unchanged(state, s.method, "twice")
	}
	b.clean()
}

// The calls that take down come in any order, some more than once, and nothing is left.
func TestTakingDownInAnyOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		b := newBox(t)
		up, down := life(b, dualNetwork(), twoEndpoints()...)
		for _, s := range up[:rapid.IntRange(0, len(up)).Draw(r, "up")] {
			b.ok(s.method, s.body)
		}
		calls := rapid.Permutation(append(down, down[:rapid.IntRange(0, len(down)).Draw(r, "repeated")]...)).Draw(r, "calls")
		for i, s := range calls {
			b.ok(s.method, s.body)
			if i%7 == 3 {
				b.restart()
			}
		}
		b.clean()
		if t.Failed() {
			for _, s := range calls {
				r.Log(s.method, s.body)
			}
			r.FailNow()
		}
	})
}

// An engine forgets an endpoint whose DeleteEndpoint failed; releasing its addresses takes it down all the same.
func TestReleaseWithoutDeleteEndpoint(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(dualNetwork())
	before := b.dump()
	e := b.run(&endpoint{net: n, published: []m{{"Proto": 6, "Port": 80, "HostPort": 8080}}})
	b.giveBack(e)
	b.unchanged(before)
	b.run(&endpoint{net: n, ip4: e.ip4, ip6: e.ip6})
}

// Whatever an engine released, a container that is on the network keeps it.
func TestReconcileKeepsContainers(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(dualNetwork())
	b.run(&endpoint{net: n})
	b.release(n)
	before := b.dump()
	b.reconcile()
	if now := b.dump(); now != before || b.binder.count() != 1 {
		t.Errorf("reconciled\n%s\ninto\n%s", before, now)
	}
	b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id})
	b.clean()
}

// A network of another IPAM driver is Docker's whether its row is known or lost.
func TestReconcileKeepsOtherRanges(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.otherIPAM("172.18.0.0/16")
	finished := b.dump()
	for _, start := range []func(){b.restart, b.forget} {
		start()
		b.reconcile()
		b.unchanged(finished)
	}
	b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id})
	b.clean()
}

// Only half of the pools were released: the network is still the engine's.
func TestReconcileKeepsWhatIsHeld(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(dualNetwork())
	b.ok("IpamDriver.ReleasePool", m{"PoolID": n.v6[0].id})
	before := b.dump()
	b.reconcile()
	b.unchanged(before)
	b.remove(n)
	b.clean()
}

// unanswering makes a pool and, once, does not say so.
type unanswering struct{ lose atomic.Bool }

func (u *unanswering) of(p sdn.Provider) sdn.Provider {
	return &dockertest.Provider{Provider: p, After: func(c dockertest.Call, err error) error {
		if made, ok := c.Result.(*sdn.SubnetPool); ok && c.Changes() && err == nil && u.lose.Swap(false) {
			*made = sdn.SubnetPool{}
			return sdn.Unavailable(io.ErrUnexpectedEOF, "store", "the change could not be written")
		}
		return err
	}}
}

// A pool that was made although the SDN said that it failed is given to the next who asks
// for the range, by the same process too.
func TestPoolWithoutAnswerIsFoundAgain(t *testing.T) {
	t.Parallel()
	for _, cidr := range []string{"10.50.0.0/24", ""} {
		u := &unanswering{}
		b := newBox(t, func(c *Config) { c.Provider = u.of(c.Provider) })
		b.remove(b.create(v4Network("10.60.0.0/24"))) // the look through all pools is over
		u.lose.Store(true)
		b.contains(
			b.fails("IpamDriver.RequestPool", m{
				"AddressSpace": localSpace, "Pool": cidr, "SubPool": "", "V6": false,
			}),
			"could not be written",
		)
		b.remove(b.create(&network{v4: []*pool{{cidr: cidr}}}))
		b.clean()
	}
}

func TestFortyAtOnce(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(dualNetwork())
	endpoints := make([]*endpoint, 40)
	var wg sync.WaitGroup
	for i := range endpoints {
		wg.Go(func() { endpoints[i] = b.run(&endpoint{net: n, published: []m{{"Proto": 6, "Port": 80}}}) })
	}
	wg.Wait()
	seen := map[string]bool{}
	for _, e := range endpoints {
		if seen[e.ip4] || seen[e.ip6] {
			t.Errorf("%s or %s was given twice", e.ip4, e.ip6)
		}
		seen[e.ip4], seen[e.ip6] = true, true
	}
	for _, e := range endpoints {
		wg.Go(func() { b.stop(e) })
	}
	wg.Wait()
	b.remove(n)
	b.clean()
}

// An engine that sends no MAC takes the two addresses of a dual-stack endpoint with two ports, which become one.
func TestDualStackWithoutMAC(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(dualNetwork())
	before := b.dump()
	e := &endpoint{net: n, id: newID()}
	for family, p := range []*pool{n.v4[0], n.v6[0]} {
		a := b.ok("IpamDriver.RequestAddress", m{"PoolID": p.id, "Address": "", "Options": nil})
		*[]*string{&e.ip4, &e.ip6}[family] = bareAddress(b, a["Address"])
	}
	a := b.ok("NetworkDriver.CreateEndpoint", e.createBody())
	mac := a["Interface"].(map[string]any)["MacAddress"]
	port := b.portOf(e.id)
	if len(port.Addresses) != 2 || mac != port.MAC.String() {
		t.Errorf("port %+v, answered MAC %v", port, mac)
	}
	b.ok("NetworkDriver.Join", e.joinBody())
	b.stop(e)
	b.unchanged(before)
}

// The binder fails: the engine takes the endpoint back, and nothing is left.
func TestJoinFails(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(dualNetwork())
	b.binder.fail = fmt.Errorf("the bridge is full")
	e := &endpoint{net: n}
	b.take(e)
	b.ok("NetworkDriver.CreateEndpoint", e.createBody())
	b.contains(b.fails("NetworkDriver.Join", e.joinBody()), "the bridge is full")
	b.ok("NetworkDriver.DeleteEndpoint", e.body())
	b.giveBack(e)
	b.remove(n)
	b.clean()
}

// TestForgottenEndpointOfOtherIPAM: the engine does not know an endpoint whose
// CreateEndpoint was not answered, and its IPAM driver gives the address to another. An
// endpoint of a container keeps it.
func TestForgottenEndpointOfOtherIPAM(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.otherIPAM("172.18.0.0/16")
	create := func(address string) *endpoint {
		return &endpoint{id: newID(), net: n, ip4: address}
	}
	lost := create("172.18.0.2")
	b.ok("NetworkDriver.CreateEndpoint", lost.createBody())
	b.restart()
	b.ok("Plugin.Activate", nil) // the engine was killed too
	next := create("172.18.0.2")
	b.ok("NetworkDriver.CreateEndpoint", next.createBody())
	if got := b.portOf(next.id); len(got.Addresses) != 1 || got.Addresses[0].Addr.String() != "172.18.0.2" {
		t.Errorf("the second endpoint's port has the addresses %v", got.Addresses)
	}
	if ports, err := sdn.All(
		b.provider.FindPorts(t.Context(), sdn.PortQuery{Devices: []string{lost.id}}),
	); err != nil || len(ports) != 0 {
		t.Errorf("the first endpoint has %d ports still, %v", len(ports), err)
	}
	b.ok("NetworkDriver.Join", next.joinBody())
	state := b.dump()
	if text := b.fails(
		"NetworkDriver.CreateEndpoint", create("172.18.0.2").createBody(),
	); !strings.Contains(text, "172.18.0.2 is in use by another endpoint") {
		t.Errorf("refused with %q", text)
	}
	if now := b.dump(); now != state || b.binder.count() != 1 {
		t.Errorf("a container's endpoint was touched:\n%s\nbefore\n%s", now, state)
	}
	b.ok("NetworkDriver.Leave", next.body())
	b.ok("NetworkDriver.DeleteEndpoint", next.body())
	b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id})
	b.clean()
}

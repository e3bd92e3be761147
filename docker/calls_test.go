package docker

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kuryr/kuryr/docker/dockertest"
	"github.com/kuryr/kuryr/sdn"
)

// calls are the SDN calls of a step: the most that it may make, and the most that it will be
// allowed to make once all of docker/ is rebuilt on the intent store. With a remote SDN each
// call is a round trip, except for reads by id that the provider's cache answers.
type calls struct{ most, goal int }

// callBounds limits the calls of each request or command, by scenario. A step whose bound is
// above its goal is yet to be rebuilt.
var callBounds = map[string]map[string]calls{
	// A network of one family with a router, and a container with one published port.
	"routed": {
		"RequestPool":                 {1, 1},
		"RequestAddress gateway":      {0, 0},
		"CreateNetwork":               {4, 3}, // Router has the unreachable ranges of an embedded SDN
		"RequestAddress":              {1, 1},
		"CreateEndpoint":              {2, 1}, // Neutron's subnets are cached
		"Join":                        {0, 0},
		"ProgramExternalConnectivity": {1, 1},
		"EndpointOperInfo":            {1, 1},
		"RevokeExternalConnectivity":  {1, 1},
		"Leave":                       {0, 0},
		"DeleteEndpoint":              {1, 1},
		"ReleaseAddress":              {1, 1},
		"ReleaseAddress gateway":      {0, 0},
		"ReleasePool":                 {0, 0},
		"DeleteNetwork":               {4, 4},
	},
	// The commands for a network without a router and a container, in a process that has served
	// others before.
	"unrouted": {
		"network create":  {2, 2},
		"container start": {4, 3}, // Neutron's subnets are cached
		"container stop":  {2, 2},
		"network rm":      {2, 2},
	},
	// The same for a network and a container of two families.
	"two families": {
		"network create":  {4, 3},
		"container start": {5, 4}, // Neutron's subnets are cached
		"container stop":  {2, 2},
		"network rm":      {3, 3},
	},
	// A network without a router, on an SDN that needs extra calls to write tags.
	"tagless": {
		"network create": {3, 3},
	},
	// An existing network with Zun's options, and a container on an existing port.
	"existing": {
		"network create":   {7, 4}, // a network and a subnet are read by id, twice each
		"write tags":       {5, 5},
		"RequestAddress":   {2, 2},
		"CreateEndpoint":   {4, 2},
		"EndpointOperInfo": {0, 0},
		"Join":             {0, 0},
		"container stop":   {3, 3},
		"network rm":       {3, 3},
		"remove tags":      {5, 5},
	},
}

// checkCalls returns a function that compares the calls since its last use with the bound
// of one step, and resets them. The test fails if a bound of the scenario stays unused.
func checkCalls(t *testing.T, c *counting, scenario string) func(step string) {
	t.Helper()
	unused := maps.Clone(callBounds[scenario])
	t.Cleanup(func() {
		if len(unused) > 0 && !t.Failed() {
			t.Errorf("unused bounds of scenario %q: %v", scenario, unused)
		}
	})
	return func(step string) {
		t.Helper()
		bound, ok := unused[step]
		if !ok {
			t.Fatalf("no bound for step %q of scenario %q", step, scenario)
		}
		delete(unused, step)
		switch n := len(c.calls); {
		case n > bound.most:
			t.Errorf("%s: %d SDN calls, at most %d allowed: %v", step, n, bound.most, c.calls)
		case n < bound.most && bound.most > bound.goal:
			t.Logf("%s: %d SDN calls, its bound of %d can be lowered %v", step, n, bound.most, c.calls)
		case bound.most > bound.goal:
			t.Logf("%s: %d SDN calls, the goal is %d", step, n, bound.goal)
		}
		c.calls = nil
	}
}

// counting records the names of the calls that the driver makes, in order.
type counting struct {
	mu    sync.Mutex
	calls []string
}

// of returns the provider whose calls are recorded.
func (c *counting) of(p sdn.Provider) sdn.Provider {
	return &dockertest.Provider{Provider: p, Before: func(call dockertest.Call) error {
		if call.Method != "Ping" {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.calls = append(c.calls, call.Method)
		}
		return nil
	}}
}

// countedBox returns a box and the calls of its SDN.
func countedBox(t *testing.T, change ...func(*Config)) (*box, *counting) {
	t.Helper()
	c := &counting{}
	count := func(config *Config) { config.Provider = c.of(config.Provider) }
	return newBox(t, append(change, count)...), c
}

// TestProviderCalls bounds the SDN calls of each request of the protocol.
func TestProviderCalls(t *testing.T) {
	t.Parallel()
	b, c := countedBox(t)
	check := checkCalls(t, c, "routed")
	n := v4Network("10.50.0.0/24")
	e := &endpoint{
		mac: "02:00:00:00:00:01", ip4: "10.50.0.10",
		published: []m{{"Proto": 6, "Port": 80, "HostPort": 8080}},
	}
	b.requestPool(n.v4[0], false)
	check("RequestPool")
	b.requestGateway(n.v4[0])
	check("RequestAddress gateway")
	pools := n.v4
	n.v4 = nil
	body := b.request(n)
	n.v4 = pools
	body["IPv4Data"] = []m{n.v4[0].data()}
	b.ok("NetworkDriver.CreateNetwork", body)
	check("CreateNetwork")
	c.calls = nil
	e.net, e.id = n, newID()
	b.take(e)
	check("RequestAddress")
	b.ok("NetworkDriver.CreateEndpoint", e.createBody())
	check("CreateEndpoint")
	b.ok("NetworkDriver.Join", e.joinBody())
	check("Join")
	b.publish(e)
	check("ProgramExternalConnectivity")
	for _, method := range []string{
		"EndpointOperInfo", "RevokeExternalConnectivity", "Leave", "DeleteEndpoint",
	} {
		b.ok("NetworkDriver."+method, e.body())
		check(method)
	}
	b.giveBack(e)
	check("ReleaseAddress")
	b.ok("IpamDriver.ReleaseAddress", m{"PoolID": n.v4[0].id, "Address": n.v4[0].gateway})
	check("ReleaseAddress gateway")
	b.ok("IpamDriver.ReleasePool", m{"PoolID": n.v4[0].id})
	check("ReleasePool")
	b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id})
	check("DeleteNetwork")
}

// TestCommandCalls bounds the SDN calls of the commands for a network and a container.
func TestCommandCalls(t *testing.T) {
	t.Parallel()
	for scenario, n := range map[string]*network{
		"unrouted":     {v4: []*pool{{cidr: "10.50.0.0/24"}}},
		"two families": {v4: []*pool{{cidr: "10.50.0.0/24"}}, v6: []*pool{{cidr: "fd50::/64"}}},
	} {
		t.Run(scenario, func(t *testing.T) {
			t.Parallel()
			b, counter := countedBox(t, unrouted)
			// The first network makes the calls that a process makes only once.
			first := b.create(v4Network("10.49.0.0/24"))
			b.stop(b.run(&endpoint{net: first}))
			b.remove(first)
			counter.calls = nil
			check := checkCalls(t, counter, scenario)
			b.create(n)
			check("network create")
			b.stop(b.run(&endpoint{net: n})) // a network's first container, too
			counter.calls = nil
			e := b.run(&endpoint{net: n})
			check("container start")
			b.stop(e)
			check("container stop")
			b.remove(n)
			check("network rm")
			b.clean()
		})
	}
}

// tagless is an SDN that writes tags in calls of their own.
func tagless(p sdn.Provider) sdn.Provider {
	return &dockertest.Provider{Provider: p, Can: func(can *sdn.Capabilities) { can.TagsAtCreate = false }}
}

// TestNetworkCallsWithoutTags checks that reserving the default gateway of a range needs no
// extra call where tags cost calls. The gateway stays reserved after a restart of the
// plugin, also if the network belongs to another driver.
func TestNetworkCallsWithoutTags(t *testing.T) {
	t.Parallel()
	b, c := countedBox(t, unrouted, func(c *Config) { c.Provider = tagless(c.Provider) })
	check := checkCalls(t, c, "tagless")
	n := b.create(v4Network("10.50.0.0/24"))
	check("network create")
	b.remove(n)
	b.clean()
	for _, gateway := range []string{"", "10.50.0.9"} {
		p := &pool{cidr: "10.50.0.0/24", gateway: gateway}
		b.requestPool(p, false)
		b.requestGateway(p)
		b.restart()
		b.fails("IpamDriver.RequestAddress", m{
			"PoolID": p.id, "Address": p.gateway, "Options": m{optMAC: "02:00:00:00:00:07"},
		})
		other := &pool{cidr: "10.50.0.0/24"}
		if b.requestPool(other, false); other.id == p.id {
			t.Errorf("pool %s of one network was also given to another network", p.id)
		}
		for _, id := range []string{p.id, other.id} {
			b.ok("IpamDriver.ReleasePool", m{"PoolID": id})
		}
		b.clean()
	}
}

// TestExistingCalls bounds the SDN calls for an existing network and an existing port on it.
func TestExistingCalls(t *testing.T) {
	t.Parallel()
	b, c := countedBox(t, unrouted)
	check := checkCalls(t, c, "existing")
	theirs := b.theirs("net", "10.50.0.0/24")
	z := b.zun(theirs, "10.50.0.0/24", "")
	c.calls = nil
	n := b.create(z)
	check("network create")
	// idle does the pending work, and leaves out the lists of what has no row, which run beside it.
	idle := func() {
		b.idle()
		c.calls = slices.DeleteFunc(c.calls, func(method string) bool {
			return strings.HasPrefix(method, "Find") || method == "SubnetPool"
		})
	}
	idle()
	check("write tags")
	existing, err := b.provider.EnsurePorts(t.Context(), []sdn.PortSpec{{
		Network:   theirs.ID,
		Addresses: []sdn.Address{{Addr: netip.MustParseAddr("10.50.0.20")}},
	}})
	b.must(err)
	e := &endpoint{net: n, ip4: "10.50.0.20", mac: existing[0].MAC.String()}
	b.take(e)
	check("RequestAddress")
	b.ok("NetworkDriver.CreateEndpoint", e.createBody())
	check("CreateEndpoint")
	b.ok("NetworkDriver.EndpointOperInfo", e.body())
	check("EndpointOperInfo")
	b.ok("NetworkDriver.Join", e.joinBody())
	check("Join")
	b.ok("NetworkDriver.Leave", e.body())
	b.ok("NetworkDriver.DeleteEndpoint", e.body())
	b.giveBack(e)
	check("container stop")
	b.same(existing[0])
	b.must(b.provider.DeletePorts(t.Context(), []sdn.ID{existing[0].ID}))
	b.remove(n)
	check("network rm")
	idle()
	check("remove tags")
}

package docker

import (
	"context"
	"iter"
	"maps"
	"net/netip"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// callBounds limits the SDN calls of each request or command, by scenario. A bound is the
// number of calls that the step needs today. With a remote SDN each call is a round trip,
// except for reads by id that the provider's cache answers.
var callBounds = map[string]map[string]int{
	// A network of one family with a router, and a container with one published port.
	"routed": {
		"RequestPool":                 2, // one of them only in a new process
		"RequestAddress gateway":      2,
		"CreateNetwork":               4,
		"RequestAddress":              2,
		"CreateEndpoint":              4,
		"Join":                        1,
		"ProgramExternalConnectivity": 1,
		"EndpointOperInfo":            1,
		"RevokeExternalConnectivity":  1,
		"Leave":                       0,
		"DeleteEndpoint":              2,
		"ReleaseAddress":              3,
		"ReleaseAddress gateway":      1,
		"ReleasePool":                 3,
		"DeleteNetwork":               11,
	},
	// A network without a router, in a process that has served another one before.
	"unrouted": {
		"network create": 4,
		"network rm":     7,
	},
	// A network without a router, on an SDN that needs extra calls to write tags.
	"tagless": {
		"network create": 3,
	},
	// An existing network with Zun's options, and a container on an existing port.
	"existing": {
		"network create":   8,
		"write tags":       5,
		"RequestAddress":   2,
		"CreateEndpoint":   6,
		"EndpointOperInfo": 0,
		"Join":             1,
		"container stop":   4,
		"network rm":       11,
		"remove tags":      5,
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
		case n > bound:
			t.Errorf("%s: %d SDN calls, at most %d allowed: %v", step, n, bound, c.calls)
		case n < bound:
			t.Logf("%s: %d SDN calls, its bound of %d can be lowered", step, n, bound)
		}
		c.calls = nil
	}
}

// counting records the names of the calls that the driver makes, in order.
type counting struct {
	sdn.Provider
	calls []string
}

// note records a call and returns the provider that serves it.
func (c *counting) note(call string) sdn.Provider {
	c.calls = append(c.calls, call)
	return c.Provider
}

func (c *counting) EnsureNetwork(ctx context.Context, s sdn.NetworkSpec) (sdn.Network, error) {
	return c.note("EnsureNetwork").EnsureNetwork(ctx, s)
}

func (c *counting) Network(ctx context.Context, id sdn.ID) (sdn.Network, error) {
	return c.note("Network").Network(ctx, id)
}

func (c *counting) FindNetworks(
	ctx context.Context, q sdn.NetworkQuery,
) iter.Seq2[sdn.Network, error] {
	return c.note("FindNetworks").FindNetworks(ctx, q)
}

func (c *counting) UpdateNetwork(
	ctx context.Context, id sdn.ID, p sdn.NetworkPatch,
) (sdn.Network, error) {
	return c.note("UpdateNetwork").UpdateNetwork(ctx, id, p)
}

func (c *counting) DeleteNetwork(ctx context.Context, id sdn.ID) error {
	return c.note("DeleteNetwork").DeleteNetwork(ctx, id)
}

func (c *counting) FindSubnets(
	ctx context.Context, q sdn.SubnetQuery,
) iter.Seq2[sdn.Subnet, error] {
	return c.note("FindSubnets").FindSubnets(ctx, q)
}

func (c *counting) EnsureSubnet(ctx context.Context, s sdn.SubnetSpec) (sdn.Subnet, error) {
	return c.note("EnsureSubnet").EnsureSubnet(ctx, s)
}

func (c *counting) Subnet(ctx context.Context, id sdn.ID) (sdn.Subnet, error) {
	return c.note("Subnet").Subnet(ctx, id)
}

func (c *counting) UpdateSubnet(
	ctx context.Context, id sdn.ID, p sdn.SubnetPatch,
) (sdn.Subnet, error) {
	return c.note("UpdateSubnet").UpdateSubnet(ctx, id, p)
}

func (c *counting) DeleteSubnet(ctx context.Context, id sdn.ID) error {
	return c.note("DeleteSubnet").DeleteSubnet(ctx, id)
}

func (c *counting) EnsureSubnetPool(
	ctx context.Context, s sdn.SubnetPoolSpec,
) (sdn.SubnetPool, error) {
	return c.note("EnsureSubnetPool").EnsureSubnetPool(ctx, s)
}

func (c *counting) SubnetPool(ctx context.Context, id sdn.ID) (sdn.SubnetPool, error) {
	return c.note("SubnetPool").SubnetPool(ctx, id)
}

func (c *counting) FindSubnetPools(
	ctx context.Context, q sdn.SubnetPoolQuery,
) iter.Seq2[sdn.SubnetPool, error] {
	return c.note("FindSubnetPools").FindSubnetPools(ctx, q)
}

func (c *counting) UpdateSubnetPool(
	ctx context.Context, id sdn.ID, p sdn.SubnetPoolPatch,
) (sdn.SubnetPool, error) {
	return c.note("UpdateSubnetPool").UpdateSubnetPool(ctx, id, p)
}

func (c *counting) DeleteSubnetPool(ctx context.Context, id sdn.ID) error {
	return c.note("DeleteSubnetPool").DeleteSubnetPool(ctx, id)
}

func (c *counting) EnsurePorts(ctx context.Context, s []sdn.PortSpec) ([]sdn.Port, error) {
	return c.note("EnsurePorts").EnsurePorts(ctx, s)
}

func (c *counting) Port(ctx context.Context, id sdn.ID) (sdn.Port, error) {
	return c.note("Port").Port(ctx, id)
}

func (c *counting) FindPorts(ctx context.Context, q sdn.PortQuery) iter.Seq2[sdn.Port, error] {
	return c.note("FindPorts").FindPorts(ctx, q)
}

func (c *counting) UpdatePort(ctx context.Context, id sdn.ID, p sdn.PortPatch) (sdn.Port, error) {
	return c.note("UpdatePort").UpdatePort(ctx, id, p)
}

func (c *counting) AddGroups(ctx context.Context, id sdn.ID, groups []sdn.ID) error {
	return c.note("AddGroups").AddGroups(ctx, id, groups)
}

func (c *counting) RemoveGroups(ctx context.Context, id sdn.ID, groups []sdn.ID) error {
	return c.note("RemoveGroups").RemoveGroups(ctx, id, groups)
}

func (c *counting) DeletePorts(ctx context.Context, ids []sdn.ID) error {
	return c.note("DeletePorts").DeletePorts(ctx, ids)
}

func (c *counting) DeletePort(ctx context.Context, id sdn.ID, ifRevision int64) error {
	return c.note("DeletePort").DeletePort(ctx, id, ifRevision)
}

func (c *counting) WaitPorts(ctx context.Context, ids []sdn.ID, s sdn.PortStatus) error {
	return c.note("WaitPorts").WaitPorts(ctx, ids, s)
}

func (c *counting) EnsureRouter(ctx context.Context, s sdn.RouterSpec) (sdn.Router, error) {
	return c.note("EnsureRouter").EnsureRouter(ctx, s)
}

func (c *counting) Router(ctx context.Context, id sdn.ID) (sdn.Router, error) {
	return c.note("Router").Router(ctx, id)
}

func (c *counting) FindRouters(
	ctx context.Context, q sdn.RouterQuery,
) iter.Seq2[sdn.Router, error] {
	return c.note("FindRouters").FindRouters(ctx, q)
}

func (c *counting) AttachSubnet(ctx context.Context, router, subnet sdn.ID, a netip.Addr) error {
	return c.note("AttachSubnet").AttachSubnet(ctx, router, subnet, a)
}

func (c *counting) DetachSubnet(ctx context.Context, router, subnet sdn.ID) error {
	return c.note("DetachSubnet").DetachSubnet(ctx, router, subnet)
}

func (c *counting) DeleteRouter(ctx context.Context, id sdn.ID) error {
	return c.note("DeleteRouter").DeleteRouter(ctx, id)
}

func (c *counting) EnsureFloatingIP(
	ctx context.Context, s sdn.FloatingIPSpec,
) (sdn.FloatingIP, error) {
	return c.note("EnsureFloatingIP").EnsureFloatingIP(ctx, s)
}

func (c *counting) FindFloatingIPs(
	ctx context.Context, q sdn.FloatingIPQuery,
) iter.Seq2[sdn.FloatingIP, error] {
	return c.note("FindFloatingIPs").FindFloatingIPs(ctx, q)
}

func (c *counting) DeleteFloatingIP(ctx context.Context, id sdn.ID) error {
	return c.note("DeleteFloatingIP").DeleteFloatingIP(ctx, id)
}

func (c *counting) EnsureForwards(
	ctx context.Context, id sdn.ID, f []sdn.Forward,
) ([]sdn.Forward, error) {
	return c.note("EnsureForwards").EnsureForwards(ctx, id, f)
}

func (c *counting) FindForwards(
	ctx context.Context, q sdn.ForwardQuery,
) iter.Seq2[sdn.Forward, error] {
	return c.note("FindForwards").FindForwards(ctx, q)
}

func (c *counting) Publish(
	ctx context.Context, spec sdn.PublicationSpec,
) (sdn.Publication, error) {
	return c.note("Publish").Publish(ctx, spec)
}

func (c *counting) Publication(ctx context.Context, key sdn.Key) (sdn.Publication, error) {
	return c.note("Publication").Publication(ctx, key)
}

func (c *counting) Unpublish(ctx context.Context, key sdn.Key) error {
	return c.note("Unpublish").Unpublish(ctx, key)
}

func (c *counting) ApplySecurityGroup(
	ctx context.Context, s sdn.SecurityGroupSpec,
) (sdn.SecurityGroup, error) {
	return c.note("ApplySecurityGroup").ApplySecurityGroup(ctx, s)
}

func (c *counting) FindSecurityGroups(
	ctx context.Context, q sdn.SecurityGroupQuery,
) iter.Seq2[sdn.SecurityGroup, error] {
	return c.note("FindSecurityGroups").FindSecurityGroups(ctx, q)
}

func (c *counting) DeleteSecurityGroup(ctx context.Context, id sdn.ID) error {
	return c.note("DeleteSecurityGroup").DeleteSecurityGroup(ctx, id)
}

func (c *counting) FindQoSPolicies(
	ctx context.Context, q sdn.QoSPolicyQuery,
) iter.Seq2[sdn.QoSPolicy, error] {
	return c.note("FindQoSPolicies").FindQoSPolicies(ctx, q)
}

// TestProviderCalls bounds the SDN calls of each request of the protocol.
func TestProviderCalls(t *testing.T) {
	t.Parallel()
	c := &counting{}
	b := newBox(t, func(config *Config) { c.Provider = config.Provider; config.Provider = c })
	check := checkCalls(t, c, "routed")
	n := &network{v4: []*pool{{cidr: "10.50.0.0/24"}}}
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
	// The engine's notification arrives outside a request. Without it, the network's first
	// CreateEndpoint tags the network as used.
	b.must(b.driver.Seen(t.Context(), "one", n.id))
	c.calls = nil
	e.net, e.id = n, newID()
	b.take(e)
	check("RequestAddress")
	b.ok("NetworkDriver.CreateEndpoint", e.createBody())
	check("CreateEndpoint")
	b.ok("NetworkDriver.Join", e.joinBody())
	check("Join")
	program := e.body()
	program["Options"] = e.options()
	b.ok("NetworkDriver.ProgramExternalConnectivity", program)
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

// TestNetworkCalls bounds the SDN calls of docker network create and rm.
func TestNetworkCalls(t *testing.T) {
	t.Parallel()
	c := &counting{}
	b := newBox(t, func(config *Config) {
		c.Provider = config.Provider
		config.Provider, config.Routed = c, false
	})
	// The first network makes the calls that a process makes only once.
	b.remove(b.create(&network{v4: []*pool{{cidr: "10.49.0.0/24"}}}))
	c.calls = nil
	check := checkCalls(t, c, "unrouted")
	n := b.create(&network{v4: []*pool{{cidr: "10.50.0.0/24"}}})
	check("network create")
	b.remove(n)
	check("network rm")
	b.clean()
}

// tagless is a provider that writes tags in calls of their own.
type tagless struct{ sdn.Provider }

func (p tagless) Capabilities() sdn.Capabilities {
	c := p.Provider.Capabilities()
	c.TagsAtCreate = false
	return c
}

// TestNetworkCallsWithoutTags checks that reserving the default gateway of a range needs no
// extra call where tags cost calls. The gateway stays reserved after a restart of the
// plugin, also if the network belongs to another driver.
func TestNetworkCallsWithoutTags(t *testing.T) {
	t.Parallel()
	c := &counting{}
	b := newBox(t, func(config *Config) {
		c.Provider = tagless{config.Provider}
		config.Provider, config.Routed = c, false
	})
	check := checkCalls(t, c, "tagless")
	n := b.create(&network{v4: []*pool{{cidr: "10.50.0.0/24"}}})
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
	c := &counting{}
	b := newBox(t, func(config *Config) {
		c.Provider = config.Provider
		config.Provider, config.Routed, config.StateDir = c, false, t.TempDir()
	})
	check := checkCalls(t, c, "existing")
	theirs := b.theirs("net", "10.50.0.0/24")
	z := b.zun(theirs, "10.50.0.0/24", "")
	c.calls = nil
	n := b.create(z)
	check("network create")
	b.idle()
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
	b.idle()
	check("remove tags")
}

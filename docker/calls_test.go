package docker

import (
	"context"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// counting is a provider that writes down what it is asked, in order.
type counting struct {
	sdn.Provider
	calls []string
}

func (c *counting) note(call string) { c.calls = append(c.calls, call) }

func (c *counting) EnsureNetwork(ctx context.Context, s sdn.NetworkSpec) (sdn.Network, error) {
	c.note("EnsureNetwork")
	return c.Provider.EnsureNetwork(ctx, s)
}

func (c *counting) Network(ctx context.Context, id sdn.ID) (sdn.Network, error) {
	c.note("Network")
	return c.Provider.Network(ctx, id)
}

func (c *counting) FindNetworks(ctx context.Context, q sdn.NetworkQuery) iter.Seq2[sdn.Network, error] {
	c.note("FindNetworks")
	return c.Provider.FindNetworks(ctx, q)
}

func (c *counting) UpdateNetwork(ctx context.Context, id sdn.ID, p sdn.NetworkPatch) (sdn.Network, error) {
	c.note("UpdateNetwork")
	return c.Provider.UpdateNetwork(ctx, id, p)
}

func (c *counting) DeleteNetwork(ctx context.Context, id sdn.ID) error {
	c.note("DeleteNetwork")
	return c.Provider.DeleteNetwork(ctx, id)
}

func (c *counting) FindSubnets(ctx context.Context, q sdn.SubnetQuery) iter.Seq2[sdn.Subnet, error] {
	c.note("FindSubnets")
	return c.Provider.FindSubnets(ctx, q)
}

func (c *counting) EnsureSubnet(ctx context.Context, s sdn.SubnetSpec) (sdn.Subnet, error) {
	c.note("EnsureSubnet")
	return c.Provider.EnsureSubnet(ctx, s)
}

func (c *counting) Subnet(ctx context.Context, id sdn.ID) (sdn.Subnet, error) {
	c.note("Subnet")
	return c.Provider.Subnet(ctx, id)
}

func (c *counting) UpdateSubnet(ctx context.Context, id sdn.ID, p sdn.SubnetPatch) (sdn.Subnet, error) {
	c.note("UpdateSubnet")
	return c.Provider.UpdateSubnet(ctx, id, p)
}

func (c *counting) DeleteSubnet(ctx context.Context, id sdn.ID) error {
	c.note("DeleteSubnet")
	return c.Provider.DeleteSubnet(ctx, id)
}

func (c *counting) EnsureSubnetPool(ctx context.Context, s sdn.SubnetPoolSpec) (sdn.SubnetPool, error) {
	c.note("EnsureSubnetPool")
	return c.Provider.EnsureSubnetPool(ctx, s)
}

func (c *counting) SubnetPool(ctx context.Context, id sdn.ID) (sdn.SubnetPool, error) {
	c.note("SubnetPool")
	return c.Provider.SubnetPool(ctx, id)
}

func (c *counting) FindSubnetPools(ctx context.Context, q sdn.SubnetPoolQuery) iter.Seq2[sdn.SubnetPool, error] {
	c.note("FindSubnetPools")
	return c.Provider.FindSubnetPools(ctx, q)
}

func (c *counting) UpdateSubnetPool(ctx context.Context, id sdn.ID, p sdn.SubnetPoolPatch) (sdn.SubnetPool, error) {
	c.note("UpdateSubnetPool")
	return c.Provider.UpdateSubnetPool(ctx, id, p)
}

func (c *counting) DeleteSubnetPool(ctx context.Context, id sdn.ID) error {
	c.note("DeleteSubnetPool")
	return c.Provider.DeleteSubnetPool(ctx, id)
}

func (c *counting) EnsurePorts(ctx context.Context, s []sdn.PortSpec) ([]sdn.Port, error) {
	c.note("EnsurePorts")
	return c.Provider.EnsurePorts(ctx, s)
}

func (c *counting) Port(ctx context.Context, id sdn.ID) (sdn.Port, error) {
	c.note("Port")
	return c.Provider.Port(ctx, id)
}

func (c *counting) FindPorts(ctx context.Context, q sdn.PortQuery) iter.Seq2[sdn.Port, error] {
	c.note("FindPorts")
	return c.Provider.FindPorts(ctx, q)
}

func (c *counting) UpdatePort(ctx context.Context, id sdn.ID, p sdn.PortPatch) (sdn.Port, error) {
	c.note("UpdatePort")
	return c.Provider.UpdatePort(ctx, id, p)
}

func (c *counting) DeletePorts(ctx context.Context, ids []sdn.ID) error {
	c.note("DeletePorts")
	return c.Provider.DeletePorts(ctx, ids)
}

func (c *counting) DeletePort(ctx context.Context, id sdn.ID, ifRevision int64) error {
	c.note("DeletePort")
	return c.Provider.DeletePort(ctx, id, ifRevision)
}

func (c *counting) EnsureRouter(ctx context.Context, s sdn.RouterSpec) (sdn.Router, error) {
	c.note("EnsureRouter")
	return c.Provider.EnsureRouter(ctx, s)
}

func (c *counting) Router(ctx context.Context, id sdn.ID) (sdn.Router, error) {
	c.note("Router")
	return c.Provider.Router(ctx, id)
}

func (c *counting) FindRouters(ctx context.Context, q sdn.RouterQuery) iter.Seq2[sdn.Router, error] {
	c.note("FindRouters")
	return c.Provider.FindRouters(ctx, q)
}

func (c *counting) AttachSubnet(ctx context.Context, router, subnet sdn.ID, a netip.Addr) error {
	c.note("AttachSubnet")
	return c.Provider.AttachSubnet(ctx, router, subnet, a)
}

func (c *counting) DetachSubnet(ctx context.Context, router, subnet sdn.ID) error {
	c.note("DetachSubnet")
	return c.Provider.DetachSubnet(ctx, router, subnet)
}

func (c *counting) DeleteRouter(ctx context.Context, id sdn.ID) error {
	c.note("DeleteRouter")
	return c.Provider.DeleteRouter(ctx, id)
}

func (c *counting) EnsureFloatingIP(ctx context.Context, s sdn.FloatingIPSpec) (sdn.FloatingIP, error) {
	c.note("EnsureFloatingIP")
	return c.Provider.EnsureFloatingIP(ctx, s)
}

func (c *counting) FindFloatingIPs(ctx context.Context, q sdn.FloatingIPQuery) iter.Seq2[sdn.FloatingIP, error] {
	c.note("FindFloatingIPs")
	return c.Provider.FindFloatingIPs(ctx, q)
}

func (c *counting) DeleteFloatingIP(ctx context.Context, id sdn.ID) error {
	c.note("DeleteFloatingIP")
	return c.Provider.DeleteFloatingIP(ctx, id)
}

func (c *counting) EnsureForwards(ctx context.Context, id sdn.ID, f []sdn.Forward) ([]sdn.Forward, error) {
	c.note("EnsureForwards")
	return c.Provider.EnsureForwards(ctx, id, f)
}

func (c *counting) FindForwards(ctx context.Context, q sdn.ForwardQuery) iter.Seq2[sdn.Forward, error] {
	c.note("FindForwards")
	return c.Provider.FindForwards(ctx, q)
}

// TestProviderCalls is what each method asks of the SDN for a network of one family and a container with one published port.
// With a remote SDN each is a round trip: a change that adds one must be worth it.
func TestProviderCalls(t *testing.T) {
	t.Parallel()
	c := &counting{}
	b := newBox(t, func(config *Config) { c.Provider = config.Provider; config.Provider = c })
	n := &network{v4: []*pool{{cidr: "10.50.0.0/24"}}}
	e := &endpoint{mac: "02:00:00:00:00:01", ip4: "10.50.0.10", published: []m{{"Proto": 6, "Port": 80, "HostPort": 8080}}}
	got := map[string]string{}
	take := func(method string) {
		got[method] = strings.Join(c.calls, " ")
		c.calls = nil
	}
	b.requestPool(n.v4[0], false)
	take("RequestPool")
	b.requestGateway(n.v4[0])
	take("RequestAddress gateway")
	pools := n.v4
	n.v4 = nil
	body := b.request(n)
	n.v4 = pools
	body["IPv4Data"] = []m{n.v4[0].data()}
	b.ok("NetworkDriver.CreateNetwork", body)
	take("CreateNetwork")
	// Off the path of a call; without, the network's first CreateEndpoint notes that it is used.
	b.must(b.driver.Seen(t.Context(), "one", n.id))
	c.calls = nil
	e.net, e.id = n, newID()
	b.take(e)
	take("RequestAddress")
	b.ok("NetworkDriver.CreateEndpoint", e.createBody())
	take("CreateEndpoint")
	b.ok("NetworkDriver.Join", e.joinBody())
	take("Join")
	program := e.body()
	program["Options"] = e.options()
	b.ok("NetworkDriver.ProgramExternalConnectivity", program)
	take("ProgramExternalConnectivity")
	for _, method := range []string{"EndpointOperInfo", "RevokeExternalConnectivity", "Leave", "DeleteEndpoint"} {
		b.ok("NetworkDriver."+method, e.body())
		take(method)
	}
	b.giveBack(e)
	take("ReleaseAddress")
	b.ok("IpamDriver.ReleaseAddress", m{"PoolID": n.v4[0].id, "Address": n.v4[0].gateway})
	take("ReleaseAddress gateway")
	b.ok("IpamDriver.ReleasePool", m{"PoolID": n.v4[0].id})
	take("ReleasePool")
	b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id})
	take("DeleteNetwork")
	want := map[string]string{
		"RequestPool":                 "FindSubnetPools EnsureSubnetPool", // the first once in the life of a process
		"RequestAddress gateway":      "SubnetPool UpdateSubnetPool",
		"CreateNetwork":               "EnsureNetwork EnsureRouter AttachSubnet Router",
		"RequestAddress":              "Subnet EnsurePorts",
		"CreateEndpoint":              "Network FindSubnets FindPorts UpdatePort",
		"Join":                        "FindSubnets",
		"ProgramExternalConnectivity": "EnsureFloatingIP FindForwards EnsureForwards",
		"EndpointOperInfo":            "FindPorts",
		"RevokeExternalConnectivity":  "FindFloatingIPs DeleteFloatingIP",
		"Leave":                       "FindFloatingIPs",
		"DeleteEndpoint":              "FindFloatingIPs FindPorts UpdatePort",
		"ReleaseAddress":              "Subnet FindPorts DeletePort",
		"ReleaseAddress gateway":      "Subnet",
		"ReleasePool":                 "SubnetPool Subnet UpdateSubnetPool",
		"DeleteNetwork": "Network UpdateNetwork FindPorts FindRouters DetachSubnet DeleteRouter FindSubnets " +
			"FindSubnetPools DeleteNetwork FindSubnetPools DeleteSubnetPool",
	}
	var methods []string
	for method := range want {
		methods = append(methods, method)
	}
	slices.Sort(methods)
	for _, method := range methods {
		if got[method] != want[method] {
			t.Errorf("%s asked for\n\t%s\nwant\n\t%s", method, got[method], want[method])
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d methods were called, %d are known", len(got), len(want))
	}
}

// TestNetworkCalls is what a network without a router costs, all of docker network create and rm together. What is asked for by its id is
// in the cache of a provider that has one.
func TestNetworkCalls(t *testing.T) {
	t.Parallel()
	c := &counting{}
	b := newBox(t, func(config *Config) { c.Provider = config.Provider; config.Provider = c; config.Routed = false })
	b.remove(b.create(&network{v4: []*pool{{cidr: "10.49.0.0/24"}}})) // what a process asks once, it has asked
	c.calls = nil
	n := b.create(&network{v4: []*pool{{cidr: "10.50.0.0/24"}}})
	if got := strings.Join(c.calls, " "); got != "EnsureSubnetPool SubnetPool UpdateSubnetPool EnsureNetwork" {
		t.Errorf("to make it: %s", got)
	}
	c.calls = nil
	b.remove(n)
	if got := strings.Join(c.calls, " "); got != "Subnet SubnetPool Subnet UpdateSubnetPool Network DeleteNetwork DeleteSubnetPool" {
		t.Errorf("to delete it: %s", got)
	}
	b.clean()
}

// tagless is a provider that writes tags by calls of their own.
type tagless struct{ sdn.Provider }

func (p tagless) Capabilities() sdn.Capabilities {
	c := p.Provider.Capabilities()
	c.TagsAtCreate = false
	return c
}

// Where tags cost calls, the gateway that every range has by default costs none, and is kept from everybody all the same, also where the
// network is another driver's and the plugin was restarted.
func TestNetworkCallsWithoutTags(t *testing.T) {
	t.Parallel()
	c := &counting{}
	b := newBox(t, func(config *Config) {
		c.Provider = tagless{config.Provider}
		config.Provider, config.Routed = c, false
	})
	n := b.create(&network{v4: []*pool{{cidr: "10.50.0.0/24"}}})
	if got := strings.Join(c.calls, " "); got != "EnsureSubnetPool SubnetPool EnsureNetwork" {
		t.Errorf("to make it: %s", got)
	}
	b.remove(n)
	b.clean()
	for _, gateway := range []string{"", "10.50.0.9"} {
		p := &pool{cidr: "10.50.0.0/24", gateway: gateway}
		b.requestPool(p, false)
		b.requestGateway(p)
		b.restart()
		b.fails("IpamDriver.RequestAddress", m{"PoolID": p.id, "Address": p.gateway, "Options": m{optMAC: "02:00:00:00:00:07"}})
		other := &pool{cidr: "10.50.0.0/24"}
		if b.requestPool(other, false); other.id == p.id {
			t.Error("a pool that an engine has is given to another network")
		}
		for _, id := range []string{p.id, other.id} {
			b.ok("IpamDriver.ReleasePool", m{"PoolID": id})
		}
		b.clean()
	}
}

// TestExistingCalls is what an existing network costs, with Zun's options, and a port on it that is lent. What is asked for by its id is in the cache of a
// provider that has one.
func TestExistingCalls(t *testing.T) {
	t.Parallel()
	c := &counting{}
	b := newBox(t, func(config *Config) {
		c.Provider = config.Provider
		config.Provider, config.Routed, config.StateDir = c, false, t.TempDir()
	})
	theirs := b.theirs("net", "10.50.0.0/24")
	expect := func(what, want string) {
		t.Helper()
		if got := strings.Join(c.calls, " "); got != want {
			t.Errorf("%s asked for\n\t%s\nwant\n\t%s", what, got, want)
		}
		c.calls = nil
	}
	z := b.zun(theirs, "10.50.0.0/24", "")
	c.calls = nil
	n := b.create(z)
	expect("create", "Network Subnet EnsureSubnetPool Subnet Network FindSubnets Subnet EnsureSubnetPool")
	b.must(b.driver.settleMarks(t.Context()))
	expect("tags", "FindSubnetPools Network UpdateNetwork Subnet UpdateSubnet")
	lent, err := b.provider.EnsurePorts(t.Context(), []sdn.PortSpec{{Network: theirs.ID, Addresses: []sdn.Address{{Addr: netip.MustParseAddr("10.50.0.20")}}}})
	b.must(err)
	e := &endpoint{net: n, ip4: "10.50.0.20", mac: lent[0].MAC.String()}
	b.take(e)
	expect("RequestAddress", "Subnet FindPorts")
	b.ok("NetworkDriver.CreateEndpoint", e.createBody())
	expect("CreateEndpoint", "SubnetPool Network FindSubnets FindPorts UpdatePort UpdatePort")
	b.ok("NetworkDriver.EndpointOperInfo", e.body())
	b.ok("NetworkDriver.Join", e.joinBody())
	expect("Join", "FindSubnets")
	b.ok("NetworkDriver.Leave", e.body())
	b.ok("NetworkDriver.DeleteEndpoint", e.body())
	b.giveBack(e)
	expect("stop", "FindFloatingIPs FindFloatingIPs Port UpdatePort UpdatePort Subnet")
	b.same(lent[0])
	b.must(b.provider.DeletePorts(t.Context(), []sdn.ID{lent[0].ID}))
	b.remove(n)
	expect("delete", "Subnet SubnetPool Subnet DeleteSubnetPool SubnetPool Network FindSubnetPools FindSubnets FindPorts Network DeleteSubnetPool")
	b.must(b.driver.settleMarks(t.Context()))
	expect("tags off", "FindSubnetPools FindSubnets Network UpdateNetwork UpdateSubnet")
}

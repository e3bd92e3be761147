package docker

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

func deletesEmpty(c *Config) { c.DeleteEmptySubnets = true }

// whole lists what must be the same of a network's subnets that are created again, with
// their router interfaces, without ids.
func (b *box) whole(n *network) string {
	b.t.Helper()
	var s strings.Builder
	subnets, err := sdn.All(b.provider.FindSubnets(b.t.Context(), sdn.SubnetQuery{Networks: []sdn.ID{b.networkOf(n).ID}}))
	b.must(err)
	slices.SortFunc(subnets, func(x, y sdn.Subnet) int { return strings.Compare(x.Key.Name, y.Key.Name) })
	for _, x := range subnets {
		fmt.Fprintln(
			&s, x.Key, x.Name, x.Tags, x.CIDR, x.Pool, x.Gateway, x.Ranges, x.Reserved, x.Mode,
			x.NoDHCP, x.HostRoutes,
		)
		routers, err := sdn.All(b.provider.FindRouters(b.t.Context(), sdn.RouterQuery{Subnets: []sdn.ID{x.ID}}))
		b.must(err)
		for _, r := range routers {
			i := slices.IndexFunc(r.Interfaces, func(leg sdn.RouterInterface) bool { return leg.Subnet == x.ID })
			fmt.Fprintln(&s, "  on", r.Key, r.Interfaces[i].Addr, r.Gateway)
		}
	}
	return s.String()
}

// wantSubnets checks the subnets of a network; "" is none.
func (b *box) wantSubnets(n *network, want string, when ...any) {
	b.t.Helper()
	if now := b.whole(n); now != want {
		b.t.Errorf("%sthe subnets are\n%s\nwant\n%s", fmt.Sprintln(when...), now, want)
	}
}

func richNetwork(options m) *network {
	o := m{optRoutes: "10.9.0.0/16=10.50.0.5,192.0.2.0/24=link,fd09::/64=fd50::9"}
	for k, v := range options {
		o[k] = v
	}
	return &network{
		v4: []*pool{{
			cidr: "10.50.0.0/24", sub: "10.50.0.128/25", gateway: "10.50.0.7",
			aux: map[string]string{"a": "10.50.0.129", "b": "10.50.0.9"},
		}},
		v6:      []*pool{{cidr: "fd50::/64"}},
		options: o,
	}
}

// The last endpoint takes its subnets along, and the next one gets them alike.
func TestEmptySubnets(t *testing.T) {
	t.Parallel()
	for name, n := range map[string]func() *network{
		"routed":     func() *network { return richNetwork(nil) },
		"shared":     func() *network { return richNetwork(m{optRouter: "edge"}) },
		"no gateway": func() *network { return richNetwork(m{optGateway: "none"}) },
		"internal":   func() *network { n := richNetwork(nil); n.internal = true; return n },
		"engine 28":  func() *network { return &network{v4: []*pool{{cidr: "10.50.0.0/24"}}, internal: true, skipGw: true} },
		"automatic":  func() *network { return &network{v4: []*pool{{}}, v6: []*pool{{}}} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBox(t, deletesEmpty)
			n := b.create(n())
			whole := b.whole(n)
			for round := range 3 {
				one, two := b.run(&endpoint{net: n}), b.run(&endpoint{net: n})
				b.wantSubnets(n, whole)
				b.stop(one)
				b.wantSubnets(n, whole)
				b.ok("NetworkDriver.DeleteEndpoint", two.body())
				b.stop(two)
				b.wantSubnets(n, "")
				if round == 1 {
					b.restart()
					b.reconcile()
				}
			}
			// Another network of its range and this one do not mix.
			other := b.create(&network{v4: []*pool{{cidr: n.v4[0].cidr}}})
			if e := b.run(&endpoint{net: n}); b.portOf(e.id).Network != b.networkOf(n).ID {
				t.Error("the endpoint is on another network")
			}
			b.remove(other)
			b.remove(n)
			b.clean()
		})
	}
}

// Static addresses, auxiliary ones and the gateway are kept for as long as there is no subnet.
func TestEmptySubnetsKeepAddresses(t *testing.T) {
	t.Parallel()
	b := newBox(t, deletesEmpty)
	n := b.create(richNetwork(nil))
	b.stop(b.run(&endpoint{net: n}))
	for _, address := range []string{"10.50.0.7", "10.50.0.129", "10.50.0.9"} {
		b.fails("IpamDriver.RequestAddress", m{
			"PoolID": n.v4[0].id, "Address": address, "Options": m{optMAC: "02:00:00:00:00:07"},
		})
	}
	if a := b.ok("IpamDriver.RequestAddress", m{
		"PoolID": n.v4[0].id, "Address": "", "Options": m{optAddressType: addressGateway},
	}); a["Address"] != "10.50.0.7/24" {
		t.Errorf("gateway %v", a)
	}
	e := b.run(&endpoint{net: n, ip4: "10.50.0.20"})
	b.stop(e)
	b.remove(n)
	b.clean()
}

// Engines release the pools and delete the network while a subnet is gone, in either
// order; what they forget is finished.
func TestEmptySubnetsTakenDown(t *testing.T) {
	t.Parallel()
	for _, order := range []string{"pools first", "network first", "no DeleteNetwork"} {
		b := newBox(t, deletesEmpty)
		n := b.create(richNetwork(nil))
		b.stop(b.run(&endpoint{net: n}))
		switch order {
		case "pools first":
			b.remove(n)
		case "network first":
			b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id})
			// The range is one for another network driver now.
			b.ok("IpamDriver.RequestAddress", m{"PoolID": n.v4[0].id, "Address": "", "Options": m{optMAC: "02:00:00:00:00:07"}})
			b.release(n)
		default:
			b.release(n)
			b.restart()
			b.reconcile()
		}
		b.clean()
	}
}

// CreateNetwork twice, the second time while its subnets are gone.
func TestEmptySubnetsAndRepeatedCreate(t *testing.T) {
	t.Parallel()
	b := newBox(t, deletesEmpty)
	n := richNetwork(nil)
	body := b.request(n)
	b.ok("NetworkDriver.CreateNetwork", body)
	whole := b.whole(n)
	b.stop(b.run(&endpoint{net: n}))
	b.restart()
	b.ok("NetworkDriver.CreateNetwork", body)
	b.wantSubnets(n, whole)
	b.remove(n)
	b.clean()
}

// Subnets that are not ours, or not of pools of ours, stay; so do those that another host has a port on.
func TestForeignSubnetsStay(t *testing.T) {
	t.Parallel()
	b := newBox(t, deletesEmpty)
	n := b.create(v4Network("10.50.0.0/24"))
	made := b.networkOf(n)
	foreign, err := b.provider.EnsureSubnet(t.Context(), sdn.SubnetSpec{Network: made.ID, CIDR: somePrefixes()[0]})
	b.must(err)
	other := b.otherIPAM("172.18.0.0/16")
	e := &endpoint{net: other, id: newID(), ip4: "172.18.0.2"}
	b.ok("NetworkDriver.CreateEndpoint", e.createBody())
	b.ok("NetworkDriver.DeleteEndpoint", e.body())
	elsewhere, err := b.provider.EnsurePorts(t.Context(), []sdn.PortSpec{
		{Network: made.ID, Addresses: []sdn.Address{{Subnet: made.Subnets[0]}}},
	})
	b.must(err)
	b.stop(b.run(&endpoint{net: n}))
	b.restart()
	b.reconcile()
	for _, id := range []sdn.ID{foreign.ID, made.Subnets[0], b.networkOf(other).Subnets[0]} {
		if _, err := b.provider.Subnet(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	b.must(b.provider.DeletePorts(t.Context(), []sdn.ID{elsewhere[0].ID}))
	b.stop(b.run(&endpoint{net: n}))
	if _, err := b.provider.Subnet(t.Context(), made.Subnets[0]); !sdn.IsNotFound(err) {
		t.Errorf("the empty subnet: %v", err)
	}
	if _, err := b.provider.Subnet(t.Context(), foreign.ID); err != nil {
		t.Error(err)
	}
}

// Containers come and go concurrently, so that a subnet is deleted while others request
// addresses of it.
func TestEmptySubnetsAtOnce(t *testing.T) {
	t.Parallel()
	b := newBox(t, deletesEmpty)
	n := b.create(richNetwork(nil))
	whole := b.whole(n)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 10 {
				e := b.run(&endpoint{net: n})
				if len(b.portOf(e.id).Addresses) != 2 || e.joined["Gateway"] != "10.50.0.7" {
					t.Errorf("join %v", e.joined)
				}
				b.stop(e)
			}
		})
	}
	wg.Wait()
	b.wantSubnets(n, "")
	b.run(&endpoint{net: n})
	b.wantSubnets(n, whole)
	b.remove(n)
	b.clean()
}

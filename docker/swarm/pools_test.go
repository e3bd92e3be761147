package swarm

import (
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/sdn"
)

// A manager that had no answer is given the pool that it has, also after the database was
// lost. A pool that a network has is no longer one of docker/ipam.
func TestPoolAskedAgain(t *testing.T) {
	t.Parallel()
	e := newSwarm(t)[0]
	n := &docknet{pools: ranges("10.130.0.0/24")}
	e.must(e.requestRanges(n, api.GlobalSpace))
	first := n.pools[0].id
	for i, again := range []func(){
		func() {}, e.restart,
		func() {
			e.stop()
			e.path = filepath.Join(t.TempDir(), "docker.db")
			e.start()
		},
	} {
		again()
		n.pools[0].gateway = netip.AddrFrom4([4]byte{10, 130, 0, byte(7 + i)})
		e.must(e.requestRanges(n, api.GlobalSpace))
		if n.pools[0].id != first {
			t.Errorf("pool %v, want %v", n.pools[0].id, first)
		}
	}
	e.allocate(n)
	if v, err := e.onNodeView(n); err != nil || v.Gateway.String() != "10.130.0.9" {
		t.Errorf("subnet %+v, error %v", v, err)
	}
	if len(e.store.Rows()) != 1 { // of the node's part
		t.Errorf("rows %v", e.store.Rows())
	}
	e.restart()
	if e.IPAM.Has(first.Pool) {
		t.Error("the pool of the network has a row")
	}
	e.must(e.DeleteNetwork(t.Context(), n.id))
	e.unallocate(n)
	e.clean()
}

func (e *env) onNodeView(n *docknet) (sdn.Subnet, error) {
	e.Helper()
	e.onNode(n)
	v, err := e.Find(e.Context(), n.id)
	if err != nil {
		return sdn.Subnet{}, err
	}
	return v.Subnets[0], nil
}

// A pool that the previous version made has the gateway and the auxiliary addresses in its
// tags.
func TestPoolOfPreviousVersion(t *testing.T) {
	t.Parallel()
	e := newSwarm(t)[0]
	cidr := netip.MustParsePrefix("10.130.0.0/24")
	name := identity.PoolName{Host: e.Names.Host, Space: api.GlobalSpace, Nonce: "0123456789abcdef", CIDR: cidr}
	_, err := e.shared.EnsureSubnetPool(t.Context(), sdn.SubnetPoolSpec{
		Base: sdn.Base{
			Key: e.Names.PoolKey(name), Name: identity.PoolTitle(cidr),
			Tags: []string{identity.TagGateway + "10.130.0.9", identity.TagAux + "10.130.0.2"},
		},
		Prefixes: []netip.Prefix{cidr}, DefaultLen: 24, MinLen: 24,
	})
	e.must(err)
	n := &docknet{id: swarmID(), pools: []*pool{{cidr: cidr, gateway: netip.MustParseAddr("10.130.0.9")}}}
	_, err = e.AllocateNetwork(t.Context(), &api.AllocateNetworkRequest{CreateNetworkRequest: n.request("")})
	e.must(err)
	s, found, err := e.allocated(t.Context(), cidr, false)
	e.must(err)
	reserved := []netip.Addr{netip.MustParseAddr("10.130.0.2")}
	if !found || !slices.Equal(s.Reserved, reserved) || s.Gateway != n.pools[0].gateway {
		t.Errorf("subnet %+v", s)
	}
	n.pools[0].id = api.PoolID{Pool: s.Pool}
	e.unallocate(n)
	e.clean()
}

// An address that no manager holds is the node's alone. It goes with the node's part of the
// network at the latest.
func TestAddressOfNodeAlone(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		e := newSwarm(t)[0]
		n := e.allocate(&docknet{pools: ranges("10.130.0.0/24", "fd00:130::/64")})
		node := e.onNode(n)
		mac := net.HardwareAddr{2, 0x42, 0, 0, 0, 9}
		r := &task{id: endpointID(), net: node, pool: node.pools[0]}
		var given []netip.Prefix
		for _, p := range node.pools {
			a, err := e.requestAddress(&api.RequestAddressRequest{PoolID: p.id, MAC: mac})
			e.must(err)
			given = append(given, netip.PrefixFrom(a, p.cidr.Bits()))
		}
		e.restart()
		_, err := e.take(n, given[0].Addr())
		e.refused(err, "in use")
		_, err = e.endpoints.Create(t.Context(), &api.CreateEndpointRequest{
			EndpointRequest: r.request(), MAC: mac, MACGiven: true, Addresses: given,
		})
		e.must(err)
		e.must(e.join(r, "/sandbox"))
		e.expect(1, 1, 1)
		if !lost {
			e.must(e.endpoints.Leave(t.Context(), r.id))
			e.must(e.endpoints.Delete(t.Context(), r.id))
			for i, a := range given {
				e.must(e.releaseAddress(node.pools[i].id, a.Addr()))
			}
			e.expect(1, 1, 0)
		}
		e.remove(node)
		e.expect(1, 1, 0)
		e.unallocate(n)
		e.clean()
	}
}

// A network that another driver has of a range of the global space takes the addresses of
// its endpoints from a manager. A network that a node has made is docker/network's.
func TestGlobalRangeOfOneHost(t *testing.T) {
	t.Parallel()
	e := newSwarm(t)[0]
	n := &docknet{id: endpointID(), pools: ranges("10.132.0.0/24")} // the form of a local network's id
	e.must(e.requestRanges(n, api.GlobalSpace))
	r := n.request(api.GlobalSpace)
	e.must(e.Networks.Create(t.Context(), &r))
	e.expect(1, 1, 0)
	again := ranges("10.132.0.0/24")[0]
	e.refused(e.requestPool(again, api.GlobalSpace), "another network's")
	p := n.pools[0]
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	a, err := e.requestAddress(&api.RequestAddressRequest{PoolID: p.id, MAC: mac})
	e.must(err)
	port, found, err := sdn.First(e.shared.FindPorts(t.Context(), sdn.PortQuery{Addresses: []netip.Addr{a}}))
	if err != nil || !found || len(heldBy(port)) > 0 {
		t.Errorf("the address is a manager's: port %+v, error %v", port, err)
	}
	e.must(e.releaseAddress(p.id, a))
	e.must(e.releasePool(p.id))
	e.must(e.Networks.Delete(t.Context(), n.id))
	e.clean()
}

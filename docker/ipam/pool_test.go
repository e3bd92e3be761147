package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/docker/peertest"
	"github.com/kuryr/kuryr/internal/ipprefix"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

const (
	mac1 = "02:00:00:00:00:01"
	mac2 = "02:00:00:00:00:02"
)

// A pool has the names of kuryr-libnetwork, and the range that its user chose.
func TestNamedPool(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	r := poolRequest("10.50.0.0/16")
	r.SubPool = prefix("10.50.1.0/24")
	a, err := e.s.RequestPool(t.Context(), r)
	e.must(err)
	p, err := e.sdn.SubnetPool(t.Context(), sdn.ID(a.PoolID))
	e.must(err)
	if a.Pool != "10.50.0.0/16" || a.Data == nil || p.Name != "kuryrPool-10.50.0.0/16" || p.DefaultLen != 16 {
		t.Errorf("answer %+v, pool %+v", a, p)
	}
	if !slices.Contains(p.Tags, e.s.Names.HostTag()) {
		t.Errorf("tags %v, want that of the host", p.Tags)
	}
	n := e.network(p.ID)
	if got := e.take(p.ID, "", mac1); got != "10.50.1.0/16" {
		t.Errorf("address %s, want one of --ip-range", got)
	}
	e.releasePool(p.ID)
	e.removeNetwork(n, p.ID)
	e.clean()
}

// Tags that are calls of their own are written when a network was made of the pool.
func TestTagsLater(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.sdn.tagsLater = true
	id := e.pool("10.50.0.0/24")
	e.gateway(id)
	n := e.network(id)
	if e.sdn.changes != 1 {
		t.Errorf("%d changes, want one", e.sdn.changes)
	}
	e.must(e.s.TagLater(t.Context(), e.row(id).Key))
	e.idle()
	p, err := e.sdn.SubnetPool(t.Context(), id)
	e.must(err)
	if !slices.Contains(p.Tags, e.s.Names.HostTag()) || !(poolTarget{e.s}).isTagged(e.row(id).Spec, e.row(id).Last) {
		t.Errorf("pool %+v, row %+v", p, e.row(id))
	}
	e.releasePool(id)
	e.removeNetwork(n, id)
	e.clean()
}

// The range of an existing subnet, and one of an existing pool.
func TestPoolOfExisting(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	theirs, sub := e.theirs("10.50.0.0/24")
	operators, err := e.sdn.Provider.EnsureSubnetPool(t.Context(), sdn.SubnetPoolSpec{
		Base: sdn.Base{Name: "operators"}, Prefixes: []netip.Prefix{prefix("10.32.0.0/12")}, DefaultLen: 24,
	})
	e.must(err)
	e.empty = e.dump()
	ask := func(cidr string, existing api.Existing) (api.RequestPoolResponse, error) {
		r := poolRequest(cidr)
		r.Existing = existing
		return e.s.RequestPool(t.Context(), r)
	}
	bySubnet := func(named api.Reference) api.Existing {
		return api.Existing{Subnet: map[bool]api.Reference{false: named}}
	}
	byPool := func(named api.Reference) api.Existing {
		return api.Existing{Pool: map[bool]api.Reference{false: named}}
	}
	option := "neutron.subnet.uuid"
	a, err := ask("", bySubnet(api.Reference{Option: option, ID: sub.ID}))
	e.must(err)
	id := sdn.ID(a.PoolID)
	if a.Pool != "10.50.0.0/24" || e.row(id).Spec.OfSubnet != sub.ID {
		t.Errorf("answer %+v, row %+v", a, e.row(id))
	}
	if got := e.gateway(id); got != "10.50.0.1/24" {
		t.Errorf("gateway %s", got)
	}
	_, err = e.request(id, "10.50.0.9", "", true)
	e.refuses(err, "the gateway of 10.50.0.0/24 is 10.50.0.1, not 10.50.0.9")
	got := e.take(id, "", mac1)
	if p := e.ports(); len(p) != 1 || p[0].Network != theirs.ID || got != p[0].Addresses[0].Addr.String()+"/24" {
		t.Errorf("ports %+v, answer %s", p, got)
	}
	e.release(id, got)
	e.releasePool(id)
	for text, existing := range map[string]api.Existing{
		"there is no subnet": bySubnet(api.Reference{Option: option, ID: "none"}),
		"not 10.51.0.0/24":   bySubnet(api.Reference{Option: option, ID: sub.ID}),
		"is in no prefix":    byPool(api.Reference{Option: "neutron.pool.name", Name: "operators"}),
		"there is no":        byPool(api.Reference{Option: "neutron.pool.name", Name: "none"}),
	} {
		_, err := ask("10.51.0.0/24", existing)
		e.refuses(err, text)
	}
	a, err = ask("10.33.0.0/24", byPool(api.Reference{Option: "neutron.pool.uuid", ID: operators.ID}))
	e.must(err)
	id = sdn.ID(a.PoolID)
	n := e.network(id)
	if sub, err := e.sdn.Subnet(t.Context(), n.Subnets[0]); err != nil || sub.Pool != operators.ID {
		t.Errorf("subnet %+v, %v", sub, err)
	}
	e.releasePool(id)
	e.removeNetwork(n, id)
	e.clean()
}

// Its owner deletes the subnet that stands for a range.
func TestExistingSubnetGone(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	theirs, sub := e.theirs("10.50.0.0/24")
	r := poolRequest("10.50.0.0/24")
	r.Existing.Subnet = map[bool]api.Reference{false: {Option: "neutron.subnet.uuid", ID: sub.ID}}
	a, err := e.s.RequestPool(t.Context(), r)
	e.must(err)
	e.bind(e.row(sdn.ID(a.PoolID)).Key, []sdn.Subnet{sub})
	e.must(e.sdn.Provider.DeleteNetwork(t.Context(), theirs.ID))
	for range 2 {
		_, err = e.request(sdn.ID(a.PoolID), "", mac1, false)
		e.refuses(err, string(sub.ID), a.PoolID, "is gone")
		e.bind(e.row(sdn.ID(a.PoolID)).Key, nil)
	}
	e.releasePool(sdn.ID(a.PoolID))
	e.clean()
}

// The engine does not tell two networks of one range apart while one is being created.
func TestSameRangeTwice(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	first := e.pool("10.50.0.0/24")
	_, err := e.s.RequestPool(t.Context(), poolRequest("10.50.0.0/24"))
	e.refuses(err, "10.50.0.0/24", "try again in a minute")
	n1 := e.network(first)
	second := e.pool("10.50.0.0/24")
	if first == second {
		t.Error("both networks have one pool")
	}
	data := &api.IPAMData{AddressSpace: api.LocalSpace, Pool: prefix("10.50.0.0/24"), Gateway: addr("10.50.0.1")}
	pools, err := e.s.ForRanges(t.Context(), []Range{{IPAMData: data}}, "new")
	e.must(err)
	if pools[0].ID != second || !pools[0].Fresh {
		t.Errorf("pool %+v, want %s", pools[0], second)
	}
	mine := e.networks[e.row(first).Key]
	if pools, err = e.s.ForRanges(t.Context(), []Range{{IPAMData: data}}, mine); err != nil || pools[0].ID != first {
		t.Errorf("pools %+v, %v; want that which the network has", pools, err)
	}
	n2 := e.network(second)
	_, err = e.s.ForRanges(t.Context(), []Range{{IPAMData: data}}, "new")
	e.refuses(err, "the range 10.50.0.0/24 was not requested from kuryr, or is another network's")
	for id, n := range map[sdn.ID]sdn.Network{first: n1, second: n2} {
		e.releasePool(id)
		if !e.s.IsReleased(e.row(id).Key) {
			t.Error("a released pool is not released")
		}
		e.removeNetwork(n, id)
	}
	e.clean()
}

// Of two pools of one range, each network has that which fits its gateway, its auxiliary addresses
// and its existing subnet.
func TestPoolsFit(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	_, sub := e.theirs("10.50.0.0/24")
	plain := e.pool("10.50.0.0/24")
	_, err := e.request(plain, "10.50.0.7", "", true)
	e.must(err)
	e.take(plain, "10.50.0.9", "")
	r := poolRequest("10.50.0.0/24")
	r.Existing.Subnet = map[bool]api.Reference{false: {Option: "neutron.subnet.uuid", ID: sub.ID}}
	a, err := e.s.RequestPool(t.Context(), r)
	e.must(err)
	own := &api.IPAMData{
		AddressSpace: api.LocalSpace, Pool: prefix("10.50.0.0/24"), Gateway: addr("10.50.0.7"),
		AuxAddresses: []netip.Addr{addr("10.50.0.9")},
	}
	of := &api.IPAMData{AddressSpace: api.LocalSpace, Pool: own.Pool}
	for want, r := range map[sdn.ID]Range{
		plain: {IPAMData: own}, sdn.ID(a.PoolID): {IPAMData: of, Existing: true, Standing: sub.ID},
	} {
		pools, err := e.s.ForRanges(t.Context(), []Range{r}, "new")
		e.must(err)
		if pools[0].ID != want {
			t.Errorf("pool %+v, want %s", pools[0], want)
		}
	}
	other := Range{IPAMData: &api.IPAMData{AddressSpace: "LocalDefault", Pool: own.Pool}}
	if pools, err := e.s.ForRanges(t.Context(), []Range{other}, "new"); err != nil || pools[0].ID != "" {
		t.Errorf("pools %+v, %v; want none for another IPAM driver", pools, err)
	}
}

// Gateways and auxiliary addresses before there is a network.
func TestGateway(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	id := e.pool("10.50.0.0/24")
	if got := e.gateway(id); got != "10.50.0.1/24" {
		t.Errorf("gateway %s", got)
	}
	_, err := e.request(id, "10.50.0.1", "", false)
	e.refuses(err, "10.50.0.1 is the gateway")
	if got := e.take(id, "10.50.0.9", ""); got != "10.50.0.9/24" {
		t.Errorf("auxiliary address %s", got)
	}
	if got := e.take(id, "10.99.0.9", ""); got != "10.99.0.9/24" {
		t.Errorf("auxiliary address outside %s", got)
	}
	for _, c := range []struct{ address, says string }{
		{"10.50.0.9", "is an auxiliary address already"}, {"10.51.0.1", "gateway 10.51.0.1 is not in 10.50.0.0/24"},
	} {
		_, err := e.request(id, c.address, "", true)
		e.refuses(err, c.says)
	}
	_, err = e.request(id, "fd00::9", "", false)
	e.refuses(err, "is not of the family of 10.50.0.0/24")
	if got, err := e.request(id, "10.50.0.3", "", true); err != nil || got != "10.50.0.3/24" {
		t.Errorf("gateway %s, %v", got, err)
	}
	e.restart()
	if p := e.row(id).Spec; p.Gateway != addr("10.50.0.3") || !slices.Equal(p.Aux, []netip.Addr{addr("10.50.0.9")}) {
		t.Errorf("after a restart: %+v", p)
	}
	n := e.network(id)
	for _, address := range []string{"10.50.0.3", "10.50.0.9"} {
		_, err := e.request(id, address, mac1, false)
		e.refuses(err, "address "+address+" is in use")
		e.release(id, address)
	}
	e.releasePool(id)
	e.removeNetwork(n, id)
	e.clean()
	single := e.pool("10.50.0.1/32")
	_, err = e.request(single, "", "", true)
	e.refuses(err, "10.50.0.1/32 has no room for a gateway")
	_, err = e.request("none", "", "", true)
	e.refuses(err, "there is no pool none")
}

// The gateway and the auxiliary addresses of a range outlive the database: tags of the pool have them,
// which the previous version reads too.
func TestGatewayInTags(t *testing.T) {
	t.Parallel()
	for _, later := range []bool{false, true} {
		e := newEnv(t)
		e.sdn.tagsLater = later
		id := e.pool("10.1.0.0/29")
		for _, gateway := range []string{"10.1.0.5", "10.1.0.6"} {
			_, err := e.request(id, gateway, "", true)
			e.must(err)
			e.idle()
		}
		e.take(id, "10.1.0.1", "")
		e.idle()
		p, err := e.sdn.SubnetPool(t.Context(), id)
		e.must(err)
		want := []string{e.s.Names.HostTag(), identity.TagGateway + "10.1.0.6", identity.TagAux + "10.1.0.1"}
		if !identity.HasAll(p.Tags, want) || len(p.Tags) != len(want) {
			t.Errorf("tags %v, want %v", p.Tags, want)
		}
		e.lose()
		var got []string
		for i := range 4 {
			got = append(got, e.take(id, "", fmt.Sprintf("02:00:00:00:00:%02x", i+1)))
		}
		if slices.Contains(got, "10.1.0.1/29") || slices.Contains(got, "10.1.0.6/29") {
			t.Errorf("containers have %v, but 10.1.0.6 is the gateway and 10.1.0.1 an auxiliary address", got)
		}
		if _, err := e.request(id, "", mac1[:16]+"9", false); err == nil {
			t.Error("there is a fifth address")
		}
		if p := e.row(id); !(poolTarget{e.s}).isTagged(p.Spec, p.Last) {
			t.Errorf("row %+v is not tagged", p)
		}
	}
}

// A pool whose answer was lost is answered again, but not one that the engine has used.
func TestPoolWithoutAnswer(t *testing.T) {
	t.Parallel()
	for _, cidr := range []string{"10.50.0.0/24", ""} {
		e := newEnv(t)
		lost := e.pool(cidr)
		e.restart()
		if got := e.pool(cidr); got != lost {
			t.Errorf("range %q: pool %s, want %s", cidr, got, lost)
		}
		_, err := e.request(lost, "", "", true)
		e.must(err)
		e.network(e.pool("10.60.0.0/24")) // stores that
		e.restart()
		if got := e.pool(cidr); got == lost {
			t.Errorf("range %q: the pool of a network is given to another", cidr)
		}
	}
}

// A kill right after the gateway was taken does not give the pool to a second network: that of another
// driver has no CreateNetwork here.
func TestGatewayBeforeKill(t *testing.T) {
	t.Parallel()
	for _, cidr := range []string{"10.50.0.0/24", ""} {
		e := newEnv(t)
		first := e.pool(cidr)
		e.gateway(first)
		e.restart()
		if second := e.pool(cidr); first == second {
			t.Errorf("range %q: two networks have pool %s", cidr, first)
		}
	}
}

// A chosen range is one of the pools', overlaps nothing, and is found as long as there is one,
// wherever the search begins.
func TestFreePrefix(t *testing.T) {
	t.Parallel()
	pools := []AutoPool{{prefix("10.0.0.0/21"), 24}, {prefix("10.1.0.0/22"), 25}}
	rapid.Check(t, func(r *rapid.T) {
		e := newEnv(t)
		e.pools4 = pools
		e.restart()
		var taken []netip.Prefix
		draw := func() netip.Prefix {
			a := netip.AddrFrom4([4]byte{
				10, rapid.Byte().Draw(r, "second") % 2, rapid.Byte().Draw(r, "third") % 16, rapid.Byte().Draw(r, "fourth"),
			})
			return netip.PrefixFrom(a, rapid.IntRange(20, 32).Draw(r, "length")).Masked()
		}
		for range rapid.IntRange(0, 6).Draw(r, "routes") {
			e.routes = append(e.routes, draw())
		}
		for range rapid.IntRange(0, 12).Draw(r, "taken") {
			p := draw()
			_, err := e.s.makePool(t.Context(), PoolSpec{Space: api.LocalSpace, CIDR: p})
			e.must(err)
			taken = append(taken, p)
		}
		taken = append(taken, e.routes...)
		free := 0
		for _, pool := range pools {
			for p := netip.PrefixFrom(pool.Prefix.Addr(), pool.Len); pool.Prefix.Contains(p.Addr()); {
				if !slices.ContainsFunc(taken, p.Overlaps) {
					free++
				}
				p = netip.PrefixFrom(ipprefix.Last(p).Next(), pool.Len)
			}
		}
		for range free {
			a, err := e.s.RequestPool(t.Context(), poolRequest(""))
			if err != nil {
				r.Fatal(err)
			}
			if slices.ContainsFunc(e.routes, prefix(a.Pool).Overlaps) || !isPart(pools, prefix(a.Pool)) {
				r.Fatalf("%s was chosen, with routes %v", a.Pool, e.routes)
			}
		}
		if a, err := e.s.RequestPool(t.Context(), poolRequest("")); err == nil {
			r.Fatalf("%s is free beyond the %d there are", a.Pool, free)
		}
	})
}

// A range overlaps a pool's exactly if one of all pools' ranges says so.
func TestOverlapsPool(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	rapid.Check(t, func(r *rapid.T) {
		draw := func() netip.Prefix {
			a := netip.AddrFrom4([4]byte{10, rapid.Byte().Draw(r, "second") % 4, rapid.Byte().Draw(r, "third")})
			bits := rapid.IntRange(1, 32).Draw(r, "length")
			if rapid.Bool().Draw(r, "v6") {
				long := [16]byte{0: 0xfd, 5: a.As4()[1], 7: a.As4()[2]}
				return netip.PrefixFrom(netip.AddrFrom16(long), bits+36).Masked()
			}
			return netip.PrefixFrom(a, bits).Masked()
		}
		var taken []netip.Prefix
		for p := range e.s.pools.Rows() {
			taken = append(taken, p.Spec.CIDR)
		}
		if p := draw(); p.Bits() > 8 && !slices.ContainsFunc(taken, p.Overlaps) {
			_, err := e.s.makePool(t.Context(), PoolSpec{Space: api.LocalSpace, CIDR: p})
			e.must(err)
			taken = append(taken, p)
		}
		for range 20 {
			p := draw()
			if got, want := e.s.overlapsPool(p), slices.ContainsFunc(taken, p.Overlaps); got != want {
				r.Fatalf("%s overlaps one of %v: %v, want %v", p, taken, got, want)
			}
		}
	})
}

// The search for a free range asks the SDN once for an automatic pool, however many ranges of it are
// used, by this host or by another.
func TestAutomaticPoolsAskOnce(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.pools4 = []AutoPool{{prefix("10.0.0.0/16"), 24}}
	e.restart()
	for range 50 {
		e.gateway(e.pool(""))
	}
	for _, lose := range []bool{false, true} {
		if e.restart(); lose {
			e.lose()
		}
		e.sdn.poolLists = 0
		if a, err := e.s.RequestPool(t.Context(), poolRequest("")); err != nil || a.Pool < "10.0.50" {
			t.Errorf("answer %+v, %v", a, err)
		}
		if e.sdn.poolLists > 1 {
			t.Errorf("database lost %v: the SDN was asked %d times", lose, e.sdn.poolLists)
		}
	}
}

// Automatic ranges end with the address space, and their pools are checked.
func TestAutomaticPools(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.pools4 = []AutoPool{{prefix("255.255.254.0/23"), 24}}
	e.restart()
	for _, want := range []string{"255.255.254.0/24", "255.255.255.0/24"} {
		if a, err := e.s.RequestPool(t.Context(), poolRequest("")); err != nil || a.Pool != want {
			t.Errorf("%+v %v, want %s", a, err, want)
		}
	}
	_, err := e.s.RequestPool(t.Context(), poolRequest(""))
	e.refuses(err, "no automatic range is free: name a subnet")
	r := poolRequest("")
	r.AnyOfLength = prefix("0.0.0.0/8")
	_, err = e.s.RequestPool(t.Context(), r)
	e.refuses(err, "0.0.0.0/8", "docker.default_pools is a /23")
	for _, p := range []AutoPool{{}, {prefix("fd00::/48"), 64}, {prefix("10.0.0.0/24"), 23}, {prefix("10.0.0.0/24"), 31}} {
		if CheckPools([]AutoPool{p}, false) == nil {
			t.Errorf("%v is accepted", p)
		}
	}
}

// What kuryr-libnetwork made for a network of its own is Kuryr's when the engine names it; what it
// used stays.
func TestPeersPool(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	const network = "286eddb51ebca09339cb17aaec05e48ffe60659ced6f3fc41b020b0eb506d364"
	made, err := peertest.Make(t.Context(), e.sdn.Provider, network, prefix("10.50.0.0/24"))
	e.must(err)
	id := made.Ranges[0].Pool.ID
	got := e.take(id, "", mac1)
	if p := e.row(id); p.Last.Peer || p.Last.Key.IsZero() || len(e.ports()) != 1 {
		t.Errorf("row %+v, address %s", p, got)
	}
	e.release(id, got)
	e.releasePool(id)
	e.must(e.sdn.Provider.DeleteNetwork(t.Context(), made.Network.ID))
	e.clean()

	theirs, sub := e.theirs("10.50.0.0/24")
	used, err := peertest.Use(t.Context(), e.sdn.Provider, network, theirs.ID, sub.ID)
	e.must(err)
	e.empty = e.dump()
	id = used.Ranges[0].Pool.ID
	got = e.take(id, "", mac1)
	if p := e.row(id); !p.Last.Peer {
		t.Errorf("row %+v, want a pool of an existing network", p)
	}
	e.release(id, got)
	e.releasePool(id)
	e.clean()
	_, err = e.s.findPool(t.Context(), "none")
	e.refuses(err, "there is no pool none")
	operators, err := e.sdn.Provider.EnsureSubnetPool(t.Context(), sdn.SubnetPoolSpec{
		Base: sdn.Base{Name: "operators"}, Prefixes: []netip.Prefix{prefix("10.32.0.0/12")}, DefaultLen: 24,
	})
	e.must(err)
	_, err = e.request(operators.ID, "", mac1, false)
	e.refuses(err, "was not made for the engine")
	e.releasePool(operators.ID)
}

// In the global address space of a swarm a range is requested once.
func TestGlobalRange(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.s.Global = true
	spec := PoolSpec{Space: api.GlobalSpace, CIDR: prefix("10.50.0.0/24")}
	_, err := e.s.makePool(t.Context(), spec)
	e.must(err)
	if _, err := e.s.makePool(t.Context(), spec); !reconcile.IsConflict(err) {
		t.Errorf("the range is given again: %v", err)
	}
}

// A call that changes a pool does not bring it back if ReleasePool comes in between.
func TestChangeOfReleasedPool(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	id := e.pool("10.50.0.0/24")
	n := e.network(id)
	p := e.row(id)
	unlock, err := e.s.lockRange(t.Context(), p.Spec)
	e.must(err)
	released := make(chan struct{})
	go func() {
		defer close(released)
		_, err := e.s.ReleasePool(t.Context(), &api.ReleasePoolRequest{PoolID: api.PoolID{Pool: id}})
		if err != nil {
			t.Error(err)
		}
	}()
	select {
	case <-released:
		t.Error("ReleasePool does not wait for a call that changes the pool")
	case <-time.After(50 * time.Millisecond):
	}
	spec := p.Spec
	spec.Gateway = addr("10.50.0.9")
	e.must(e.s.changePool(t.Context(), p, spec))
	unlock()
	<-released
	spec.Gateway = addr("10.50.0.10")
	e.refuses(e.s.changePool(t.Context(), p, spec), "there is no pool")
	e.must(e.s.TagLater(t.Context(), p.Key))
	if now := e.row(id); now.Phase != reconcile.Deleting {
		t.Errorf("row %+v, want a released pool", now)
	}
	e.removeNetwork(n, id)
	e.clean()
}

// BenchmarkRequestPool requests a range beside many others.
func BenchmarkRequestPool(b *testing.B) {
	for _, n := range []int{0, 10000} {
		b.Run(fmt.Sprint(n, " pools"), func(b *testing.B) {
			e := newEnv(b)
			var rows []poolRow
			for i := range n {
				cidr := netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(i >> 8), byte(i), 0}), 24)
				rows = append(rows, poolRow{
					Object: reconcile.Object{Key: fmt.Sprint("k", i)}, Phase: reconcile.Wanted, Done: true, Acked: true,
					Spec: PoolSpec{Space: api.LocalSpace, CIDR: cidr}, Last: PoolState{ID: sdn.ID(fmt.Sprint("p", i))},
				})
			}
			e.must(e.s.pools.Import(b.Context(), rows))
			for i := 0; b.Loop(); i++ {
				e.pool(fmt.Sprintf("30.%d.%d.0/24", i>>8, i%256))
			}
		})
	}
}

package ipam

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

func dual(e *env) (v4, v6 sdn.ID, n sdn.Network) {
	e.t.Helper()
	v4, v6 = e.pool("10.50.0.0/24"), e.pool("fd50::/64")
	e.gateway(v4)
	e.gateway(v6)
	return v4, v6, e.network(v4, v6)
}

func end(e *env, n sdn.Network, pools ...sdn.ID) {
	e.t.Helper()
	for _, id := range pools {
		e.releasePool(id)
	}
	e.removeNetwork(n, pools...)
	e.clean()
}

// One port has the addresses of both families of a MAC. A repeat is answered the same, and without
// a call of the SDN.
func TestDualStack(t *testing.T) {
	t.Parallel()
	for _, restarts := range []bool{false, true} {
		e := newEnv(t)
		v4, v6, n := dual(e)
		got4, got6 := e.take(v4, "", mac1), e.take(v6, "", mac1)
		ports := e.ports()
		if len(ports) != 1 || len(ports[0].Addresses) != 2 || ports[0].MAC.String() != mac1 ||
			ports[0].Name != identity.UnboundPort {
			t.Errorf("ports %+v", ports)
		}
		if restarts {
			e.restart()
		}
		changes := e.sdn.changes
		if again := e.take(v4, "", mac1); again != got4 {
			t.Errorf("again %s, first %s", again, got4)
		}
		if again := e.take(v6, strings.Split(got6, "/")[0], mac1); again != got6 {
			t.Errorf("again %s, first %s", again, got6)
		}
		if !restarts && e.sdn.changes != changes {
			t.Errorf("a repeat made %d changes", e.sdn.changes-changes)
		}
		if other := e.take(v4, "", mac2); other == got4 {
			t.Errorf("%s was given twice", other)
		}
		e.release(v4, got4)
		if len(e.ports()) != 2 {
			t.Error("the port is gone with its first address")
		}
		e.release(v6, got6)
		if len(e.ports()) != 1 {
			t.Error("the port is there without an address")
		}
		end(e, n, v4, v6) // and the other port
	}
}

// An address that another has is refused, and so is what is not in the range.
func TestExplicitAddress(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	v4, v6, n := dual(e)
	if got := e.take(v4, "10.50.0.9", mac1); got != "10.50.0.9/24" {
		t.Errorf("address %s", got)
	}
	for _, c := range []struct{ address, mac, says string }{
		{"10.50.0.9", mac2, "address 10.50.0.9 is in use"},
		{"10.50.0.9", "", "address 10.50.0.9 is in use"},
		{"10.51.0.9", mac2, "10.51.0.9 is not in 10.50.0.0/24"},
		{"10.50.0.1", mac2, "address 10.50.0.1 is in use: it is the gateway"},
	} {
		_, err := e.request(v4, c.address, c.mac, false)
		e.refuses(err, c.says)
	}
	if got := e.take(v4, "10.50.0.10", mac1); got != "10.50.0.10/24" { // another one for the same
		t.Errorf("address %s", got)
	}
	if got := e.take(v4, "10.50.0.9", mac2); got != "10.50.0.9/24" { // which is free again
		t.Errorf("address %s", got)
	}
	_, err := e.request(v6, "fd50::9", mac1, false)
	e.must(err)
	_, err = e.request(v6, "fd50::9", mac2, false) // a second family that is refused leaves the first
	e.refuses(err, "address fd50::9 is in use")
	if row, ok := e.s.addresses.Holder(macClaim(n.ID, mac2)); !ok || len(row.Spec.Asked) != 1 {
		t.Errorf("row %+v", row)
	}
	end(e, n, v4, v6)
}

// The port of an endpoint is not given to another request.
func TestAddressOfEndpoint(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	v4, v6, n := dual(e)
	got := e.take(v4, "10.50.0.9", mac1)
	row, _ := e.s.addresses.Holder(macClaim(n.ID, mac1))
	e.endpoints[row.Key] = true
	_, err := e.request(v4, "", mac1, false)
	e.refuses(err, "MAC "+mac1+" is in use by another endpoint of the network")
	_, err = e.request(v4, "10.50.0.9", mac1, false)
	e.refuses(err, "address 10.50.0.9 is in use by another endpoint")
	_, err = e.request(v6, "", mac1, false)
	e.refuses(err, "MAC "+mac1+" is in use")
	delete(e.endpoints, row.Key)
	e.release(v4, got)
	end(e, n, v4, v6)
}

// An engine that sends no MAC takes two ports, which become one.
func TestWithoutMAC(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	v4, v6, n := dual(e)
	a4, a6 := netip.MustParsePrefix(e.take(v4, "", "")), netip.MustParsePrefix(e.take(v6, "", ""))
	var subnets []sdn.Subnet
	for _, id := range []sdn.ID{v4, v6} {
		subnets = append(subnets, e.Subnets(e.row(id).Key)...)
	}
	held, err := e.s.At(t.Context(), subnets, []netip.Prefix{a4, a6})
	e.must(err)
	if len(held) != 2 || held[0].Ref == "" || held[1].Existing {
		t.Fatalf("held %+v", held)
	}
	one, err := e.s.Merge(t.Context(), held)
	e.must(err)
	if ports := e.ports(); len(ports) != 1 || len(one.Port.Addresses) != 2 || ports[0].ID != one.Port.ID ||
		e.s.Deleting(one.Ref) {
		t.Errorf("ports %+v, held %+v", ports, one)
	}
	if !e.s.Deleting(held[1].Ref) {
		t.Error("the row of the second port is there")
	}
	if held, err = e.s.At(t.Context(), subnets, []netip.Prefix{a4, a6}); err != nil || len(held) != 1 {
		t.Errorf("held %+v, %v", held, err)
	}
	e.release(v6, a6.String())
	e.release(v4, a4.String())
	end(e, n, v4, v6)
}

// A port of the user's is taken by its address or its MAC, and stays unchanged.
func TestUsersPort(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	v4, v6, n := dual(e)
	users, err := e.sdn.Provider.EnsurePorts(t.Context(), []sdn.PortSpec{{
		Base: sdn.Base{Name: "theirs"}, Network: n.ID,
		Addresses: []sdn.Address{{Addr: addr("10.50.0.77")}, {Addr: addr("fd50::77")}},
	}})
	e.must(err)
	was := e.dump()
	for _, mac := range []string{mac1, users[0].MAC.String()} {
		if got := e.take(v4, "10.50.0.77", mac); got != "10.50.0.77/24" {
			t.Errorf("address %s", got)
		}
		if got := e.take(v6, "", mac); got != "fd50::77/64" {
			t.Errorf("address %s", got)
		}
		e.take(v4, "10.50.0.77", mac2) // its endpoint is not known yet
		row, _ := e.s.addresses.Holder(addressClaim(n.Subnets[0], addr("10.50.0.77")))
		e.endpoints[row.Key] = true
		_, err := e.request(v4, "10.50.0.77", mac2, false)
		e.refuses(err, "another endpoint")
		e.release(v4, "10.50.0.77") // by the engine of that request
		if e.s.Deleting(e.s.addresses.Ref(row.Key)) {
			t.Error("the row of a port in use is gone")
		}
		delete(e.endpoints, row.Key)
		e.release(v4, "10.50.0.77")
		e.release(v6, "fd50::77")
		if now := e.dump(); now != was {
			t.Errorf("was\n%s\nis\n%s", was, now)
		}
	}
	e.take(v4, "10.50.0.77", mac1)
	_, err = e.request(v6, "fd50::78", mac1, false)
	e.refuses(err, "port "+string(users[0].ID), "but not the address that is asked for: it has 10.50.0.77 fd50::77")
	e.release(v4, "10.50.0.77")
	for name, c := range map[string]struct {
		spec sdn.PortSpec
		says string
	}{
		"a virtual machine's": {sdn.PortSpec{DeviceID: "vm", DeviceOwner: "compute:nova"}, "compute:nova"},
		"another endpoint's": {
			sdn.PortSpec{DeviceID: strings.Repeat("a", 64), DeviceOwner: sdn.OwnerContainer}, "another endpoint",
		},
		"another installation's": {
			sdn.PortSpec{Base: sdn.Base{Key: sdn.Key{Owner: "other", Kind: identity.KindPort, Name: "x"}}}, "in use",
		},
	} {
		c.spec.Network, c.spec.Addresses = n.ID, []sdn.Address{{Addr: addr("10.50.0.80")}}
		ports, err := e.sdn.Provider.EnsurePorts(t.Context(), []sdn.PortSpec{c.spec})
		e.must(err)
		was := e.dump()
		_, err = e.request(v4, "10.50.0.80", mac1, false)
		e.refuses(err, c.says)
		e.release(v4, "10.50.0.80")
		if now := e.dump(); now != was {
			t.Errorf("%s: was\n%s\nis\n%s", name, was, now)
		}
		e.must(e.sdn.Provider.DeletePorts(t.Context(), []sdn.ID{ports[0].ID}))
	}
	end(e, n, v4, v6)
}

// A port of Kuryr's without a row, and one of kuryr-libnetwork's, is given to the request for it.
func TestAdoption(t *testing.T) {
	t.Parallel()
	for _, peers := range []bool{false, true} {
		e := newEnv(t)
		v4, v6, n := dual(e)
		spec := sdn.PortSpec{
			Base: sdn.Base{Name: identity.UnboundPort, Key: sdn.Key{
				Owner: e.sdn.Installation(), Kind: identity.KindPort, Name: string(n.ID) + "/" + mac1 + "/12345678",
			}},
			Network: n.ID, MAC: []byte{2, 0, 0, 0, 0, 1}, Addresses: []sdn.Address{{Addr: addr("10.50.0.9")}},
			DeviceOwner: sdn.OwnerContainer,
		}
		if peers {
			spec.Key = sdn.Key{}
		}
		ports, err := e.sdn.Provider.EnsurePorts(t.Context(), []sdn.PortSpec{spec})
		e.must(err)
		if got := e.take(v4, "10.50.0.9", mac1); got != "10.50.0.9/24" {
			t.Errorf("address %s", got)
		}
		got := e.take(v6, "", mac1)
		now := e.ports()
		if len(now) != 1 || now[0].ID != ports[0].ID || now[0].Key.IsZero() || len(now[0].Addresses) != 2 {
			t.Errorf("ports %+v", now)
		}
		e.idle() // the list finds no other row for it
		if n := len(slices.Collect(e.s.addresses.Rows())); n != 1 {
			t.Errorf("%d rows", n)
		}
		e.release(v4, "10.50.0.9")
		e.release(v6, got)
		end(e, n, v4, v6)
	}
}

// A pool that another network driver uses has a hidden network, which goes with the pool.
func TestHidden(t *testing.T) {
	t.Parallel()
	for _, restarts := range []bool{false, true} {
		e := newEnv(t)
		again := func() {
			if restarts {
				e.restart()
			}
		}
		id := e.pool("10.50.0.0/24")
		again()
		if got := e.gateway(id); got != "10.50.0.1/24" {
			t.Errorf("gateway %s", got)
		}
		again()
		got := e.take(id, "", mac1)
		if got != "10.50.0.2/24" {
			t.Errorf("address %s", got)
		}
		again()
		if got := e.take(id, "10.50.0.9", mac2); got != "10.50.0.9/24" {
			t.Errorf("address %s", got)
		}
		_, err := e.request(id, "10.50.0.1", mac2, false)
		e.refuses(err, "it is the gateway")
		e.release(id, got)
		again()
		e.release(id, "10.50.0.1")
		e.releasePool(id) // with an address that was never released
		e.clean()
	}
}

// The calls that take down come in any order, some more than once, with restarts between.
func TestReleasedInAnyOrder(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		e := newEnv(t)
		random := rand.New(rand.NewPCG(seed, 0))
		v4, v6, n := dual(e)
		a4, a6, b4 := e.take(v4, "", mac1), e.take(v6, "", mac1), e.take(v4, "", "")
		calls := []func(){
			func() { e.release(v4, a4) }, func() { e.release(v6, a6) }, func() { e.release(v4, b4) },
			func() { e.release(v4, "10.50.0.1") }, func() { e.releasePool(v4) }, func() { e.releasePool(v6) },
		}
		calls = append(calls, calls[:random.IntN(len(calls))]...)
		random.Shuffle(len(calls), func(i, j int) { calls[i], calls[j] = calls[j], calls[i] })
		for _, call := range calls {
			call()
			if random.IntN(3) == 0 {
				e.restart()
			}
		}
		end(e, n, v4, v6)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// Releases while the SDN is unavailable are done later, also after a restart.
func TestUnavailable(t *testing.T) {
	t.Parallel()
	for _, restarts := range []bool{false, true} {
		e := newEnv(t)
		v4, v6, n := dual(e)
		got4, got6 := e.take(v4, "", mac1), e.take(v6, "", mac1)
		hidden := e.pool("10.60.0.0/24")
		e.take(hidden, "", mac1)
		e.sdn.down = true
		_, err := e.request(v4, "", mac2, false)
		e.refuses(err, "it is down")
		_, err = e.s.RequestPool(t.Context(), poolRequest("10.70.0.0/24"))
		e.refuses(err, "it is down")
		e.release(v4, got4)
		e.release(v6, got6)
		e.releasePool(v4)
		e.releasePool(v6)
		e.releasePool(hidden)
		if restarts {
			e.restart()
		}
		e.release(v4, got4)
		if len(e.ports()) != 2 {
			t.Errorf("ports %+v", e.ports())
		}
		e.sdn.down = false
		e.removeNetwork(n, v4, v6)
		e.clean()
	}
}

// An address that was released can be requested again, also while its deletion is pending.
func TestReleasedAndTaken(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	v4, v6, n := dual(e)
	e.take(v4, "10.50.0.9", mac1)
	e.sdn.down = true
	e.release(v4, "10.50.0.9")
	_, err := e.request(v4, "10.50.0.9", mac2, false)
	if !reconcile.IsPending(err) {
		t.Errorf("error %v, want the pending cleanup", err)
	}
	e.sdn.down = false
	if got := e.take(v4, "10.50.0.9", mac2); got != "10.50.0.9/24" || len(e.ports()) != 1 {
		t.Errorf("address %s, ports %+v", got, e.ports())
	}
	end(e, n, v4, v6)
}

// A port that the SDN makes after its request has failed is deleted, unless it never comes. A
// request for the same address is served.
func TestLateCreate(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"", "10.50.0.9"} {
		for _, mac := range []string{"", mac1} {
			for _, again := range []bool{false, true} {
				e := newEnv(t)
				e.ttl = time.Minute
				e.restart()
				v4, v6, n := dual(e)
				e.sdn.loses = true
				_, err := e.request(v4, address, mac, false)
				e.refuses(err, "it is down")
				e.sdn.loses = false
				_, err = e.sdn.Provider.EnsurePorts(t.Context(), e.sdn.lost)
				e.must(err)
				if again && mac != "" {
					got := e.take(v4, address, mac)
					if len(e.ports()) != 1 {
						t.Errorf("address %s, ports %+v", got, e.ports())
					}
					e.idle()
					if len(e.ports()) != 1 {
						t.Errorf("the port that was given is gone")
					}
					e.release(v4, got)
				}
				e.idle()
				if ports := e.ports(); len(ports) != 0 {
					t.Errorf("address %q, MAC %q, again %t: ports %+v", address, mac, again, ports)
				}
				end(e, n, v4, v6)
			}
		}
	}
	e := newEnv(t)
	v4, v6, n := dual(e)
	e.sdn.loses = true
	_, err := e.request(v4, "", mac1, false)
	e.refuses(err, "it is down")
	e.idle() // it is not looked for any longer
	e.sdn.loses = false
	end(e, n, v4, v6)
}

// The network of a pool is told of a released address while others can request one with the MAC: they
// hold the network.
func TestEmptiedWithoutLocks(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	id := e.pool("10.50.0.0/24")
	n := e.network(id)
	got := e.take(id, "", mac1)
	told := 0
	e.emptied = func() {
		told++
		if held := e.s.locks.Held(); held > 0 {
			t.Errorf("%d locks are held", held)
		}
	}
	e.release(id, got)
	if told != 1 {
		t.Errorf("the network was told %d times", told)
	}
	e.releasePool(id)
	e.removeNetwork(n, id)
	e.clean()
}

// Two endpoints request the addresses of one MAC concurrently, and one of them ends before it is
// made. The other keeps the port, until it releases its addresses itself.
func TestReleaseForOtherEndpoint(t *testing.T) {
	t.Parallel()
	for _, deleted := range []bool{false, true} {
		e := newEnv(t)
		v4, v6, n := dual(e)
		var got4, got6 string
		for range 2 {
			got4, got6 = e.take(v4, "", mac1), e.take(v6, "", mac1)
		}
		row, _ := e.s.addresses.Holder(macClaim(n.ID, mac1))
		e.endpoints[row.Key] = true
		e.release(v4, got4)
		e.release(v6, got6)
		if left := portsOn(e, n); len(left) != 1 {
			t.Errorf("ports %v, want that of the other endpoint", left)
		}
		if deleted {
			delete(e.endpoints, row.Key)
		}
		e.release(v4, got4)
		e.release(v6, got6)
		if left := portsOn(e, n); len(left) != 0 {
			t.Errorf("ports %v are left", left)
		}
		end(e, n, v4, v6)
	}
}

// A request that came twice for one endpoint is released once.
func TestRequestRepeated(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	v4, v6, n := dual(e)
	got := e.take(v4, "", mac1)
	e.take(v4, "", mac1)
	e.release(v4, got)
	if left := portsOn(e, n); len(left) != 0 {
		t.Errorf("ports %v are left", left)
	}
	end(e, n, v4, v6)
}

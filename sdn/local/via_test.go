package local

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kuryr/kuryr/datapath/router"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/engine"
	"go.etcd.io/bbolt"
)

// projected are all forwardings as the data path is told of them, by whether one port of an uplink has two.
func projected(t *testing.T, p *Provider) []router.Forward {
	t.Helper()
	var list []router.Forward
	ok(t, p.view(func(b engine.Tx) error {
		state, err := p.projectAll(b)
		for _, forwards := range state.Forwards {
			seen := map[string]bool{}
			for _, f := range forwards {
				k := fmt.Sprint(f.Address.Is4(), f.Protocol, f.Via)
				if f.Via == 0 || seen[k] {
					t.Errorf("%v port %d: port %d of the uplink is another's or none", f.Address, f.Port, f.Via)
				}
				seen[k] = true
			}
			list = append(list, forwards...)
		}
		return err
	}))
	return list
}

func hostForward(port sdn.ID, first, last uint16) []sdn.Forward {
	return []sdn.Forward{{Protocol: sdn.TCP, External: sdn.PortRange{First: first, Last: last}, Target: sdn.Target{Port: port}, Internal: sdn.PortRange{First: 80}}}
}

// Forwardings of one port on many addresses behind one router each have a port of the uplink, whatever comes and goes.
func TestVia(t *testing.T) {
	t.Parallel()
	p := open(t, Options{Path: filepath.Join(t.TempDir(), "sdn.db")})
	_, _, targets := fill(t, p, 2)
	ctx := context.Background()
	var fips []sdn.ID
	for i := range 20 {
		f, err := p.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{Network: p.Capabilities().ExternalNetwork, Address: netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), OfHost: true})
		ok(t, err)
		fips = append(fips, f.ID)
	}
	for _, f := range fips {
		_, err := p.EnsureForwards(ctx, f, hostForward(targets[0], 8000, 8009))
		ok(t, err)
	}
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		f, first := fips[random.IntN(len(fips))], uint16(7995+random.IntN(20))
		if random.IntN(2) == 0 {
			list, err := sdn.All(p.FindForwards(ctx, sdn.ForwardQuery{FloatingIPs: []sdn.ID{f}}))
			ok(t, err)
			for _, w := range list {
				ok(t, p.DeleteForwards(ctx, f, []sdn.ID{w.ID}))
			}
		} else if _, err := p.EnsureForwards(ctx, f, hostForward(targets[1], first, first+uint16(random.IntN(5)))); err != nil && sdn.ReasonOf(err) != sdn.Exists {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
	before := projected(t, p)
	if len(before) == 0 {
		t.Fatal("nothing is left")
	}
	// The same again changes nothing.
	for _, f := range fips {
		list, err := sdn.All(p.FindForwards(ctx, sdn.ForwardQuery{FloatingIPs: []sdn.ID{f}}))
		ok(t, err)
		_, err = p.EnsureForwards(ctx, f, list)
		ok(t, err)
	}
	if after := projected(t, p); !slices.Equal(after, before) {
		t.Errorf("asked for again, the forwardings are\n%v\nno longer\n%v", after, before)
	}
}

// An uplink that has no free ports in a row says so. Every 256th port is taken, but for two: the
// first forwarding of 256 ports has its own there, the second others, and none are left.
func TestViaExhausted(t *testing.T) {
	t.Parallel()
	p := open(t, Options{Path: filepath.Join(t.TempDir(), "sdn.db")})
	_, _, targets := fill(t, p, 2)
	publish := func(n byte, forwards ...sdn.Forward) error {
		t.Helper()
		f, err := p.EnsureFloatingIP(t.Context(), sdn.FloatingIPSpec{
			Network: p.Capabilities().ExternalNetwork, Address: netip.AddrFrom4([4]byte{203, 0, 113, n}), OfHost: true,
		})
		ok(t, err)
		_, err = p.EnsureForwards(t.Context(), f.ID, forwards)
		return err
	}
	var taken []sdn.Forward
	for port := 256; port <= math.MaxUint16; port += 256 {
		if port != 1024 && port != 2048 {
			forward := hostForward(targets[0], uint16(port), uint16(port))[0]
			forward.Internal.First = uint16(port)
			taken = append(taken, forward)
		}
	}
	ok(t, publish(0, taken...))
	var errs []error
	for n := range byte(3) {
		errs = append(errs, publish(1+n, hostForward(targets[0], 1000, 1255)...))
	}
	if errs[0] != nil || errs[1] != nil || sdn.ReasonOf(errs[2]) != sdn.NoPorts {
		t.Errorf("got errors %v, want the third to be for lack of ports", errs)
	}
}

// A store of schema 1 knows no ports of uplinks: there they were the external ones.
func TestOldStoreIsMigrated(t *testing.T) {
	t.Parallel()
	path := filled(t)
	db, err := bbolt.Open(path, 0o600, nil)
	ok(t, err)
	ok(t, db.Update(func(b *bbolt.Tx) error {
		ok(t, b.DeleteBucket([]byte("forward.via")))
		ok(t, b.Bucket([]byte(engine.MetaTable)).Put(schemaKey, []byte("1")))
		rows := map[string][]byte{}
		ok(t, b.Bucket([]byte("forward")).ForEach(func(k, v []byte) error {
			var row map[string]any
			ok(t, json.Unmarshal(v, &row))
			if row["Via"] == nil {
				t.Error("the row has no Via")
			}
			delete(row, "Via")
			old, err := json.Marshal(row)
			rows[string(k)] = old
			return err
		}))
		for k, v := range rows {
			ok(t, b.Bucket([]byte("forward")).Put([]byte(k), v))
		}
		return nil
	}))
	ok(t, db.Close())

	p := open(t, Options{Path: path})
	ctx := context.Background()
	list := projected(t, p)
	if len(list) != 11 {
		t.Errorf("%d forwardings, want 11", len(list))
	}
	for _, f := range list {
		if f.Via != f.Port {
			t.Errorf("port %d has become port %d of the uplink", f.Port, f.Via)
		}
	}
	old, err := sdn.All(p.FindForwards(ctx, sdn.ForwardQuery{}))
	ok(t, err)
	six, err := p.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{Network: p.Capabilities().ExternalNetwork, Address: netip.IPv6Unspecified()})
	ok(t, err)
	for _, f := range []sdn.ID{six.ID} {
		_, err := p.EnsureForwards(ctx, f, hostForward(old[0].Target.Port, 80, 80))
		ok(t, err)
	}
	projected(t, p)
	fips, err := sdn.All(p.FindFloatingIPs(ctx, sdn.FloatingIPQuery{}))
	ok(t, err)
	for _, f := range fips {
		ok(t, p.DeleteFloatingIP(ctx, f.ID))
	}
	ok(t, p.view(func(b engine.Tx) error {
		for k := range b.Seek("forward.via", nil) {
			t.Errorf("left in the index: %q", k)
		}
		return nil
	}))
}

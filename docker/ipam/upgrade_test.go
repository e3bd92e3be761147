package ipam

import (
	"slices"
	"testing"
	"time"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/engine"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// Cleanups of the previous version are done, and its objects have rows.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.ttl = time.Minute
	e.restart()
	v4, v6, n := dual(e)
	make := func(name, address string) sdn.Port {
		t.Helper()
		key := sdn.Key{Owner: e.sdn.Installation(), Kind: identity.KindPort, Name: string(n.ID) + "/" + name}
		ports, err := e.sdn.Provider.EnsurePorts(t.Context(), []sdn.PortSpec{{
			Base: sdn.Base{Key: key, Name: identity.UnboundPort}, Network: n.ID, DeviceOwner: sdn.OwnerContainer,
			Addresses: []sdn.Address{{Addr: addr(address)}},
		}})
		e.must(err)
		return ports[0]
	}
	released, kept := make("one", "10.50.0.5"), make("two", "10.50.0.6")
	e.must(e.s.ImportRelease(t.Context(), released.ID))
	e.must(e.s.ImportPort(t.Context(), kept))
	users, err := e.sdn.Provider.EnsurePorts(t.Context(), []sdn.PortSpec{{Base: sdn.Base{Name: "users"}, Network: n.ID}})
	e.must(err)
	e.must(e.s.ImportRelease(t.Context(), users[0].ID)) // a record may name it
	late := sdn.Key{Owner: e.sdn.Installation(), Kind: identity.KindPort, Name: string(n.ID) + "/three"}
	e.must(e.s.ImportUnconfirmed(t.Context(), n.ID, late))
	make("three", "10.50.0.7")
	e.idle()
	left := func(p sdn.Port) bool { return p.ID == kept.ID || p.ID == users[0].ID }
	if ports := e.ports(); len(ports) != 2 || !left(ports[0]) || !left(ports[1]) {
		t.Errorf("ports %+v, want %s and %s", ports, kept.ID, users[0].ID)
	}
	e.must(e.sdn.Provider.DeletePorts(t.Context(), []sdn.ID{users[0].ID}))
	e.release(v4, "10.50.0.6")
	hidden := e.pool("10.60.0.0/24")
	e.take(hidden, "", mac1)
	pool, err := e.sdn.SubnetPool(t.Context(), v4)
	e.must(err)
	e.releasePool(v4)
	e.removeNetwork(n, v4, v6)
	e.lose()
	if found, err := e.s.LookUpPool(t.Context(), pool.ID); found || err != nil {
		t.Errorf("a pool that is gone: found %v, %v", found, err)
	}
	e.must(e.s.ImportPoolRelease(t.Context(), api.PoolID{Pool: hidden}))
	e.must(e.s.ImportPoolRelease(t.Context(), api.PoolID{Pool: v6}))
	e.must(e.s.ImportPoolRelease(t.Context(), api.PoolID{Pool: "none"}))
	e.clean()
}

// An address that is released while the ports are listed has no row.
func TestImportOfReleasedAddress(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	id := e.pool("10.50.0.0/24")
	n := e.network(id)
	got := e.take(id, "10.50.0.9", mac1)
	listed := e.ports()
	e.release(id, got)
	for _, p := range listed {
		e.must(e.s.ImportPort(t.Context(), p))
	}
	e.release(id, e.take(id, "10.50.0.9", mac2))
	e.releasePool(id)
	e.removeNetwork(n, id)
	e.clean()
}

// TestReleaseWithoutRow checks that the release of an address succeeds if the database was lost and
// the SDN is unavailable. Its port gets a row, is an orphan as no endpoint has it, and goes with its
// network if no engine is asked.
func TestReleaseWithoutRow(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	id := e.pool("10.50.0.0/24")
	n := e.network(id)
	got := e.take(id, "10.50.0.9", mac1)
	subnets := e.Subnets(e.row(id).Key)
	e.lose()
	e.sdn.down = true
	e.release(id, got)
	e.sdn.down = false
	pool := e.row(id).Key
	e.networks[pool] = "network" // whose row is imported before the addresses
	e.bind(pool, subnets)
	e.idle()
	lister := engine.NewLister(&fakeEngine{networks: []engine.Network{
		{ID: "network", Driver: "kuryr", OurIPAM: true, Subnets: []engine.Subnet{{Range: prefix("10.50.0.0/24")}}},
	}})
	lister.Attach(e.s.Unlisted)
	list, err := lister.List(t.Context())
	e.must(err)
	rows := slices.Collect(e.s.addresses.Rows())
	if len(rows) != 1 || rows[0].Phase != reconcile.Wanted || e.s.addressInUse(rows[0]) ||
		e.s.addressListed(rows[0], list.Content) {
		t.Errorf("rows %+v, want one that is an orphan", rows)
	}
	end(e, n, id)
}

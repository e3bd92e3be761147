package ipam

import (
	"testing"
	"time"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
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
	late := sdn.Key{Owner: e.sdn.Installation(), Kind: identity.KindPort, Name: string(n.ID) + "/three"}
	e.must(e.s.ImportUnconfirmed(t.Context(), n.ID, late))
	make("three", "10.50.0.7")
	e.idle()
	if ports := e.ports(); len(ports) != 1 || ports[0].ID != kept.ID {
		t.Errorf("ports %+v, want %s", ports, kept.ID)
	}
	e.release(v4, "10.50.0.6")
	hidden := e.pool("10.60.0.0/24")
	e.take(hidden, "", mac1)
	pool, err := e.sdn.SubnetPool(t.Context(), v4)
	e.must(err)
	e.releasePool(v4)
	e.removeNetwork(n, v4, v6)
	e.lose()
	e.must(e.s.ImportPool(t.Context(), pool)) // which is gone
	e.must(e.s.ImportPoolRelease(t.Context(), api.PoolID{Pool: hidden}))
	e.must(e.s.ImportPoolRelease(t.Context(), api.PoolID{Pool: v6}))
	e.must(e.s.ImportPoolRelease(t.Context(), api.PoolID{Pool: "none"}))
	e.clean()
}

package ipam

import (
	"slices"
	"testing"
	"time"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/sdn"
)

// A pool that is handed over has all that was asked of it, and no later call gives it a row again.
func TestHandOver(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.s.Global = true
	r := poolRequest("10.50.0.0/24")
	r.AddressSpace = api.GlobalSpace
	a, err := e.s.RequestPool(t.Context(), r)
	e.must(err)
	id := sdn.ID(a.PoolID)
	if got, err := e.request(id, "10.50.0.9", "", true); err != nil || got != "10.50.0.9/24" {
		t.Fatalf("gateway %q, %v", got, err)
	}
	p := e.row(id)
	e.sdn.down = true
	if err := e.s.HandOver(t.Context(), id); !sdn.IsUnavailable(err) {
		t.Errorf("HandOver without the SDN: got %v, want that it is unavailable", err)
	}
	e.sdn.down = false
	if now := e.row(id); now.Spec.Gateway != addr("10.50.0.9") {
		t.Errorf("row %+v, want it as it was", now)
	}
	unlock, err := e.s.lockRange(t.Context(), p.Spec)
	e.must(err)
	handed := make(chan error)
	go func() { handed <- e.s.HandOver(t.Context(), id) }()
	select {
	case err := <-handed:
		t.Fatalf("HandOver does not wait for a call that changes the pool: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	unlock()
	e.must(<-handed)
	pool, err := e.sdn.Provider.SubnetPool(t.Context(), id)
	e.must(err)
	if !slices.Contains(pool.Tags, identity.TagGateway+"10.50.0.9") {
		t.Errorf("tags %q lack the gateway", pool.Tags)
	}
	spec := p.Spec
	spec.Gateway = addr("10.50.0.10")
	e.refuses(e.s.changePool(t.Context(), p, spec), "there is no pool")
	e.refuses(e.s.changePool(t.Context(), p, p.Spec), "there is no pool")
	e.must(e.s.TagLater(t.Context(), p.Key))
	if e.idle(); len(e.store.Rows()) > 0 {
		t.Errorf("rows %s, want none", e.store.Rows())
	}
}

package endpoint

import (
	"path/filepath"
	"testing"

	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// The endpoints of a network and of an address are found, also after a restart, unless they are
// being deleted.
func TestUses(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "docker.db")
	open := func() (*Service, *reconcile.Store) {
		t.Helper()
		store, err := reconcile.Open(reconcile.Config{Path: path})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = store.Close() })
		names := identity.NewNamer("owner", "box", store.ID(), true)
		daemon := identity.Daemon{Names: names, Host: "box", Store: store}
		return New(Config{Daemon: daemon, Binder: wires{"used": true}}), store
	}
	s, store := open()
	var rows []reconcile.Row[Spec, Last]
	for id, phase := range map[string]reconcile.Phase{
		"used": reconcile.Wanted, "unused": reconcile.Wanted, "deleted": reconcile.Deleting, "plain": reconcile.Wanted,
	} {
		row := reconcile.Row[Spec, Last]{
			Object: reconcile.Object{Key: id}, Phase: phase, Done: true,
			Spec: Spec{Network: "net-" + id, Address: "address/pool/" + id},
			Last: Last{Port: sdn.Port{Meta: sdn.Meta{ID: sdn.ID(id)}}},
		}
		if id == "plain" { // another IPAM driver chose its address
			row.Spec.Address = ""
		}
		rows = append(rows, row)
	}
	if err := s.endpoints.Import(t.Context(), rows); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for address, want := range map[string]struct {
			id    string
			inUse bool
		}{"pool/used": {"used", true}, "pool/unused": {"unused", false}, "pool/deleted": {}, "pool/plain": {}, "": {}} {
			if id, inUse := s.Of(address); id != want.id || inUse != want.inUse {
				t.Errorf("endpoint of %q: got %q, in use %v; want %+v", address, id, inUse, want)
			}
		}
		for network, want := range map[string]bool{
			"net-used": true, "net-unused": true, "net-plain": true, "net-deleted": false, "net-": false, "": false,
		} {
			if got := s.Has(network); got != want {
				t.Errorf("endpoints of network %q: got %v, want %v", network, got, want)
			}
		}
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
		s, store = open()
	}
}

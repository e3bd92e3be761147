package engine_test

import (
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/engine"
	"github.com/kuryr/kuryr/sdn/local"
	"go.etcd.io/bbolt"
)

// The tests of this package also run on the store of the embedded SDN.
func init() {
	engine.Stores["bbolt"] = func(t testing.TB) engine.Store {
		t.Helper()
		db, err := bbolt.Open(filepath.Join(t.TempDir(), "test.db"), 0o600, &bbolt.Options{
			FreelistType: bbolt.FreelistMapType, NoFreelistSync: true, NoStatistics: true, NoSync: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := db.Close(); err != nil {
				t.Error(err)
			}
		})
		return local.NewStore(db)
	}
}

// TestIndexesOfFaf2083 compares indexes and counters of an upgraded store with its rows.
func TestIndexesOfFaf2083(t *testing.T) {
	t.Parallel()
	packed, err := os.Open("../local/testdata/faf2083/store.db.gz")
	ok(t, err)
	defer packed.Close()
	text, err := gzip.NewReader(packed)
	ok(t, err)
	data, err := io.ReadAll(text)
	ok(t, err)
	path := filepath.Join(t.TempDir(), "sdn.db")
	ok(t, os.WriteFile(path, data, 0o600))
	const host = "this-host"
	p, err := local.Open(t.Context(), local.Options{Path: path, Host: host})
	ok(t, err)
	check := func() {
		t.Helper()
		ok(t, p.Close())
		db, err := bbolt.Open(path, 0o600, nil)
		ok(t, err)
		ok(t, local.NewStore(db).View(func(tx engine.Tx) error {
			engine.CheckIndexes(t, tx)
			return nil
		}))
		ok(t, db.Close())
	}
	check()
	p, err = local.Open(t.Context(), local.Options{Path: path, Host: host})
	ok(t, err)
	found, err := sdn.All(p.FindNetworks(t.Context(), sdn.NetworkQuery{Match: sdn.Match{Names: []string{"tenant"}}}))
	ok(t, err)
	made, err := p.EnsurePorts(t.Context(), []sdn.PortSpec{{Network: found[0].ID, Host: host}})
	ok(t, err)
	ok(t, p.DeletePorts(t.Context(), []sdn.ID{made[0].ID}))
	check()
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

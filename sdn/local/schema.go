package local

import (
	"fmt"
	"os"
	"strconv"

	"github.com/kuryr/kuryr/internal/atomicfile"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn/engine"
	"go.etcd.io/bbolt"
)

// schemaKey is a key of metaTable.
var schemaKey = []byte("schema")

// schema is a version of the store's form and how to get there from older ones.
type schema struct {
	version int
	steps   map[int]func(engine.Tx) error // from a version to the next
}

// currentSchema is what this program writes.
var currentSchema = schema{version: engine.SchemaVersion, steps: engine.Migrations}

// prepare makes an empty store ready, and migrates an older one in one transaction after a copy of the
// file was put beside it.
func (s schema) prepare(db *bbolt.DB, installation string) error {
	have, err := s.check(db)
	if err != nil {
		return err
	}
	if have == 0 {
		return full(s.change(db, func(b engine.Tx) error {
			return engine.Create(b, installation)
		}))
	}
	if have == s.version {
		return nil
	}
	if err := s.migrate(db, have); err != nil {
		return fmt.Errorf("migrate from schema %d to %d (the store is unchanged): %w", have, s.version, full(err))
	}
	return nil
}

// migrate does all steps in one transaction, so that the store has either form and none between.
func (s schema) migrate(db *bbolt.DB, from int) error {
	if err := copyAside(db, fmt.Sprintf("%s.v%d.bak", db.Path(), from)); err != nil {
		return err
	}
	failpoint.Here("local.migrate.copied")
	err := s.change(db, func(b engine.Tx) error {
		for v := from; v < s.version; v++ {
			step := s.steps[v]
			if step == nil {
				return fmt.Errorf("no step from schema %d is known", v)
			}
			if err := step(b); err != nil {
				return fmt.Errorf("step from schema %d: %w", v, err)
			}
			failpoint.Here("local.migrate.step")
		}
		return nil
	})
	if err == nil {
		failpoint.Here("local.migrate.done")
	}
	return err
}

// change runs f in one transaction that also makes the missing tables and writes the version.
func (s schema) change(db *bbolt.DB, f func(engine.Tx) error) error {
	return db.Update(func(b *bbolt.Tx) error {
		for _, name := range engine.Tables() {
			if _, err := b.CreateBucketIfNotExists([]byte(name)); err != nil {
				return err
			}
		}
		t := newBoltTx(b)
		if err := f(t); err != nil {
			return err
		}
		return t.Put(engine.MetaTable, schemaKey, []byte(strconv.Itoa(s.version)))
	})
}

// check returns the version of the store, 0 for an empty one. A newer one is an error.
func (s schema) check(db *bbolt.DB) (version int, err error) {
	err = db.View(func(b *bbolt.Tx) error {
		meta := b.Bucket([]byte(engine.MetaTable))
		if meta == nil {
			if k, _ := b.Cursor().First(); k != nil {
				return fmt.Errorf("it is no store of Kuryr")
			}
			return nil
		}
		if version, err = strconv.Atoi(string(meta.Get(schemaKey))); err != nil || version < 1 {
			return fmt.Errorf("its schema version %q is no number", meta.Get(schemaKey))
		}
		if id := engine.InstallationOf(newBoltTx(b)); !engine.ValidInstallation(id) {
			return fmt.Errorf("its installation id %q is none", id)
		}
		return nil
	})
	if err == nil && version > s.version {
		err = fmt.Errorf("it has schema %d, made by a newer kuryr; this one knows up to %d: use that newer kuryr, or put back a backup of "+
			"schema %d or older with `kuryr sdn restore FILE`", version, s.version, s.version)
	}
	return version, err
}

// copyAside writes a copy of the store to path; it is whole or absent.
func copyAside(db *bbolt.DB, path string) error {
	err := atomicfile.Write(path, 0o600, func(f *os.File) error {
		return db.View(func(b *bbolt.Tx) error {
			_, err := b.WriteTo(f)
			return err
		})
	})
	if err != nil {
		return fmt.Errorf("copy the store: %w", err)
	}
	return nil
}

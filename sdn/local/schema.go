package local

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/kuryr/kuryr/internal/atomicfile"
	"github.com/kuryr/kuryr/internal/failpoint"
	"go.etcd.io/bbolt"
)

var (
	metaBucket      = []byte("meta")
	schemaKey       = []byte("schema")
	installationKey = []byte("installation")
	externalKey     = []byte("external-network")
)

// schema is a version of the store's form and how to get there from older ones.
type schema struct {
	version int
	steps   map[int]func(*bbolt.Tx) error // from a version to the next
}

// currentSchema is what this program writes.
var currentSchema = schema{version: 6, steps: map[int]func(*bbolt.Tx) error{
	1: func(b *bbolt.Tx) error {
		if err := subnetPools.index(b, "name", "prefix"); err != nil {
			return err
		}
		return addVia(b)
	},
	// Trunks, security groups, address groups and QoS policies, of which an older store has none, so that its ports are in none and have none either; and
	// what projects have.
	2: func(b *bbolt.Tx) error {
		if err := createTables(b); err != nil {
			return err
		}
		return errors.Join(ports.index(b, "project", "group", "qos", "trunk"), networks.index(b, "project"), routers.index(b, "project"), floatingIPs.index(b, "project"))
	},
	// What a project sees.
	3: func(b *bbolt.Tx) error {
		return errors.Join(networks.index(b, "shared"), subnets.index(b, "project"), subnetPools.index(b, "project", "shared"), addressGroups.index(b, "project"))
	},
	// Load balancers, of which an older store has none.
	4: createTables,
	// Keys are of projects, which have quotas of more nouns, and by default.
	5: func(b *bbolt.Tx) error {
		return errors.Join(rebuildKeys(b), ownForwards(b), countAll(b), keepQuotas(b))
	},
}}

// prepare makes an empty store ready, and migrates an older one, step by step, each in one transaction after a copy of the file was
// put beside it.
func (s schema) prepare(db *bbolt.DB, installation string) error {
	have, err := s.check(db)
	if err != nil {
		return err
	}
	if have == 0 {
		if installation == "" {
			installation = newInstallation()
		}
		return full(db.Update(func(b *bbolt.Tx) error {
			meta, err := b.CreateBucketIfNotExists(metaBucket)
			if err != nil {
				return err
			}
			if err := meta.Put(installationKey, []byte(installation)); err != nil {
				return err
			}
			if err := createTables(b); err != nil {
				return err
			}
			return meta.Put(schemaKey, []byte(strconv.Itoa(s.version)))
		}))
	}
	for v := have; v < s.version; v++ {
		if err := s.migrate(db, v); err != nil {
			return fmt.Errorf("migrate from schema %d to %d (the store is unchanged): %w", v, v+1, full(err))
		}
	}
	return nil
}

func (s schema) migrate(db *bbolt.DB, from int) error {
	step := s.steps[from]
	if step == nil {
		return fmt.Errorf("no migration is known")
	}
	if err := copyAside(db, fmt.Sprintf("%s.v%d.bak", db.Path(), from)); err != nil {
		return err
	}
	failpoint.Here("local.migrate.copied")
	return db.Update(func(b *bbolt.Tx) error {
		if err := step(b); err != nil {
			return err
		}
		return b.Bucket(metaBucket).Put(schemaKey, []byte(strconv.Itoa(from+1)))
	})
}

// check returns the version of the store, 0 for an empty one. A newer one is an error.
func (s schema) check(db *bbolt.DB) (version int, err error) {
	err = db.View(func(b *bbolt.Tx) error {
		meta := b.Bucket(metaBucket)
		if meta == nil {
			if k, _ := b.Cursor().First(); k != nil {
				return fmt.Errorf("it is no store of Kuryr")
			}
			return nil
		}
		if version, err = strconv.Atoi(string(meta.Get(schemaKey))); err != nil || version < 1 {
			return fmt.Errorf("its schema version %q is no number", meta.Get(schemaKey))
		}
		if !validInstallation(string(meta.Get(installationKey))) {
			return fmt.Errorf("its installation id %q is none", meta.Get(installationKey))
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

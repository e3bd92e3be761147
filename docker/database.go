package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/kuryr/kuryr/internal/reconcile"
)

// maxBackoff is the longest wait between two attempts, as while the SDN is unavailable.
const maxBackoff = time.Minute

// DatabasePath returns the file in which a Driver with this state folder keeps its intents.
func DatabasePath(stateDir string) string { return filepath.Join(stateDir, "docker.db") }

// openDatabase opens the database, registers the kinds of the services, imports what an earlier
// version left on the disk, and starts the kinds. It is an error if another process has the
// database open, if a later version wrote it, or if the file system has no room for it.
func (d *Driver) openDatabase() error {
	c, grace := d.config, d.config.ForgetAfter
	if grace == 0 {
		grace = -1 // never
	}
	store, err := reconcile.Open(reconcile.Config{
		Path: DatabasePath(c.StateDir), Volatile: c.unsynced, GracePeriod: grace,
		OrphanTTL: c.orphanTTL, MaxBackoff: maxBackoff, Logger: d.log, Registerer: c.Registerer,
	})
	if err != nil {
		return fmt.Errorf("docker: %w", err)
	}
	d.database = store
	if err := d.startServices(context.Background()); err != nil {
		return errors.Join(fmt.Errorf("docker: start the database: %w", err), store.Close())
	}
	return nil
}

func (d *Driver) startServices(ctx context.Context) error {
	d.newServices()
	if err := d.earlier.records(ctx); err != nil {
		return err
	}
	if err := d.database.Start(ctx); err != nil {
		return err
	}
	d.networks.Start(ctx)
	d.endpoints.Start(ctx)
	d.writeRecords()
	return nil
}

// writeRecords writes what the previous version needs if it is installed next, at any time.
func (d *Driver) writeRecords() {
	if err := d.endpoints.WriteRecords(); err != nil {
		d.log.Error("records for the previous version not written", "err", err)
	}
}

func (d *Driver) closeDatabase() {
	if err := d.database.Close(); err != nil {
		d.log.Error("database not closed cleanly", "err", err)
	}
}

// Intents returns the rows of the Driver's database, by kind and key.
func (d *Driver) Intents() map[string]json.RawMessage { return d.database.Rows() }

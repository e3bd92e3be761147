package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/jsonstore"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// DatabasePath returns the file in which a Driver with this state folder keeps its intents.
func DatabasePath(stateDir string) string { return filepath.Join(stateDir, "docker.db") }

// openDatabase opens the database and starts its kinds. It is an error if another process has
// it open, if a later version wrote it, or if the file system has no room for it.
func (d *Driver) openDatabase(c Config) error {
	store, err := reconcile.Open(reconcile.Config{
		Path: DatabasePath(c.StateDir), OrphanTTL: c.orphanTTL, MaxBackoff: longestWait,
		Logger: d.log, Registerer: c.Registerer,
	})
	if err != nil {
		return fmt.Errorf("docker: %w", err)
	}
	d.database = store
	d.tags = reconcile.Register(store, kindNetworkTags, tagTarget{d}, reconcile.Options[tagSpec, struct{}]{
		Timeout: d.timeout, MaxRows: maxTaggedNetworks,
	})
	d.names = identity.NewNamer(d.sdn.Installation(), d.host, store.ID(), true)
	d.records = folderIn(c.RunDir, endpointsFolder)
	d.endpoints = d.newEndpoints(store)
	err = d.endpoints.ImportRecords(context.Background(), d.records)
	if err == nil {
		err = store.Start(context.Background())
	}
	if err != nil {
		return errors.Join(fmt.Errorf("docker: start the database: %w", err), store.Close())
	}
	d.endpoints.Start(context.Background())
	d.writeRecords()
	d.importMarks(filepath.Join(c.StateDir, marksFolder))
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

// marksFolder is where earlier versions kept the networks whose tags were pending.
const marksFolder = "marks"

// importMarks makes rows of the records that an earlier version left, and deletes their folder.
// What cannot be imported is tried again at the next start.
func (d *Driver) importMarks(folder string) {
	pending, err := jsonstore.Load[struct {
		Network sdn.ID
		Pools   []sdn.ID
	}](jsonstore.Shared(folder))
	if err != nil {
		d.log.Warn("pending network tags not readable", "folder", folder, "err", err)
	}
	for id, p := range pending {
		err := d.setTags(context.Background(), link{id: id, network: p.Network, pools: p.Pools})
		if err != nil {
			d.log.Error("pending network tags not imported", "network", id, "err", err)
			return
		}
	}
	if err := os.RemoveAll(folder); err != nil {
		d.log.Warn("folder of an earlier version not deleted", "folder", folder, "err", err)
	}
}

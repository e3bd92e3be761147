//go:build linux

package pod

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/kurma/process"
)

// The journal of versions before the intent store: a bbolt file with schema "1" in the bucket
// meta, and a record for each UUID in the bucket pods. It had the path that the store has.
var (
	bucketMeta = []byte("meta")
	bucketPods = []byte("pods")
	keySchema  = []byte("schema")
	// newSchema is in the store's own bucket meta, so that these versions refuse the store.
	newSchema = []byte("2")
)

const (
	suffixOld = ".old"
	lockWait  = 2 * time.Second
)

// record is what that journal has of a pod.
type record struct {
	Pod
	Space   space       `json:"space"`
	Process *process.ID `json:"process,omitempty"`
}

// Upgrade prepares the path of the store, before that is opened. A journal of an earlier version
// is renamed, for Import, and the store is created so that earlier versions refuse it.
func Upgrade(path string) error {
	records, err := readJournal(path)
	if err != nil {
		return err
	}
	if records != nil {
		if err := os.Rename(path, path+suffixOld); err != nil {
			return err
		}
	} else if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockWait})
	if err != nil {
		return fmt.Errorf("store %s: %w", path, err)
	}
	defer func() { _ = db.Close() }()
	return db.Update(func(tx *bbolt.Tx) error {
		meta, err := tx.CreateBucketIfNotExists(bucketMeta)
		if err != nil {
			return err
		}
		return meta.Put(keySchema, newSchema)
	})
}

// Import stores the pods of the journal that Upgrade has renamed, and removes it. It is called
// before the store is started.
func (m *Manager) Import(ctx context.Context, path string) error {
	records, err := readJournal(path + suffixOld)
	if err != nil {
		return err
	}
	var rows []row
	for _, old := range records {
		r, err := m.imported(old)
		if err != nil {
			return err
		}
		rows = append(rows, r)
	}
	if err := m.pods.Import(ctx, rows); err != nil {
		return err
	}
	if len(rows) > 0 {
		m.log.InfoContext(ctx, "pods of an earlier version imported", "pods", len(rows))
	}
	if err := os.Remove(path + suffixOld); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func (m *Manager) imported(old record) (row, error) {
	r := row{
		Object: reconcile.Object{Key: old.UUID}, Phase: reconcile.Wanted, Done: old.State == Ready,
		Spec: spec{
			Container: old.Container, Process: old.Process, Asked: old.Networks,
			Attachments: []Attachment{}, Space: old.Space, Created: old.Created,
		},
		Last: last{Known: true, Attachments: old.Attachments, Error: old.Error},
	}
	if old.State == Removing {
		r.Phase = reconcile.Deleting
	}
	for _, a := range old.Attachments {
		chosen := Attachment{Network: a.Network, Interface: a.Interface}
		r.Spec.Attachments = append(r.Spec.Attachments, chosen)
	}
	if m.pinned(old.UUID) { // else its number may be another namespace's
		claim, err := old.Space.claim()
		if err != nil {
			return r, err
		}
		r.Claims = []string{claim}
	}
	return r, nil
}

// readJournal returns the records of a journal of an earlier version; nil if the file is none.
func readJournal(path string) (records []record, err error) {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: lockWait})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("store %s: %w", path, reconcile.ErrInUse)
	}
	if err != nil {
		return nil, nil // the store says what is wrong with it
	}
	defer func() { _ = db.Close() }()
	err = db.View(func(tx *bbolt.Tx) error {
		if tx.Size() > info.Size() {
			return nil // cut off; it must not be read behind its end
		}
		pods := tx.Bucket(bucketPods)
		if pods == nil {
			return nil
		}
		records = []record{}
		return pods.ForEach(func(uuid, text []byte) error {
			var r record
			if err := json.Unmarshal(text, &r); err != nil {
				return fmt.Errorf("store %s: pod %s: %w", path, uuid, err)
			}
			records = append(records, r)
			return nil
		})
	})
	return records, err
}

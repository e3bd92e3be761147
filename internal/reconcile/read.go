package reconcile

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// readWait is how long Read waits for a process that is opening the file.
const readWait = 200 * time.Millisecond

// Rows returns all rows, by kind and key, as they are stored in the file.
func (s *Store) Rows() map[string]json.RawMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	rows := map[string]json.RawMessage{}
	for name, text := range s.raw {
		rows[name] = text
	}
	for name, r := range s.rows {
		if text, err := r.encode(); err == nil {
			rows[name] = text
		}
	}
	return rows
}

// Read returns the rows of a file that no process has open, as Store.Rows does, and changes
// nothing. A missing file has no rows. Errors: ErrInUse, ErrNewer, that the file is damaged, or
// of the file system.
func Read(path string) (map[string]json.RawMessage, error) {
	rows := map[string]json.RawMessage{}
	err := view(path, readWait, func(tx *bbolt.Tx) error {
		meta, bucket := tx.Bucket(bucketMeta), tx.Bucket(bucketRows)
		if meta == nil || bucket == nil {
			return nil
		}
		if has := string(meta.Get(keyFormat)); has != format {
			return fmt.Errorf("%w: format %q, want %q", ErrNewer, has, format)
		}
		return bucket.ForEach(func(key, value []byte) error {
			rows[string(key)] = append(json.RawMessage(nil), value...)
			return nil
		})
	})
	return rows, err
}

// Health is the state of a store's file, for people.
type Health struct {
	Exists bool
	Err    error // of Read; ErrInUse while a daemon runs
	// Damaged is the last file that an empty one has replaced; "" if there is none.
	Damaged string
	Full    bool // the file system has no room for new rows
}

// Inspect returns the state of a file.
func Inspect(path string) (h Health) {
	if kept, _ := filepath.Glob(damagedPath(path, "*")); len(kept) > 0 {
		h.Damaged = slices.Max(kept)
	}
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return h
	}
	h.Exists = true
	_, h.Err = Read(path)
	var fs unix.Statfs_t
	h.Full = unix.Statfs(path, &fs) == nil && fs.Bavail*uint64(fs.Bsize) < reserved
	return h
}

// Files returns the files that a store with this path may have.
func Files(path string) []string {
	kept, _ := filepath.Glob(damagedPath(path, "*"))
	return append([]string{path, bootPath(path)}, kept...)
}

// bootPath is beside a volatile store and has the boot id of its file.
func bootPath(path string) string { return path + ".boot" }

func damagedPath(path, when string) string { return path + ".damaged-" + when }

package cni

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/kuryr/kuryr/internal/wholefile"
)

// DefaultState is the folder of what is kept of containers beside the SDN.
const DefaultState = "/var/lib/kuryr/cni"

// The folders in it, of records by RecordName.
const (
	owedFolder = "owed"
	// BoundFolder has what was bound by CNI_ARGS alone.
	BoundFolder = "bound"
)

// RecordName is the name of the record of a container's interface, readable and fit for a file.
func RecordName(container, iface string) string {
	return container + "-" + hex.EncodeToString([]byte(iface))
}

const recordEnding = ".json"

// Records is a folder of records that two processes use at once, kuryr-cni and the daemon: each record is a file that comes and goes whole. The folder may be absent.
// (Package records' folders have one process each.)
type Records[T any] struct{ Dir string }

// OwedIn is the folder of DELs that are owed: kuryr-cni writes there what it could not tell the daemon, and the daemon what it could not tell the SDN.
func OwedIn(state string) Records[Call] { return Records[Call]{filepath.Join(state, owedFolder)} }

// Put writes a record, in place of one of that name.
func (r Records[T]) Put(name string, v T) error {
	if err := os.MkdirAll(r.Dir, 0o700); err != nil {
		return err
	}
	return wholefile.Write(filepath.Join(r.Dir, name+recordEnding), 0o600, func(w io.Writer) error { return json.NewEncoder(w).Encode(v) })
}

// Get reads a record and tells whether there is one.
func (r Records[T]) Get(name string) (v T, there bool, err error) {
	data, err := os.ReadFile(filepath.Join(r.Dir, name+recordEnding))
	if errors.Is(err, fs.ErrNotExist) {
		return v, false, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &v)
	}
	if err != nil {
		return v, false, fmt.Errorf("record %s in %s: %w", name, r.Dir, err)
	}
	return v, true, nil
}

// Delete removes a record; an absent one is no error.
func (r Records[T]) Delete(name string) error {
	if err := os.Remove(filepath.Join(r.Dir, name+recordEnding)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// All reads all records. What cannot be read is named in the error, and the others are given nevertheless.
func (r Records[T]) All() (map[string]T, error) {
	entries, err := os.ReadDir(r.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	all, errs := map[string]T{}, []error{err}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), recordEnding)
		if !ok {
			continue
		}
		v, there, err := r.Get(name)
		if there {
			all[name] = v
		}
		errs = append(errs, err)
	}
	return all, errors.Join(errs...)
}

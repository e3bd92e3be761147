// Package jsonstore keeps values in a folder, as a JSON file each, so that they outlive the
// process and people can read them. It owns the *.json files of the folder. It must not know
// what the values mean. It is no database: all values together fit in memory.
package jsonstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/kuryr/kuryr/internal/atomicfile"
)

// MaxSize is the largest size of a value of a store in bytes.
const MaxSize = 2 << 20

const suffix = ".json"

// Store is a folder of values. A nil Store keeps nothing. Concurrent calls are safe unless
// they change the same value.
type Store struct {
	dir      string
	volatile bool
	shared   bool
}

// Open returns the store in dir, which no other process may write. It makes dir with mode
// 0700 if it is missing, and removes what a killed Put left. For an empty dir it returns a
// nil Store.
func Open(dir string) (*Store, error) { return open(dir, false) }

// OpenVolatile is [Open] for values that need not outlive the machine: Put does not wait for
// the disk.
func OpenVolatile(dir string) (*Store, error) { return open(dir, true) }

func open(dir string, volatile bool) (*Store, error) {
	if dir == "" {
		return nil, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	if err := atomicfile.Clean(dir); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	return &Store{dir: dir, volatile: volatile}, nil
}

// Shared returns the store in dir, which several processes may use. The folder may be
// missing until the first Put.
func Shared(dir string) *Store { return &Store{dir: dir, shared: true} }

// Dir returns the folder.
func (s *Store) Dir() string { return s.dir }

// path returns the file of a value. A name is no path and no hidden file.
func (s *Store) path(name string) (string, error) {
	if name == "" || len(name) > 200 || name[0] == '.' || strings.ContainsAny(name, "/\x00") {
		return "", fmt.Errorf("invalid name of a value %q", name)
	}
	return filepath.Join(s.dir, name+suffix), nil
}

// Put writes a value, and replaces an existing one.
func (s *Store) Put(name string, v any) error {
	if s == nil {
		return nil
	}
	path, err := s.path(name)
	if err != nil {
		return err
	}
	data, err := encode(v)
	if err == nil && len(data) > MaxSize {
		err = fmt.Errorf("%d bytes exceed the limit of %d", len(data), MaxSize)
	}
	if err == nil && s.shared {
		err = os.MkdirAll(s.dir, 0o700)
	}
	if err == nil {
		write := atomicfile.WriteFile
		if s.volatile {
			write = atomicfile.WriteVolatile
		}
		err = write(path, data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// Delete removes a value. A missing one is no error.
func (s *Store) Delete(name string) error {
	if s == nil {
		return nil
	}
	path, err := s.path(name)
	if err != nil {
		return err
	}
	if err := os.Remove(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil || s.volatile {
		return err
	}
	return atomicfile.SyncDir(s.dir)
}

// Get reads a value, and reports whether it exists.
func Get[T any](s *Store, name string) (v T, found bool, err error) {
	if s == nil {
		return v, false, nil
	}
	path, err := s.path(name)
	if err != nil {
		return v, false, err
	}
	info, err := os.Stat(path)
	if err == nil && info.Size() > MaxSize {
		return v, false, fmt.Errorf("read %s: %d bytes exceed the limit of %d", path, info.Size(), MaxSize)
	}
	if err == nil {
		v, err = ReadFile[T](path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return v, false, nil
	}
	return v, err == nil, err
}

// Load reads all values by their names. The error names the files that cannot be read; all
// others are returned too.
func Load[T any](s *Store) (map[string]T, error) {
	all := map[string]T{}
	if s == nil {
		return all, nil
	}
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	errs := []error{err}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), suffix)
		if !ok || !e.Type().IsRegular() {
			continue
		}
		v, found, err := Get[T](s, name)
		if found {
			all[name] = v
		}
		errs = append(errs, err)
	}
	return all, errors.Join(errs...)
}

// ReadFile reads the value of a file outside of a store.
func ReadFile[T any](path string) (v T, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return v, err
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return v, fmt.Errorf("read %s: %w", path, err)
	}
	return v, nil
}

// WriteFile replaces a file outside of a store with a value. The file is on the disk when
// WriteFile returns nil.
func WriteFile(path string, v any) error {
	data, err := encode(v)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return atomicfile.WriteFile(path, data, 0o600)
}

func encode(v any) ([]byte, error) {
	data, err := json.MarshalIndent(v, "", "  ")
	return append(data, '\n'), err
}

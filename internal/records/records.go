// Package records keeps small records in a folder, a file of JSON for each, so that they outlive the process and a person can read them.
//
// A record is there whole or not at all, whenever the process ends, and where that is asked for whenever the machine ends. The package owns the files of its folder and nothing else; it
// must not know what is in a record, and it is no database: all records together are meant to fit in memory, where their user keeps them.
package records

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// MaxSize is the longest record in bytes.
const MaxSize = 1 << 20

const ending, unfinished = ".json", ".tmp"

// validName is what a record may be called: it becomes a file's name.
var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,199}$`)

// Folder is a folder of records. A nil Folder keeps nothing. Its methods may be called at once from many goroutines, but not for one and the
// same name.
type Folder struct {
	dir     string
	durable bool
}

// OpenVolatile is Open for records that need not outlive the machine: they are not waited for to be on the disk.
func OpenVolatile(dir string) (*Folder, error) {
	f, err := Open(dir)
	if f != nil {
		f.durable = false
	}
	return f, err
}

// Open prepares the folder, made with mode 0700 if missing, and removes what a killed Put has left. dir "" gives the nil Folder.
func Open(dir string) (*Folder, error) {
	if dir == "" {
		return nil, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("folder of records: %w", err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*"+unfinished))
	if err != nil {
		return nil, fmt.Errorf("folder of records: %w", err)
	}
	for _, path := range left {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("folder of records: %w", err)
		}
	}
	return &Folder{dir, true}, nil
}

// At is the folder as somebody sees it who only reads: it may be absent, and is not changed.
func At(dir string) *Folder { return &Folder{dir: dir} }

// Put writes a record, in place of one of that name. When it returns nil the record is on the disk, unless the folder is volatile.
func (f *Folder) Put(name string, v any) error {
	if f == nil {
		return nil
	}
	if !validName.MatchString(name) {
		return fmt.Errorf("record %q: not a record's name", name)
	}
	data, err := json.MarshalIndent(v, "", "  ")
	if err == nil && len(data) > MaxSize {
		err = fmt.Errorf("it has %d bytes, at most %d are kept", len(data), MaxSize)
	}
	if err == nil {
		err = f.write(name, append(data, '\n'))
	}
	if err != nil {
		return fmt.Errorf("record %s: %w", name, err)
	}
	return nil
}

func (f *Folder) write(name string, data []byte) (err error) {
	path := filepath.Join(f.dir, name+ending)
	file, err := os.OpenFile(path+unfinished, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err = file.Write(data); err == nil && f.durable {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(path+unfinished, path)
	}
	if err != nil {
		return errors.Join(err, ignoreAbsent(os.Remove(path+unfinished)))
	}
	return f.sync()
}

// Delete removes a record for good; an absent one is no error.
func (f *Folder) Delete(name string) error {
	if f == nil {
		return nil
	}
	if !validName.MatchString(name) {
		return fmt.Errorf("record %q: not a record's name", name)
	}
	err := os.Remove(filepath.Join(f.dir, name+ending))
	if err == nil {
		err = f.sync()
	}
	if err = ignoreAbsent(err); err != nil {
		return fmt.Errorf("record %s: %w", name, err)
	}
	return nil
}

// sync writes to the disk which files the folder has.
func (f *Folder) sync() error {
	if !f.durable {
		return nil
	}
	dir, err := os.Open(f.dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Load reads all records, by their names. What cannot be read as a T is named in the error, and the others are given nevertheless.
func Load[T any](f *Folder) (map[string]T, error) {
	all := map[string]T{}
	if f == nil {
		return all, nil
	}
	entries, err := os.ReadDir(f.dir)
	errs := []error{ignoreAbsent(err)}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ending)
		if !ok || !e.Type().IsRegular() {
			continue
		}
		record, err := read[T](filepath.Join(f.dir, e.Name()))
		if err != nil {
			errs = append(errs, fmt.Errorf("record %s: %w", name, err))
			continue
		}
		all[name] = record
	}
	return all, errors.Join(errs...)
}

func read[T any](path string) (record T, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return record, err
	}
	if info.Size() > MaxSize {
		return record, fmt.Errorf("it has %d bytes, at most %d are read", info.Size(), MaxSize)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return record, err
	}
	return record, json.Unmarshal(data, &record)
}

func ignoreAbsent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

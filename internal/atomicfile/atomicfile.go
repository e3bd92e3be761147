// Package atomicfile replaces files atomically, so that neither a reader nor a crash sees
// a partial file. It owns the temporary file beside the file until the rename. It must not
// make folders or know what a file is for.
package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// temporary is the pattern of the names of temporary files.
const temporary = ".kuryr-*"

// Write replaces the file at path with what write writes. The file and its name are on the
// disk when Write returns nil. After an error the old file is in place, or the new one if
// only the sync of its folder failed.
func Write(path string, mode fs.FileMode, write func(*os.File) error) error {
	if err := replace(path, mode, true, write); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// WriteFile is [Write] of data.
func WriteFile(path string, data []byte, mode fs.FileMode) error {
	return Write(path, mode, content(data))
}

// WriteVolatile is [WriteFile] without a sync: a crash of the process cannot damage the
// file, but a crash of the machine can.
func WriteVolatile(path string, data []byte, mode fs.FileMode) error {
	return replace(path, mode, false, content(data))
}

func content(data []byte) func(*os.File) error {
	return func(f *os.File) error {
		_, err := f.Write(data)
		return err
	}
}

func replace(path string, mode fs.FileMode, sync bool, write func(*os.File) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), temporary)
	if err != nil {
		return err
	}
	defer func() {
		_ = f.Close()
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	if err := write(f); err != nil {
		return err
	}
	if err := f.Chmod(mode); err != nil {
		return err
	}
	if sync {
		if err := f.Sync(); err != nil {
			return err
		}
	}
	return os.Rename(f.Name(), path)
}

// Clean removes the temporary files that killed processes left in dir. No process may be
// writing a file there.
func Clean(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, temporary))
	errs := []error{err}
	for _, path := range left {
		if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// SyncDir writes the names of a folder's files to the disk.
func SyncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Package wholefile makes a file anew whole or not at all, so that no reader and no crash sees a part of it.
//
// It owns the temporary file beside it until it takes its place. It must not make folders, nor know what files are for.
package wholefile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Write makes the file at path anew, with these permissions, of what write gives. Both it and its name are on the disk when it returns nil; after an error the
// old file is there, or, where only the folder could not be written to the disk, the new one.
func Write(path string, mode fs.FileMode, write func(io.Writer) error) (err error) {
	temp, err := os.CreateTemp(filepath.Dir(path), ".kuryr-*")
	if err != nil {
		return err
	}
	defer func() {
		_ = temp.Close()
		if err != nil {
			_ = os.Remove(temp.Name())
		}
	}()
	if err := write(temp); err != nil {
		return err
	}
	if err := temp.Chmod(mode); err != nil {
		return err
	}
	if err := temp.Sync(); err != nil {
		return err
	}
	if err := os.Rename(temp.Name(), path); err != nil {
		return err
	}
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

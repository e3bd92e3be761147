// Package plugin copies the CNI plugin into the folders that container runtimes look for plugins in, and takes it away. It owns the files of the plugin's names there, and must
// not know Kubernetes: hosts with other runtimes of CNI are given it too.
package plugin

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kuryr/kuryr/internal/atomicfile"
)

// Name is the plugin's in a folder of CNI plugins: the type in a conflist.
const Name = "kuryr"

// Beside is the program that the plugin becomes where no daemon does what it is asked, and that it looks for in its own folder.
const Beside = "kuryr-cni-api"

// Copy copies the CNI plugin at path from into each of the folders, as Name, and the program Beside, where one lies beside from. Each is there whole or as it was, also
// where a runtime runs it at that moment, and is left alone where it is the same already. The folders must be there.
func Copy(from string, folders ...string) error {
	plugin, err := os.ReadFile(from) // a few MB
	if err != nil {
		return err
	}
	beside, err := os.ReadFile(filepath.Join(filepath.Dir(from), Beside))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var failed error
	for _, folder := range folders {
		if beside != nil { // first, so that a plugin which needs it has it
			failed = errors.Join(failed, put(filepath.Join(folder, Beside), beside))
		}
		failed = errors.Join(failed, put(filepath.Join(folder, Name), plugin))
	}
	return failed
}

// Remove takes from each of the folders what [Copy] has put there. What is not there is no error.
func Remove(folders ...string) error {
	var failed error
	for _, folder := range folders {
		for _, name := range []string{Name, Beside} {
			if err := os.Remove(filepath.Join(folder, name)); !errors.Is(err, fs.ErrNotExist) {
				failed = errors.Join(failed, err)
			}
		}
	}
	return failed
}

func put(to string, program []byte) error {
	if same(to, program) {
		return nil
	}
	if err := atomicfile.WriteFile(to, program, 0o755); err != nil {
		return fmt.Errorf("%s: %w", to, err)
	}
	return nil
}

// same tells whether a file is what is to be there, and may be run. What cannot be read is made anew.
func same(path string, program []byte) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != 0o755 || info.Size() != int64(len(program)) {
		return false
	}
	there, err := os.ReadFile(path)
	return err == nil && bytes.Equal(there, program)
}

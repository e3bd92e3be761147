// Package plugin copies the CNI plugin into the folders that container runtimes look for plugins in. It owns the file of the plugin's name there, and must
// not know Kubernetes: hosts with other runtimes of CNI are given it too.
package plugin

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/kuryr/kuryr/internal/wholefile"
)

// Name is the plugin's in a folder of CNI plugins: the type in a conflist.
const Name = "kuryr"

// Copy copies the CNI plugin at path from into each of the folders, as Name. It is there whole or as it was, also where a runtime runs it at that moment, and is left
// alone where it is the same already. The folders must be there.
func Copy(from string, folders ...string) error {
	plugin, err := os.ReadFile(from) // a few MB
	if err != nil {
		return err
	}
	var failed error
	for _, folder := range folders {
		to := filepath.Join(folder, Name)
		if same(to, plugin) {
			continue
		}
		err := wholefile.Write(to, 0o755, func(w io.Writer) error {
			_, err := w.Write(plugin)
			return err
		})
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", to, err))
		}
	}
	return failed
}

// same tells whether a file is what is to be there, and may be run. What cannot be read is made anew.
func same(path string, plugin []byte) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != 0o755 || info.Size() != int64(len(plugin)) {
		return false
	}
	there, err := os.ReadFile(path)
	return err == nil && bytes.Equal(there, plugin)
}

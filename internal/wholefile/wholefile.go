// Package wholefile is the former name of package atomicfile. It must not get new users.
package wholefile

import (
	"io"
	"io/fs"
	"os"

	"github.com/kuryr/kuryr/internal/atomicfile"
)

// Write is atomicfile.Write.
func Write(path string, mode fs.FileMode, write func(io.Writer) error) error {
	return atomicfile.Write(path, mode, func(f *os.File) error { return write(f) })
}

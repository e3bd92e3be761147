//go:build linux

// Package beside finds the programs that are installed in the folder of the running one, and lets one of them take its place. It owns where that folder is, and must not
// know what the programs are for.
package beside

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// Path is where the program of this name is, if it is installed: in the folder of the running program's file, wherever a link to that lies.
func Path(name string) (string, error) {
	self, err := os.Executable() // which follows links
	if err != nil {
		return "", fmt.Errorf("where %s is: %w", name, err)
	}
	return filepath.Join(filepath.Dir(self), name), nil
}

// Become runs that program as this process: it keeps the process's number, its open files that are not closed on execution, and its limits, and has these arguments, the
// first being its own name, and this environment. It returns only with an error, which is [fs.ErrNotExist] where there is no such program.
func Become(name string, argv, environ []string) error {
	path, err := Path(name)
	if err != nil {
		return err
	}
	return &os.PathError{Op: "exec", Path: path, Err: syscall.Exec(path, argv, environ)}
}

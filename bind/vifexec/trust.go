//go:build linux

package vifexec

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// maxLinks is how many symbolic links a path may lead through: the kernel's own limit
// (path_resolution(7)).
const maxLinks = 40

// untrusted is the error of a path that others than root can make lead elsewhere.
type untrusted struct{ error }

// resolve follows a whole path from the root folder on, through symbolic links, and gives
// what it leads to and by which path that is known without any. Each folder, link and
// file on the way must be root's own and not writable by others, since who can change one
// of them chooses what is found. Errors: untrusted, one that is fs.ErrNotExist, or the
// file system's.
func resolve(path string) (real string, info fs.FileInfo, err error) {
	real = "/"
	if info, err = look(real); err != nil {
		return "", nil, err
	}
	links := 0
	for rest := split(path); len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			real = filepath.Dir(real) // which was looked at on the way here
			continue
		}
		next := filepath.Join(real, name)
		if info, err = look(next); err != nil {
			return "", nil, err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			real = next
			continue
		}
		to, err := os.Readlink(next)
		if err != nil {
			return "", nil, err
		}
		if links++; links > maxLinks {
			return "", nil, &fs.PathError{Op: "resolve", Path: path, Err: syscall.ELOOP}
		}
		if filepath.IsAbs(to) {
			real = "/"
		}
		rest = append(split(to), rest...)
	}
	return real, info, nil
}

func split(path string) []string { return strings.Split(path, "/") }

// look returns the state of a file, a folder or a link that only root can change. In a sticky
// folder, such as /tmp, other users cannot replace what is root's.
func look(path string) (fs.FileInfo, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	mode := info.Mode()
	switch stat, ok := info.Sys().(*syscall.Stat_t); {
	case !ok || stat.Uid != 0:
		return nil, untrusted{fmt.Errorf("%s is not root's own", path)}
	case mode&fs.ModeSymlink == 0 && mode.Perm()&0o022 != 0 && (!mode.IsDir() || mode&fs.ModeSticky == 0):
		return nil, untrusted{fmt.Errorf("%s can be changed by others than its owner", path)}
	}
	return info, nil
}

// isUntrusted reports whether an error is untrusted.
func isUntrusted(err error) bool { return errors.As(err, &untrusted{}) }

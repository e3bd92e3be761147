package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// A root is a folder that paths are resolved in as if it were "/": openat2's RESOLVE_IN_ROOT, so that neither ".." nor any link leads out of it.
type root struct {
	fd      int
	skipped map[place]string // paths of the image's devices and FIFOs, which are not made
}

// A place is where an entry is, whatever links a path takes to it.
type place struct {
	dev, inode uint64 // of the folder
	base       string
}

func placeOf(parent int, base string) (place, error) {
	var folder unix.Stat_t
	err := unix.Fstat(parent, &folder)
	return place{folder.Dev, folder.Ino, base}, err
}

// isSkipped reports whether the path leads to a device or FIFO that was not made.
func (r *root) isSkipped(name string) bool {
	parent, base, err := r.parent(name, false)
	if err != nil {
		return false
	}
	defer unix.Close(parent)
	at, err := placeOf(parent, base)
	return err == nil && r.skipped[at] != ""
}

// openRoot opens the folder at path, which may be a link.
func openRoot(path string) (*root, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return &root{fd, map[place]string{}}, nil
}

func (r *root) close() { _ = unix.Close(r.fd) }

// open opens the path, resolved in the root.
func (r *root) open(name string, flags int) (int, error) {
	how := &unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: unix.RESOLVE_IN_ROOT}
	for {
		fd, err := unix.Openat2(r.fd, "./"+strings.TrimPrefix(name, "/"), how)
		if err == nil {
			return fd, nil
		}
		// EAGAIN: the kernel saw a rename or a mount elsewhere and could not be sure.
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return -1, &fs.PathError{Op: "open", Path: name, Err: err}
		}
	}
}

func (r *root) stat(name string) (fs.FileInfo, error) {
	fd, err := r.open(name, unix.O_PATH)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path.Base(name))
	defer f.Close()
	return f.Stat()
}

// parent opens the folder that name is in, with links followed, and gives what name is called there. Folders that are absent are made if mk says so.
func (r *root) parent(name string, mk bool) (fd int, base string, err error) {
	dir, base := path.Split(name)
	fd, err = r.open(dir, unix.O_PATH|unix.O_DIRECTORY)
	if err == nil || !mk || !errors.Is(err, fs.ErrNotExist) || dir == "" {
		return fd, base, err
	}
	above, last, err := r.parent(strings.TrimSuffix(dir, "/"), true)
	if err != nil {
		return -1, "", err
	}
	defer unix.Close(above)
	if err := unix.Mkdirat(above, last, 0o755); err != nil {
		return -1, "", &fs.PathError{Op: "mkdir", Path: dir, Err: err}
	}
	fd, err = r.open(dir, unix.O_PATH|unix.O_DIRECTORY)
	return fd, base, err
}

// within is the open folder for the functions of package os. It is for one that parent opened: a name in it, not followed.
func within(fd int) (*os.Root, error) { return os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", fd)) }

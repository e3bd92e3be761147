//go:build linux

package netns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// DefaultDir is where namespaces are pinned if nothing else is configured.
const DefaultDir = "/run/kuryr/netns"

// initMounts is the mount namespace of the first process, which outlives Kuryr.
const initMounts = "/proc/1/ns/mnt"

// hostMounts is where a container that Kuryr is the first process of shows it the
// mountinfo of the host's first process.
const hostMounts = "/host/mountinfo"

// ErrInvisible says that namespaces pinned here would be seen by no other process and would go
// with this process.
var ErrInvisible = errors.New("namespaces pinned here would be invisible outside and go with this process")

var validName = regexp.MustCompile(`^[a-z0-9-]{1,128}$`)

// Store is a folder of pinned network namespaces. Its methods may be called in parallel,
// but not for one and the same name.
type Store struct {
	dir     string
	init    string // file of the mount namespace that outlives Kuryr
	foreign bool   // pins are made there, as our mount namespace is its slave
}

// Open prepares dir (made if missing, mode 0755) and decides where pins are made:
//   - the mount that holds dir is a slave (a systemd sandbox, a pod with mountPropagation
//     HostToContainer): in the mount namespace of process 1, from where they come back here
//     by propagation; if that is impossible the error is ErrInvisible;
//   - otherwise: in this mount namespace. dir becomes a shared mount point of its own, so that
//     mount namespaces cloned later see what is pinned after that.
//
// Open is idempotent and takes over what earlier processes left in dir.
func Open(dir string) (*Store, error) { return openIn(dir, initMounts) }

func openIn(dir, init string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("namespace folder: %w", err)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("namespace folder: %w", err)
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, fmt.Errorf("namespace folder: %w", err)
	}
	s := &Store{dir: dir, init: init}
	held, err := holderHere(dir)
	if err != nil {
		return nil, err
	}
	if held.Slave {
		same, err := sameFile(init, "/proc/self/ns/mnt")
		switch {
		case err != nil:
			return nil, s.invisible(err)
		case !same:
			s.foreign = true
		case held.Peers == "":
			return nil, s.invisible(errors.New("process 1 is in this mount namespace too"))
		}
	}
	if err := s.onThread(s.becomeMountPoint); err != nil {
		if s.foreign {
			return nil, s.invisible(err)
		}
		return nil, err
	}
	return s, nil
}

// Path is the file that a namespace of this name is pinned on, whether it exists or not.
func (s *Store) Path(name string) string { return filepath.Join(s.dir, name) }

// Create returns the namespace of this name (the caller closes the handle) and whether
// this call made it. A pin that an earlier call left half made is finished. The name
// consists of lower-case letters, digits and hyphens.
func (s *Store) Create(name string) (ns netns.NsHandle, created bool, err error) {
	ns, err = s.Handle(name)
	if !errors.Is(err, os.ErrNotExist) {
		return ns, false, err
	}
	path := s.Path(name)
	if err := s.onThread(func() error { return pinNew(path) }); err != nil {
		return netns.None(), false, fmt.Errorf("create namespace %s: %w", name, err)
	}
	ns, err = s.Handle(name)
	if errors.Is(err, os.ErrNotExist) {
		if undo := s.Delete(name); undo != nil {
			return netns.None(), false, s.invisible(undo)
		}
		return netns.None(), false, s.invisible(errors.New("the mount did not come back by propagation"))
	}
	return ns, err == nil, err
}

// Pin pins a namespace that there is. One that is pinned under this name already is left
// unchanged; another one there is an error.
func (s *Store) Pin(name string, ns netns.NsHandle) error {
	there, err := s.Handle(name)
	switch {
	case err == nil:
		defer there.Close()
		if !there.Equal(ns) {
			return fmt.Errorf("pin namespace %s: another one is pinned there", name)
		}
		return nil
	case !errors.Is(err, os.ErrNotExist):
		return err
	}
	path := s.Path(name)
	if err := s.onThread(func() error { return pinHeld(path, ns) }); err != nil {
		return fmt.Errorf("pin namespace %s: %w", name, err)
	}
	if there, err = s.Handle(name); err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return errors.Join(s.invisible(errors.New("the mount did not come back by propagation")), s.Delete(name))
	}
	return there.Close()
}

// Handle opens the namespace of this name; the caller closes it. The error is
// os.ErrNotExist if there is none, or only a half-made one.
func (s *Store) Handle(name string) (netns.NsHandle, error) {
	if !validName.MatchString(name) {
		return netns.None(), fmt.Errorf("namespace name %q: want lower-case letters, digits and hyphens", name)
	}
	fd, err := unix.Open(s.Path(name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return netns.None(), fmt.Errorf("namespace %s: %w", name, err)
	}
	if kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE); err != nil || kind != unix.CLONE_NEWNET {
		// ENOTTY: an ordinary file, which a killed Create left without its mount.
		_ = unix.Close(fd)
		return netns.None(), fmt.Errorf("namespace %s: no namespace on the file: %w", name, os.ErrNotExist)
	}
	return netns.NsHandle(fd), nil
}

// Delete removes the pin. The namespace goes when nothing else (a process, an open
// handle) holds it any more; the kernel does that behind the caller's back. An absent
// name is no error.
func (s *Store) Delete(name string) error {
	if !validName.MatchString(name) {
		return fmt.Errorf("namespace name %q: want lower-case letters, digits and hyphens", name)
	}
	path := s.Path(name)
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) && !s.foreign { // what we see says nothing about elsewhere
		return nil
	}
	if err := s.onThread(func() error { return unpin(path) }); err != nil {
		return fmt.Errorf("delete namespace %s: %w", name, err)
	}
	return nil
}

// List returns the names in the folder, sorted; half-made pins are among them, so that a
// sweep finds them too.
func (s *Store) List() ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	var names []string
	for _, entry := range entries {
		if validName.MatchString(entry.Name()) && !entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// Seen reports whether process 1, and what shares mounts with it, sees what is pinned here.
// Where it does not (a mount namespace with private mounts, such as `unshare -m` makes),
// all namespaces go with the last process of this one. In a container that has process 1
// of its own (a managed plugin of Docker's), what counts is the host's, of which
// /host/mountinfo tells.
func (s *Store) Seen() (bool, error) {
	if s.foreign {
		return true, nil
	}
	if seen, told, err := s.seenBy(hostMounts); told {
		return seen, err
	}
	if same, err := sameFile(s.init, "/proc/self/ns/mnt"); err != nil || same {
		return same, err
	}
	here, err := holderHere(s.dir)
	if err != nil {
		return false, err
	}
	file, err := os.Open(filepath.Join(filepath.Dir(s.init), "../mountinfo"))
	if err != nil {
		return false, fmt.Errorf("mounts of process 1: %w", err)
	}
	defer file.Close()
	there, err := holder(file, s.dir)
	return err == nil && here.Peers != "" && here.Peers == there.Peers, err
}

// seenBy reports whether one of the mounts that the file names has the peers of ours, under
// whatever path; told is false where there is no such file.
func (s *Store) seenBy(mountinfo string) (seen, told bool, err error) {
	file, err := os.Open(mountinfo)
	if errors.Is(err, os.ErrNotExist) {
		return false, false, nil
	}
	if err != nil {
		return false, true, fmt.Errorf("mounts of the host: %w", err)
	}
	defer file.Close()
	here, err := holderHere(s.dir)
	if err != nil || here.Peers == "" {
		return false, true, err
	}
	seen, err = hasPeers(file, here.Peers)
	return seen, true, err
}

// becomeMountPoint binds the folder onto itself and makes it shared, unless it is so already.
func (s *Store) becomeMountPoint() error {
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return fmt.Errorf("namespace folder: %w", err)
	}
	folder, err := os.Open(s.dir)
	if err != nil {
		return fmt.Errorf("namespace folder: %w", err)
	}
	defer folder.Close()
	// Two processes that open the folder concurrently must not bind it twice.
	if err := unix.Flock(int(folder.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", s.dir, err)
	}
	held, err := holderHere(s.dir)
	if err != nil {
		return err
	}
	if held.Point != s.dir {
		if err := unix.Mount(s.dir, s.dir, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind %s onto itself: %w", s.dir, err)
		}
		failpoint.Here("netns.open.bound")
		held = mount{}
	}
	if held.Peers != "" {
		return nil
	}
	if err := unix.Mount("", s.dir, "", unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make %s shared: %w", s.dir, err)
	}
	return nil
}

// onThread runs f on a thread of its own, in the mount namespace where pins are made.
func (s *Store) onThread(f func() error) error {
	return OnOwnThread(func() error {
		if !s.foreign {
			return f()
		}
		target, err := os.Open(s.init)
		if err != nil {
			return fmt.Errorf("mount namespace of process 1: %w", err)
		}
		defer target.Close()
		// A thread that shares its root and working directory with others may not change its
		// mount namespace.
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("unshare file system attributes: %w", err)
		}
		if err := unix.Setns(int(target.Fd()), unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("enter the mount namespace of process 1: %w", err)
		}
		return f()
	})
}

// pinNew makes a namespace and pins it on path; the calling thread stays in the new namespace.
func pinNew(path string) error {
	if err := makeFile(path); err != nil {
		return err
	}
	failpoint.Here("netns.create.file")
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		_ = os.Remove(path)
		return fmt.Errorf("new network namespace: %w", err)
	}
	// thread-self: /proc/self is the process's first thread, which is not in the new namespace.
	if err := unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""); err != nil {
		_ = os.Remove(path)
		return fmt.Errorf("pin namespace on %s: %w", path, err)
	}
	failpoint.Here("netns.create.pinned")
	return nil
}

// pinHeld pins a namespace on path by the handle of it, which serves in any mount namespace.
func pinHeld(path string, ns netns.NsHandle) error {
	if err := makeFile(path); err != nil {
		return err
	}
	failpoint.Here("netns.pin.file")
	if err := unix.Mount(fmt.Sprintf("/proc/thread-self/fd/%d", int(ns)), path, "", unix.MS_BIND, ""); err != nil {
		_ = os.Remove(path)
		return fmt.Errorf("pin namespace on %s: %w", path, err)
	}
	failpoint.Here("netns.pin.pinned")
	return nil
}

// makeFile makes the empty file that a namespace is mounted on, in place of what a killed
// call left.
func makeFile(path string) error {
	if err := unpin(path); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return err
	}
	return file.Close()
}

// unpin unmounts whatever is on path, however often, and removes it.
func unpin(path string) error {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
	failpoint.Here("netns.delete.unmounted")
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func (s *Store) invisible(cause error) error {
	return fmt.Errorf("%w: %s is a slave mount (a sandbox of systemd, or a pod): run with "+
		"MountFlags=shared and without the unit's own mount namespace, "+
		"or with mountPropagation: Bidirectional on the volume, or with hostPID: true: %w", ErrInvisible, s.dir, cause)
}

func sameFile(a, b string) (bool, error) {
	var sa, sb unix.Stat_t
	if err := unix.Stat(a, &sa); err != nil {
		return false, fmt.Errorf("%s: %w", a, err)
	}
	if err := unix.Stat(b, &sb); err != nil {
		return false, fmt.Errorf("%s: %w", b, err)
	}
	return sa.Dev == sb.Dev && sa.Ino == sb.Ino, nil
}

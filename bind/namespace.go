//go:build linux

package bind

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/kuryr/kuryr/sdn"
	"golang.org/x/sys/unix"
)

// namespace is an open network namespace. Sockets and open files keep a namespace alive
// that has no other user any more, so that what its owner deletes would stay: one is held
// for the length of a call and never cached. (A socket costs 4 % of a Plug.)
type namespace struct {
	fd   int
	path string // "" for the binder's own
}

// openNamespace opens path, or for "" the binder's own. The error IsNotFound where there
// is no network namespace on path, also where there is only the empty file of a half-made
// pin.
func (h *host) openNamespace(path string) (namespace, error) {
	if path == "" {
		fd, err := unix.FcntlInt(h.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return namespace{}, fmt.Errorf("own network namespace: %w", err)
		}
		return namespace{fd: fd}, nil
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ESRCH) {
		return namespace{}, sdn.NotFound("network namespace", path)
	}
	if err != nil {
		return namespace{}, fmt.Errorf("network namespace %s: %w", path, err)
	}
	if kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE); err != nil || kind != unix.CLONE_NEWNET {
		_ = unix.Close(fd)
		return namespace{}, &sdn.Error{
			Kind: sdn.KindNotFound, Noun: "network namespace", ID: path,
			Detail: "the file is no network namespace",
		}
	}
	return namespace{fd: fd, path: path}, nil
}

func (n namespace) close() { _ = unix.Close(n.fd) }

// String names the namespace in errors and logs.
func (n namespace) String() string {
	if n.path == "" {
		return "the host's namespace"
	}
	return n.path
}

func (n namespace) same(other namespace) (bool, error) {
	var a, b unix.Stat_t
	if err := unix.Fstat(n.fd, &a); err != nil {
		return false, fmt.Errorf("%s: %w", n, err)
	}
	if err := unix.Fstat(other.fd, &b); err != nil {
		return false, fmt.Errorf("%s: %w", other, err)
	}
	return a.Dev == b.Dev && a.Ino == b.Ino, nil
}

// socket enters the namespace with the calling thread, which must be a visitor's, and
// opens a socket there.
func (n namespace) socket() (*socket, error) {
	if err := unix.Setns(n.fd, unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("enter %s: %w", n, err)
	}
	return openSocket()
}

// within runs do on a visitor's thread, with a socket in the namespace.
func (n namespace) within(do func(*socket) error) error {
	return visit(func() error {
		s, err := n.socket()
		if err != nil {
			return err
		}
		defer s.close()
		return do(s)
	})
}

// host is the network namespace that the binder was made in. It is a file and no descriptor, so
// that closing it twice cannot close another descriptor.
type host struct{ file *os.File }

func openHost() (*host, error) {
	file, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("own network namespace: %w", err)
	}
	return &host{file: file}, nil
}

func (h *host) close() error { return h.file.Close() }

// visit runs f on a thread that may change its namespace as it likes: it is put back afterwards.
func visit(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		back, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("network namespace of the thread: %w", err)
			return
		}
		err = f()
		// A thread that cannot go back stays locked, so it ends with this goroutine.
		if unix.Setns(back, unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		_ = unix.Close(back)
		done <- err
	}()
	return <-done
}

// writeSysctl writes a setting of a device in the calling thread's namespace:
// /proc/sys/net shows each thread its own. A setting that is absent (a kernel without
// IPv6) is no error.
func writeSysctl(family, device, name, value string) error {
	path := "/proc/sys/net/" + family + "/conf/" + device + "/" + name
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	if _, err := unix.Write(fd, []byte(value)); err != nil {
		return &os.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

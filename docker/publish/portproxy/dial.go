//go:build linux

package portproxy

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/internal/netns"
	"github.com/kuryr/kuryr/sdn"
)

// dial connects to a Forward's target from within its namespace. Only the socket is made
// there, which takes a thread for microseconds; a socket stays in the namespace it was
// made in, so the connecting is waited for as for any other.
func dial(f Forward) (net.Conn, error) {
	ns, err := openNamespace(f.Namespace)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	kind := unix.SOCK_STREAM
	if f.Protocol == sdn.UDP {
		kind = unix.SOCK_DGRAM
	}
	family, target := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{
		Port: int(f.Target.Port()), Addr: f.Target.Addr().As16(),
	})
	if f.Target.Addr().Is4() {
		family, target = unix.AF_INET, &unix.SockaddrInet4{Port: int(f.Target.Port()), Addr: f.Target.Addr().As4()}
	}
	var fd int
	err = netns.Do(ns, func() (err error) {
		fd, err = unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		return os.NewSyscallError("socket", err)
	})
	if err != nil {
		return nil, err
	}
	err = unix.Connect(fd, target)
	file := os.NewFile(uintptr(fd), "proxy")
	defer file.Close() // FileConn takes a copy
	if errors.Is(err, unix.EINPROGRESS) {
		err = connected(file)
	}
	if err != nil {
		return nil, os.NewSyscallError("connect", err)
	}
	return net.FileConn(file)
}

// openNamespace opens the file of a network namespace, and no other file.
func openNamespace(path string) (vnetns.NsHandle, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return vnetns.None(), fmt.Errorf("namespace %s: %w", path, err)
	}
	if kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE); err != nil || kind != unix.CLONE_NEWNET {
		_ = unix.Close(fd)
		return vnetns.None(), fmt.Errorf("namespace %s: it is no network namespace", path)
	}
	return vnetns.NsHandle(fd), nil
}

// connected waits until a socket that connects has done so, or has failed.
func connected(file *os.File) error {
	if err := file.SetWriteDeadline(time.Now().Add(DialTime)); err != nil {
		return err
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var outcome error
	err = raw.Write(func(fd uintptr) bool {
		failed, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		switch {
		case err != nil:
			outcome = err
		case failed != 0:
			outcome = unix.Errno(failed)
		default:
			if _, err := unix.Getpeername(int(fd)); err != nil {
				return false // not yet
			}
		}
		return true
	})
	return errors.Join(err, outcome)
}

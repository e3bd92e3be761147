package cni

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNoDaemon says that nobody answers on the socket.
var ErrNoDaemon = errors.New("the daemon (kuryr node) does not run")

// ErrNoAPI says that nothing names a Kubernetes API that could be asked instead.
var ErrNoAPI = errors.New("no Kubernetes API is named")

// dialLimit bounds the wait for a place in the socket's queue.
const dialLimit = 5 * time.Second

// Ask has the daemon at the socket do the call, and gives what is to be written to standard output. The error is ErrNoDaemon where nothing was asked; another is the daemon's, or says that
// its answer has not come within the limit.
func Ask(socket string, c Call, limit time.Duration) ([]byte, error) {
	conn, err := dial(socket)
	if err != nil {
		return nil, errors.Join(ErrNoDaemon, err)
	}
	defer conn.Close()
	if err := bound(conn, limit); err != nil {
		return nil, IOFailure.Errorf("socket %s: %v", socket, err)
	}
	if err := WriteFrame(conn, NewRequest(c)); err != nil {
		return nil, lost(socket, err)
	}
	var r Reply
	if err := ReadFrame(conn, &r); err != nil {
		return nil, lost(socket, err)
	}
	if r.Least > Protocol {
		return nil, IncompatibleVersion.Errorf("the daemon speaks protocol %d, and kuryr-cni only %d: upgrade kuryr-cni", r.Protocol, Protocol)
	}
	if r.Error != nil {
		return nil, r.Error
	}
	return r.Output, nil
}

// dial connects by a socket that blocks. Package net's would be waited for by other threads, whose start costs a program that does nothing else more than the whole call.
func dial(socket string) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	conn := os.NewFile(uintptr(fd), socket)
	wait := unix.NsecToTimeval(dialLimit.Nanoseconds())
	if err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &wait); err == nil {
		for {
			if err = unix.Connect(fd, &unix.SockaddrUnix{Name: socket}); !errors.Is(err, unix.EINTR) {
				break
			}
		}
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("connect to %s: %w", socket, err)
	}
	return conn, nil
}

// bound has each part of what is written and read come within the limit.
func bound(conn *os.File, limit time.Duration) error {
	wait := unix.NsecToTimeval(limit.Nanoseconds())
	return errors.Join(unix.SetsockoptTimeval(int(conn.Fd()), unix.SOL_SOCKET, unix.SO_SNDTIMEO, &wait), unix.SetsockoptTimeval(int(conn.Fd()), unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait))
}

// lost says that the daemon has gone in the midst: whether the call was done is not known, and the runtime asks again.
func lost(socket string, err error) error {
	if errors.Is(err, unix.EAGAIN) {
		return TimedOut.Errorf("the daemon at %s has not answered in time", socket)
	}
	return TryAgain.Errorf("the daemon at %s has ended before it answered: %v", socket, err)
}

//go:build linux

// Package rootsock makes Unix sockets that only root can talk to.
//
// It owns the socket file: its folder, its mode, its removal, and who may connect. It
// must not know what is served on it.
package rootsock

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// maxPath is how long the path of a socket can be (unix(7): sun_path with its closing
// zero byte), the temporary name included.
const maxPath = 107 - len(temporary)

const temporary = ".new"

// ErrInUse says that another process answers on the socket.
var ErrInUse = errors.New("another process answers there")

// Listen makes a stream socket at path with mode 0600, and its folder with mode 0755 if
// that is missing. A socket without a listener is replaced; where one
// answers the error is ErrInUse. The file appears under its name only when it is ready to
// be connected to, with the right mode. Connections of other users than root and this
// process's own are closed immediately (SO_PEERCRED). Closing the listener removes the file,
// if it is still this listener's.
func Listen(path string) (net.Listener, error) {
	if len(path) > maxPath {
		return nil, fmt.Errorf("socket %s: the path is %d bytes long; the kernel takes at most %d", path, len(path), maxPath)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("folder of socket: %w", err)
	}
	if err := vacate(path); err != nil {
		return nil, err
	}
	fresh := path + temporary
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false)
	info, err := expose(fresh, path)
	if err != nil {
		_ = l.Close()
		_ = os.Remove(fresh)
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	return &listener{UnixListener: l, path: path, file: info}, nil
}

// vacate makes sure that no socket at path is answered, and that nothing but a socket is replaced.
func vacate(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("socket %s: a file that is not a socket is there: remove it", path)
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		return nil
	}
	_ = conn.Close()
	return fmt.Errorf("socket %s: %w", path, ErrInUse)
}

func expose(fresh, path string) (fs.FileInfo, error) {
	if err := os.Chmod(fresh, 0o600); err != nil {
		return nil, err
	}
	if err := os.Rename(fresh, path); err != nil {
		return nil, err
	}
	return os.Lstat(path)
}

type listener struct {
	*net.UnixListener
	path string
	file fs.FileInfo
	once sync.Once
}

// Accept returns the next connection of a user who may connect.
func (l *listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if uid, err := PeerUID(conn); err == nil && (uid == 0 || int(uid) == os.Geteuid()) {
			return conn, nil
		}
		_ = conn.Close()
	}
}

// Close stops listening and removes the socket's file, unless another listener has
// replaced it.
func (l *listener) Close() error {
	l.once.Do(func() {
		if now, err := os.Lstat(l.path); err == nil && os.SameFile(now, l.file) {
			_ = os.Remove(l.path)
		}
	})
	return l.UnixListener.Close()
}

// Addr names the socket by the path it is known at.
func (l *listener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

// PeerUID is the user at the other end of a Unix connection when it connected.
func PeerUID(conn *net.UnixConn) (uint32, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("peer of socket: %w", err)
	}
	var cred *unix.Ucred
	var asked error
	err = raw.Control(func(fd uintptr) {
		cred, asked = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, asked); err != nil {
		return 0, fmt.Errorf("peer of socket: %w", err)
	}
	return cred.Uid, nil
}

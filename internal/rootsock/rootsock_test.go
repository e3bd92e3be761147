//go:build linux

package rootsock

import (
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestListenServesAndCleansUp(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "made", "k.sock")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("mode = %v, want a socket of 0600", info.Mode())
	}
	if got := l.Addr().String(); got != path {
		t.Errorf("Addr = %s, want %s", got, path)
	}
	go func() {
		conn, err := l.Accept()
		if err == nil {
			_, _ = conn.Write([]byte("x"))
			_ = conn.Close()
		}
	}()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		t.Errorf("our own user was refused: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket's file stays: %v", err)
	}
}

// Another user's connection is closed immediately, even where the file's mode lets it through.
func TestOtherUsersAreRefused(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user")
	}
	dir, err := os.MkdirTemp("/tmp", "rootsock-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "k.sock")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	accepted := make(chan net.Conn, 1)
	go func() {
		if conn, err := l.Accept(); err == nil {
			accepted <- conn
		}
	}()
	heard := make(chan error, 1)
	go func() {
		// Never unlocked: the thread, another user's now, ends with the goroutine.
		runtime.LockOSThread()
		const nobody = 65534
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); errno != 0 {
			heard <- errno
			return
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
		}
		if err == nil {
			var n int
			if n, err = unix.Read(fd, make([]byte, 1)); n == 0 && err == nil {
				err = io.EOF
			}
			_ = unix.Close(fd)
		}
		heard <- err
	}()
	if err := <-heard; !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("another user heard %v, want the end", err)
	}
	select {
	case <-accepted:
		t.Error("another user was let in")
	default:
	}
}

func TestListenRefusesWhatIsAnswered(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "k.sock")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := Listen(path); !errors.Is(err, ErrInUse) {
		t.Errorf("second Listen: %v, want ErrInUse", err)
	}
}

func TestListenReplacesDeadSocket(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "k.sock")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := Listen(path)
	if err != nil {
		t.Fatalf("Listen over a dead socket: %v", err)
	}
	_ = l.Close()
}

func TestListenKeepsForeignFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "k.sock")
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path); err == nil {
		t.Fatal("Listen replaced a file that is no socket")
	}
	if got, _ := os.ReadFile(path); string(got) != "precious" {
		t.Errorf("file now holds %q", got)
	}
}

func TestCloseKeepsSuccessor(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "k.sock")
	first, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	second, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("closing the first removed the second's socket: %v", err)
	}
}

func TestListenRefusesLongPath(t *testing.T) {
	t.Parallel()
	if _, err := Listen("/" + strings.Repeat("x", 120)); err == nil || !strings.Contains(err.Error(), "bytes long") {
		t.Errorf("error = %v", err)
	}
}

//go:build linux

// Package nstest lets kernel tests run in temporary network namespaces.
//
// It owns the re-execution of a test binary in a "host" of its own (network and mount
// namespace, plus a user namespace where root is missing) and the anonymous namespaces
// made inside it. It must not be imported by anything but tests.
package nstest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// init keeps the first thread for the goroutine of TestMain. Tests and what they test change the
// namespace of their threads, also in libraries, while /proc/self and /proc/PID show that of the
// first thread to all of them.
func init() { runtime.LockOSThread() }

// inside marks the process that already runs in the temporary host.
const inside = "KURYR_NSTEST_INSIDE"

// Main runs the tests of m in a temporary host and returns the exit code. The process
// that is started has a network namespace with only a loopback (up) and a private mount
// namespace with an empty tmpfs on /run; as a user other than root it is root of a user
// namespace. Where the kernel allows none of this, the tests still run, and New skips.
func Main(m *testing.M) int {
	if os.Getenv(inside) != "" {
		if err := prepare(); err != nil {
			fmt.Fprintln(os.Stderr, "nstest:", err)
			return 1
		}
		return m.Run()
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS,
		Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	// The child dies with the thread that started it, so that thread must stay.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	fmt.Fprintln(os.Stderr, "nstest: no temporary host on this machine, kernel tests are skipped:", err)
	return m.Run()
}

func prepare() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback: %w", err)
	}
	return netlink.LinkSetUp(lo)
}

// Require skips the test where Main could make no temporary host.
func Require(t testing.TB) {
	t.Helper()
	if os.Getenv(inside) == "" {
		t.Skip("needs network namespaces: run as root or where user namespaces are allowed")
	}
}

// RootsFiles skips the test where the machine's own files are not root's to this process:
// in a user namespace the root folder has another owner.
func RootsFiles(t testing.TB) {
	t.Helper()
	var root unix.Stat_t
	if err := unix.Lstat("/", &root); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 || root.Uid != 0 {
		t.Skip("needs to be root: what is not only root's to change is not trusted")
	}
}

// New makes an anonymous network namespace with its loopback up; it is closed, and so
// goes, when the test ends.
func New(t testing.TB) netns.NsHandle {
	t.Helper()
	Require(t)
	runtime.LockOSThread()
	back, err := netns.Get()
	if err != nil {
		t.Fatalf("current namespace: %v", err)
	}
	defer back.Close()
	made, err := netns.New()
	if err != nil {
		t.Fatalf("new namespace: %v", err)
	}
	if lo, err := netlink.LinkByName("lo"); err != nil {
		t.Fatalf("find loopback: %v", err)
	} else if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatalf("loopback up: %v", err)
	}
	if err := netns.Set(back); err != nil {
		t.Fatalf("back to the first namespace: %v", err) // the thread stays locked and dies with the goroutine
	}
	runtime.UnlockOSThread()
	t.Cleanup(func() { _ = made.Close() })
	return made
}

// Do runs f with its OS thread in ns. Goroutines that f starts, and processes they start,
// are not in ns; processes that f itself starts are.
func Do(t testing.TB, ns netns.NsHandle, f func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with the goroutine instead of going back to the pool.
		runtime.LockOSThread()
		if err := netns.Set(ns); err != nil {
			done <- err
			return
		}
		defer close(done)
		f()
	}()
	if err := <-done; err != nil {
		t.Fatalf("enter namespace: %v", err)
	}
}

var macs atomic.Uint32

// MAC returns a unicast MAC address that no earlier call has returned.
func MAC() net.HardwareAddr {
	n := macs.Add(1)
	return net.HardwareAddr{0x02, 0x6e, 0x73, byte(n >> 16), byte(n >> 8), byte(n)}
}

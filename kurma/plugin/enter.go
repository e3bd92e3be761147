//go:build linux

package plugin

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"

	"github.com/kuryr/kuryr/internal/netns"
	"golang.org/x/sys/unix"
)

// door is the way into a running container: what its runtime's "exec" would open anew for each call.
//
// Calls go through it without the runtime, whose exec costs several times what the plugin does. Nothing of the container is bypassed: it has mounts, a PID
// namespace and a set of capabilities, all of which are entered here, and no more (see spec).
type door struct{ mounts, pids *os.File }

func openDoor(pid int) (door, error) {
	mounts, err := os.Open("/proc/" + strconv.Itoa(pid) + "/ns/mnt")
	if err != nil {
		return door{}, fmt.Errorf("container: %w", err)
	}
	pids, err := os.Open("/proc/" + strconv.Itoa(pid) + "/ns/pid")
	if err != nil {
		_ = mounts.Close()
		return door{}, fmt.Errorf("container: %w", err)
	}
	return door{mounts, pids}, nil
}

func (d door) close() {
	_ = d.mounts.Close()
	_ = d.pids.Close()
}

// start starts cmd in the container. An error is one of the kernel's: the program is not there, or cannot be executed.
func (d door) start(cmd *exec.Cmd) error {
	return netns.OnOwnThread(func() error {
		// A thread that shares its root and working directory with others may not change its mount namespace.
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("enter the container: %w", err)
		}
		if err := unix.Setns(int(d.pids.Fd()), unix.CLONE_NEWPID); err != nil {
			return fmt.Errorf("enter the container's processes: %w", err)
		}
		if err := unix.Setns(int(d.mounts.Fd()), unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("enter the container's mounts: %w", err)
		}
		if err := boundCapabilities(); err != nil {
			return err
		}
		return cmd.Start()
	})
}

// boundCapabilities takes from the calling thread, for what it executes, all capabilities that a plugin has not: root's are those of the bounding set, and the
// inheritable ones (capabilities(7)), which whoever started this process may have set.
func boundCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3} // of the calling thread
	var sets [2]unix.CapUserData
	err := unix.Capget(&header, &sets[0])
	if err == nil {
		sets[0].Inheritable, sets[1].Inheritable = 0, 0
		err = unix.Capset(&header, &sets[0])
	}
	if err != nil {
		return fmt.Errorf("drop inheritable capabilities: %w", err)
	}
	for c := uintptr(0); ; c++ {
		has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0)
		if err != nil { // one more than the kernel knows
			return nil
		}
		if has == 0 || slices.Contains(keptBits, c) {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
}

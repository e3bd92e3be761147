//go:build linux

// Package procsys makes /proc/sys writable where a container runtime has mounted it read-only over it.
//
// It owns that one mount in a mount namespace that is a container's own: Docker gives a managed plugin no way to ask for it,
// and Kuryr sets sysctls of the namespaces it makes. It must not touch the mounts of a host, nor write a sysctl.
package procsys

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const path = "/proc/sys"

// MakeWritable remounts /proc/sys where this process is the first of a pid namespace, thus alone in a container, and it is read-only. Anywhere else
// it does nothing. It tells whether it did something.
func MakeWritable() (bool, error) {
	if os.Getpid() != 1 {
		return false, nil
	}
	return makeWritable(path)
}

func makeWritable(path string) (bool, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	if fs.Flags&unix.ST_RDONLY == 0 {
		return false, nil
	}
	// Of this mount alone (MS_BIND): what else shows the same file system stays as it is.
	if err := unix.Mount("", path, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return false, fmt.Errorf("make %s writable (it takes CAP_SYS_ADMIN): %w", path, err)
	}
	return true, nil
}

//go:build linux

package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// makeProcSysWritable remounts /proc/sys where this process is the first of a pid namespace,
// thus alone in a container, and a container runtime has mounted it read-only. Kuryr sets
// sysctls of the namespaces that it makes, and Docker gives a managed plugin no way to ask
// for a writable mount. Elsewhere the function does nothing.
func makeProcSysWritable() error {
	if os.Getpid() != 1 {
		return nil
	}
	return remountWritable("/proc/sys")
}

// remountWritable makes the mount at path writable, if it is not.
func remountWritable(path string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if fs.Flags&unix.ST_RDONLY == 0 {
		return nil
	}
	// MS_BIND changes this mount alone and no other mount of the same file system.
	const flags = unix.MS_REMOUNT | unix.MS_BIND | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("", path, "", flags, ""); err != nil {
		return fmt.Errorf("make %s writable (it takes CAP_SYS_ADMIN): %w", path, err)
	}
	return nil
}

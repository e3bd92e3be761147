//go:build linux

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kuryr/kuryr/internal/nstest"
	"golang.org/x/sys/unix"
)

func TestRemountWritable(t *testing.T) {
	t.Parallel()
	nstest.Require(t)
	base := t.TempDir()
	real, shown := filepath.Join(base, "real"), filepath.Join(base, "shown")
	for _, dir := range []string{real, shown} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	mount := func(source, target, kind string, flags uintptr) {
		t.Helper()
		if err := unix.Mount(source, target, kind, flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	mount("tmpfs", real, "tmpfs", 0)
	t.Cleanup(func() { _ = unix.Unmount(real, unix.MNT_DETACH) })
	// As runc does with its read-only paths.
	mount(real, shown, "", unix.MS_BIND)
	t.Cleanup(func() { _ = unix.Unmount(shown, unix.MNT_DETACH) })
	mount("", shown, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY)
	file := filepath.Join(shown, "ip_forward")
	if err := os.WriteFile(file, nil, 0o644); err == nil {
		t.Fatal("it is not read-only at first")
	}
	for range 2 { // the second time it is writable already
		if err := remountWritable(shown); err != nil {
			t.Error(err)
		}
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			t.Error(err)
		}
	}
	if err := remountWritable(filepath.Join(base, "absent")); err == nil {
		t.Error("an absent path was made writable")
	}
	// The test process is not the first of its pid namespace.
	if err := makeProcSysWritable(); err != nil {
		t.Errorf("outside a container: %v", err)
	}
}

//go:build linux

package procsys

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kuryr/kuryr/internal/nstest"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { os.Exit(nstest.Main(m)) }

func TestMakeWritable(t *testing.T) {
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
	for i, want := range []bool{true, false} {
		if did, err := makeWritable(shown); did != want || err != nil {
			t.Errorf("call %d: did %v, %v", i, did, err)
		}
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			t.Error(err)
		}
	}
	if _, err := makeWritable(filepath.Join(base, "absent")); err == nil {
		t.Error("an absent path was made writable")
	}
	// This process is no container's first one.
	if did, err := MakeWritable(); did || err != nil {
		t.Errorf("outside a container: did %v, %v", did, err)
	}
}

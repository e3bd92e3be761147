//go:build linux

package plugin

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// cover mounts something on a folder, which so cannot be removed.
func cover(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(unix.Unmount(dir, unix.MNT_DETACH), os.Remove(dir)); err != nil {
			t.Error(err)
		}
	})
}

// What an earlier daemon has left and cannot be removed does not keep networks from running.
func TestLeftOvers(t *testing.T) {
	h := newHost(t, "")
	p, stop, err := open(h.cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.cgroups.close) // after what is in it
	cover(t, filepath.Join(p.cgroups.dir, "call-1-1"))
	cover(t, filepath.Join(p.containers(), "kuryr-old-0", "upper"))
	cover(t, filepath.Join(p.cfg.State, "old", "volumes", "a"))
	if err := stop(p.Close); err != nil {
		t.Fatal(err)
	}
	p = h.open(t)
	h.apply(t, p, nobody, entry("one", "", "{}"))
	until(t, p, "one", running)
}

// An entry of an earlier configuration that is not understood any more stops no network, and its volumes stay.
func TestEntryNotUnderstood(t *testing.T) {
	h := newHost(t, "")
	generations := filepath.Join(h.cfg.State, "old", "generations")
	volume := filepath.Join(h.cfg.State, "old", "volumes", "leases")
	if err := errors.Join(os.MkdirAll(generations, 0o700), os.MkdirAll(volume, 0o700), os.WriteFile(filepath.Join(generations, "0.json"), []byte(`{"name":"old"}`), 0o600)); err != nil {
		t.Fatal(err)
	}
	p := h.open(t)
	h.apply(t, p, nobody, entry("one", "", "{}"))
	until(t, p, "one", running)
	if _, err := os.Stat(volume); err != nil {
		t.Error(err)
	}
}

// A plugin has made groups of its own in that of a call.
func TestGroupInGroup(t *testing.T) {
	h := newHost(t, "")
	p := h.open(t)
	g, err := p.cgroups.make("call-1-1")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(g.path, "a", "b"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := g.end(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(g.path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is left: %v", err)
	}
}

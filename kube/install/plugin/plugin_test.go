package plugin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCopy(t *testing.T) {
	t.Parallel()
	from := filepath.Join(t.TempDir(), "kuryr-cni")
	write := func(path, content string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	write(from, "new plugin", 0o700)
	fresh, old, same := t.TempDir(), t.TempDir(), t.TempDir()
	write(filepath.Join(old, Name), "old plugin", 0o755)
	write(filepath.Join(same, Name), "new plugin", 0o755)
	running, err := os.Open(filepath.Join(old, Name)) // as a runtime has it that runs it
	if err != nil {
		t.Fatal(err)
	}
	defer running.Close()
	before, err := os.Stat(filepath.Join(same, Name))
	if err != nil {
		t.Fatal(err)
	}
	if err := Copy(from, fresh, old, same); err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{fresh, old, same} {
		path := filepath.Join(folder, Name)
		data, err := os.ReadFile(path)
		info, _ := os.Stat(path)
		if err != nil || string(data) != "new plugin" || info.Mode() != 0o755 {
			t.Errorf("%s: %q, %v, %v", path, data, info.Mode(), err)
		}
		if left, _ := os.ReadDir(folder); len(left) != 1 {
			t.Errorf("%s has %v", folder, left)
		}
	}
	was := make([]byte, 3)
	if _, err := running.ReadAt(was, 0); err != nil || string(was) != "old" {
		t.Errorf("what runs was overwritten: %q, %v", was, err)
	}
	if after, _ := os.Stat(filepath.Join(same, Name)); !os.SameFile(before, after) {
		t.Error("a plugin that was the same was replaced")
	}
	if err := Copy(from, filepath.Join(fresh, "none"), old); err == nil || !strings.Contains(err.Error(), filepath.Join(fresh, "none")) {
		t.Errorf("a folder that is not there: %v", err)
	}
	if err := Copy(filepath.Join(fresh, "none"), fresh); err == nil {
		t.Error("no plugin, and no error")
	}
}

// What the plugin runs where no daemon is comes with it.
func TestCopyBeside(t *testing.T) {
	t.Parallel()
	from, to := t.TempDir(), t.TempDir()
	for name, content := range map[string]string{"kuryr-cni": "plugin", Beside: "beside", "other": "not for a node"} {
		if err := os.WriteFile(filepath.Join(from, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := Copy(filepath.Join(from, "kuryr-cni"), to); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{Name: "plugin", Beside: "beside"} {
			data, err := os.ReadFile(filepath.Join(to, name))
			info, _ := os.Stat(filepath.Join(to, name))
			if err != nil || string(data) != want || info.Mode() != 0o755 {
				t.Errorf("%s: %q, %v", name, data, err)
			}
		}
		if all, _ := os.ReadDir(to); len(all) != 2 {
			t.Errorf("%v", all)
		}
	}
}

func TestRemove(t *testing.T) {
	t.Parallel()
	dir, empty := t.TempDir(), t.TempDir()
	for _, name := range []string{Name, Beside, "bridge"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := Remove(dir, empty, filepath.Join(empty, "none")); err != nil {
			t.Fatal(err)
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != "bridge" {
		t.Errorf("left are %v, %v", left, err)
	}
	if err := os.MkdirAll(filepath.Join(dir, Name, "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Remove(dir); err == nil {
		t.Error("what cannot be removed is no error")
	}
}

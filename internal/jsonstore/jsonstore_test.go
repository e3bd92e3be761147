package jsonstore

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

type note struct{ Text string }

func TestStore(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(string) (*Store, error){
		"durable": Open, "volatile": OpenVolatile,
		"shared": func(dir string) (*Store, error) { return Shared(dir), nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testStore(t, open)
		})
	}
}

func testStore(t *testing.T, open func(string) (*Store, error)) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "a", "b")
	s, err := open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if all, err := Load[note](s); len(all) != 0 || err != nil {
		t.Errorf("new store contains %v, error %v", all, err)
	}
	for _, n := range []note{{"first"}, {"second"}} {
		if err := s.Put("x.1", n); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Put("y", note{"other"}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time it is missing
		if err := s.Delete("y"); err != nil {
			t.Fatal(err)
		}
	}
	if v, found, err := Get[note](s, "y"); found || err != nil {
		t.Errorf("deleted value %v, error %v", v, err)
	}
	if info, err := os.Stat(filepath.Join(dir, "x.1.json")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("file %v, %v", info, err)
	}
	for name, text := range map[string]string{"broken.json": "{", "README": "hello"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if s, err = open(dir); err != nil {
		t.Fatal(err)
	}
	all, err := Load[note](s)
	if err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("error %v does not name the broken file", err)
	}
	if len(all) != 1 || all["x.1"].Text != "second" {
		t.Errorf("values %v", all)
	}
	if v, found, err := Get[note](s, "x.1"); !found || v.Text != "second" || err != nil {
		t.Errorf("value %v, found %v, error %v", v, found, err)
	}
}

// Open removes what a killed Put left. A shared store must not: another process may be
// writing there.
func TestUnfinished(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	left := filepath.Join(dir, ".kuryr-1")
	if err := os.WriteFile(left, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if all, err := Load[note](Shared(dir)); len(all) != 0 || err != nil {
		t.Errorf("values %v, error %v", all, err)
	}
	if _, err := os.Stat(left); err != nil {
		t.Error(err)
	}
	if _, err := Open(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("unfinished file still exists: %v", err)
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", "../x", "a/b", ".hidden", strings.Repeat("a", 201)} {
		if _, _, err := Get[note](s, name); err == nil || s.Put(name, note{}) == nil || s.Delete(name) == nil {
			t.Errorf("%q is accepted as a name", name)
		}
	}
	if s.Put("long", note{strings.Repeat("a", MaxSize)}) == nil {
		t.Error("a value larger than MaxSize is written")
	}
	if err := os.WriteFile(filepath.Join(s.Dir(), "long.json"), make([]byte, MaxSize+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if all, err := Load[note](s); len(all) != 0 || err == nil || !strings.Contains(err.Error(), "limit") {
		t.Errorf("values %v, error %v", all, err)
	}
}

func TestNil(t *testing.T) {
	t.Parallel()
	s, err := Open("")
	if s != nil || err != nil {
		t.Fatal(s, err)
	}
	if err := errors.Join(s.Put("x", note{}), s.Delete("x")); err != nil {
		t.Error(err)
	}
	if all, err := Load[note](s); len(all) != 0 || err != nil {
		t.Errorf("values %v, error %v", all, err)
	}
	if _, found, err := Get[note](s, "x"); found || err != nil {
		t.Errorf("found %v, error %v", found, err)
	}
}

func TestFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	if _, err := ReadFile[note](path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read a missing file: %v", err)
	}
	if err := WriteFile(path, note{"text"}); err != nil {
		t.Fatal(err)
	}
	if v, err := ReadFile[note](path); err != nil || v.Text != "text" {
		t.Errorf("value %v, error %v", v, err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadFile[note](path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v does not name the file", err)
	}
}

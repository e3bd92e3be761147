package records

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

type note struct{ Text string }

func TestFolder(t *testing.T) {
	t.Parallel()
	for _, open := range []func(string) (*Folder, error){Open, OpenVolatile} {
		testFolder(t, open)
	}
}

func testFolder(t *testing.T, open func(string) (*Folder, error)) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "a", "b")
	f, err := open(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []note{{"first"}, {"second"}} {
		if err := f.Put("x.1", n); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Put("y", note{"other"}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // an absent one is no error
		if err := f.Delete("y"); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "x.1.json")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("file %v, %v", info, err)
	}
	// A killed Put, a record that cannot be read, and a file that is none of ours.
	for name, text := range map[string]string{"z.json.tmp": `{"Te`, "broken.json": "{", "README": "hello"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if f, err = open(dir); err != nil {
		t.Fatal(err)
	}
	all, err := Load[note](f)
	if err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("error %v does not name the broken record", err)
	}
	if len(all) != 1 || all["x.1"].Text != "second" {
		t.Errorf("records %v", all)
	}
	if _, err := os.Stat(filepath.Join(dir, "z.json.tmp")); !os.IsNotExist(err) {
		t.Errorf("an unfinished record is still there: %v", err)
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	f, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", "../x", "a/b", ".hidden", strings.Repeat("a", 201)} {
		if f.Put(name, note{}) == nil || f.Delete(name) == nil {
			t.Errorf("%q is taken for a record's name", name)
		}
	}
	if f.Put("long", note{strings.Repeat("a", MaxSize)}) == nil {
		t.Error("a record beyond MaxSize is kept")
	}
	if all, err := Load[note](f); len(all) != 0 || err != nil {
		t.Errorf("%v, %v", all, err)
	}
}

func TestNilFolder(t *testing.T) {
	t.Parallel()
	f, err := Open("")
	if f != nil || err != nil {
		t.Fatal(f, err)
	}
	if err := f.Put("x", note{}); err != nil {
		t.Error(err)
	}
	if err := f.Delete("x"); err != nil {
		t.Error(err)
	}
	if all, err := Load[note](f); len(all) != 0 || err != nil {
		t.Errorf("%v, %v", all, err)
	}
}

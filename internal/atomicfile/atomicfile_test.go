package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestWrite(t *testing.T) {
	t.Parallel()
	failed := errors.New("failed")
	for name, write := range map[string]func(string, []byte, fs.FileMode) error{
		"durable": WriteFile, "volatile": WriteVolatile,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path := filepath.Join(dir, "file")
			for _, text := range []string{"a long first text", "second"} {
				if err := write(path, []byte(text), 0o640); err != nil {
					t.Fatal(err)
				}
			}
			err := Write(path, 0o600, func(f *os.File) error {
				_, err := f.WriteString("partial")
				return errors.Join(err, failed)
			})
			if !errors.Is(err, failed) {
				t.Errorf("error of a failed write: %v", err)
			}
			text, err := os.ReadFile(path)
			if err != nil || string(text) != "second" {
				t.Errorf("file contains %q, error %v", text, err)
			}
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
				t.Errorf("file %v, error %v", info, err)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
				t.Errorf("folder contains %v, error %v", left, err)
			}
			if err := write(filepath.Join(dir, "none", "file"), nil, 0o600); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("error in a missing folder: %v", err)
			}
		})
	}
}

func TestClean(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	left, err := os.CreateTemp(dir, temporary) // as after a kill
	if err != nil {
		t.Fatal(err)
	}
	_ = left.Close()
	if err := os.WriteFile(filepath.Join(dir, ".other"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Clean(dir); err != nil {
		t.Error(err)
	}
	if all, err := os.ReadDir(dir); err != nil || len(all) != 1 || all[0].Name() != ".other" {
		t.Errorf("folder contains %v, error %v", all, err)
	}
	if err := Clean(filepath.Join(dir, "none")); err != nil {
		t.Errorf("error in a missing folder: %v", err)
	}
}

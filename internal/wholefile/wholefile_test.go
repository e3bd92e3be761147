package wholefile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	says := func(text string, err error) func(io.Writer) error {
		return func(w io.Writer) error {
			if _, err := io.WriteString(w, text); err != nil {
				return err
			}
			return err
		}
	}
	if err := Write(path, 0o640, says("first", nil)); err != nil {
		t.Fatal(err)
	}
	failed := errors.New("failed")
	if err := Write(path, 0o640, says("half of the sec", failed)); !errors.Is(err, failed) {
		t.Errorf("the error is %v", err)
	}
	text, err := os.ReadFile(path)
	info, errStat := os.Stat(path)
	if err := errors.Join(err, errStat); err != nil || string(text) != "first" || info.Mode().Perm() != 0o640 {
		t.Errorf("it says %q, error %v", text, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("the folder has %v, error %v", left, err)
	}
	if err := Write(filepath.Join(dir, "none", "file"), 0o600, says("", nil)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("in a folder that is not there: %v", err)
	}
}

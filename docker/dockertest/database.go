package dockertest

import (
	"os"
	"path/filepath"
	"testing"
)

// CopyDatabase copies the folder of a database as a kill of its process leaves it, and returns the
// path of the copy. The process may have the database open.
func CopyDatabase(t testing.TB, path string) string {
	t.Helper()
	folder := t.TempDir()
	if err := os.CopyFS(folder, os.DirFS(filepath.Dir(path))); err != nil {
		t.Error(err)
	}
	return filepath.Join(folder, filepath.Base(path))
}

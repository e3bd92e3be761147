//go:build linux && failpoints

package local

import (
	"path/filepath"
	"testing"
)

// A store whose making was killed is made by the next start, and no other file stays.
func TestCreationKilled(t *testing.T) {
	for _, at := range []string{"local.create.made", "local.create.linked"} {
		path := filepath.Join(t.TempDir(), "sdn.db")
		fatal(t, victim{Store: path}.kill(at))
		if err := migrateToNext(path, func() { t.Errorf("after %s there is an old store", at) }); err != nil {
			t.Errorf("after %s: %v", at, err)
		}
		if files, _ := filepath.Glob(path + "*"); len(files) != 1 {
			t.Errorf("after %s there are %v", at, files)
		}
	}
}

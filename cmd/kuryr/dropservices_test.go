//go:build linux

package main

import (
	"log/slog"
	"testing"

	"github.com/kuryr/kuryr/datapath/guard"
	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/internal/nstest"
)

// What Services had of the host goes, also where nothing was recorded as the host passed packets on before.
func TestDropServices(t *testing.T) {
	nstest.Require(t)
	cfg := config.Default()
	cfg.StateDir = t.TempDir()
	nstest.Do(t, nstest.New(t), func() {
		if err := guard.Set(legInterface); err != nil {
			t.Fatal(err)
		}
		for _, some := range []bool{true, false} {
			done, err := dropServices(t.Context(), cfg, slog.New(slog.DiscardHandler))
			if err != nil || len(done) > 0 != some {
				t.Errorf("%v, %v", done, err)
			}
			if there, err := hasTable(guard.Table); there || err != nil {
				t.Errorf("the guard is left: %v, %v", there, err)
			}
		}
	})
}

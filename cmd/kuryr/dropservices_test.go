//go:build linux

package main

import (
	"log/slog"
	"testing"

	"github.com/kuryr/kuryr/datapath/guard"
	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/internal/nstest"
)

// A daemon that was killed between its guard and its record leaves the guard alone, which goes with Services all the same.
func TestGuardWithoutARecordGoes(t *testing.T) {
	nstest.Require(t)
	nstest.Do(t, nstest.New(t), func() {
		if err := guard.Set(legInterface); err != nil {
			t.Fatal(err)
		}
		cfg := config.Default()
		cfg.StateDir = t.TempDir()
		if _, err := dropServices(t.Context(), cfg, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		if there, err := hasTable("kuryr_guard"); there || err != nil {
			t.Errorf("the guard is there: %v, %v", there, err)
		}
	})
}

//go:build linux

package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/nftables"

	"github.com/kuryr/kuryr/datapath/firewall"
	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/internal/nstest"
)

// What Services had of the host goes, also where nothing was recorded as the host passed packets on before.
func TestDropServices(t *testing.T) {
	nstest.Require(t)
	cfg := config.Default()
	cfg.StateDir = t.TempDir()
	nstest.Do(t, nstest.New(t), func() {
		if err := firewall.GuardLink(legInterface); err != nil {
			t.Fatal(err)
		}
		for _, some := range []bool{true, false} {
			done, err := dropServices(t.Context(), cfg, slog.New(slog.DiscardHandler))
			if err != nil || len(done) > 0 != some {
				t.Errorf("%v, %v", done, err)
			}
			if there, err := hasTable(firewall.GuardTable); there || err != nil {
				t.Errorf("the guard is left: %v, %v", there, err)
			}
		}
	})
}

// Where the node's own port cannot go, what balances goes all the same, and the guard stays with the port.
func TestUninstallNodeKeepsGuard(t *testing.T) {
	nstest.Require(t)
	m := newMachine(t)
	leg := m.path("state/leg")
	if err := os.MkdirAll(leg, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(leg, "port.json"), []byte("?"), 0o600); err != nil { // nobody can read which port it is
		t.Fatal(err)
	}
	has := func(table string) bool {
		t.Helper()
		there, err := hasTable(table)
		if err != nil {
			t.Error(err)
		}
		return there
	}
	nstest.Do(t, nstest.New(t), func() {
		c, err := nftables.New()
		if err != nil {
			t.Error(err)
			return
		}
		c.AddTable(&nftables.Table{Name: servicesTable, Family: nftables.TableFamilyINet})
		if err := c.Flush(); err != nil {
			t.Error(err)
		}
		if err := firewall.GuardLink(legInterface); err != nil {
			t.Error(err)
		}
		if code, out, said := m.run(t, "uninstall", "node"); code == exitOK || said == "" || !strings.Contains(out, "what balances Services is out") || has(servicesTable) || !has(firewall.GuardTable) {
			t.Errorf("its port cannot go: exit %d, %s%s; balancing is there: %v", code, out, said, has(servicesTable))
		}
		if err := os.RemoveAll(leg); err != nil {
			t.Error(err)
		}
		if code, out, said := m.run(t, "uninstall", "node"); code != exitOK || has(firewall.GuardTable) {
			t.Errorf("it has gone: exit %d, %s%s", code, out, said)
		}
	})
}

//go:build linux

package main

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/internal/nstest"
)

// TestNodeStandsBy checks that `kuryr node` goes on beside a `kuryr up` that serves CNI, and serves
// it when that has ended.
func TestNodeStandsBy(t *testing.T) {
	nstest.Require(t)
	m := newMachine(t)
	stopUp, _ := m.up(t)
	conflist := m.path("net.d/10-blue.conflist")
	stop, _ := m.start(t, func(ctx context.Context, a *app) int {
		return a.run(ctx, []string{
			"node", "--provider", "sdn", "--node-conflist", conflist, "--node-network", "blue",
		})
	})
	if _, err := os.Stat(conflist); err != nil {
		t.Error(err)
	}
	serves := func(admin string) bool {
		t.Helper()
		return strings.Contains(m.must(t, "status", "--socket", m.path(admin)), m.path("run/node.sock"))
	}
	if !serves("run/kuryr.sock") || serves("run/kuryr-node.sock") {
		t.Error("CNI is not kuryr up's alone")
	}
	if code := stopUp(); code != exitOK {
		t.Fatalf("kuryr up ended with %d", code)
	}
	// `kuryr status` asks the SDN too, which has ended.
	for end := time.Now().Add(time.Minute); !answered(m.path("run/node.sock")); {
		if time.Now().After(end) {
			t.Fatal("kuryr node does not take CNI over")
		}
		time.Sleep(50 * time.Millisecond)
	}
	stopUp, _ = m.up(t)
	if serves("run/kuryr.sock") || !serves("run/kuryr-node.sock") {
		t.Error("CNI is not kuryr node's alone")
	}
	for name, stop := range map[string]func() int{"node": stop, "up": stopUp} {
		if code := stop(); code != exitOK {
			t.Errorf("kuryr %s ended with %d", name, code)
		}
	}
	m.must(t, "down", "--purge")
}

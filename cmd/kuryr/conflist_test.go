//go:build linux

package main

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/internal/config"
)

// A runtime asks a plugin only for what its conflist announces.
func TestConflistCapabilities(t *testing.T) {
	t.Parallel()
	var c config.Config
	c.StateDir = t.TempDir()
	c.Node.Conflist, c.Node.Network = filepath.Join(c.StateDir, "net.d", "10-kuryr.conflist"), "blue"
	if err := installConflist(c); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(c.Node.Conflist)
	if err != nil {
		t.Fatal(err)
	}
	var list struct {
		Name    string
		Plugins []struct {
			Type         string
			Capabilities map[string]bool
		}
	}
	if err := json.Unmarshal(text, &list); err != nil || list.Name != "blue" || len(list.Plugins) != 1 || list.Plugins[0].Type != "kuryr" {
		t.Fatalf("%v, %s", err, text)
	}
	if got, want := slices.Sorted(maps.Keys(list.Plugins[0].Capabilities)), []string{"bandwidth", "ips", "mac", "portMappings"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestWaitTimeout: the daemon and the plugin without one wait for OVN as long as each other.
func TestWaitTimeout(t *testing.T) {
	t.Parallel()
	c := config.Default()
	if got := waiting(c, nil).Timeout; got != bind.DefaultTimeout {
		t.Errorf("the daemon waits %s", got)
	}
	c.Node.WaitActive = 0
	if got := waiting(c, nil).Timeout; got != 0 {
		t.Errorf("it waits %s, and is not to wait", got)
	}
}

//go:build linux

package main

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kuryr/kuryr/internal/config"
)

// A runtime asks a plugin only for what its conflist announces. What the claimant of a cluster's node refuses must not be there: a pod with a hostPort would never run.
func TestConflistCapabilities(t *testing.T) {
	t.Parallel()
	for what, row := range map[string]struct {
		capabilities, want []string
	}{
		"a network's": {networkCapabilities, []string{"bandwidth", "ips", "mac", "portMappings"}},
		"a cluster's": {clusterCapabilities, []string{"ips", "mac"}},
	} {
		var c config.Config
		c.Node.Conflist, c.Node.Network = filepath.Join(t.TempDir(), "net.d", "10-kuryr.conflist"), "blue"
		if err := installConflist(c, row.capabilities); err != nil {
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
			t.Fatalf("%s: %v, %s", what, err, text)
		}
		if got := slices.Sorted(maps.Keys(list.Plugins[0].Capabilities)); !slices.Equal(got, row.want) {
			t.Errorf("%s: %q, want %q", what, got, row.want)
		}
	}
}

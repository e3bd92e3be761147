//go:build linux

package firewall

import (
	"path/filepath"
	"testing"

	"github.com/kuryr/kuryr/internal/nstest"
)

// Which of the two iptables the host's rules are made with, told without making a table.
func TestMadeByLegacy(t *testing.T) {
	t.Parallel()
	nstest.Require(t)
	needs(t, "iptables-legacy", "ip6tables-legacy", "iptables-nft", "ip6tables-nft")
	for name, tc := range map[string]struct {
		script string
		want   bool
	}{
		"nothing":                         {"true", false},
		"legacy, empty":                   {"$p-legacy -S", false},
		"legacy":                          {"$p-legacy -N DOCKER", true},
		"legacy, a policy":                {"$p-legacy -P FORWARD DROP", true},
		"nft":                             {"$p-nft -N DOCKER", false},
		"nft, and something in legacy":    {"$p-nft -N DOCKER; $p-legacy -N OLD", false},
		"legacy, and something in nft":    {"$p-legacy -N DOCKER; $p-nft -N OTHER", true},
		"nft without Docker, legacy none": {"$p-nft -P FORWARD DROP", false},
	} {
		for _, f := range families {
			t.Run(name+" "+f.name, func(t *testing.T) {
				ns := nstest.New(t)
				sh(t, ns, "p="+f.program+"; "+tc.script)
				in(t, ns, func() error {
					if got := f.madeByLegacy(t.Context(), "/proc/thread-self/net"); got != tc.want {
						t.Errorf("%v, want %v", got, tc.want)
					}
					return nil
				})
				before := sh(t, ns, "cat /proc/thread-self/net/ip*_tables_names 2>/dev/null || true")
				if name == "nothing" && before != "" {
					t.Errorf("asking made tables: %s", before)
				}
			})
		}
	}
	// By its plain name the program is the host's own choice.
	if path, ok := families[0].find(t.Context(), "-restore"); ok && filepath.Base(path) != "iptables-restore" {
		t.Errorf("found %s", path)
	}
}

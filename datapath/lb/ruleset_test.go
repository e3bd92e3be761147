//go:build linux

package lb

import (
	"net/netip"
	"testing"
	"time"

	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/sdn"
)

// TestRuleset compares the tables with a dump of them. The comments have the rules' hashes:
// where they differ, an upgrade replaces the rules. The frontends have all kinds of chains.
func TestRuleset(t *testing.T) {
	t.Parallel()
	w := &world{t: t, router: nstest.New(t)}
	config := w.config()
	config.Inside = []string{"tap-"}
	w.table = New(config)
	t.Cleanup(func() { _ = w.table.Close() })
	w.restore()
	open := to(key(vip4, sdn.TCP), "a", "b")
	hidden := to(key(vip6, sdn.TCP), "a", "b", "c")
	hidden.Masquerade, hidden.Affinity = true, 3*time.Hour
	sources := to(key(node4, sdn.UDP), "a")
	sources.Addr = netip.IPv4Unspecified()
	sources.Sources = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	sources.Inside = &Inside{Endpoints: to(sources.Key, "c").Endpoints}
	refused, dropped := to(key(vip6, sdn.SCTP)), to(key(vip4, sdn.UDP))
	dropped.Empty = Drop
	for _, f := range []Frontend{open, hidden, sources, refused, dropped} {
		w.set(f) // each by itself, so that the order of the chains is always the same
	}
	nstest.WantRuleset(t, w.router, "testdata/lb.ruleset")
}

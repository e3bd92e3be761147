//go:build linux

package router

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/datapath/nft"
	"github.com/kuryr/kuryr/internal/nstest"
)

// TestTableOfAnOlderVersion has the guard's table lack sets and chains, and have others:
// they come and go, and elements stay.
func TestTableOfAnOlderVersion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := Shape{ID: newID(), Bridges: []Bridge{bridge("10.0.0.1/24")}}
	w.apply(d)
	a, b := w.plug(d.ID, d.Bridges[0], "10.0.0.5"), w.plug(d.ID, d.Bridges[0], "10.0.0.6")
	ns := w.router(d.ID)
	for _, command := range []string{
		"flush chain bridge kuryr nd_source", "flush chain bridge kuryr nd_target",
		"flush chain bridge kuryr ip6_unspecified", "delete chain bridge kuryr nd_target",
		"delete set bridge kuryr macs", "add chain bridge kuryr before",
		"add set bridge kuryr was { type mark; }",
		"add rule bridge kuryr before meta mark @was accept",
		"add rule bridge kuryr nd_source goto before",
		"add rule bridge kuryr nd_source meta mark { 1, 2 } drop",
	} {
		w.sh(ns, "nft '"+command+"'")
	}
	w.apply(d)
	listing := w.sh(ns, "nft list table bridge kuryr")
	for text, want := range map[string]bool{"chain before": false, "set was": false,
		"chain nd_target": true, "set macs": true, TapName(a.port.ID): true, TapName(b.port.ID): true} {
		if strings.Contains(listing, text) != want {
			t.Errorf("%q is there: %v, want %v:\n%s", text, !want, want, listing)
		}
	}
	w.reaches(a.ns, "10.0.0.6", true)
}

// TestRulesets compares the tables with a dump of them. The comments have the rules' hashes:
// where they differ, an upgrade replaces the rules.
func TestRulesets(t *testing.T) {
	t.Parallel()
	uplink4, uplink6 := netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("fd00::/64")
	tables := map[string]table{
		"host": hostTable(uplink4, uplink6), "router": routerTable(true),
		"router_without_nat": routerTable(false), "shield": shieldTable(), "down": downTable(),
	}
	if can := supports(); can.rates {
		tables["share"] = shareTable(defaultMax, false)
		if can.connections {
			tables["share_connections"] = shareTable(defaultMax, true)
		}
	}
	for file, table := range tables {
		ns := nstest.New(t)
		c, err := nft.Dial(int(ns))
		if err != nil {
			t.Fatal(err)
		}
		if err := table.create(c, false); err != nil {
			t.Fatal(err)
		}
		nstest.WantRuleset(t, ns, "testdata/"+file+".ruleset")
		_ = c.Close()
	}
}

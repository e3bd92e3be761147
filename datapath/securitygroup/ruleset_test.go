//go:build linux

package securitygroup

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/datapath/nft"
	"github.com/kuryr/kuryr/internal/nstest"
)

// TestRuleset compares the table with a dump of it. The comments have the rules' hashes:
// where they differ, an upgrade replaces the rules.
func TestRuleset(t *testing.T) {
	t.Parallel()
	ns := require(t)
	f := newFilter(t, ns)
	request := uint8(8)
	web := Group{ID: "web", Revision: 1, Rules: []Rule{
		{ID: "all4", Direction: Egress},
		{ID: "all6", Direction: Egress, IPv6: true},
		{ID: "prefix", Protocol: unix.IPPROTO_TCP, First: 80, Last: 90,
			Remote: netip.MustParsePrefix("10.1.0.0/16")},
		{ID: "ping", Protocol: unix.IPPROTO_ICMP, ICMPType: &request},
		{ID: "group", IPv6: true, Protocol: unix.IPPROTO_SCTP, RemoteGroup: "web"},
		{ID: "set", Protocol: unix.IPPROTO_UDP, First: 53, Last: 53, RemoteSet: "offices"},
	}}
	offices := Set{ID: "offices", Revision: 2, Prefixes: []netip.Prefix{
		netip.MustParsePrefix("192.0.2.7/32"), netip.MustParsePrefix("198.51.100.0/24")}}
	state := State{Groups: []Group{web}, Sets: []Set{offices}, Ports: []Port{
		{Tap: "tap0", Groups: []string{"web"}, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.5"),
			netip.MustParseAddr("fd00::5")},
			Pairs:  []netip.Prefix{netip.MustParsePrefix("10.0.0.64/26")},
			OnLink: []netip.Prefix{netip.MustParsePrefix("fd00::/64")}},
		{Tap: "tap1", Limits: Limits{IngressKbps: 1000, EgressKbps: 2000, DSCP: 46}},
	}}
	must(t, f.Reconcile(state, false, func(_, _, _ string) {}))
	x := nft.Begin(f.conn) // the epoch is a random number
	x.ReplaceRules(filter, nft.Chain{Name: chainEpoch, Rules: []nft.Rule{epochRule(1)}})
	must(t, x.Commit())
	nstest.WantRuleset(t, ns, "testdata/policy.ruleset")
}

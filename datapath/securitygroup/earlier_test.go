//go:build linux

package securitygroup

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/datapath/nft"
)

// earlierRule is how versions before hostSet compiled a rule of UDP to or from port 53 of an
// address group.
func earlierRule(id, set string, answer bool) nft.Rule {
	h, at := hook{Ingress, nft.V4}, uint32(2)
	if answer {
		h.d, at = Egress, 0
	}
	key := nft.Exprs{nft.LoadMeta(expr.MetaKeyPROTOCOL, nft.Reg(0)), h.remote(1)}
	return nft.NewRule("rule "+id, nft.V4.MatchFrame(), nft.Protocol(unix.IPPROTO_UDP),
		portRange(at, 53, 53), inSet(key, earlierSet(set, nft.V4)), nft.GoTo(h.learn(Ingress)))
}

// toEarlier gives a table the form that versions before hostSet have.
func toEarlier(t *testing.T, f *Filter, group string, s Set) {
	t.Helper()
	x := nft.Begin(f.conn)
	for _, v := range nft.Versions {
		x.AddSet(filter, nft.RangeSet(earlierSet(s.ID, v), v))
	}
	stamps := map[bool]string{false: "rule set #320cb3e9", true: "rule set #fe6f578f"}
	for answer, stamp := range stamps {
		rule := earlierRule("set", s.ID, answer)
		if got, err := filter.Stamp(rule); err != nil || got != stamp {
			t.Fatalf("stamp %q, %v, want that of the earlier version, %q", got, err, stamp)
		}
		chain := nft.Chain{Name: groupChain(group, Ingress, answer), Rules: []nft.Rule{rule}}
		x.ReplaceRules(filter, chain)
	}
	for _, own := range addressSets(s.ID) {
		x.DeleteSets(filter, own.Name)
	}
	for _, p := range s.Prefixes {
		x.AddElements(filter, []nft.Element{prefixElement(earlierSet, s.ID, p)})
	}
	must(t, x.Commit())
}

// TestEarlier checks that a table of a version with one set for an address group gets two, and
// that flows are judged again only if the group has less than before.
func TestEarlier(t *testing.T) {
	t.Parallel()
	ns := require(t)
	f := newFilter(t, ns)
	web := Group{ID: "web", Revision: 1, Rules: []Rule{
		{ID: "set", Protocol: unix.IPPROTO_UDP, First: 53, Last: 53, RemoteSet: "offices"}}}
	offices := Set{ID: "offices", Revision: 1, Prefixes: []netip.Prefix{
		netip.MustParsePrefix("192.0.2.7/32"), netip.MustParsePrefix("198.51.100.0/24"),
		netip.MustParsePrefix("2001:db8::7/128"), netip.MustParsePrefix("2001:db8:1::/64")}}
	fewer := offices
	fewer.Prefixes = offices.Prefixes[1:]
	port := Port{Tap: "tap0", Groups: []string{web.ID},
		Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.5")}}
	state := func(s Set) State {
		return State{Groups: []Group{web}, Sets: []Set{s}, Ports: []Port{port}}
	}
	var notes []string
	note := func(object, want, have string) {
		notes = append(notes, object+": want "+want+", have "+have)
	}
	reconcile := func(s Set) {
		t.Helper()
		notes = nil
		must(t, f.Reconcile(state(s), false, note))
	}
	epoch := func() []*expr.Immediate {
		rules, err := filter.Rules(f.conn, chainEpoch)
		must(t, err)
		var list []*expr.Immediate
		for _, r := range rules {
			for _, e := range r.Exprs {
				if value, is := e.(*expr.Immediate); is {
					list = append(list, value)
				}
			}
		}
		return list
	}
	same := func(a, b []*expr.Immediate) bool {
		return len(a) > 0 && slices.EqualFunc(a, b, func(a, b *expr.Immediate) bool {
			return slices.Equal(a.Data, b.Data)
		})
	}
	check := func(s Set) {
		t.Helper()
		sets, err := f.readSets()
		must(t, err)
		for name := range sets {
			if _, _, found := ofEarlierSet(name); found {
				t.Errorf("set %s is left", name)
			}
		}
		if reconcile(s); len(notes) > 0 {
			t.Errorf("once more: %s", strings.Join(notes, "\n"))
		}
	}
	for name, row := range map[string]struct {
		now  Set
		same bool
	}{"another form": {offices, true}, "a host less": {fewer, false}} {
		reconcile(offices)
		toEarlier(t, f, web.ID, offices)
		before := epoch()
		notes = nil
		must(t, newFilter(t, ns).Reconcile(state(row.now), true, note)) // as a check does
		for _, object := range []string{"nft set hosts4-offices", "nft chain ingress-web"} {
			isOf := func(n string) bool { return strings.HasPrefix(n, object+":") }
			if !slices.ContainsFunc(notes, isOf) {
				t.Errorf("%s: no difference of %s: %q", name, object, notes)
			}
		}
		reconcile(row.now)
		if same(before, epoch()) != row.same {
			t.Errorf("%s: the epoch stays: %v, want %v", name, !row.same, row.same)
		}
		check(row.now)
	}
	// A change before Reconcile is in the set that the rules know.
	reconcile(offices)
	toEarlier(t, f, web.ID, offices)
	before := epoch()
	fewer.Revision++
	must(t, f.UpdateGroups(nil, []Set{fewer}))
	list, err := f.readElements(earlierSet(offices.ID, nft.V4))
	must(t, err)
	want := []nft.Element{prefixElement(earlierSet, offices.ID, offices.Prefixes[1])}
	if !slices.Equal(list, want) {
		t.Errorf("earlier set has %v, want %v", list, want)
	}
	if same(before, epoch()) {
		t.Error("the epoch stays, and an address went")
	}
	before = epoch()
	must(t, f.Collect()) // what rules look into stays
	if reconcile(fewer); len(notes) == 0 || !same(before, epoch()) {
		t.Errorf("another form after a change: %q", notes)
	}
	check(fewer)
}

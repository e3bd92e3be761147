//go:build linux

package securitygroup

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables/expr"
	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/kuryr/kuryr/datapath/nft"
)

func TestMain(m *testing.M) { os.Exit(nstest.Main(m)) }

func must(t interface{ Fatal(...any) }, err error) {
	if err != nil {
		t.Fatal(err)
	}
}

func newFilter(t testing.TB, ns netns.NsHandle) *Filter {
	t.Helper()
	c, err := nft.Dial(int(ns))
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return In(c)
}

// changePorts changes ports in a transaction of their own, with a look if it fails without.
func changePorts(f *Filter, remove, add []Port) (err error) {
	for _, look := range []bool{false, true} {
		x := nft.Begin(f.conn)
		if err = f.ChangePorts(x, remove, add, look); err == nil {
			err = x.Commit()
		}
		if !nft.IsAbsent(err) && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	return err
}

func runNFT(t testing.TB, ns netns.NsHandle, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	var err error
	nstest.Do(t, ns, func() {
		cmd := exec.Command("nft", args...)
		cmd.Stdout, cmd.Stderr = &out, &out
		err = cmd.Run()
	})
	if err != nil {
		t.Fatalf("nft %v: %v: %s", args, err, out.String())
	}
	return out.String()
}

func require(t testing.TB) netns.NsHandle {
	t.Helper()
	ns := nstest.New(t)
	if !newFilter(t, nstest.New(t)).Probe().Groups {
		t.Skip("this kernel cannot filter ports")
	}
	return ns
}

// TestListing compares what nft lists of a group's chains with what its rules mean.
func TestListing(t *testing.T) {
	t.Parallel()
	ns := require(t)
	f := newFilter(t, ns)
	kind, code := uint8(8), uint8(0)
	must(t, f.UpdateGroups([]Group{{ID: "g", Revision: 1, Rules: []Rule{
		{ID: "1", Direction: Egress},
		{ID: "2", Direction: Egress, IPv6: true, Protocol: 17, First: 53, Last: 53},
		{ID: "3", Protocol: 6, First: 80, Last: 90, Remote: netip.MustParsePrefix("10.1.0.0/16")},
		{ID: "4", Protocol: 1, ICMPType: &kind, ICMPCode: &code},
		{ID: "5", IPv6: true, Protocol: 132, RemoteGroup: "h"},
		{ID: "6", RemoteSet: "s"},
	}}}, []Set{{ID: "s", Revision: 1, Prefixes: []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("10.2.0.0/16"),
		netip.MustParsePrefix("fd00::/8"), netip.MustParsePrefix("10.0.0.1/32"),
		netip.MustParsePrefix("192.0.2.7/32"), netip.MustParsePrefix("2001:db8::7/128"),
	}}}))
	for chain, want := range map[string][]string{
		"egress-g": {
			`meta protocol ip goto learn_out4_began_out comment "rule 1`,
			`meta protocol ip6 udp dport 53 goto learn_out6_began_out comment "rule 2`,
		},
		"egress_answers-g": {
			`meta protocol ip goto learn_in4_began_out comment "rule 1`,
			`meta protocol ip6 udp sport 53 goto learn_in6_began_out comment "rule 2`,
		},
		"ingress-g": {
			`tcp dport 80-90 ip saddr 10.1.0.0/16 goto learn_in4_began_in comment "rule 3`,
			`icmp type echo-request icmp code net-unreachable goto learn_in4_began_in comment "rule 4`,
			`meta l4proto sctp ip6 saddr @members6-h goto learn_in6_began_in comment "rule 5`,
			`meta l4proto sctp meta protocol . ip6 saddr @pairs6-h goto learn_in6_began_in comment "rule 5`,
			`ip saddr @hosts4-s goto learn_in4_began_in comment "rule 6`,
			`meta protocol . ip saddr @ranges4-s goto learn_in4_began_in comment "rule 6`,
		},
		"ingress_answers-g": {
			`tcp sport 80-90 ip daddr 10.1.0.0/16 goto learn_out4_began_in comment "rule 3`,
			`icmp type echo-reply goto learn_out4_began_in comment "rule 4`,
			`ip6 daddr @members6-h goto learn_out6_began_in comment "rule 5`,
			`meta protocol . ip6 daddr @pairs6-h goto learn_out6_began_in comment "rule 5`,
			`ip daddr @hosts4-s goto learn_out4_began_in comment "rule 6`,
			`meta protocol . ip daddr @ranges4-s goto learn_out4_began_in comment "rule 6`,
		},
	} {
		listing := runNFT(t, ns, "list", "chain", "bridge", tableName, chain)
		var rules []string
		for line := range strings.Lines(listing) {
			if strings.Contains(line, "comment") {
				rules = append(rules, strings.TrimSpace(line))
			}
		}
		if len(rules) != len(want) {
			t.Errorf("%s: %d rules, want %d:\n%s", chain, len(rules), len(want), listing)
			continue
		}
		for i := range want {
			if !strings.Contains(rules[i], want[i]) {
				t.Errorf("%s: rule\n%s\nwant\n%s", chain, rules[i], want[i])
			}
		}
	}
	for name, want := range map[string]string{
		"ranges4-s": "ip . 10.0.0.0/8", "hosts4-s": "192.0.2.7",
		"ranges6-s": "ip6 . fd00::/8", "hosts6-s": "2001:db8::7",
	} {
		set := runNFT(t, ns, "list", "set", "bridge", tableName, name)
		if !strings.Contains(set, "elements = { "+want+" }") {
			t.Errorf("%s has not just %s: %s", name, want, set)
		}
	}
}

// TestRevision checks that a group at a known revision is not looked at, and that one
// rule less is one rule less.
func TestRevision(t *testing.T) {
	t.Parallel()
	ns := require(t)
	f := newFilter(t, ns)
	g := Group{ID: "g", Revision: 1, Rules: []Rule{{ID: "1"}, {ID: "2", Protocol: 6}, {ID: "3", Protocol: 17}}}
	must(t, f.UpdateGroups([]Group{g}, nil))
	list := func() string { return runNFT(t, ns, "-a", "list", "chain", "bridge", tableName, "ingress-g") }
	epoch := func() string { return runNFT(t, ns, "list", "chain", "bridge", tableName, chainEpoch) }
	before, first := list(), epoch()
	same := g
	same.Rules = nil
	must(t, f.UpdateGroups([]Group{same}, nil))
	if list() != before {
		t.Errorf("changed at a known revision:\n%s", list())
	}
	g.Revision, g.Rules = 2, append(slices.Clone(g.Rules), Rule{ID: "4", Protocol: 1})
	must(t, f.UpdateGroups([]Group{g}, nil))
	if epoch() != first {
		t.Error("a rule more has everything judged anew")
	}
	handles := func(listing string) (list []string) {
		for line := range strings.Lines(listing) {
			if _, handle, ok := strings.Cut(line, "# handle "); ok && strings.Contains(line, "comment") {
				list = append(list, strings.TrimSpace(handle))
			}
		}
		return list
	}
	was := handles(list())
	g.Revision, g.Rules = 3, slices.Delete(slices.Clone(g.Rules), 1, 2)
	must(t, f.UpdateGroups([]Group{g}, nil))
	if now, want := handles(list()), slices.Delete(slices.Clone(was), 1, 2); !slices.Equal(now, want) {
		t.Errorf("rules %v are left of %v, want %v", now, was, want)
	}
	if epoch() == first {
		t.Error("a rule less has nothing judged anew")
	}
	g.Revision, g.Rules = 4, []Rule{{ID: "1", Protocol: 47, First: 1, Last: 2}}
	if err := f.UpdateGroups([]Group{g}, nil); err == nil {
		t.Error("ports of a protocol without ports")
	}
}

// TestUntold checks that a group of a port's that is not told of lets nothing pass, and
// hinders no other.
func TestUntold(t *testing.T) {
	t.Parallel()
	ns := require(t)
	f := newFilter(t, ns)
	s := State{Ports: []Port{{Tap: "tapx", Groups: []string{"a", "b"}}}, Groups: []Group{{
		ID: "a", Revision: 1, Rules: []Rule{{ID: "1"}},
	}}}
	must(t, f.Reconcile(s, false, func(_, _, _ string) {}))
	if out := runNFT(t, ns, "list", "chain", "bridge", tableName, "ingress-b"); strings.Contains(out, "comment") {
		t.Errorf("rules of an unknown group: %s", out)
	}
	b := Group{ID: "b", Revision: 1, Rules: []Rule{{ID: "2"}}}
	must(t, f.UpdateGroups([]Group{b}, nil))
	s.Groups = append(s.Groups, b)
	must(t, f.Reconcile(s, false, func(object, want, have string) {
		t.Errorf("%s: want %q, have %q", object, want, have)
	}))
}

// TestChosenGroups has ports with two sets of groups whose hashes begin with the same
// four bytes, as a user that may choose among groups finds in a moment: each has a profile of
// its own, whatever comes first, and what goes leaves the other's alone.
func TestChosenGroups(t *testing.T) {
	t.Parallel()
	ns := require(t)
	f := newFilter(t, ns)
	one, other := Port{Tap: "tapone", Groups: strings.Split("cehijlnp", "")},
		Port{Tap: "tapother", Groups: strings.Split("ejmn", "")}
	if a, b := profileOf(one.Groups), profileOf(other.Groups); a.number != b.number || a.hash == b.hash {
		t.Fatalf("the numbers are %x and %x", a.number, b.number)
	}
	state := State{Ports: []Port{one, other}}
	for _, id := range strings.Split("cehijlmnp", "") {
		state.Groups = append(state.Groups, Group{ID: id, Revision: 1})
	}
	check := func(state State) {
		t.Helper()
		f := newFilter(t, ns) // what a dry run queues goes with its connection
		must(t, f.Reconcile(state, true, func(object, want, have string) {
			t.Errorf("%s: want %q, have %q", object, want, have)
		}))
		for _, p := range state.Ports {
			if judged := groupsOf(t, f, p.Tap); !slices.Equal(judged, p.Groups) {
				t.Errorf("%s is judged by %q, want %q", p.Tap, judged, p.Groups)
			}
		}
	}
	// Bit by bit: what comes second finds its number taken, each time.
	must(t, f.UpdateGroups(state.Groups, nil))
	must(t, changePorts(f, nil, []Port{one}))
	must(t, changePorts(f, nil, []Port{other}))
	check(state)
	third := Port{Tap: "tapthird", Groups: other.Groups}
	must(t, changePorts(f, nil, []Port{third}))
	check(State{Ports: []Port{one, other, third}, Groups: state.Groups})
	must(t, changePorts(f, []Port{third}, nil))
	must(t, f.Collect())
	check(state)
	// The one that has the number goes, and comes again.
	must(t, changePorts(f, []Port{one}, nil))
	must(t, f.Collect())
	must(t, f.UpdateGroups(state.Groups, nil))
	must(t, changePorts(f, []Port{other}, []Port{other, one}))
	check(state)
	// Both together, and from nothing.
	must(t, f.Remove())
	must(t, f.UpdateGroups(state.Groups, nil))
	must(t, changePorts(f, nil, state.Ports))
	check(state)
	must(t, f.Remove())
	must(t, f.Reconcile(state, false, func(_, _, _ string) {}))
	check(state)
	// Where a port moves the numbers may be the other way round, or the profile be unknown.
	profiles, err := f.Profiles([]string{one.Tap, other.Tap})
	must(t, err)
	ns = nstest.New(t)
	f = newFilter(t, ns)
	must(t, f.UpdateGroups(state.Groups, nil))
	must(t, changePorts(f, nil, []Port{third}))
	must(t, f.Expect(profiles))
	if judged := groupsOf(t, f, other.Tap); !slices.Equal(judged, other.Groups) {
		t.Errorf("where its profile is known %s is judged by %q", other.Tap, judged)
	}
	if judged := groupsOf(t, f, one.Tap); judged != nil {
		t.Errorf("where its profile is unknown %s is judged by %q", one.Tap, judged)
	}
	must(t, changePorts(f, []Port{third}, state.Ports))
	check(state)
}

// TestProfileOfAnotherName has a profile's chains be there under names that it has no
// more, as after a change of the program: it gets chains and a number of its own, and the
// others go.
func TestProfileOfAnotherName(t *testing.T) {
	t.Parallel()
	ns := require(t)
	f := newFilter(t, ns)
	state := State{Ports: []Port{{Tap: "tapx", Groups: []string{"g"}}}, Groups: []Group{{ID: "g", Revision: 1}}}
	must(t, f.Reconcile(state, false, func(_, _, _ string) {}))
	for _, d := range directions {
		for _, answer := range []bool{false, true} {
			runNFT(
				t, ns, "rename", "chain", "bridge", tableName, profileOf([]string{"g"}).chain(d, answer),
				judges(d, answer)+ofProfile+"before",
			)
		}
	}
	must(t, f.Reconcile(state, false, func(_, _, _ string) {}))
	must(t, f.Reconcile(state, false, func(object, want, have string) {
		t.Errorf("%s: want %q, have %q", object, want, have)
	}))
	if judged := groupsOf(t, f, "tapx"); !slices.Equal(judged, []string{"g"}) {
		t.Errorf("the port is judged by %q", judged)
	}
	if listing := runNFT(t, ns, "list", "table", "bridge", tableName); strings.Contains(listing, ofProfile+"before") {
		t.Error("what the profile had before is still there")
	}
}

// groupsOf finds by what groups a port's packets are judged: as the kernel does, by its
// number. One that is not filtered fails.
func groupsOf(t *testing.T, f *Filter, tap string) (groups []string) {
	t.Helper()
	list, err := f.readElements(setPorts, judges(Ingress, false))
	must(t, err)
	name := (Port{Tap: tap}).name()
	at := slices.IndexFunc(list, func(e nft.Element) bool { return e.Set == setPorts && e.Key == name })
	if at < 0 {
		t.Fatalf("%s is not filtered", tap)
	}
	for _, e := range list {
		if e.Set != setPorts && e.Key == list[at].Value {
			must(t, f.namedBy(e.GoTo, func(name string) {
				_, id, _ := strings.Cut(name, "-")
				groups = append(groups, id)
			}))
		}
	}
	return groups
}

// TestFastest gives ports limits that no kernel could keep: they are none, and nothing
// else is hindered by them.
func TestFastest(t *testing.T) {
	t.Parallel()
	ns := require(t)
	f := newFilter(t, ns)
	for _, kbps := range []int64{mostKbps - 1, mostKbps, math.MaxInt32, 1 << 61, math.MaxInt64} {
		for _, burst := range []int64{0, math.MaxInt32, math.MaxInt64} {
			p := Port{Tap: "tapx", Limits: Limits{EgressKbps: kbps, EgressBurst: burst, DSCP: 1}}
			if err := changePorts(f, nil, []Port{p}); err != nil {
				t.Fatalf("%d kbit/s, burst %d: %v", kbps, burst, err)
			}
			if limited := strings.Contains(
				runNFT(t, ns, "list", "chain", "bridge", tableName, "limit_out-tapx"), "limit rate",
			); limited != (kbps < mostKbps) {
				t.Errorf("%d kbit/s: limited: %v", kbps, limited)
			}
			must(t, changePorts(f, []Port{p}, nil))
		}
	}
}

// TestTableOfEarlierVersion reconciles a table in which most chains are missing, and the rules
// and elements that lead to them, as after an upgrade. Nothing else of the table is replaced.
func TestTableOfEarlierVersion(t *testing.T) {
	t.Parallel()
	s := State{
		Ports:  []Port{{Tap: "tapx", Groups: []string{"g"}, Limits: Limits{DSCP: 1}}},
		Groups: []Group{{ID: "g", Revision: 1, Rules: []Rule{{ID: "1"}}}},
	}
	ignore := func(_, _, _ string) {}
	// Chains are listed in the order of their creation, and epochs differ.
	lines := func(ns netns.NsHandle) []string {
		list := strings.Split(runNFT(t, ns, "list", "table", "bridge", tableName), "\n")
		return slices.DeleteFunc(list, func(l string) bool { return strings.Contains(l, "is judged anew") })
	}
	fresh := require(t)
	must(t, newFilter(t, fresh).Reconcile(s, false, ignore))

	ns := nstest.New(t)
	f := newFilter(t, ns)
	known, err := f.numbering(s.Ports)
	must(t, err)
	earlier, err := s.image(known)
	must(t, err)
	missing := map[string]bool{}
	earlier.chains = slices.DeleteFunc(earlier.chains, func(c nft.Chain) bool {
		missing[c.Name] = c.Hook == nil && c.Name != chainEpoch
		return missing[c.Name]
	})
	for i := range earlier.chains {
		c := &earlier.chains[i]
		c.Rules = slices.DeleteFunc(c.Rules, func(r nft.Rule) bool {
			return slices.ContainsFunc(r.Exprs, func(e expr.Any) bool {
				v, ok := e.(*expr.Verdict)
				return ok && missing[v.Chain]
			})
		})
	}
	earlier.elements = slices.DeleteFunc(earlier.elements, func(e nft.Element) bool { return missing[e.GoTo] })
	tr := f.begin()
	tr.make(earlier)
	must(t, tr.commit())

	must(t, f.Reconcile(s, false, ignore))
	must(t, f.Reconcile(s, false, func(object, want, have string) {
		t.Errorf("%s: want %q, have %q", object, want, have)
	}))
	got, want := lines(ns), lines(fresh)
	for _, line := range got {
		if !slices.Contains(want, line) {
			t.Errorf("the table has %s", line)
		}
	}
	for _, line := range want {
		if !slices.Contains(got, line) {
			t.Errorf("the table lacks %s", line)
		}
	}
}

// TestCollect has ports with groups of their own come and go, and looks for what is left of them.
func TestCollect(t *testing.T) {
	t.Parallel()
	ns := require(t)
	f := newFilter(t, ns)
	must(t, f.Collect()) // no table
	friends := Group{ID: "friends", Revision: 1}
	stays := Port{
		Tap: "tapstays", Groups: []string{"g", "h"}, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
		Limits: Limits{DSCP: 1},
	}
	must(t, f.UpdateGroups([]Group{
		friends,
		{ID: "g", Revision: 1, Rules: []Rule{{ID: "1", RemoteGroup: "friends"}, {
			ID: "2", IPv6: true, RemoteSet: "s",
		}}},
		{ID: "h", Revision: 1},
	},
		[]Set{{ID: "s", Revision: 1}}))
	must(t, changePorts(f, nil, []Port{stays}))
	must(t, f.Collect()) // the chains of friends go, but not the sets that g names
	list := func() string { return runNFT(t, ns, "list", "table", "bridge", tableName) }
	before := list()
	for i := range 3 {
		id := fmt.Sprint("own", i)
		p := Port{Tap: "tapgoes", Groups: []string{"g", id}, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.2")}}
		must(
			t,
			f.UpdateGroups(
				[]Group{{ID: id, Revision: 1, Rules: []Rule{
					{ID: id, Remote: netip.MustParsePrefix("10.0.0.0/8"), Protocol: 6}, {ID: "set", RemoteSet: id},
				}}},
				[]Set{{ID: id, Revision: 1}},
			),
		)
		must(t, changePorts(f, nil, []Port{p}))
		must(t, f.Collect())
		must(t, changePorts(f, []Port{p}, nil))
	}
	if !strings.Contains(list(), "own2") {
		t.Error("nothing was left to be collected")
	}
	for range 2 {
		must(t, f.Collect())
		epochless := func(s string) string {
			_, rest, _ := strings.Cut(s, "chain "+chainEpoch+" {")
			_, rest, _ = strings.Cut(rest, "}")
			return s[:strings.Index(s, "chain "+chainEpoch+" {")] + rest
		}
		if now := list(); epochless(now) != epochless(before) {
			t.Errorf("the table is now\n%s\nwant\n%s", now, before)
		}
	}
	if err := changePorts(f, nil, []Port{{Tap: "tapgoes", Groups: []string{"own2"}}}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a port with a collected group: %v", err)
	}
}

// TestInvalid checks that what would mean something else than it says is refused.
func TestInvalid(t *testing.T) {
	t.Parallel()
	one := uint8(1)
	prefix := netip.MustParsePrefix("10.0.0.0/8")
	for name, r := range map[string]Rule{
		"ports of any protocol": {First: 1, Last: 2},
		"ports of ICMP":         {Protocol: 1, First: 1, Last: 2},
		"ports in disorder":     {Protocol: 6, First: 2, Last: 1},
		"type of TCP":           {Protocol: 6, ICMPType: &one},
		"code without type":     {Protocol: 1, ICMPCode: &one},
		"two remotes":           {Remote: prefix, RemoteGroup: "g"},
		"another two":           {RemoteSet: "s", RemoteGroup: "g"},
		"prefix of IPv4":        {Remote: prefix, IPv6: true},
		"prefix of IPv6":        {Remote: netip.MustParsePrefix("fd00::/8")},
	} {
		if _, err := (Group{ID: "g", Rules: []Rule{r}}).compile(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	for name, p := range map[string]Port{
		"no tap":     {Tap: "eth0", Groups: []string{"g"}},
		"long name":  {Tap: "tap0123456789abc", Groups: []string{"g"}},
		"no address": {Tap: "tapx", Groups: []string{"g"}, Addrs: []netip.Addr{{}}},
		"no prefix":  {Tap: "tapx", Groups: []string{"g"}, Pairs: []netip.Prefix{{}}},
		"mark":       {Tap: "tapx", Limits: Limits{DSCP: 64}},
		"limit":      {Tap: "tapx", Limits: Limits{EgressKbps: -1}},
	} {
		if err := p.validate(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestSizes checks that the kernel makes no room for the size of a set that rules fill,
// before there are elements. That would be up to 2 MB for each set of each namespace.
func TestSizes(t *testing.T) {
	t.Parallel()
	for _, s := range baseSets() {
		if s.Dynamic && s.Size%(1<<16) != 0 {
			t.Errorf("set %s: size %d, want a multiple of 65,536", s.Name, s.Size)
		}
	}
}

// TestOnLink checks where a port may send neighbour discovery to: to the prefixes of its
// link and of its pairs, in halves of an address, and anywhere if one is wider than that.
func TestOnLink(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"":                    nil,
		"10.0.0.0/24":         nil,
		"::/0":                {setOnLinkAny},
		"fd00:a::1/64":        {setOnLink + " fd00000a00000000"},
		"fd00:a:0:1::1:0/112": {setOnLink + " fd00000a00000001"},
		"fd00:a::/64 fd00:b::/64": {setOnLink + " fd00000a00000000",
			setOnLink + " fd00000b00000000"},
		"fd00:a::/64 10.0.0.0/8":         {setOnLink + " fd00000a00000000"},
		"fd00:a::/64 fd00:b::/56":        {setOnLinkAny},
		"fd00:a::/56 fd00:b::/64 ::/128": {setOnLinkAny},
	} {
		var prefixes []netip.Prefix
		for _, prefix := range strings.Fields(text) {
			prefixes = append(prefixes, netip.MustParsePrefix(prefix))
		}
		for what, p := range map[string]Port{
			"link": {Tap: "tapx", OnLink: prefixes}, "pairs": {Tap: "tapx", Pairs: prefixes},
			"both": {Tap: "tapx", OnLink: prefixes, Pairs: prefixes},
		} {
			var have []string
			for _, e := range p.onLink() {
				if e.Key[:len(p.name())] != p.name() {
					t.Errorf("%q: key %x", text, e.Key)
				}
				have = append(have, strings.TrimSpace(fmt.Sprintf("%s %x", e.Set,
					e.Key[len(p.name()):])))
			}
			if !slices.Equal(have, want) {
				t.Errorf("%q of the %s: %q, want %q", text, what, have, want)
			}
		}
	}
}

// TestPairs checks that a noted pair is read as it was written, and that its key is alike
// on machines of either byte order.
func TestPairs(t *testing.T) {
	t.Parallel()
	for text, word := range map[string]string{
		"10.1.0.0/16": "\x00\x00\x01\x10", "0.0.0.0/0": "\x00\x00\x01\x00", "10.0.0.1/32": "\x00\x00\x01\x20",
		"fd00::/8": "\x00\x00\x00\x08", "::/0": "\x00\x00\x00\x00", "fd00::1/128": "\x00\x00\x00\x80",
		"::ffff:10.0.0.0/104": "\x00\x00\x00\x68",
	} {
		key := pairKey(netip.MustParsePrefix(text))
		if len(key) != pairKeyLength || key[16:] != word || pairOf(key).String() != text {
			t.Errorf("%s has the key %x, which is read as %s; want it to end with %x", text, key, pairOf(key), word)
		}
	}
}

// TestSequences makes random changes one by one, some twice and some out of order, and
// then compares the kernel with what they come to.
func TestSequences(t *testing.T) {
	t.Parallel()
	require(t)
	ids := []string{"a", "b", "c"}
	prefixes := []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("10.0.0.0/25"), netip.MustParsePrefix("10.0.0.200/32"),
		netip.MustParsePrefix("fd00::/64"), netip.MustParsePrefix("fd00::/65"), netip.MustParsePrefix("0.0.0.0/0")}
	rules := []Rule{{Direction: Egress}, {
		Direction: Egress, IPv6: true, Protocol: 58,
	}, {Protocol: 6, First: 1, Last: 5}, {RemoteGroup: "a"}, {RemoteGroup: "b", IPv6: true},
		{RemoteSet: "a"}, {RemoteSet: "c", IPv6: true}, {Remote: netip.MustParsePrefix("10.0.0.0/8")}}
	for i := range rules {
		rules[i].ID = fmt.Sprint(i)
	}
	rapid.Check(t, func(rt *rapid.T) {
		f := newFilter(t, nstest.New(t))
		groups, sets, ports := map[string]Group{}, map[string]Set{}, map[string]Port{}
		// every value that a port ever had: a change that did not get through is made again
		// with the next one
		earlier := map[string][]Port{}
		revision := int64(0)
		drawGroup := func(id string) Group {
			revision++
			g := Group{ID: id, Revision: revision}
			for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(0, len(rules)-1), 0, 5, rapid.ID[int]).Draw(rt, "rules") {
				g.Rules = append(g.Rules, rules[i])
			}
			return g
		}
		drawSet := func(id string) Set {
			revision++
			return Set{
				ID: id, Revision: revision,
				Prefixes: rapid.SliceOfN(rapid.SampledFrom(prefixes), 0, 4).Draw(rt, "prefixes"),
			}
		}
		// A group comes with the sets that its rules may name.
		tell := func(id string) { must(rt, f.UpdateGroups([]Group{groups[id]}, slices.Collect(maps.Values(sets)))) }
		for _, id := range ids {
			groups[id], sets[id] = drawGroup(id), drawSet(id)
		}
		for _, id := range ids {
			tell(id)
		}
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			id := rapid.SampledFrom(ids).Draw(rt, "id")
			switch rapid.IntRange(0, 5).Draw(rt, "step") {
			case 0:
				groups[id] = drawGroup(id)
				tell(id)
			case 1:
				sets[id] = drawSet(id)
				must(rt, f.UpdateGroups(nil, []Set{sets[id]}))
			case 2:
				now := Port{Tap: "tap" + id, Addrs: []netip.Addr{
					netip.AddrFrom4([4]byte{10, 0, 0, id[0]}), netip.AddrFrom16([16]byte{0xfd, 15: id[0]}),
				},
					Groups: rapid.SliceOfNDistinct(rapid.SampledFrom(ids), 0, 3, rapid.ID[string]).Draw(rt, "groups"),
					Pairs:  rapid.SliceOfNDistinct(rapid.SampledFrom(prefixes), 0, 3, rapid.ID[netip.Prefix]).Draw(rt, "pairs"),
					Limits: Limits{EgressKbps: rapid.Int64Range(0, 2).Draw(rt, "kbps"), DSCP: rapid.Uint8Range(0, 2).Draw(rt, "dscp")}}
				remove := earlier[id]
				for range rapid.IntRange(1, 2).Draw(rt, "times") {
					err := changePorts(f, remove, []Port{now})
					if errors.Is(err, os.ErrNotExist) { // collected
						for _, id := range ids {
							tell(id)
						}
						err = changePorts(f, remove, []Port{now})
					}
					must(rt, err)
				}
				ports[id], earlier[id] = now, append(earlier[id], now)
			case 3:
				if old, there := ports[id]; there {
					for range rapid.IntRange(1, 2).Draw(rt, "times") {
						must(rt, changePorts(f, []Port{old}, nil))
					}
					delete(ports, id)
					earlier[id] = nil
				}
			case 4:
				tell(id)
			case 5:
				must(rt, f.Collect())
			}
		}
		state := State{}
		for _, id := range ids {
			state.Groups, state.Sets = append(state.Groups, groups[id]), append(state.Sets, sets[id])
			if p, there := ports[id]; there && (len(p.Groups) > 0 || p.Limits != Limits{}) {
				state.Ports = append(state.Ports, p)
			}
		}
		must(rt, f.Reconcile(state, false, func(object, want, have string) {
			rt.Errorf("%s: want %q, have %q", object, want, have)
		}))
		must(rt, f.Reconcile(state, false, func(object, want, have string) {
			rt.Errorf("once more: %s: want %q, have %q", object, want, have)
		}))
	})
}

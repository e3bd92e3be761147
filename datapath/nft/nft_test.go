//go:build linux

package nft

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/internal/nstest"
)

func TestMain(m *testing.M) { os.Exit(nstest.Main(m)) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var golden = Table{Name: "golden", Family: nftables.TableFamilyINet}

func connect(t *testing.T, ns netns.NsHandle) *Conn {
	t.Helper()
	c, err := Dial(int(ns))
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func goldenSets() []nftables.Set {
	service := []nftables.SetDatatype{nftables.TypeInetProto, nftables.TypeInetService}
	return []nftables.Set{
		{Name: "hosts", KeyType: nftables.TypeIPAddr},
		RangeSet("ranges", V6),
		{Name: "services", IsMap: true, Concatenation: true, KeyType: Concat(service...),
			DataType: Concat(nftables.TypeIPAddr, nftables.TypeInetService)},
		{Name: "marks", IsMap: true, KeyType: nftables.TypeIPAddr, DataType: nftables.TypeMark},
		{Name: "verdicts", IsMap: true, KeyType: nftables.TypeMark, DataType: nftables.TypeVerdict},
		{Name: "rates", KeyType: nftables.TypeIPAddr, Dynamic: true, HasTimeout: true,
			Timeout: time.Minute, Size: 65535},
		{Name: "seen", IsMap: true, KeyType: nftables.TypeIPAddr, DataType: nftables.TypeMark,
			Dynamic: true, HasTimeout: true, Size: 65535},
	}
}

func goldenChains() []Chain {
	pre := Chain{Name: "prerouting", Type: nftables.ChainTypeNAT,
		Hook:     nftables.ChainHookPrerouting,
		Priority: *nftables.ChainPriorityNATDest - 5}
	source := Exprs{V4.LoadSource(Reg(0))}
	pre.Add("links", In("eth0"), NotIn("tap*"), Accept)
	pre.Add("prefixes", To(netip.MustParsePrefix("10.0.0.0/8")), Drop)
	pre.Add("addresses", From(netip.MustParsePrefix("fd00::1/128")), CountedDrop)
	pre.Add("protocol", Protocol(unix.IPPROTO_TCP), Field(TransportHeader, 2, 0, 80), Return)
	pre.Add("other port", Protocol(unix.IPPROTO_UDP), FieldNot(TransportHeader, 2, 0, 53), Return)
	pre.Add("ports", Protocol(unix.IPPROTO_TCP),
		Between(TransportHeader, 2, []byte{0, 80}, []byte{0, 90}), Return)
	pre.Add("flags", Protocol(unix.IPPROTO_TCP), AnyBit(Load(TransportHeader, 13, 1, First), 2),
		Jump("next"))
	pre.Add("address", V4.Match(), source, InSet("hosts", First), GoTo("next"))
	pre.Add("other address", V4.Match(), source, NotInSet("hosts", First), Accept)
	pre.Add("local", V4.Match(), ToLocal(), LoadService(0), Map("services", First, First),
		NAT(expr.NATTypeDestNAT, V4, First, Reg(1)))
	pre.Add("local to the link", ToLocalLink(), Accept)
	pre.Add("routed", RoutedBy("eth1"), Accept)
	next := Chain{Name: "next"}
	next.Add("states", State(StateEstablished|StateRelated), Accept)
	next.Add("known", StateNot(StateInvalid), Accept)
	next.Add("translated", Translated(), Accept)
	next.Add("not translated", NotTranslated(), Accept)
	next.Add("mark", Mark(1), SetMark(2, First), Accept)
	next.Add("mark of a map", V4.Match(), source, Map("marks", First, First), MarkFrom(First))
	next.Add("verdict", ByMark("verdicts"))
	next.Add("random", Random(8), MarkFrom(First))
	next.Add("rate", V4.Match(), Over(source, "rates", 10, 20))
	next.Add("update", V4.Match(), source, ChangeSet(SetUpdate, "rates", time.Hour))
	next.Add("add", V4.Match(), source, ChangeSet(SetAdd, "rates", 0))
	next.Add("remember", V4.Match(), source, Exprs{LoadMeta(expr.MetaKeyMARK, Reg(1))},
		ChangeMap(SetUpdate, "seen", Reg(1), time.Hour))
	next.Add("trace", Trace, Count)
	leaf := Chain{Name: "leaf"}
	leaf.Add("anything", Drop)
	out := Chain{Name: "postrouting", Type: nftables.ChainTypeNAT,
		Hook: nftables.ChainHookPostrouting, Priority: *nftables.ChainPriorityNATSource}
	out.Add("leaves", NotOut("lo"), Out("eth*"), Masquerade)
	refuse := Chain{Name: "forward", Type: nftables.ChainTypeFilter,
		Hook: nftables.ChainHookForward, Priority: *nftables.ChainPriorityFilter}
	refuse.Add("TCP", Protocol(unix.IPPROTO_TCP), Reset)
	refuse.Add("others", Unreachable)
	return []Chain{pre, next, leaf, out, refuse}
}

var (
	host    = Element{Set: "hosts", Key: Addr(netip.MustParseAddr("10.0.0.1"))}
	service = Element{Set: "services", Key: Service(unix.IPPROTO_TCP, 80),
		Value: Endpoint(netip.MustParseAddrPort("10.0.0.2:8080"))}
	byMark = Element{Set: "verdicts", Key: string(Word(0x07070707)), GoTo: "leaf"}
	span   = Range("ranges", netip.MustParseAddr("fd00::"), netip.MustParseAddr("fd00::ffff"))
)

func create(t *testing.T, c *Conn) {
	t.Helper()
	x := Begin(c)
	x.AddTable(golden)
	for _, s := range goldenSets() {
		x.AddSet(golden, s)
	}
	x.AddChains(golden, goldenChains())
	x.AddElements(golden, []Element{host, service, byMark, span})
	must(t, x.Commit())
}

// TestGolden compares what the kernel gets with a dump of it.
func TestGolden(t *testing.T) {
	ns := nstest.New(t)
	create(t, connect(t, ns))
	nstest.WantRuleset(t, ns, "testdata/golden.ruleset")
}

// TestRead checks that what was made is found as it was made, and what differs as different.
func TestRead(t *testing.T) {
	c := connect(t, nstest.New(t))
	if there, err := golden.Exists(c); there || err != nil {
		t.Errorf("before: %v, %v", there, err)
	}
	if _, err := golden.Elements(c, "hosts", false); !IsAbsent(err) {
		t.Errorf("set of an absent table: %v", err)
	}
	create(t, c)
	sets, err := golden.Sets(c)
	must(t, err)
	for _, want := range goldenSets() {
		if sets[want.Name] == nil || !SameSet(sets[want.Name], want) {
			t.Errorf("set %s is not as it was made", want.Name)
		}
		want.KeyType = nftables.TypeEtherAddr
		if want.DataType != nftables.TypeVerdict && SameSet(sets[want.Name], want) {
			t.Errorf("set %s is of another type, and none differs", want.Name)
		}
	}
	chains, err := golden.Chains(c)
	must(t, err)
	for _, want := range goldenChains() {
		if chains[want.Name] == nil || !SameChain(chains[want.Name], want) {
			t.Errorf("chain %s is not as it was made", want.Name)
			continue
		}
		same, err := golden.HasRules(c, want)
		must(t, err)
		want.Rules[0].Exprs = Join(want.Rules[0].Exprs, Count)
		other, err := golden.HasRules(c, want)
		must(t, err)
		if !same || other {
			t.Errorf("chain %s: its own rules are there: %v; others: %v", want.Name, same, other)
		}
	}
	var all []Element
	for _, name := range []string{"hosts", "services", "ranges"} {
		list, err := golden.Elements(c, name, false)
		must(t, err)
		all = append(all, list...)
	}
	list, err := golden.Elements(c, "verdicts", true)
	must(t, err)
	all = append(all, list...)
	if want := []Element{host, service, span, byMark}; !slices.Equal(all, want) {
		t.Errorf("elements %v, want %v", all, want)
	}
}

// TestChange checks that a transaction makes the difference between two lists of elements, or
// nothing.
func TestChange(t *testing.T) {
	c := connect(t, nstest.New(t))
	create(t, c)
	moved := service
	moved.Value = Endpoint(netip.MustParseAddrPort("10.0.0.3:8080"))
	read := func() []Element {
		list, err := golden.Elements(c, "services", false)
		must(t, err)
		return list
	}
	x := Begin(c)
	x.AddElements(golden, []Element{moved})
	if err := x.Commit(); !errors.Is(err, unix.EEXIST) {
		t.Errorf("an element with another value: %v, want EEXIST", err)
	}
	remove, add := Difference(read(), []Element{moved, moved})
	if !slices.Equal(remove, []Element{service}) || !slices.Equal(add, []Element{moved}) {
		t.Errorf("remove %v, add %v", remove, add)
	}
	x = Begin(c)
	x.DeleteElements(golden, remove)
	x.AddElements(golden, add)
	must(t, x.Commit())
	if have := read(); !slices.Equal(have, []Element{moved}) {
		t.Errorf("elements %v, want %v", have, moved)
	}
	x = Begin(c)
	x.DeleteElements(golden, []Element{byMark})
	x.FlushChain(golden, "next")
	x.DeleteChains(golden, "leaf")
	x.ReplaceRules(golden, Chain{Name: "next", Rules: []Rule{{Comment: "any", Any: true}}})
	x.DeleteSets(golden, "marks")
	must(t, x.Commit())
	chains, err := golden.Chains(c)
	must(t, err)
	sets, err := golden.Sets(c)
	must(t, err)
	if chains["leaf"] != nil || sets["marks"] != nil {
		t.Error("a chain or set that was deleted is there")
	}
	x = Begin(c)
	if err := x.Commit(); err != nil || x.Changed {
		t.Errorf("nothing to do: %v, changed %v", err, x.Changed)
	}
}

// TestCommitErrors checks that Commit returns the first error, with the table and the sets.
func TestCommitErrors(t *testing.T) {
	c := connect(t, nstest.New(t))
	create(t, c)
	absent := Element{Set: "hosts", Key: Addr(netip.MustParseAddr("10.0.0.9"))}
	other := service
	other.Value = Endpoint(netip.MustParseAddrPort("10.0.0.3:8080"))
	x := Begin(c)
	x.DeleteElements(golden, []Element{absent})
	x.DeleteElements(golden, []Element{absent})
	x.AddElements(golden, []Element{other})
	err := x.Commit()
	if !errors.Is(err, unix.ENOENT) || !IsAbsent(err) {
		t.Errorf("kernel's error: %v, want ENOENT", err)
	}
	checkOnce(t, err, "inet golden", "hosts", "services", "no such file")
	x = Begin(c)
	x.AddElements(golden, []Element{other})
	err = x.Commit()
	if !errors.Is(err, unix.EEXIST) || IsAbsent(err) {
		t.Errorf("kernel's error: %v, want EEXIST", err)
	}
	checkOnce(t, err, "inet golden", "services", "file exists")
	if list, err := golden.Elements(c, "services", false); err != nil || list[0] != service {
		t.Errorf("elements after a failed transaction: %v, %v", list, err)
	}
	x = Begin(c)
	x.AddSet(golden, nftables.Set{Name: "untyped", Anonymous: true})
	x.AddElements(golden, []Element{absent})
	x.AddSet(golden, nftables.Set{Name: "untyped too", Anonymous: true})
	checkOnce(t, x.Commit(), "inet golden", "untyped")
}

func checkOnce(t *testing.T, err error, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if err == nil || strings.Count(err.Error(), text) != 1 {
			t.Errorf("error %v: want %q once", err, text)
		}
	}
}

// TestManySets checks that an error does not name more than some sets.
func TestManySets(t *testing.T) {
	t.Parallel()
	sets := map[string]bool{}
	for _, name := range strings.Split("abcdefg", "") {
		sets[name] = true
	}
	if got, want := some(sets), "a, b, c, d, e and 2 more"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestLoopback checks the loopback addresses of both versions.
func TestLoopback(t *testing.T) {
	t.Parallel()
	for v, want := range map[Version]string{V4: "127.0.0.0/8", V6: "::1/128"} {
		if got := v.Loopback().String(); got != want {
			t.Errorf("version %s: %s, want %s", v, got, want)
		}
	}
}

// TestStamp checks that the hash of a rule stays what earlier versions wrote, whatever name a
// register has.
func TestStamp(t *testing.T) {
	t.Parallel()
	rule := NewRule("client is hidden", Mark(0x6b757268), SetMark(0, Reg(15)), Masquerade)
	words := golden
	words.Words = true
	for table, want := range map[Table]string{
		golden: "client is hidden #17f20170", words: "client is hidden #80785138",
	} {
		if got, err := table.Stamp(rule); err != nil || got != want {
			t.Errorf("%v: %q, %v, want %q", table, got, err, want)
		}
	}
	rule.Any = true
	if got, err := golden.Stamp(rule); err != nil || got != rule.Comment {
		t.Errorf("any: %q, %v", got, err)
	}
}

// A listing of a growing set has some elements twice. The kernel refuses to delete
// an element twice in one transaction.
func TestDifferenceOfDuplicates(t *testing.T) {
	t.Parallel()
	a, b := Element{Set: "s", Key: "a"}, Element{Set: "s", Key: "b"}
	remove, add := Difference([]Element{a, a, b, b}, []Element{b})
	if !slices.Equal(remove, []Element{a}) || len(add) != 0 {
		t.Errorf("removes %v, adds %v", remove, add)
	}
}

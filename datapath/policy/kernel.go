//go:build linux

package policy

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/datapath/nft"
)

// chunk is how many elements go into one message: an attribute's length has 16 bits.
const chunk = 250

// element is a set's or map's element, comparable, with keys in the kernel's form.
type element struct{ set, key, end, value, goTo string }

func (e element) nft() nftables.SetElement {
	n := nftables.SetElement{Key: []byte(e.key), KeyEnd: []byte(e.end), Val: []byte(e.value)}
	if e.goTo != "" {
		n.VerdictData = &expr.Verdict{Kind: expr.VerdictGoto, Chain: e.goTo}
	}
	return n
}

// transaction gathers changes of the table, which the kernel makes all at once or not at all.
type transaction struct {
	conn   *nftables.Conn
	nextID uint32 // of sets: chosen here, as the library numbers sets by a variable that all connections share
	// narrower says that something that passed may not pass any more.
	narrower bool
	changed  bool
	last     []string // chains that go when nothing leads to them any more, but each other
	lastSets []string // sets that go when no rule names them any more
}

// filter is the table.
var filter = nft.Table{Name: tableName, Family: nftables.TableFamilyBridge}

func table() *nftables.Table { return filter.Ref() }

func (t *transaction) addSet(s nftables.Set) error {
	t.changed = true
	t.nextID++
	s.Table, s.ID = table(), t.nextID
	if err := t.conn.AddSet(&s, nil); err != nil {
		return fmt.Errorf("set %s: %w", s.Name, err)
	}
	return nil
}

// addChains adds chains with their rules. All chains come first, since rules go to chains that
// come later.
func (t *transaction) addChains(list []nft.Chain) error {
	for _, c := range list {
		t.addChain(c)
	}
	for _, c := range list {
		if err := t.addRules(c); err != nil {
			return err
		}
	}
	return nil
}

// addChain adds a chain without its rules.
func (t *transaction) addChain(c nft.Chain) {
	t.changed = true
	n := &nftables.Chain{Name: c.Name, Table: table()}
	if c.Hook != nil {
		n.Type, n.Hooknum, n.Priority = c.Type, c.Hook, &c.Priority
	}
	t.conn.AddChain(n)
}

// addRules adds the rules of a chain.
func (t *transaction) addRules(c nft.Chain) error {
	for _, r := range c.Rules {
		if err := t.addRule(c.Name, r); err != nil {
			return err
		}
	}
	return nil
}

func (t *transaction) addRule(chain string, r nft.Rule) error {
	t.changed = true
	stamp, err := filter.Stamp(r)
	if err != nil {
		return err
	}
	t.conn.AddRule(&nftables.Rule{
		Table: table(), Chain: &nftables.Chain{Name: chain, Table: table()}, Exprs: r.Exprs,
		UserData: userdata.AppendString(nil, userdata.TypeComment, stamp),
	})
	return nil
}

func (t *transaction) elements(list []element, call func(*nftables.Set, []nftables.SetElement) error) error {
	bySet := map[string][]nftables.SetElement{}
	var names []string
	for _, e := range list {
		if bySet[e.set] == nil {
			names = append(names, e.set)
		}
		bySet[e.set] = append(bySet[e.set], e.nft())
	}
	for _, name := range names {
		t.changed = true
		for part := range slices.Chunk(bySet[name], chunk) {
			if err := call(&nftables.Set{Table: table(), Name: name, IsMap: isMap(name)}, part); err != nil {
				return fmt.Errorf("set %s: %w", name, err)
			}
		}
	}
	return nil
}

func isMap(set string) bool {
	if set == setPorts {
		return true
	}
	return isVerdictMap(set)
}

func isVerdictMap(set string) bool {
	if isLimitSet(set) {
		return true
	}
	for _, d := range directions {
		if set == judges(d, false) || set == judges(d, true) {
			return true
		}
	}
	return false
}

func (t *transaction) remove(list []element) error {
	for i := range list {
		list[i].goTo = "" // the kernel deletes by key
	}
	return t.elements(list, t.conn.SetDeleteElements)
}

func (t *transaction) add(list []element) error { return t.elements(list, t.conn.SetAddElements) }

// commit makes the changes. Where something that passed may not pass any more it begins a new epoch, so that all is judged anew.
func (t *transaction) commit() error {
	if t.narrower {
		epoch := &nftables.Chain{Name: chainEpoch, Table: table()}
		t.conn.FlushChain(epoch)
		if err := t.addRule(chainEpoch, epochRule(newEpoch())); err != nil {
			return err
		}
	}
	for _, name := range t.last {
		t.changed = true
		t.conn.FlushChain(&nftables.Chain{Name: name, Table: table()})
	}
	for _, name := range t.last {
		t.conn.DelChain(&nftables.Chain{Name: name, Table: table()})
	}
	for _, name := range t.lastSets {
		t.changed = true
		t.conn.DelSet(&nftables.Set{Table: table(), Name: name})
	}
	if !t.changed {
		return nil
	}
	return firstError(t.conn.Flush())
}

// firstError is the first of joined errors: the kernel reports one for each message of a
// transaction, and those after the first mostly follow from it.
func firstError(err error) error {
	for next := err; next != nil; next = errors.Unwrap(next) {
		if joined, ok := next.(interface{ Unwrap() []error }); ok {
			return firstError(joined.Unwrap()[0])
		}
	}
	return err
}

// newEpoch is a number that no epoch of the last seconds had.
func newEpoch() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.NativeEndian.Uint32(b[:])
}

// isAbsent tells a missing table, set, chain or element. The library wraps errors of dumps with %v, so those are told by their text.
func isAbsent(err error) bool {
	return err != nil && (errors.Is(err, unix.ENOENT) || err.Error() == "receiveAckAware: netlink receive: no such file or directory")
}

func (f *Filter) exists() (bool, error) {
	tables, err := f.conn.ListTablesOfFamily(nftables.TableFamilyBridge)
	if err != nil {
		return false, fmt.Errorf("list tables: %w", err)
	}
	return slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == tableName }), nil
}

// readChains gives the names of the table's chains.
func (f *Filter) readChains() (map[string]*nftables.Chain, error) {
	list, err := f.conn.ListChainsOfTableFamily(nftables.TableFamilyBridge)
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	have := map[string]*nftables.Chain{}
	for _, c := range list {
		if c.Table.Name == tableName {
			have[c.Name] = c
		}
	}
	return have, nil
}

// hasChain asks for one chain.
func (f *Filter) hasChain(name string) bool {
	_, err := f.conn.ListChain(table(), name)
	return err == nil
}

// hasSet asks for one set.
func (f *Filter) hasSet(name string) (bool, error) {
	_, err := f.conn.GetSetByName(table(), name)
	if isAbsent(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("set %s: %w", name, err)
	}
	return true, nil
}

// readSets gives the table's sets by name, but for anonymous ones, which come and go with
// their rules.
func (f *Filter) readSets() (map[string]*nftables.Set, error) {
	list, err := f.conn.GetSets(table())
	if err != nil && !isAbsent(err) {
		return nil, fmt.Errorf("list sets: %w", err)
	}
	have := map[string]*nftables.Set{}
	for _, s := range list {
		if !s.Anonymous {
			have[s.Name] = s
		}
	}
	return have, nil
}

// readElements gives what is in sets. One that is absent is empty.
func (f *Filter) readElements(sets ...string) ([]element, error) {
	var all []element
	for _, name := range sets {
		list, err := f.conn.GetSetElements(&nftables.Set{Table: table(), Name: name})
		if isAbsent(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read set %s: %w", name, err)
		}
		for _, e := range list {
			own := element{set: name, key: string(e.Key), end: string(e.KeyEnd), value: string(e.Val)}
			if isVerdictMap(name) {
				own.value, own.goTo = "", verdictChain(e.Val)
			}
			all = append(all, own)
		}
	}
	return all, nil
}

// verdictChain is the chain that a verdict leads to, of which the library gives the bare attributes.
func verdictChain(attributes []byte) string {
	ad, err := netlink.NewAttributeDecoder(attributes)
	if err != nil {
		return ""
	}
	for ad.Next() {
		if ad.Type() == unix.NFTA_VERDICT_CHAIN {
			return ad.String()
		}
	}
	return ""
}

// syncRules makes a chain that is there have these rules, by the fewest changes; their order does not matter, unless ordered is set: then a chain that
// differs is written anew. It reports whether there was anything to do.
func (t *transaction) syncRules(f *Filter, c nft.Chain, ordered bool) (differs bool, err error) {
	have, err := f.conn.GetRules(table(), &nftables.Chain{Name: c.Name, Table: table()})
	if err != nil {
		return false, fmt.Errorf("list rules of %s: %w", c.Name, err)
	}
	wanted := make([]string, len(c.Rules))
	for i, r := range c.Rules {
		if wanted[i], err = filter.Stamp(r); err != nil {
			return false, err
		}
	}
	stamps := make([]string, len(have))
	for i, r := range have {
		stamps[i] = nft.CommentOf(r)
	}
	if slices.Equal(wanted, stamps) {
		return false, nil
	}
	if ordered {
		t.conn.FlushChain(&nftables.Chain{Name: c.Name, Table: table()})
		t.narrower = true
		return true, t.addRules(c)
	}
	missing := map[string]int{}
	for _, s := range wanted {
		missing[s]++
	}
	for i, s := range stamps {
		if missing[s] > 0 {
			missing[s]--
			continue
		}
		t.narrower, t.changed, differs = true, true, true
		if err := t.conn.DelRule(&nftables.Rule{Table: table(), Chain: &nftables.Chain{Name: c.Name, Table: table()}, Handle: have[i].Handle}); err != nil {
			return false, err
		}
	}
	for i, s := range wanted {
		if missing[s] > 0 {
			missing[s]--
			differs = true
			if err := t.addRule(c.Name, c.Rules[i]); err != nil {
				return false, err
			}
		}
	}
	return differs, nil
}

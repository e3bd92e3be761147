//go:build linux

package fabric

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/datapath/nft"
)

// tableName is the name of every table of ours, in each family and namespace, but for one that has its own.
const tableName = "kuryr"

// chunk is how many elements go into one message: an attribute's length has 16 bits.
const chunk = 250

// table is a table's fixed part: chains with their rules, and the sets that the variable part lives in. A port, a forwarding or a
// floating address is never a rule, always an element.
type table struct {
	family nftables.TableFamily
	own    string // name, if not tableName
	sets   []nftables.Set
	chains []nft.Chain
}

func (t table) name() string { return cmp.Or(t.own, tableName) }

func (t table) in() nft.Table { return nft.Table{Name: t.name(), Family: t.family} }

func (t table) ref() *nftables.Table { return t.in().Ref() }

func (t table) set(name string) *nftables.Set {
	for i, s := range t.sets {
		if s.Name == name {
			s.Table = t.ref()
			s.ID = uint32(i + 1) // chosen here, as the library numbers sets by a variable that all connections share
			return &s
		}
	}
	return nil
}

// converge makes the table's fixed part as wanted in one transaction. Sets keep their
// elements, also when an older version lacks some sets and chains. A set or chain of
// another type cannot be changed: then the table is recreated, empty.
func (t table) converge(r *run, s *space) (err error) {
	defer s.note(&err)
	exists, err := t.exists(s)
	if err != nil {
		return err
	}
	object := fmt.Sprintf("nft table %s %s", familyName(t.family), t.name())
	if !exists {
		return r.mend(object, "complete", "", func() error { return t.explain(t.create(s.nft, false)) })
	}
	have, err := t.read(s.nft)
	if err != nil {
		return err
	}
	if damage := t.damage(have); damage != "" {
		return r.mend(object, "complete", damage,
			func() error { return t.explain(t.create(s.nft, true)) })
	}
	var stale []nft.Chain
	var names []string
	for _, c := range t.chains {
		if have.chains[c.Name] != nil {
			same, err := t.sameRules(s.nft, c)
			if err != nil {
				return err
			}
			if same {
				continue
			}
		}
		stale = append(stale, c)
		names = append(names, c.Name)
	}
	for _, want := range t.sets {
		if have.sets[want.Name] == nil {
			names = append(names, want.Name)
		}
	}
	names = append(names, t.unwanted(have)...)
	if len(names) == 0 {
		return nil
	}
	return r.mend(object, "its rules", fmt.Sprintf("other rules in %v", names), func() error {
		return t.explain(t.change(s.nft, have, stale))
	})
}

// kernelTable is what the kernel has of a table, by name.
type kernelTable struct {
	sets   map[string]*nftables.Set
	chains map[string]*nftables.Chain
}

func (t table) read(c *nftables.Conn) (kernelTable, error) {
	have := kernelTable{map[string]*nftables.Set{}, map[string]*nftables.Chain{}}
	sets, err := c.GetSets(t.ref())
	if err != nil {
		return have, fmt.Errorf("list sets: %w", err)
	}
	for _, s := range sets {
		if !s.Anonymous { // those come and go with their rules
			have.sets[s.Name] = s
		}
	}
	chains, err := c.ListChainsOfTableFamily(t.family)
	if err != nil {
		return have, fmt.Errorf("list chains: %w", err)
	}
	for _, ch := range chains {
		if ch.Table.Name == t.name() {
			have.chains[ch.Name] = ch
		}
	}
	return have, nil
}

// damage names a set or chain that cannot be changed in place; "" if there is none.
func (t table) damage(have kernelTable) string {
	for _, want := range t.sets {
		if s := have.sets[want.Name]; s != nil && !sameType(s, want) {
			return "another type of set " + want.Name
		}
	}
	for _, want := range t.chains {
		if ch := have.chains[want.Name]; ch != nil && !sameHook(ch, want) {
			return "another type of chain " + want.Name
		}
	}
	return ""
}

func sameType(have *nftables.Set, want nftables.Set) bool {
	return have.KeyType.Bytes == want.KeyType.Bytes &&
		have.KeyType.GetNFTMagic() == want.KeyType.GetNFTMagic() &&
		have.IsMap == want.IsMap && have.Interval == want.Interval &&
		have.Dynamic == want.Dynamic &&
		(!want.IsMap || have.DataType.GetNFTMagic() == want.DataType.GetNFTMagic())
}

func sameHook(have *nftables.Chain, want nft.Chain) bool {
	return have.Type == want.Type &&
		(want.Type == "" || *have.Hooknum == *want.Hook && *have.Priority == want.Priority)
}

// unwanted names the chains and sets that the table should not have, such as those of an
// older version.
func (t table) unwanted(have kernelTable) []string {
	var names []string
	for name := range have.chains {
		if !slices.ContainsFunc(t.chains, func(c nft.Chain) bool { return c.Name == name }) {
			names = append(names, name)
		}
	}
	for name := range have.sets {
		if t.set(name) == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// change adds what is missing, replaces the rules of the stale chains, and deletes what
// is unwanted, in one transaction.
func (t table) change(c *nftables.Conn, have kernelTable, stale []nft.Chain) error {
	for _, want := range t.sets {
		if have.sets[want.Name] == nil {
			if err := c.AddSet(t.set(want.Name), nil); err != nil {
				return fmt.Errorf("set %s: %w", want.Name, err)
			}
		}
	}
	for _, ch := range stale {
		if have.chains[ch.Name] == nil {
			c.AddChain(t.chain(ch))
		}
	}
	for _, ch := range stale {
		ref := &nftables.Chain{Name: ch.Name, Table: t.ref()}
		c.FlushChain(ref)
		if err := t.addRules(c, ch, ref); err != nil {
			return err
		}
	}
	unwanted := t.unwanted(have)
	for _, name := range unwanted { // all are flushed first: they may lead to one another
		if have.chains[name] != nil {
			c.FlushChain(&nftables.Chain{Name: name, Table: t.ref()})
		}
	}
	for _, name := range unwanted {
		if have.chains[name] != nil {
			c.DelChain(&nftables.Chain{Name: name, Table: t.ref()})
		}
	}
	for _, name := range unwanted {
		if have.sets[name] != nil {
			c.DelSet(&nftables.Set{Name: name, Table: t.ref()})
		}
	}
	return c.Flush()
}

func (t table) chain(ch nft.Chain) *nftables.Chain {
	n := &nftables.Chain{Name: ch.Name, Table: t.ref(), Type: ch.Type, Hooknum: ch.Hook}
	if ch.Hook != nil {
		n.Priority = &ch.Priority
	}
	return n
}

func (t table) sameRules(c *nftables.Conn, want nft.Chain) (bool, error) {
	rules, err := c.GetRules(t.ref(), &nftables.Chain{Name: want.Name, Table: t.ref()})
	if err != nil {
		return false, fmt.Errorf("list rules of %s: %w", want.Name, err)
	}
	if len(rules) != len(want.Rules) {
		return false, nil
	}
	for i, have := range rules {
		stamp, err := t.in().Stamp(want.Rules[i])
		if err != nil {
			return false, err
		}
		if nft.CommentOf(have) != stamp {
			return false, nil
		}
	}
	return true, nil
}

func (t table) create(c *nftables.Conn, replace bool) error {
	if replace {
		c.DelTable(t.ref())
	}
	c.AddTable(t.ref())
	for _, s := range t.sets {
		if err := c.AddSet(t.set(s.Name), nil); err != nil {
			return fmt.Errorf("set %s: %w", s.Name, err)
		}
	}
	// All chains first: rules go to chains that come later.
	refs := make([]*nftables.Chain, len(t.chains))
	for i, ch := range t.chains {
		refs[i] = t.chain(ch)
		c.AddChain(refs[i])
	}
	for i, ch := range t.chains {
		if err := t.addRules(c, ch, refs[i]); err != nil {
			return err
		}
	}
	return c.Flush()
}

func (t table) addRules(c *nftables.Conn, ch nft.Chain, ref *nftables.Chain) error {
	for _, rl := range ch.Rules {
		stamp, err := t.in().Stamp(rl)
		if err != nil {
			return err
		}
		c.AddRule(&nftables.Rule{Table: t.ref(), Chain: ref, Exprs: rl.Exprs, UserData: userdata.AppendString(nil, userdata.TypeComment, stamp)})
	}
	return nil
}

func (t table) exists(s *space) (bool, error) {
	tables, err := s.nft.ListTablesOfFamily(t.family)
	if err != nil {
		return false, fmt.Errorf("list tables: %w", err)
	}
	named := func(have *nftables.Table) bool { return have.Name == t.name() }
	return slices.ContainsFunc(tables, named), nil
}

// remove deletes the table; absent is fine.
func (t table) remove(r *run, s *space) (err error) {
	defer s.note(&err)
	if exists, err := t.exists(s); err != nil || !exists {
		return err
	}
	return r.mend(fmt.Sprintf("nft table %s %s", familyName(t.family), t.name()), "", "present", func() error {
		s.nft.DelTable(t.ref())
		return ignore(s.nft.Flush(), unix.ENOENT)
	})
}

func familyName(f nftables.TableFamily) string {
	if f == nftables.TableFamilyBridge {
		return "bridge"
	}
	return "inet"
}

// note gives the socket up after an error.
func (s *space) note(err *error) {
	if *err != nil {
		s.bad = true
	}
}

// element is a set's or map's element, comparable, with keys in the kernel's form.
type element struct{ set, key, end, value string }

func (e element) nft() nftables.SetElement {
	return nftables.SetElement{Key: []byte(e.key), KeyEnd: []byte(e.end), Val: []byte(e.value)}
}

// elements reads what is in the named sets; if none is named, in all of the table's but
// those that rules fill. No table: no elements.
func (t table) elements(s *space, names ...string) (_ []element, err error) {
	defer s.note(&err)
	if len(names) == 0 {
		for _, s := range t.sets {
			if !s.Dynamic {
				names = append(names, s.Name)
			}
		}
	}
	var all []element
	for _, name := range names {
		list, err := s.nft.GetSetElements(&nftables.Set{Table: t.ref(), Name: name})
		if isAbsent(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read set %s: %w", name, err)
		}
		for _, e := range list {
			all = append(all, element{name, string(e.Key), string(e.KeyEnd), string(e.Val)})
		}
	}
	return all, nil
}

// update removes and adds elements in one transaction. An element to be removed is added first: so absent is fine, and one whose
// key stands for another value is left alone and makes the whole transaction fail with EEXIST. A missing table or set is ENOENT.
func (t table) update(s *space, remove, add []element) (err error) {
	defer s.note(&err)
	kept := map[element]bool{}
	for _, e := range add {
		kept[e] = true
	}
	remove = slices.DeleteFunc(slices.Clone(remove), func(e element) bool { return kept[e] })
	for _, step := range []struct {
		list []element
		call func(*nftables.Set, []nftables.SetElement) error
	}{{remove, s.nft.SetAddElements}, {remove, s.nft.SetDeleteElements}, {add, s.nft.SetAddElements}} {
		if err := t.queue(step.list, step.call); err != nil {
			return err
		}
	}
	return s.nft.Flush()
}

// updateOrMend is update, but makes the table first if it is missing or damaged.
func (t table) updateOrMend(r *run, s *space, remove, add []element) error {
	err := t.update(s, remove, add)
	if !isAbsent(err) {
		return err
	}
	if err := t.converge(r, s); err != nil {
		return err
	}
	return t.update(s, remove, add)
}

func (t table) queue(list []element, call func(*nftables.Set, []nftables.SetElement) error) error {
	bySet := map[string][]nftables.SetElement{}
	for _, e := range list {
		bySet[e.set] = append(bySet[e.set], e.nft())
	}
	for _, s := range t.sets {
		for part := range slices.Chunk(bySet[s.Name], chunk) {
			if err := call(&nftables.Set{Table: t.ref(), Name: s.Name, IsMap: s.IsMap}, part); err != nil {
				return fmt.Errorf("set %s: %w", s.Name, err)
			}
		}
	}
	return nil
}

// sync makes the named sets hold exactly these elements.
func (t table) sync(r *run, s *space, want []element, describe func(element) string, names ...string) error {
	_, _, err := t.syncChanges(r, s, want, describe, names...)
	return err
}

// syncChanges is sync and tells what it changed.
func (t table) syncChanges(r *run, s *space, want []element, describe func(element) string, names ...string) (remove, add []element, err error) {
	have, err := t.elements(s, names...)
	if err != nil {
		return nil, nil, err
	}
	had, wanted := map[element]bool{}, map[element]bool{}
	for _, e := range have {
		had[e] = true
	}
	for _, e := range want {
		if !had[e] && !wanted[e] {
			add = append(add, e)
		}
		wanted[e] = true
	}
	for _, e := range have {
		if !wanted[e] {
			remove = append(remove, e)
		}
	}
	if len(add)+len(remove) == 0 {
		return nil, nil, nil
	}
	for _, e := range remove {
		r.diffs = append(r.diffs, Difference{Domain: r.domain, Object: "nft element " + e.set, Have: describe(e)})
	}
	for _, e := range add {
		r.diffs = append(r.diffs, Difference{Domain: r.domain, Object: "nft element " + e.set, Want: describe(e)})
	}
	if r.dry {
		return nil, nil, nil
	}
	return remove, add, t.update(s, remove, add)
}

// isAbsent tells a missing table or set. The library wraps errors of dumps with %v, so those are told by their text.
func isAbsent(err error) bool {
	return err != nil && (errors.Is(err, unix.ENOENT) || err.Error() == "receiveAckAware: netlink receive: no such file or directory")
}

func describeHex(e element) string {
	if e.value == "" {
		return fmt.Sprintf("%x", e.key)
	}
	return fmt.Sprintf("%x : %x", e.key, e.value)
}

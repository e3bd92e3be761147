//go:build linux

package router

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/datapath/nft"
)

// tableName is the name of every table of ours, in each family and namespace, but for one
// that has its own.
const tableName = "kuryr"

// table is a table's fixed part: chains with their rules, and the sets that the variable
// part lives in. A port, a forwarding or a floating address is never a rule, always an
// element.
type table struct {
	family nftables.TableFamily
	own    string // name, if not tableName
	sets   []nftables.Set
	chains []nft.Chain
}

func (t table) name() string { return cmp.Or(t.own, tableName) }

func (t table) in() nft.Table { return nft.Table{Name: t.name(), Family: t.family} }

func (t table) ref() *nftables.Table { return t.in().Ref() }

// converge makes the table's fixed part as wanted in one transaction. Sets keep their
// elements, also when an older version lacks some sets and chains. A set or chain of
// another type cannot be changed: then the table is recreated, empty.
func (t table) converge(r *run, s *space) (err error) {
	defer s.note(&err)
	exists, err := t.exists(s)
	if err != nil {
		return err
	}
	object := "nft table " + t.in().String()
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
			current, err := t.in().HasRules(s.nft, c)
			if err != nil {
				return err
			}
			if current {
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

func (t table) read(c *nft.Conn) (have kernelTable, err error) {
	if have.sets, err = t.in().Sets(c); err != nil {
		return have, err
	}
	have.chains, err = t.in().Chains(c)
	return have, err
}

// damage names a set or chain that cannot be changed in place; "" if there is none.
func (t table) damage(have kernelTable) string {
	for _, want := range t.sets {
		if s := have.sets[want.Name]; s != nil && !nft.SameSet(s, want) {
			return "another type of set " + want.Name
		}
	}
	for _, want := range t.chains {
		if ch := have.chains[want.Name]; ch != nil && !nft.SameChain(ch, want) {
			return "another type of chain " + want.Name
		}
	}
	return ""
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
		if !slices.ContainsFunc(t.sets, func(s nftables.Set) bool { return s.Name == name }) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// change adds what is missing, replaces the rules of the stale chains, and deletes what
// is unwanted, in one transaction.
func (t table) change(c *nft.Conn, have kernelTable, stale []nft.Chain) error {
	x := nft.Begin(c)
	for _, want := range t.sets {
		if have.sets[want.Name] == nil {
			x.AddSet(t.in(), want)
		}
	}
	for _, ch := range stale {
		if have.chains[ch.Name] == nil {
			x.AddChain(t.in(), ch)
		}
	}
	for _, ch := range stale {
		x.ReplaceRules(t.in(), ch)
	}
	var chains, sets []string
	for _, name := range t.unwanted(have) {
		if have.chains[name] != nil {
			chains = append(chains, name)
		}
		if have.sets[name] != nil {
			sets = append(sets, name)
		}
	}
	x.DeleteChains(t.in(), chains...)
	x.DeleteSets(t.in(), sets...)
	return x.Commit()
}

func (t table) create(c *nft.Conn, replace bool) error {
	x := nft.Begin(c)
	if replace {
		x.DeleteTable(t.in())
	}
	x.AddTable(t.in())
	for _, s := range t.sets {
		x.AddSet(t.in(), s)
	}
	x.AddChains(t.in(), t.chains)
	return x.Commit()
}

func (t table) exists(s *space) (bool, error) { return t.in().Exists(s.nft) }

// remove deletes the table; absent is fine.
func (t table) remove(r *run, s *space) (err error) {
	defer s.note(&err)
	if exists, err := t.exists(s); err != nil || !exists {
		return err
	}
	return r.mend("nft table "+t.in().String(), "", "present", func() error {
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

// elements reads what is in the named sets; if none is named, in all of the table's but
// those that rules fill. No table: no elements.
func (t table) elements(s *space, names ...string) (_ []nft.Element, err error) {
	defer s.note(&err)
	if len(names) == 0 {
		for _, s := range t.sets {
			if !s.Dynamic {
				names = append(names, s.Name)
			}
		}
	}
	var all []nft.Element
	for _, name := range names {
		list, err := t.in().Elements(s.nft, name, false)
		if nft.IsAbsent(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	return all, nil
}

// update removes and adds elements in one transaction. A missing table or set is ENOENT, and
// an element to be added whose key stands for another value EEXIST.
func (t table) update(s *space, remove, add []nft.Element) (err error) {
	defer s.note(&err)
	x := nft.Begin(s.nft)
	t.queue(x, remove, add)
	return x.Commit()
}

// queue queues that elements go and come. One that goes is added first: so absent is fine,
// and one whose key stands for another value makes the whole transaction fail with EEXIST.
func (t table) queue(x *nft.Transaction, remove, add []nft.Element) {
	remove, _ = nft.Difference(remove, add)
	x.AddElements(t.in(), remove)
	x.DeleteElements(t.in(), remove)
	x.AddElements(t.in(), add)
}

// updateOrMend is update, but if that fails it makes the table if that is missing or
// damaged, looks what is in it, and does what differs. What goes and has another value is
// left alone.
func (t table) updateOrMend(r *run, s *space, remove, add []nft.Element) error {
	return s.changeTables(r, []elementChange{{t, true, remove, add}}, Parts[Port]{})
}

// differing leaves of what goes what is in the table, and of what comes what is not.
func (t table) differing(
	ctx context.Context, s *space, remove, add []nft.Element,
) (gone, fresh []nft.Element, err error) {
	var have []nft.Element
	read := map[string]bool{}
	for _, e := range slices.Concat(remove, add) {
		if read[e.Set] {
			continue
		}
		read[e.Set] = true
		list, err := t.in().StableElements(ctx, s.nft, e.Set)
		if err != nil && !nft.IsAbsent(err) {
			return nil, nil, err
		}
		have = append(have, list...)
	}
	absent := nft.Without(remove, have)
	return nft.Without(nft.Without(remove, add), absent), nft.Without(add, have), nil
}

// sync makes the named sets hold exactly these elements.
func (t table) sync(r *run, s *space, want []nft.Element, names ...string) error {
	_, _, err := t.syncChanges(r, s, want, names...)
	return err
}

// syncChanges is sync and returns what it changed.
func (t table) syncChanges(r *run, s *space, want []nft.Element,
	names ...string) (remove, add []nft.Element, err error) {
	have, err := t.elements(s, names...)
	if err != nil {
		return nil, nil, err
	}
	remove, add = nft.Difference(have, want)
	if len(add)+len(remove) == 0 {
		return nil, nil, nil
	}
	for _, e := range remove {
		r.diffs = append(r.diffs, Difference{Router: r.router, Object: "nft element " + e.Set,
			Have: e.String()})
	}
	for _, e := range add {
		r.diffs = append(r.diffs, Difference{Router: r.router, Object: "nft element " + e.Set,
			Want: e.String()})
	}
	if r.dry {
		return nil, nil, nil
	}
	return remove, add, t.update(s, remove, add)
}

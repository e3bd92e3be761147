//go:build linux

package nft

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
)

// Transaction is a change that the kernel makes as a whole or not at all. Commit returns the
// first error. After an error the connection may have something queued and must be given up.
type Transaction struct {
	// Changed reports whether anything was queued.
	Changed bool
	conn    *Conn
	// failed is the first error of what was queued.
	failed error
	// tables are those that it changes, in the order in which they came.
	tables []changed
}

// changed is a table and the sets of which elements are added or deleted.
type changed struct {
	Table
	sets map[string]bool
}

// Begin begins a transaction on a connection that has nothing queued.
func Begin(c *Conn) *Transaction { return &Transaction{conn: c} }

// change notes that a table changes, and sets of it.
func (x *Transaction) change(t Table, sets ...string) {
	x.Changed = true
	i := slices.IndexFunc(x.tables, func(c changed) bool { return c.Table == t })
	if i < 0 {
		i = len(x.tables)
		x.tables = append(x.tables, changed{t, map[string]bool{}})
	}
	for _, name := range sets {
		x.tables[i].sets[name] = true
	}
}

// AddTable adds a table. One that exists stays.
func (x *Transaction) AddTable(t Table) {
	x.change(t)
	x.conn.AddTable(t.Ref())
}

// DeleteTable deletes a table with all it has.
func (x *Transaction) DeleteTable(t Table) {
	x.change(t)
	x.conn.DelTable(t.Ref())
}

// AddSet adds a set or map.
func (x *Transaction) AddSet(t Table, s nftables.Set) {
	x.change(t)
	s.Table = t.Ref()
	if err := x.conn.AddSet(&s, nil); err != nil {
		x.fail(t, fmt.Errorf("add set %s: %w", s.Name, err))
	}
}

// DeleteSets deletes sets that no rule names.
func (x *Transaction) DeleteSets(t Table, names ...string) {
	for _, name := range names {
		x.change(t)
		x.conn.DelSet(&nftables.Set{Table: t.Ref(), Name: name})
	}
}

// AddChain adds a chain without its rules.
func (x *Transaction) AddChain(t Table, c Chain) {
	x.change(t)
	n := &nftables.Chain{Name: c.Name, Table: t.Ref(), Type: c.Type, Hooknum: c.Hook}
	if c.Hook != nil {
		n.Priority = &c.Priority
	}
	x.conn.AddChain(n)
}

// AddChains adds chains with their rules. All chains come first, as rules lead to chains that
// come later.
func (x *Transaction) AddChains(t Table, list []Chain) {
	for _, c := range list {
		x.AddChain(t, c)
	}
	for _, c := range list {
		x.AddRules(t, c.Name, c.Rules)
	}
}

// FlushChain deletes a chain's rules.
func (x *Transaction) FlushChain(t Table, name string) {
	x.change(t)
	x.conn.FlushChain(t.chain(name))
}

// DeleteChains deletes chains that nothing leads to but one of them.
func (x *Transaction) DeleteChains(t Table, names ...string) {
	for _, name := range names {
		x.FlushChain(t, name)
	}
	for _, name := range names {
		x.conn.DelChain(t.chain(name))
	}
}

// AddRules adds rules at a chain's end.
func (x *Transaction) AddRules(t Table, chain string, rules []Rule) {
	for _, r := range rules {
		x.change(t)
		stamp, err := t.Stamp(r)
		if err != nil {
			x.fail(t, fmt.Errorf("chain %s: %w", chain, err))
			return
		}
		rule := &nftables.Rule{Table: t.Ref(), Chain: t.chain(chain), Exprs: r.Exprs}
		if stamp != "" {
			rule.UserData = userdata.AppendString(nil, userdata.TypeComment, stamp)
		}
		x.conn.AddRule(rule)
	}
}

// ReplaceRules makes a chain have these rules alone.
func (x *Transaction) ReplaceRules(t Table, c Chain) {
	x.FlushChain(t, c.Name)
	x.AddRules(t, c.Name, c.Rules)
}

// DeleteRule deletes a rule by the handle that it has in the kernel.
func (x *Transaction) DeleteRule(t Table, chain string, handle uint64) {
	x.change(t)
	rule := &nftables.Rule{Table: t.Ref(), Chain: t.chain(chain), Handle: handle}
	if err := x.conn.DelRule(rule); err != nil {
		x.fail(t, fmt.Errorf("delete rule of chain %s: %w", chain, err))
	}
}

// AddElements adds elements. One that is there is fine; one with another value is EEXIST.
func (x *Transaction) AddElements(t Table, list []Element) {
	x.elements(t, list, x.conn.SetAddElements)
}

// DeleteElements deletes elements by their keys. One that is absent is ENOENT.
func (x *Transaction) DeleteElements(t Table, list []Element) {
	list = slices.Clone(list)
	for i := range list {
		list[i].GoTo = ""
	}
	x.elements(t, list, x.conn.SetDeleteElements)
}

func (x *Transaction) elements(t Table, list []Element,
	call func(*nftables.Set, []nftables.SetElement) error) {
	bySet := map[string][]nftables.SetElement{}
	var names []string
	for _, e := range list {
		if bySet[e.Set] == nil {
			names = append(names, e.Set)
		}
		bySet[e.Set] = append(bySet[e.Set], e.kernel())
	}
	for _, name := range names {
		x.change(t, name)
		if err := call(&nftables.Set{Table: t.Ref(), Name: name}, bySet[name]); err != nil {
			x.fail(t, fmt.Errorf("elements of set %s: %w", name, err))
			return
		}
	}
}

// fail keeps the first error of what is queued, for Commit.
func (x *Transaction) fail(t Table, err error) {
	if x.failed == nil {
		x.failed = fmt.Errorf("nft table %s: %w", t, err)
	}
}

// Commit makes the change in the kernel, unless some of it could not be queued. An error names
// the tables, and the sets whose elements change: the kernel's answer names only the kind of the
// message that it refuses.
func (x *Transaction) Commit() error {
	if x.failed != nil || !x.Changed {
		return x.failed
	}
	err := x.conn.Flush()
	if err == nil {
		return nil
	}
	var where []string
	for _, c := range x.tables {
		name := c.String()
		if len(c.sets) > 0 {
			name += fmt.Sprintf(" (elements of %s)", some(c.sets))
		}
		where = append(where, name)
	}
	return fmt.Errorf("nft table %s: %w", strings.Join(where, ", "), err)
}

// namesAtMost is how many sets an error names.
const namesAtMost = 5

func some(sets map[string]bool) string {
	names := slices.Sorted(maps.Keys(sets))
	if more := len(names) - namesAtMost; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:namesAtMost], ", "), more)
	}
	return strings.Join(names, ", ")
}

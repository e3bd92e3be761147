//go:build linux

package nft

import (
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
)

// chunk is how many elements go into one message: an attribute's length has 16 bits.
const chunk = 250

// Transaction is a change that the kernel makes as a whole or not at all. After an error the
// connection may have something queued and must be given up.
type Transaction struct {
	// Changed reports whether anything was queued.
	Changed bool
	conn    *nftables.Conn
	// nextID numbers new sets. The library would number them by a variable that all connections
	// share.
	nextID uint32
	// failed is the first error of what was queued.
	failed error
}

// Begin begins a transaction on a connection that has nothing queued.
func Begin(c *nftables.Conn) *Transaction { return &Transaction{conn: c} }

// AddTable adds a table. One that exists stays.
func (x *Transaction) AddTable(t Table) {
	x.Changed = true
	x.conn.AddTable(t.Ref())
}

// DeleteTable deletes a table with all it has.
func (x *Transaction) DeleteTable(t Table) {
	x.Changed = true
	x.conn.DelTable(t.Ref())
}

// AddSet adds a set or map.
func (x *Transaction) AddSet(t Table, s nftables.Set) error {
	x.Changed = true
	x.nextID++
	s.Table, s.ID = t.Ref(), x.nextID
	if err := x.conn.AddSet(&s, nil); err != nil {
		return x.fail(fmt.Errorf("set %s: %w", s.Name, err))
	}
	return nil
}

// DeleteSets deletes sets that no rule names.
func (x *Transaction) DeleteSets(t Table, names ...string) {
	for _, name := range names {
		x.Changed = true
		x.conn.DelSet(&nftables.Set{Table: t.Ref(), Name: name})
	}
}

// AddChain adds a chain without its rules.
func (x *Transaction) AddChain(t Table, c Chain) {
	x.Changed = true
	n := &nftables.Chain{Name: c.Name, Table: t.Ref(), Type: c.Type, Hooknum: c.Hook}
	if c.Hook != nil {
		n.Priority = &c.Priority
	}
	x.conn.AddChain(n)
}

// AddChains adds chains with their rules. All chains come first, as rules lead to chains that
// come later.
func (x *Transaction) AddChains(t Table, list []Chain) error {
	for _, c := range list {
		x.AddChain(t, c)
	}
	for _, c := range list {
		if err := x.AddRules(t, c.Name, c.Rules); err != nil {
			return err
		}
	}
	return nil
}

// FlushChain deletes a chain's rules.
func (x *Transaction) FlushChain(t Table, name string) {
	x.Changed = true
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
func (x *Transaction) AddRules(t Table, chain string, rules []Rule) error {
	for _, r := range rules {
		x.Changed = true
		stamp, err := t.Stamp(r)
		if err != nil {
			return x.fail(err)
		}
		rule := &nftables.Rule{Table: t.Ref(), Chain: t.chain(chain), Exprs: r.Exprs}
		if stamp != "" {
			rule.UserData = userdata.AppendString(nil, userdata.TypeComment, stamp)
		}
		x.conn.AddRule(rule)
	}
	return nil
}

// ReplaceRules makes a chain have these rules alone.
func (x *Transaction) ReplaceRules(t Table, c Chain) error {
	x.FlushChain(t, c.Name)
	return x.AddRules(t, c.Name, c.Rules)
}

// DeleteRule deletes a rule by the handle that it has in the kernel.
func (x *Transaction) DeleteRule(t Table, chain string, handle uint64) error {
	x.Changed = true
	rule := &nftables.Rule{Table: t.Ref(), Chain: t.chain(chain), Handle: handle}
	return x.fail(x.conn.DelRule(rule))
}

// AddElements adds elements. One that is there is fine; one with another value is EEXIST.
func (x *Transaction) AddElements(t Table, list []Element) error {
	return x.elements(t, list, x.conn.SetAddElements)
}

// DeleteElements deletes elements by their keys. One that is absent is ENOENT.
func (x *Transaction) DeleteElements(t Table, list []Element) error {
	list = slices.Clone(list)
	for i := range list {
		list[i].GoTo = ""
	}
	return x.elements(t, list, x.conn.SetDeleteElements)
}

func (x *Transaction) elements(t Table, list []Element,
	call func(*nftables.Set, []nftables.SetElement) error) error {
	bySet := map[string][]nftables.SetElement{}
	var names []string
	for _, e := range list {
		if bySet[e.Set] == nil {
			names = append(names, e.Set)
		}
		bySet[e.Set] = append(bySet[e.Set], e.kernel())
	}
	for _, name := range names {
		x.Changed = true
		for part := range slices.Chunk(bySet[name], chunk) {
			if err := call(&nftables.Set{Table: t.Ref(), Name: name}, part); err != nil {
				return x.fail(fmt.Errorf("set %s: %w", name, err))
			}
		}
	}
	return nil
}

func (x *Transaction) fail(err error) error {
	if x.failed == nil {
		x.failed = err
	}
	return err
}

// Commit makes the change in the kernel, unless some of it could not be queued.
func (x *Transaction) Commit() error {
	if x.failed != nil || !x.Changed {
		return x.failed
	}
	return x.conn.Flush()
}

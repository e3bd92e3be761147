//go:build linux

package lb

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/datapath/nft"
)

// kernel is the tables in one namespace.
type kernel struct {
	name   string
	bridge bool // is there to be one in the bridge family, too
	sets   []nftables.Set
	chains []nft.Chain
	family map[string]nftables.TableFamily // by set
	base   base
	nft    *nft.Conn
	flows  conntrack
}

func openKernel(c Config) (*kernel, error) {
	k := &kernel{name: c.name(), bridge: c.Bridges != "", base: base{c},
		family: map[string]nftables.TableFamily{}}
	k.sets, k.chains = k.base.sets(), k.base.chains()
	for _, f := range k.families() {
		sets, _ := k.fixed(f)
		for _, s := range sets {
			k.family[s.Name] = f
		}
	}
	err := c.run(func() (err error) {
		if k.nft, err = nft.Dial(0); err != nil {
			return err
		}
		if k.flows.Conn, err = netlink.Dial(unix.NETLINK_NETFILTER, nil); err != nil {
			return fmt.Errorf("connection tracking: %w", err)
		}
		return nil
	})
	if err != nil {
		k.close()
		return nil, err
	}
	return k, nil
}

func (k *kernel) close() {
	if k.nft != nil {
		_ = k.nft.Close() // there is nothing to lose
	}
	if k.flows.Conn != nil {
		_ = k.flows.Close()
	}
}

func (k *kernel) in(f nftables.TableFamily) nft.Table {
	return nft.Table{Name: k.name, Family: f, Words: true}
}

func (k *kernel) table(f nftables.TableFamily) *nftables.Table { return k.in(f).Ref() }

// families are those with a table.
func (k *kernel) families() []nftables.TableFamily {
	if k.bridge {
		return []nftables.TableFamily{nftables.TableFamilyINet, nftables.TableFamilyBridge}
	}
	return []nftables.TableFamily{nftables.TableFamilyINet}
}

// fixed is what a family's table always has.
func (k *kernel) fixed(f nftables.TableFamily) ([]nftables.Set, []nft.Chain) {
	if f == nftables.TableFamilyBridge {
		return bridgeSets(), bridgeChains()
	}
	return k.sets, k.chains
}

func (k *kernel) isFixed(chain string) bool {
	for _, c := range k.chains {
		if c.Name == chain {
			return true
		}
	}
	return false
}

// lead is a profile as the kernel has it.
type lead struct {
	kind
	profile
}

func (l lead) name() string { return l.kind.lead(l.profile) }

// element is what leads packets to the profile's chain; its value is no data, but that chain.
func (l lead) element() nft.Element {
	return nft.Element{Set: l.profiles(), Key: string(nft.Word(uint32(l.profile)))}
}

// chainsOf are those that a profile needs beside the fixed ones. That which remembers is
// shared with other profiles.
func (k *kernel) chainsOf(l lead) []nft.Chain {
	list := []nft.Chain{l.leadChain(l.profile)}
	if l.timeout() > 0 {
		list = append(list, l.keepChain(k.base, l.profile))
	}
	return list
}

// change is what one transaction does.
type change struct {
	replace     bool                   // recreate the tables; they have only what is added
	old         []nftables.TableFamily // those with a table that is replaced
	mend        []placed               // chains whose rules are replaced
	leads       []lead                 // to make
	chains      map[string]bool        // those that are there
	remove, add []nft.Element          // in this order
}

func (c *change) empty() bool {
	return !c.replace && len(c.mend)+len(c.leads)+len(c.remove)+len(c.add) == 0
}

// placed is a chain of a family's table.
type placed struct {
	nftables.TableFamily
	nft.Chain
}

// commit makes a change, all or nothing. Only where there is no room for more endpoints
// that went, these are left out.
func (k *kernel) commit(ctx context.Context, c *change) error {
	err := k.try(ctx, c)
	if !errors.Is(err, unix.ENFILE) {
		return err
	}
	// Connections to them from their own bridge end.
	k.base.log().Warn("no room for more recently removed endpoints", "table", k.name)
	c.add = slices.DeleteFunc(c.add, func(e nft.Element) bool { return strings.HasPrefix(e.Set, "left") })
	return k.try(ctx, c)
}

func (k *kernel) try(ctx context.Context, c *change) error {
	if err := ctx.Err(); err != nil || c.empty() {
		return err
	}
	x := nft.Begin(k.nft)
	if c.replace {
		for _, f := range c.old {
			x.DeleteTable(k.in(f))
		}
		for _, f := range k.families() {
			k.create(x, f)
		}
	}
	for _, m := range c.mend {
		x.ReplaceRules(k.in(m.TableFamily), m.Chain)
	}
	if err := k.queue(c.remove, x.DeleteElements); err != nil {
		return err
	}
	k.addLeads(x, c)
	if err := k.queue(c.add, x.AddElements); err != nil {
		return err
	}
	return k.flush(x, len(c.remove)+len(c.leads)+len(c.add))
}

// flush has the kernel do what was queued, which changes so many elements.
func (k *kernel) flush(x *nft.Transaction, elements int) error {
	began := time.Now()
	err := x.Commit()
	if k.base.Observe != nil {
		k.base.Observe(Transaction{Elements: elements, Took: time.Since(began), Err: err})
	}
	return err
}

// create makes the fixed part of a family's table.
func (k *kernel) create(x *nft.Transaction, f nftables.TableFamily) {
	x.AddTable(k.in(f))
	sets, chains := k.fixed(f)
	for _, s := range sets {
		x.AddSet(k.in(f), s)
	}
	x.AddChains(k.in(f), chains)
}

func (k *kernel) addLeads(x *nft.Transaction, c *change) {
	made := map[string]bool{}
	var list []nft.Chain
	for _, l := range c.leads {
		for _, ch := range k.chainsOf(l) {
			if !c.chains[ch.Name] && !made[ch.Name] {
				made[ch.Name] = true
				list = append(list, ch)
			}
		}
	}
	inet := k.in(nftables.TableFamilyINet)
	x.AddChains(inet, list)
	var elements []nft.Element
	for _, l := range c.leads {
		e := l.element()
		e.GoTo = l.name()
		elements = append(elements, e)
	}
	x.AddElements(inet, elements)
}

// tidy removes elements of profiles that no frontend has, and then chains that nothing
// leads to but each other. It is a transaction of its own, after that which changed the
// frontends: a packet may have looked up a frontend before the one, and look for its
// profile after it.
func (k *kernel) tidy(ctx context.Context, unused []nft.Element, chains []string) error {
	if len(unused)+len(chains) == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	x := nft.Begin(k.nft)
	if err := k.queue(unused, x.DeleteElements); err != nil {
		return err
	}
	x.DeleteChains(k.in(nftables.TableFamilyINet), chains...)
	return k.flush(x, len(unused))
}

// queue calls call with the elements of each family's table. An element of a set that no table
// of ours has is an error.
func (k *kernel) queue(list []nft.Element, call func(nft.Table, []nft.Element)) error {
	byFamily := map[nftables.TableFamily][]nft.Element{}
	for _, e := range list {
		f, known := k.family[e.Set]
		if !known {
			return fmt.Errorf("nft table %s: no set %q for element %s", k.name, e.Set, e)
		}
		byFamily[f] = append(byFamily[f], e)
	}
	for _, f := range k.families() {
		call(k.in(f), byFamily[f])
	}
	return nil
}

// remove deletes the tables; absent is fine.
func (k *kernel) remove(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	tables, err := k.nft.ListTables()
	if err != nil {
		return fmt.Errorf("list tables: %w", err)
	}
	for _, t := range tables {
		if t.Name == k.name && (t.Family == nftables.TableFamilyINet || t.Family == nftables.TableFamilyBridge) {
			k.nft.DelTable(k.table(t.Family))
		}
	}
	if err := k.nft.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("nft table %s: %w", k.name, err)
	}
	return nil
}

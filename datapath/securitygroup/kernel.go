//go:build linux

package securitygroup

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/google/nftables"

	"github.com/kuryr/kuryr/datapath/nft"
)

// filter is the table.
var filter = nft.Table{Name: tableName, Family: nftables.TableFamilyBridge}

func table() *nftables.Table { return filter.Ref() }

// transaction is a change of the table.
type transaction struct {
	*nft.Transaction
	// narrower says that something that passed may not pass any more.
	narrower bool
	last     []string // chains that go when nothing leads to them any more, but each other
	lastSets []string // sets that go when no rule names them any more
}

func (f *Filter) begin() *transaction { return &transaction{Transaction: nft.Begin(f.conn)} }

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

// commit makes the changes.
func (t *transaction) commit() error {
	t.finish()
	return t.Commit()
}

// finish queues what comes last. Where something that passed may not pass any more it begins a
// new epoch, so that every packet is judged again.
func (t *transaction) finish() {
	if t.narrower {
		epoch := nft.Chain{Name: chainEpoch, Rules: []nft.Rule{epochRule(newEpoch())}}
		t.ReplaceRules(filter, epoch)
	}
	t.DeleteChains(filter, t.last...)
	t.DeleteSets(filter, t.lastSets...)
}

// newEpoch is a number that no epoch of the last seconds had.
func newEpoch() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.NativeEndian.Uint32(b[:])
}

// hasChain asks for one chain.
func (f *Filter) hasChain(name string) bool {
	_, err := f.conn.ListChain(table(), name)
	return err == nil
}

// hasSet asks for one set.
func (f *Filter) hasSet(name string) (bool, error) {
	_, err := f.conn.GetSetByName(table(), name)
	if nft.IsAbsent(err) {
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
	sets, err := filter.Sets(f.conn)
	if nft.IsAbsent(err) {
		return nil, nil
	}
	return sets, err
}

// readElements gives what is in sets. One that is absent is empty.
func (f *Filter) readElements(sets ...string) ([]nft.Element, error) {
	var all []nft.Element
	for _, name := range sets {
		list, err := f.read(name)
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

func (f *Filter) read(set string) ([]nft.Element, error) {
	if isVerdictMap(set) {
		return filter.Elements(f.conn, set, true)
	}
	return filter.StableElements(context.Background(), f.conn, set)
}

// syncRules makes a chain that is there have these rules, by the fewest changes; their
// order does not matter, unless ordered is set: then a chain that differs is replaced. It
// reports whether there was anything to do.
func (t *transaction) syncRules(f *Filter, c nft.Chain, ordered bool) (differs bool, err error) {
	have, err := filter.Rules(f.conn, c.Name)
	if err != nil {
		return false, err
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
		t.narrower = true
		t.ReplaceRules(filter, c)
		return true, nil
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
		t.narrower = t.narrower || !isReplaced(have[i], s, missing)
		differs = true
		t.DeleteRule(filter, c.Name, have[i].Handle)
	}
	for i, s := range wanted {
		if missing[s] > 0 {
			missing[s]--
			differs = true
			t.AddRules(filter, c.Name, c.Rules[i:i+1])
		}
	}
	return differs, nil
}

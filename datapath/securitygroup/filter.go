//go:build linux

package securitygroup

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/kuryr/kuryr/internal/failpoint"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/datapath/nft"
)

// Filter is the table in one namespace. It keeps no state but what it can read back from
// there. Its methods must not be called concurrently; an error leaves the connection in
// an unknown state.
type Filter struct{ conn *nft.Conn }

// In is the filter of the namespace that the connection is open in.
func In(conn *nft.Conn) *Filter { return &Filter{conn} }

// UpdateGroups makes security groups and address groups be these. Those at a revision
// that is known cost nothing. A change costs what differs, and the number of the group's
// own rules; the number of ports that have it does not count. An address group that a
// group's rules name and that is not told with it, or before, is empty.
func (f *Filter) UpdateGroups(groups []Group, sets []Set) error {
	if len(groups)+len(sets) == 0 {
		return nil
	}
	known, err := f.readElements(setRevisions)
	if err != nil {
		return err
	}
	groups = slices.DeleteFunc(slices.Clone(groups), func(g Group) bool { return slices.Contains(known, g.revision()) })
	sets = slices.DeleteFunc(slices.Clone(sets), func(s Set) bool { return slices.Contains(known, s.revision()) })
	if len(groups)+len(sets) == 0 {
		return nil
	}
	if exists, err := filter.Exists(f.conn); err != nil {
		return err
	} else if !exists {
		if err := f.create(); err != nil {
			return err
		}
		failpoint.Here("securitygroup.groups.table")
	}
	t := f.begin()
	if err := f.queueGroups(t, groups, sets); err != nil {
		return err
	}
	fresh := revisions(groups, sets)
	told := map[string]bool{}
	for _, e := range fresh {
		told[e.Key[:8]] = true
	}
	gone := slices.DeleteFunc(known, func(e nft.Element) bool { return !told[e.Key[:8]] })
	t.DeleteElements(filter, gone)
	t.AddElements(filter, fresh)
	if err := t.commit(); err != nil {
		return fmt.Errorf("security groups: %w", err)
	}
	return nil
}

// The kinds of revisions. Earlier versions, with one set for an address group, have "set".
const (
	kindGroup = "group"
	kindSet   = "address group"
)

func (g Group) revision() nft.Element { return revision(kindGroup, g.ID, g.Revision) }
func (s Set) revision() nft.Element   { return revision(kindSet, s.ID, s.Revision) }

func revision(kind, id string, number int64) nft.Element {
	return nft.Element{Set: setRevisions, Key: hash8(kind, id) + hash8(strconv.FormatInt(number, 10))}
}

func revisions(groups []Group, sets []Set) []nft.Element {
	var list []nft.Element
	for _, g := range groups {
		list = append(list, g.revision())
	}
	for _, s := range sets {
		list = append(list, s.revision())
	}
	return list
}

// create makes the fixed part.
func (f *Filter) create() error {
	t := f.begin()
	t.create()
	return t.commit()
}

func (t *transaction) create() {
	t.AddTable(filter)
	for _, s := range baseSets() {
		t.AddSet(filter, s)
	}
	t.narrower = true // a first epoch
	t.AddElements(filter, baseElements())
	t.AddChains(filter, baseChains())
}

// queueGroups queues what differs of the groups and sets.
func (f *Filter) queueGroups(t *transaction, groups []Group, sets []Set) error {
	for _, s := range neededSets(groups, sets) {
		there, err := f.hasSet(s.Name)
		if err != nil {
			return err
		}
		if !there {
			t.AddSet(filter, s)
		}
	}
	var fresh []nft.Chain
	for _, g := range groups {
		list, err := g.compile()
		if err != nil {
			return err
		}
		for _, c := range list {
			if !f.hasChain(c.Name) {
				fresh = append(fresh, c)
			} else if _, err := t.syncRules(f, c, false); err != nil {
				return err
			}
		}
	}
	for _, s := range sets {
		var names []string
		for _, own := range addressSets(s.ID) {
			names = append(names, own.Name)
		}
		inside, err := f.readElements(names...)
		if err != nil {
			return err
		}
		t.syncElements(inside, s.elements())
		if err := f.queueEarlier(t, s); err != nil {
			return err
		}
	}
	t.AddChains(filter, fresh)
	return nil
}

// syncElements replaces what is in sets by what should be.
func (t *transaction) syncElements(have, want []nft.Element) {
	gone, fresh := nft.Difference(have, want)
	if len(gone) > 0 {
		t.narrower = true
	}
	t.DeleteElements(filter, gone)
	t.AddElements(filter, fresh)
}

// neededSets are the sets that the groups' rules and members are in, each once.
func neededSets(groups []Group, sets []Set) []nftables.Set {
	var list []nftables.Set
	seen := map[string]bool{}
	add := func(more []nftables.Set) {
		for _, s := range more {
			if !seen[s.Name] {
				seen[s.Name] = true
				list = append(list, s)
			}
		}
	}
	for _, s := range sets {
		add(addressSets(s.ID))
	}
	for _, g := range groups {
		add(memberSets(g.ID))
		for _, r := range g.Rules {
			if r.RemoteGroup != "" {
				add(memberSets(r.RemoteGroup))
			}
			if r.RemoteSet != "" {
				add(addressSets(r.RemoteSet))
			}
		}
	}
	return list
}

// ChangePorts queues in a transaction that the filter forgets some ports and knows others; the
// ports' links need not exist yet. It costs by the ports given. Adding what is there and
// removing what is absent is fine if ChangePorts looks at what is there. Otherwise the
// transaction may fail with ENOENT or EEXIST, and changes nothing. After a look ENOENT says that
// a group of a port to be added is not known.
func (f *Filter) ChangePorts(x *nft.Transaction, remove, add []Port, look bool) error {
	for _, p := range add {
		if err := p.validate(); err != nil {
			return err
		}
	}
	// An invalid one was never added.
	remove = slices.DeleteFunc(slices.Clone(remove), func(p Port) bool { return p.validate() != nil })
	gone, fresh := elementsOf(remove, nil), elementsOf(add, nil)
	if len(gone)+len(fresh) == 0 {
		return nil
	}
	gone = nft.Without(gone, fresh)
	var known numbering // without a look, what the hashes say
	t := &transaction{Transaction: x}
	if look && len(fresh) > 0 {
		exists, err := filter.Exists(f.conn)
		if err != nil {
			return err
		}
		if !exists {
			t.create()
		}
		if known, err = f.numbering(add); err != nil {
			return err
		}
		fresh = elementsOf(add, known)
	}
	f.queueLimits(t, remove, add, look)
	for _, p := range profiles(add, known) {
		if !f.hasChain(p.chain(Egress, false)) {
			t.AddChains(filter, p.chains())
			t.AddElements(filter, p.elements())
		}
	}
	if look {
		have, err := f.readElements(setsOf(gone, fresh)...)
		if err != nil {
			return err
		}
		gone, fresh = differing(have, gone, fresh)
	}
	pairs, err := f.pairsAfter(gone, fresh)
	if err != nil {
		return err
	}
	t.narrower = t.narrower || slices.ContainsFunc(gone, func(e nft.Element) bool { return !isLimitSet(e.Set) })
	// An element that changes its value is removed by its old one and added with its new one.
	t.DeleteElements(filter, gone)
	t.AddElements(filter, fresh)
	pairs(t)
	t.finish()
	return nil
}

// differing leaves of what is to go and to come what is, and is not, there; what is there
// under the key of what is to come, with another value, goes too.
func differing(have, gone, fresh []nft.Element) (remove, add []nft.Element) {
	byKey := map[nft.Element]nft.Element{}
	keyOf := func(e nft.Element) nft.Element { return nft.Element{Set: e.Set, Key: e.Key, End: e.End} }
	for _, e := range have {
		byKey[keyOf(e)] = e
	}
	for _, e := range gone {
		if was, there := byKey[keyOf(e)]; there {
			remove = append(remove, was)
			delete(byKey, keyOf(e))
		}
	}
	for _, e := range fresh {
		was, there := byKey[keyOf(e)]
		if there && was == e {
			continue
		}
		if there {
			remove = append(remove, was)
		}
		add = append(add, e)
	}
	return remove, add
}

// pairsAfter queues what a change of ports does to the pairs of groups' members.
func (f *Filter) pairsAfter(gone, fresh []nft.Element) (func(*transaction), error) {
	nothing := func(*transaction) {}
	isPair := func(e nft.Element) bool { return e.Set == setPairs }
	if !slices.ContainsFunc(gone, isPair) && !slices.ContainsFunc(fresh, isPair) {
		return nothing, nil
	}
	after, err := f.readElements(setPairs)
	if err != nil {
		return nothing, err
	}
	after = nft.Without(after, gone)
	for _, e := range fresh {
		if isPair(e) {
			after = append(after, e)
		}
	}
	touched := map[string]bool{}
	for _, e := range slices.Concat(gone, fresh) {
		if isPair(e) {
			touched[e.Key[unix.IFNAMSIZ:unix.IFNAMSIZ+8]] = true
		}
	}
	// The key holds a hash of the group's id; the id itself is in the names of the sets.
	sets, err := f.readSets()
	if err != nil {
		return nothing, err
	}
	var groups, names []string
	for name := range sets {
		if group, ok := strings.CutPrefix(name, memberPairSet("", nft.V4)); ok && touched[hash8(group)] {
			groups = append(groups, group)
			names = append(names, memberPairSet(group, nft.V4), memberPairSet(group, nft.V6))
		}
	}
	have, err := f.readElements(names...)
	if err != nil {
		return nothing, err
	}
	return func(t *transaction) { t.syncElements(have, memberPairs(groups, after)) }, nil
}

func elementsOf(ports []Port, known numbering) []nft.Element {
	var list []nft.Element
	seen := map[nft.Element]bool{}
	for _, p := range ports {
		for _, e := range p.elements(known) {
			if !seen[e] {
				seen[e] = true
				list = append(list, e)
			}
		}
	}
	return list
}

func setsOf(lists ...[]nft.Element) []string {
	var names []string
	for _, list := range lists {
		for _, e := range list {
			if !slices.Contains(names, e.Set) {
				names = append(names, e.Set)
			}
		}
	}
	return names
}

// Remove deletes the table, and so lets everything pass. Absent is fine.
func (f *Filter) Remove() error {
	exists, err := filter.Exists(f.conn)
	if err != nil || !exists {
		return err
	}
	f.conn.DelTable(table())
	if err := f.conn.Flush(); err != nil && !nft.IsAbsent(err) {
		return fmt.Errorf("table %s: %w", tableName, err)
	}
	return nil
}

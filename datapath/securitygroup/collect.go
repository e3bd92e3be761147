//go:build linux

package securitygroup

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/kuryr/kuryr/datapath/nft"
)

// Collect removes what is there for groups and profiles that no port has any more, which
// ChangePorts leaves: to know which port is the last with a group it would have to look
// at all of them, as this does. It must be called now and then, to keep what is left
// within bounds. A group that goes must be told again before a port has it.
func (f *Filter) Collect() error {
	chains, err := filter.Chains(f.conn)
	if err != nil || len(chains) == 0 {
		return err
	}
	sets, err := f.readSets()
	if err != nil {
		return err
	}
	needed, unused, err := f.needed()
	if err != nil {
		return err
	}
	told, err := f.readElements(setRevisions)
	if err != nil {
		return err
	}
	t := f.begin()
	told = slices.DeleteFunc(told, func(e nft.Element) bool { return needed[e.Key[:8]] })
	t.DeleteElements(filter, unused)
	t.DeleteElements(filter, told)
	unneeded := func(name string) bool { return isLeftover(name) && !needed[name] }
	needless := func(name string) bool { return !unneeded(name) }
	t.last = slices.DeleteFunc(slices.Sorted(maps.Keys(chains)), needless)
	t.lastSets = slices.DeleteFunc(slices.Sorted(maps.Keys(sets)), needless)
	if err := t.commit(); err != nil {
		return fmt.Errorf("what is left of groups: %w", err)
	}
	return nil
}

// needed finds from the ports on what chains and sets are needed, by their names, and
// what revisions, by the hashes of what they are of. And it finds the elements of the
// profiles that no port has.
func (f *Filter) needed() (names map[string]bool, gone []nft.Element, err error) {
	read := []string{setPorts}
	for _, d := range directions {
		read = append(read, judges(d, false), judges(d, true))
	}
	list, err := f.readElements(read...)
	if err != nil {
		return nil, nil, err
	}
	had := map[string]bool{} // profiles, by number
	for _, e := range list {
		if e.Set == setPorts {
			had[e.Value] = true
		}
	}
	names = map[string]bool{limitBase(Egress): true, limitBase(Ingress): true}
	groups := map[string]bool{}
	for _, e := range list {
		switch {
		case e.Set == setPorts:
		case !had[e.Key]:
			gone = append(gone, e)
		default:
			names[e.GoTo] = true
			if err := f.namedBy(e.GoTo, func(name string) { groups[name] = true }); err != nil {
				return nil, nil, err
			}
		}
	}
	need := func(sets []nftables.Set) {
		for _, s := range sets {
			names[s.Name] = true
		}
	}
	for chain := range groups {
		names[chain] = true
		_, group, _ := strings.Cut(chain, "-")
		names[hash8(kindGroup, group)] = true
		need(memberSets(group))
		err := f.namedBy(chain, func(name string) {
			kind, id, _ := strings.Cut(name, "-")
			switch kind + "-" {
			case hostSet("", nft.V4), hostSet("", nft.V6),
				earlierSet("", nft.V4), earlierSet("", nft.V6):
				names[hash8(kindSet, id)], names[name] = true, true
				need(addressSets(id))
			case memberSet("", nft.V4), memberSet("", nft.V6):
				need(memberSets(id))
			}
		})
		if err != nil {
			return nil, nil, err
		}
	}
	return names, gone, nil
}

// namedBy calls f with the chains and sets that a chain's rules name.
func (f *Filter) namedBy(chain string, call func(name string)) error {
	rules, err := filter.Rules(f.conn, chain)
	if err != nil {
		return err
	}
	for _, r := range rules {
		for _, e := range r.Exprs {
			switch e := e.(type) {
			case *expr.Verdict:
				if e.Kind == expr.VerdictJump {
					call(e.Chain)
				}
			case *expr.Lookup:
				call(e.SetName)
			}
		}
	}
	return nil
}

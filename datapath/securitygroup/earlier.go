//go:build linux

package securitygroup

import (
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/kuryr/kuryr/datapath/nft"
	"github.com/kuryr/kuryr/internal/ipprefix"
)

// Versions before hostSet have one set of an address group's prefixes, and one rule where there
// are two now. Reconcile replaces that in one transaction. The rules become no narrower by it,
// so flows are not judged again.

// earlierSet is the set of all prefixes of an address group.
func earlierSet(set string, v nft.Version) string { return "prefixes" + v.String() + "-" + set }

// ofEarlierSet returns the address group and the version of an earlier set.
func ofEarlierSet(name string) (id string, v nft.Version, found bool) {
	for _, v := range nft.Versions {
		if id, found := strings.CutPrefix(name, earlierSet("", v)); found {
			return id, v, true
		}
	}
	return "", 0, false
}

// isReplaced reports whether a rule of a group, which has a stamp, looks into an earlier set, and
// others with its ID come in its place. A rule never changes under one ID.
func isReplaced(r *nftables.Rule, stamp string, missing map[string]int) bool {
	looks := slices.ContainsFunc(r.Exprs, func(e expr.Any) bool {
		l, is := e.(*expr.Lookup)
		if is {
			_, _, is = ofEarlierSet(l.SetName)
		}
		return is
	})
	if !looks {
		return false
	}
	comment, _, _ := strings.Cut(stamp, " #")
	for other, count := range missing {
		if count > 0 && strings.HasPrefix(other, comment+" #") {
			return true
		}
	}
	return false
}

// lost reports whether earlier sets have addresses that are not wanted.
func (f *Filter) lost(sets map[string]*nftables.Set, want image) (bool, error) {
	wanted := map[nft.Element]bool{}
	for _, e := range want.elements {
		wanted[e] = true
	}
	for name := range sets {
		id, v, found := ofEarlierSet(name)
		if !found {
			continue
		}
		list, err := f.readElements(name)
		if err != nil {
			return false, err
		}
		for _, e := range list {
			e.Set = rangeSet(id, v)
			if e.Key == e.End {
				const etherType = 4
				e = nft.Element{Set: hostSet(id, v), Key: e.Key[etherType:]}
			}
			if !wanted[e] {
				return true, nil
			}
		}
	}
	return false, nil
}

// queueEarlier queues what differs in the earlier sets of an address group. Rules look into them
// until Reconcile replaces the rules.
func (f *Filter) queueEarlier(t *transaction, s Set) error {
	for _, v := range nft.Versions {
		name := earlierSet(s.ID, v)
		there, err := f.hasSet(name)
		if err != nil {
			return err
		}
		if !there {
			continue
		}
		inside, err := f.readElements(name)
		if err != nil {
			return err
		}
		var want []nft.Element
		for _, p := range ipprefix.Widest(s.Prefixes) {
			if nft.VersionOf(p.Addr()) == v {
				want = append(want, prefixElement(earlierSet, s.ID, p))
			}
		}
		t.syncElements(inside, want)
	}
	return nil
}

// Package ipprefix has arithmetic with prefixes that netip and netipx leave out.
//
// It owns no more than that. It must not know what prefixes are for.
package ipprefix

import (
	"net/netip"

	"github.com/kuryr/kuryr/internal/sortslice"
	"go4.org/netipx"
)

// Last returns the highest address of a valid prefix.
func Last(p netip.Prefix) netip.Addr { return netipx.PrefixLastIP(p) }

// Widest gives prefixes in order, without bits beyond their lengths, leaving out invalid
// ones and those that others contain: of what is left none overlaps another, and it
// covers the same addresses.
func Widest(list []netip.Prefix) []netip.Prefix {
	var masked, kept []netip.Prefix
	for _, p := range list {
		if p.IsValid() {
			masked = append(masked, p.Masked())
		}
	}
	sortslice.Func(masked, netip.Prefix.Compare) // so what contains others comes right before them
	for _, p := range masked {
		if len(kept) == 0 || !kept[len(kept)-1].Overlaps(p) {
			kept = append(kept, p)
		}
	}
	return kept
}

// Without returns the parts of p that are in none of the others, in order. There can be as
// many as p has bits for each of the others.
func Without(p netip.Prefix, others []netip.Prefix) []netip.Prefix {
	var left netipx.IPSetBuilder
	left.AddPrefix(p)
	for _, o := range others {
		left.RemovePrefix(o)
	}
	set, _ := left.IPSet() // without the others that are invalid
	return set.Prefixes()
}

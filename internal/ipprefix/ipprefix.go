// Package ipprefix has what netip leaves out of arithmetic with prefixes.
//
// It owns no more than that. It must not know what prefixes are for.
package ipprefix

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/internal/sortslice"
)

// Last is the highest address of a valid prefix.
func Last(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

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

// Without returns the parts of p that are in none of the others.
func Without(p netip.Prefix, others []netip.Prefix) []netip.Prefix {
	return slices.Collect(Parts(p, others))
}

// Parts yields the parts of p that are in none of the others. There can be as many as
// p has bits for each of the others.
func Parts(p netip.Prefix, others []netip.Prefix) iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) { eachPart(p, others, yield) }
}

// eachPart reports whether it yielded all parts.
func eachPart(p netip.Prefix, others []netip.Prefix, yield func(netip.Prefix) bool) bool {
	near := slices.DeleteFunc(slices.Clone(others), func(o netip.Prefix) bool { return !o.Overlaps(p) })
	switch {
	case len(near) == 0:
		return yield(p)
	case slices.ContainsFunc(near, func(o netip.Prefix) bool { return o.Bits() <= p.Bits() }):
		return true
	}
	lower := netip.PrefixFrom(p.Addr(), p.Bits()+1)
	upper := netip.PrefixFrom(Last(lower).Next(), p.Bits()+1)
	return eachPart(lower, near, yield) && eachPart(upper, near, yield)
}

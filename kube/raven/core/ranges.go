package core

import (
	"fmt"
	"net/netip"
)

// Claim is a range that something has.
type Claim struct {
	What   string // "the pods' range", "node a"
	Prefix netip.Prefix
}

// Overlap returns an error that names the first two claims that overlap, nil for none.
func Overlap(claims []Claim) error {
	for i, a := range claims {
		for _, b := range claims[:i] {
			if a.Prefix.Overlaps(b.Prefix) {
				return fmt.Errorf("%s %s and %s %s overlap", b.What, b.Prefix, a.What, a.Prefix)
			}
		}
	}
	return nil
}

// LastAddress returns the last address of a subnet that a host can have.
func LastAddress(p netip.Prefix) netip.Addr {
	bytes := p.Masked().Addr().AsSlice()
	for bit := p.Bits(); bit < len(bytes)*8; bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(bytes)
	if last.Is4() {
		return last.Prev() // the last one is the broadcast address
	}
	return last
}

// Covers reports whether all of b is in a.
func Covers(a, b netip.Prefix) bool { return a.Bits() <= b.Bits() && a.Contains(b.Addr()) }

package restapi

import (
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/internal/ipprefix"
	"github.com/kuryr/kuryr/internal/sortslice"
	"github.com/kuryr/kuryr/sdn"
)

// allocationPools are the ranges of a subnet, also where it has none of its own: then they are all but what is not a host's and the gateway.
func allocationPools(s sdn.Subnet) []sdn.AddressRange {
	if len(s.Ranges) > 0 || s.WithoutRanges || !s.CIDR.IsValid() {
		return s.Ranges
	}
	first, last := s.CIDR.Masked().Addr(), lastOf(s.CIDR)
	if s.CIDR.Addr().Is4() && s.CIDR.Bits() < 31 {
		last = last.Prev()
	}
	if hosts := s.CIDR.Addr().BitLen() - s.CIDR.Bits(); hosts > 1 {
		first = first.Next()
	}
	whole := sdn.AddressRange{First: first, Last: last}
	if !s.Gateway.IsValid() || s.Gateway.Less(first) || last.Less(s.Gateway) {
		return []sdn.AddressRange{whole}
	}
	var out []sdn.AddressRange
	if s.Gateway != first {
		out = append(out, sdn.AddressRange{First: first, Last: s.Gateway.Prev()})
	}
	if s.Gateway != last {
		out = append(out, sdn.AddressRange{First: s.Gateway.Next(), Last: last})
	}
	return out
}

// lastOf is the last address of a prefix.
func lastOf(p netip.Prefix) netip.Addr {
	bytes := p.Addr().AsSlice()
	for i := range bytes {
		for bit := range 8 {
			if i*8+bit >= p.Bits() {
				bytes[i] |= 0x80 >> bit
			}
		}
	}
	last, _ := netip.AddrFromSlice(bytes)
	return last
}

// merged gives the least list of prefixes that holds the same addresses, in order, as Neutron shows those of a subnet pool.
func merged(prefixes []netip.Prefix) []netip.Prefix {
	sorted := slices.Clone(prefixes)
	sortslice.Func(sorted, func(a, b netip.Prefix) int {
		if n := a.Addr().Compare(b.Addr()); n != 0 {
			return n
		}
		return a.Bits() - b.Bits()
	})
	out := []netip.Prefix{}
	for _, p := range sorted {
		if n := len(out); n > 0 && out[n-1].Overlaps(p) {
			continue // in order, the one before is the wider
		}
		out = append(out, p)
		for n := len(out); n > 1; n = len(out) {
			both, ok := pair(out[n-2], out[n-1])
			if !ok {
				break
			}
			out = append(out[:n-2], both)
		}
	}
	return out
}

// pair is the prefix that two neighbours make together.
func pair(a, b netip.Prefix) (netip.Prefix, bool) {
	if a.Bits() != b.Bits() || a.Bits() == 0 {
		return a, false
	}
	both := netip.PrefixFrom(a.Addr(), a.Bits()-1).Masked()
	return both, both.Addr() == a.Addr() && both.Contains(b.Addr())
}

// covers tells whether all of p is in the prefixes.
func covers(prefixes []netip.Prefix, p netip.Prefix) bool {
	return len(ipprefix.Without(p, prefixes)) == 0
}

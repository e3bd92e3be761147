package neutronapi

import (
	"net/netip"

	"github.com/kuryr/kuryr/sdn"
	"go4.org/netipx"
)

// allocationPools returns the ranges of a subnet. A subnet without ranges of its own has all
// addresses that hosts can have, without the gateway.
func allocationPools(s sdn.Subnet) []sdn.AddressRange {
	if len(s.Ranges) > 0 || s.WithoutRanges || !s.CIDR.IsValid() {
		return s.Ranges
	}
	hosts := netipx.RangeOfPrefix(s.CIDR)
	first, last := hosts.From(), hosts.To()
	if s.CIDR.Addr().Is4() && s.CIDR.Bits() < 31 {
		last = last.Prev()
	}
	if s.CIDR.Addr().BitLen()-s.CIDR.Bits() > 1 {
		first = first.Next()
	}
	var left netipx.IPSetBuilder
	left.AddRange(netipx.IPRangeFrom(first, last))
	if s.Gateway.IsValid() {
		left.Remove(s.Gateway)
	}
	var out []sdn.AddressRange
	for _, r := range setOf(left).Ranges() {
		out = append(out, sdn.AddressRange{First: r.From(), Last: r.To()})
	}
	return out
}

// prefixSet returns the set of the addresses in the prefixes. Its prefixes are the smallest list in
// order, as Neutron shows those of a subnet pool.
func prefixSet(prefixes []netip.Prefix) *netipx.IPSet {
	var all netipx.IPSetBuilder
	for _, p := range prefixes {
		all.AddPrefix(p)
	}
	return setOf(all)
}

// setOf returns the set without what was invalid of it.
func setOf(b netipx.IPSetBuilder) *netipx.IPSet {
	set, _ := b.IPSet()
	return set
}

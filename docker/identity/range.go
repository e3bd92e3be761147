package identity

import (
	"net/netip"

	"github.com/kuryr/kuryr/internal/ipprefix"
	"github.com/kuryr/kuryr/sdn"
)

// FirstHost returns the default gateway of a network: the address after the network's own. It is
// invalid if the range has one address only.
func FirstHost(p netip.Prefix) netip.Addr {
	if p.IsSingleIP() {
		return netip.Addr{}
	}
	return p.Masked().Addr().Next()
}

// Within returns the part of sub that automatic allocation in cidr chooses from: without the
// address of the network itself and the broadcast address of IPv4.
func Within(sub, cidr netip.Prefix) []sdn.AddressRange {
	first, last := sub.Masked().Addr(), ipprefix.Last(sub)
	if cidr.Bits() < cidr.Addr().BitLen()-1 { // /31 and /127 have neither (RFC 3021, RFC 6164)
		if first == cidr.Masked().Addr() {
			first = first.Next()
		}
		if cidr.Addr().Is4() && last == ipprefix.Last(cidr) {
			last = last.Prev()
		}
	}
	if last.Less(first) {
		return nil
	}
	return []sdn.AddressRange{{First: first, Last: last}}
}

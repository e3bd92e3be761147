package docker

import (
	"fmt"
	"net/netip"

	"github.com/kuryr/kuryr/internal/ipprefix"
	"github.com/kuryr/kuryr/sdn"
)

// firstHost is the address a network's gateway has unless another is asked for: the one after the network's own. It is
// invalid where there is no room for one besides a host.
func firstHost(p netip.Prefix) netip.Addr {
	if p.IsSingleIP() {
		return netip.Addr{}
	}
	return p.Masked().Addr().Next()
}

// within is what of sub automatic allocation in cidr may choose from: all but the addresses of the network itself and of
// IPv4's broadcast.
func within(sub, cidr netip.Prefix) []sdn.AddressRange {
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

func checkAutoPools(pools []AutoPool, v6 bool) error {
	for _, p := range pools {
		if !p.Prefix.IsValid() || p.Prefix.Masked() != p.Prefix || p.Prefix.Addr().Is6() != v6 {
			return fmt.Errorf("docker: automatic pool %s: must be a prefix of the right family without host bits", p.Prefix)
		}
		if p.Len < p.Prefix.Bits() || p.Len > p.Prefix.Addr().BitLen()-2 {
			return fmt.Errorf("docker: automatic pool %s: no networks of length /%d can be cut from it", p.Prefix, p.Len)
		}
	}
	return nil
}

func overlapping(p netip.Prefix, taken []netip.Prefix) (netip.Prefix, bool) {
	for _, t := range taken {
		if t.Overlaps(p) {
			return t, true
		}
	}
	return netip.Prefix{}, false
}

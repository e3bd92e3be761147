package raven

import (
	"fmt"
	"net/netip"
)

// claim is a range that something has, for the search of collisions.
type claim struct {
	what   string // "the pods' range", "node a"
	prefix netip.Prefix
}

// collision tells of the first two claims that overlap; nil for none.
func collision(claims []claim) error {
	for i, a := range claims {
		for _, b := range claims[:i] {
			if a.prefix.Overlaps(b.prefix) {
				return fmt.Errorf("%s %s and %s %s overlap", b.what, b.prefix, a.what, a.prefix)
			}
		}
	}
	return nil
}

// checkRanges refuses ranges that cannot be served.
func checkRanges(pods []Range, services, nodes []netip.Prefix) error {
	var claims []claim
	families := map[bool]int{}
	for _, p := range pods {
		if !p.Prefix.IsValid() || p.Len < p.Prefix.Bits() || p.Len > p.Prefix.Addr().BitLen()-2 {
			return fmt.Errorf("range %s: no subnet with a prefix length of %d can be cut from it", p.Prefix, p.Len)
		}
		if families[p.Prefix.Addr().Is6()]++; families[p.Prefix.Addr().Is6()] > 1 {
			return fmt.Errorf("range %s: another one of its family is given", p.Prefix)
		}
		claims = append(claims, claim{"the pods' range", p.Prefix})
	}
	for _, p := range services {
		claims = append(claims, claim{"the services' range", p})
	}
	if err := oneOfAFamily("service", services); err != nil {
		return err
	}
	for _, p := range nodes {
		claims = append(claims, claim{"the nodes' network", p})
	}
	return collision(claims)
}

func oneOfAFamily(what string, ranges []netip.Prefix) error {
	families := map[bool]int{}
	for _, p := range ranges {
		if families[p.Addr().Is6()]++; families[p.Addr().Is6()] > 1 {
			return fmt.Errorf("%s range %s: another one of its family is given", what, p)
		}
	}
	return nil
}

// lastAddress is the last address of a subnet that a host can have: the VIP network's gateway, as its first ones are Kubernetes' own services'.
func lastAddress(p netip.Prefix) netip.Addr {
	bytes := p.Masked().Addr().AsSlice()
	for bit := p.Bits(); bit < len(bytes)*8; bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(bytes)
	if last.Is4() {
		return last.Prev() // the very last is the broadcast address
	}
	return last
}

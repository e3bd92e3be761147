package identity

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/kuryr/kuryr/internal/ipprefix"
	"github.com/kuryr/kuryr/sdn"
)

// PoolName is the name in the Key of a subnet pool: all that must be known of it. The nonce makes
// it unique, since two networks may have the same range.
type PoolName struct {
	Host  string // of the Namer
	Space string // the engine's address space
	Nonce string
	CIDR  netip.Prefix
	Sub   netip.Prefix // of automatic allocation; invalid: the whole range
	// The object of the SDN that the user named for the range: at most one of them.
	OfSubnet sdn.ID // an existing subnet, which stands for the range
	OfPool   sdn.ID // an existing subnet pool, which the subnet is allocated from
}

const (
	ofSubnetPrefix = "subnet="
	ofPoolPrefix   = "pool="
)

// String returns the name, which ParsePoolName reads.
func (n PoolName) String() string {
	sub := ""
	if n.Sub.IsValid() {
		sub = n.Sub.String()
	}
	parts := []string{n.Host, n.Space, n.Nonce, n.CIDR.String(), sub}
	switch {
	case n.OfSubnet != "":
		parts = append(parts, ofSubnetPrefix+string(n.OfSubnet))
	case n.OfPool != "":
		parts = append(parts, ofPoolPrefix+string(n.OfPool))
	}
	return strings.Join(parts, ",")
}

// ParsePoolName reads the name in a pool's Key. It reports false for any other text.
func ParsePoolName(name string) (PoolName, bool) {
	parts := strings.Split(name, ",")
	if len(parts) != 5 && len(parts) != 6 {
		return PoolName{}, false
	}
	n := PoolName{Host: parts[0], Space: parts[1], Nonce: parts[2]}
	var err error
	if n.CIDR, err = netip.ParsePrefix(parts[3]); err != nil {
		return PoolName{}, false
	}
	if parts[4] != "" {
		if n.Sub, err = netip.ParsePrefix(parts[4]); err != nil {
			return PoolName{}, false
		}
	}
	if len(parts) == 6 {
		subnet, isSubnet := strings.CutPrefix(parts[5], ofSubnetPrefix)
		pool, isPool := strings.CutPrefix(parts[5], ofPoolPrefix)
		switch {
		case isSubnet:
			n.OfSubnet = sdn.ID(subnet)
		case isPool:
			n.OfPool = sdn.ID(pool)
		default:
			return PoolName{}, false
		}
	}
	return n, true
}

// UnboundPort is the name of a port that no endpoint has, as kuryr-libnetwork gives it.
const UnboundPort = "kuryr-unbound-port"

const networkTitle = "kuryr-net-"

// NetworkTitle returns the name of a network as kuryr-libnetwork gives it.
func NetworkTitle(id string) string { return networkTitle + id[:min(8, len(id))] }

// IsNetworkTitle reports whether kuryr-libnetwork gives such a name to networks.
func IsNetworkTitle(name string) bool { return strings.HasPrefix(name, networkTitle) }

// PoolTitle returns the name of a subnet pool as kuryr-libnetwork gives it. Pools of one range have
// one name.
func PoolTitle(cidr netip.Prefix) string { return "kuryrPool-" + cidr.String() }

// SubnetTitle returns the name of a subnet as kuryr-libnetwork gives it.
func SubnetTitle(cidr netip.Prefix) string { return "kuryr-subnet-" + cidr.String() }

// HiddenTitle returns the name of the network of a pool that another network driver uses.
func HiddenTitle(cidr netip.Prefix) string { return "kuryr-ipam-" + cidr.String() }

// PortTitle returns the name of an endpoint's port as kuryr-libnetwork gives it.
func PortTitle(endpoint string) string { return endpoint + "-port" }

// SubnetPart is what the name in a subnet's Key has after that of its network: the family,
// and the place of the range among those of the family.
func SubnetPart(cidr netip.Prefix, place int) string {
	if cidr.Addr().Is6() {
		return fmt.Sprintf("/6.%d", place)
	}
	return fmt.Sprintf("/4.%d", place)
}

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

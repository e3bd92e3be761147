//go:build linux

package nft

import (
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Version is a version of IP.
type Version byte

// The versions.
const (
	V4 Version = 4
	V6 Version = 6
)

// Versions are both of them.
var Versions = []Version{V4, V6}

// VersionOf returns the version of an address.
func VersionOf(a netip.Addr) Version {
	if a.Is4() {
		return V4
	}
	return V6
}

// String is the suffix of the names of a version's sets.
func (v Version) String() string { return string('0' + v) }

// Words is how many registers an address fills.
func (v Version) Words() int {
	if v == V4 {
		return 1
	}
	return 4
}

// AddrType is the type of addresses in sets.
func (v Version) AddrType() nftables.SetDatatype {
	if v == V4 {
		return nftables.TypeIPAddr
	}
	return nftables.TypeIP6Addr
}

// Loopback returns the loopback addresses.
func (v Version) Loopback() netip.Prefix {
	if v == V4 {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8)
	}
	return netip.PrefixFrom(netip.IPv6Loopback(), 128)
}

// nfproto is netfilter's number.
func (v Version) nfproto() byte {
	if v == V4 {
		return unix.NFPROTO_IPV4
	}
	return unix.NFPROTO_IPV6
}

// EtherType is the number in Ethernet's header.
func (v Version) EtherType() uint16 {
	if v == V4 {
		return unix.ETH_P_IP
	}
	return unix.ETH_P_IPV6
}

// ICMP is the protocol number of the version's ICMP.
func (v Version) ICMP() byte {
	if v == V4 {
		return unix.IPPROTO_ICMP
	}
	return unix.IPPROTO_ICMPV6
}

// Match matches the version in a table of the inet family.
func (v Version) Match() Exprs { return Meta(expr.MetaKeyNFPROTO, v.nfproto()) }

// MatchFrame matches the version in a table of the bridge family.
func (v Version) MatchFrame() Exprs { return EtherType(v.EtherType()) }

// LoadSource loads the source address.
func (v Version) LoadSource(register uint32) expr.Any {
	if v == V4 {
		return Load(NetworkHeader, 12, 4, register)
	}
	return Load(NetworkHeader, 8, 16, register)
}

// LoadDestination loads the destination address.
func (v Version) LoadDestination(register uint32) expr.Any {
	if v == V4 {
		return Load(NetworkHeader, 16, 4, register)
	}
	return Load(NetworkHeader, 24, 16, register)
}

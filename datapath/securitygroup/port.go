//go:build linux

package securitygroup

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/internal/ipprefix"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/datapath/nft"
)

// Port is what the filter knows of a port that has security groups or limits. Ports
// without need not be named to it, and pass.
type Port struct {
	Tap    string   // its link's name, which begins with "tap"
	Groups []string // none: whatever it sends and gets passes, within its limits
	Limits Limits
	Addrs  []netip.Addr
	Pairs  []netip.Prefix // what it may send as besides
	// OnLink are the IPv6 prefixes of its link. It sends neighbour discovery there, to
	// where its pairs are, to link-local addresses and to groups.
	OnLink []netip.Prefix
}

func (p Port) validate() error {
	if len(p.Tap) >= unix.IFNAMSIZ || len(p.Tap) <= len(tapPrefix) || p.Tap[:len(tapPrefix)] != tapPrefix {
		return fmt.Errorf("link %q: want a name of at most 15 bytes that begins with %q", p.Tap, tapPrefix)
	}
	if err := p.Limits.validate(); err != nil {
		return fmt.Errorf("link %s: %w", p.Tap, err)
	}
	if slices.Contains(p.Addrs, netip.Addr{}) {
		return fmt.Errorf("link %s: invalid address", p.Tap)
	}
	if slices.ContainsFunc(p.Pairs, func(pair netip.Prefix) bool { return !pair.IsValid() }) {
		return fmt.Errorf("link %s: invalid allowed pair", p.Tap)
	}
	return nil
}

// elements are all that the sets hold of a valid port, but for the pairs of the groups'
// members; they are a function of the port and its profile's number.
func (p Port) elements(known numbering) []nft.Element {
	limits := p.limitElements()
	if len(p.Groups) == 0 {
		return limits
	}
	own := known.profileOf(p.Groups)
	list := append([]nft.Element{{Set: setPorts, Key: p.name(), Value: own.mark()}}, p.onLink()...)
	for _, g := range own.groups {
		for _, a := range p.Addrs {
			a = a.Unmap().WithZone("")
			list = append(list, nft.Element{Set: memberSet(g, nft.VersionOf(a)), Key: nft.Addr(a)})
		}
		for _, pair := range p.Pairs {
			list = append(list, nft.Element{Set: setPairs, Key: p.name() + hash8(g) + pairKey(pair)})
		}
	}
	return append(list, limits...)
}

// onLinkBits is how much of an address the set of prefixes has. A longer prefix counts as
// the one of this length around it.
const onLinkBits = 64

// onLink are the elements that say where the port may send neighbour discovery to.
func (p Port) onLink() []nft.Element {
	var list []nft.Element
	for _, prefix := range slices.Concat(p.OnLink, p.Pairs) {
		if !prefix.IsValid() || prefix.Addr().Is4() {
			continue
		}
		if prefix.Bits() < onLinkBits {
			return []nft.Element{{Set: setOnLinkAny, Key: p.name()}}
		}
		e := nft.Element{Set: setOnLink,
			Key: p.name() + string(prefix.Addr().AsSlice()[:onLinkBits/8])}
		if !slices.Contains(list, e) {
			list = append(list, e)
		}
	}
	return list
}

// name is the link's as the kernel compares it.
func (p Port) name() string { return nft.Link(p.Tap) }

const pairKeyLength = 20

// ofIPv4 in the word that holds a pair's length says that it is of IPv4.
const ofIPv4 = 1 << 8

// pairKey is a prefix of either family as IPv6 and its length, alike on every machine.
func pairKey(p netip.Prefix) string {
	a := p.Masked().Addr().As16()
	length := uint32(p.Bits())
	if p.Addr().Is4() {
		length |= ofIPv4
	}
	return string(binary.BigEndian.AppendUint32(a[:], length))
}

func pairOf(key string) netip.Prefix {
	b := []byte(key)
	a, length := netip.AddrFrom16([16]byte(b[:16])), binary.BigEndian.Uint32(b[16:pairKeyLength])
	if length&ofIPv4 != 0 {
		a, length = a.Unmap(), length&^ofIPv4
	}
	return netip.PrefixFrom(a, int(length))
}

// memberPairs gives what the sets of the groups' pairs must hold, by the pairs that are
// noted for ports. Two ports may have the same pair, a virtual address for instance, so
// one port alone does not say what a set must hold.
func memberPairs(groups []string, pairs []nft.Element) []nft.Element {
	prefixes := map[string][]netip.Prefix{} // by the group's hash
	for _, e := range pairs {
		rest := e.Key[unix.IFNAMSIZ:]
		prefixes[rest[:8]] = append(prefixes[rest[:8]], pairOf(rest[8:8+pairKeyLength]))
	}
	var list []nft.Element
	for _, g := range groups {
		for _, p := range ipprefix.Widest(prefixes[hash8(g)]) {
			list = append(list, prefixElement(memberPairSet, g, p))
		}
	}
	return list
}

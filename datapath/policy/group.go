//go:build linux

package policy

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/kuryr/kuryr/internal/ipprefix"
	"golang.org/x/sys/unix"
)

// A group is four chains: for each direction one that what begins is judged by, and one for the answers, in which each rule stands with
// source and destination swapped. A rule is a rule in both, whatever the number of ports, and two of each where it names a group, whose
// members' addresses and allowed pairs are in a set each.

// compile gives the group's chains.
func (g Group) compile() ([]chain, error) {
	var list []chain
	for _, d := range directions {
		for _, answer := range []bool{false, true} {
			c := chain{name: groupChain(g.ID, d, answer)}
			for _, r := range g.Rules {
				if r.Direction != d {
					continue
				}
				if err := r.validate(); err != nil {
					return nil, fmt.Errorf("security group %s: rule %s: %w", g.ID, r.ID, err)
				}
				for _, e := range r.compile(answer) {
					c.add("rule "+r.ID, e)
				}
			}
			list = append(list, c)
		}
	}
	return list, nil
}

func (r Rule) version() version {
	if r.IPv6 {
		return v6
	}
	return v4
}

// protocol takes ICMP as that of the rule's family, whichever number names it.
func (r Rule) protocol() uint8 {
	if r.Protocol == unix.IPPROTO_ICMP || r.Protocol == unix.IPPROTO_ICMPV6 {
		return r.version().icmp()
	}
	return r.Protocol
}

func (r Rule) validate() error {
	remotes := 0
	for _, has := range []bool{r.Remote.IsValid(), r.RemoteGroup != "", r.RemoteSet != ""} {
		if has {
			remotes++
		}
	}
	isICMP := r.protocol() == r.version().icmp()
	switch {
	case remotes > 1:
		return fmt.Errorf("remote prefix, group and address group: want at most one")
	case r.Remote.IsValid() && r.Remote.Addr().Is4() == r.IPv6:
		return fmt.Errorf("remote prefix %s: want one of IPv%s", r.Remote, r.version())
	case (r.First != 0 || r.Last != 0) && !hasPorts(r.Protocol):
		return fmt.Errorf("ports %d to %d: protocol %d has none", r.First, r.Last, r.Protocol)
	case r.First > r.Last:
		return fmt.Errorf("ports %d to %d: the first is after the last", r.First, r.Last)
	case (r.ICMPType != nil || r.ICMPCode != nil) && !isICMP:
		return fmt.Errorf("ICMP type or code with protocol %d", r.Protocol)
	case r.ICMPCode != nil && r.ICMPType == nil:
		return fmt.Errorf("ICMP code without a type")
	}
	return nil
}

// compile gives the kernel's rules, each with its verdict. There is none for the answers of what has no answers.
func (r Rule) compile(answer bool) []exprs {
	v := r.version()
	h := hook{r.Direction, v} // of the packets the rule is to match
	if answer {
		h.d = h.d.opposite()
	}
	match := v.matches()
	if p := r.protocol(); p != 0 {
		match = join(match, proto(p))
	}
	if r.First != 0 || r.Last != 0 {
		at := uint32(2)
		if answer {
			at = 0
		}
		match = join(match, portRange(at, r.First, r.Last))
	}
	if r.ICMPType != nil {
		kind := *r.ICMPType
		if answer {
			kinds := v.kinds()
			i := slices.Index(kinds.requests, kind)
			if i < 0 {
				return nil
			}
			kind = kinds.answers[i]
		}
		match = join(match, field(transportHeader, 0, kind))
		if r.ICMPCode != nil && !answer {
			match = join(match, field(transportHeader, 1, *r.ICMPCode))
		}
	}
	learn := goTo(h.learn(r.Direction))
	address := exprs{h.remote(0)}
	ranged := exprs{loadMeta(expr.MetaKeyPROTOCOL, reg(0)), h.remote(1)}
	switch {
	case r.Remote.IsValid() && r.Remote.Bits() > 0:
		return []exprs{join(match, within(h.remoteAt, r.Remote), learn)}
	case r.RemoteGroup != "":
		return []exprs{
			join(match, inSet(address, memberSet(r.RemoteGroup, v)), learn),
			join(match, inSet(ranged, memberPairSet(r.RemoteGroup, v)), learn),
		}
	case r.RemoteSet != "":
		return []exprs{join(match, inSet(ranged, addressSet(r.RemoteSet, v)), learn)}
	}
	return []exprs{join(match, learn)}
}

func portRange(at uint32, first, last uint16) exprs {
	u16 := func(v uint16) []byte { return binary.BigEndian.AppendUint16(nil, v) }
	if first == last {
		return field(transportHeader, at, u16(first)...)
	}
	return exprs{
		load(transportHeader, at, 2, 1),
		&expr.Cmp{Op: expr.CmpOpGte, Register: 1, Data: u16(first)},
		&expr.Cmp{Op: expr.CmpOpLte, Register: 1, Data: u16(last)},
	}
}

// remoteAt loads the remote's address for a comparison.
func (h hook) remoteAt() expr.Any {
	e, _ := h.remote(0).(*expr.Payload)
	e.DestRegister = 1
	return e
}

func within(at func() expr.Any, p netip.Prefix) exprs {
	if p.IsSingleIP() {
		return exprs{at(), &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Addr().AsSlice()}}
	}
	return bits(at(), net.CIDRMask(p.Bits(), p.Addr().BitLen()), expr.CmpOpEq, p.Masked().Addr().AsSlice())
}

// memberSets are the sets of a group's members. They are there from when the group, or a rule that names it, is known.
func memberSets(group string) []nftables.Set {
	var list []nftables.Set
	for _, v := range versions {
		list = append(list, nftables.Set{Name: memberSet(group, v), KeyType: v.addrType()}, ranges(memberPairSet(group, v), v))
	}
	return list
}

func addressSets(set string) []nftables.Set {
	return []nftables.Set{ranges(addressSet(set, v4), v4), ranges(addressSet(set, v6), v6)}
}

// ranges is a set of prefixes; the ethertype before the address makes it one whose elements have a first and a last key.
func ranges(name string, v version) nftables.Set {
	return nftables.Set{Name: name, Concatenation: true, Interval: true, KeyType: concat(nftables.TypeEtherType, v.addrType())}
}

// rangeElement is a prefix in such a set.
func rangeElement(set string, p netip.Prefix) element {
	v := versionOf(p.Addr())
	head := string(binary.BigEndian.AppendUint16(nil, v.ethernet())) + "\x00\x00"
	return element{set: set, key: head + string(p.Masked().Addr().AsSlice()), end: head + string(ipprefix.Last(p).AsSlice())}
}

func versionOf(a netip.Addr) version {
	if a.Is4() {
		return v4
	}
	return v6
}

// elements are the address group's prefixes.
func (s Set) elements() []element {
	var list []element
	for _, p := range ipprefix.Widest(s.Prefixes) {
		list = append(list, rangeElement(addressSet(s.ID, versionOf(p.Addr())), p))
	}
	return list
}

//go:build linux

package securitygroup

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/kuryr/kuryr/internal/ipprefix"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/datapath/nft"
)

// A group is four chains: for each direction one that what begins is judged by, and one
// for the answers, in which each rule stands with source and destination swapped. A rule
// is a rule in both, whatever the number of ports. It is two of each where it names a
// security group or an address group: single addresses and prefixes are in a set each.

// compile gives the group's chains.
func (g Group) compile() ([]nft.Chain, error) {
	var list []nft.Chain
	for _, d := range directions {
		for _, answer := range []bool{false, true} {
			c := nft.Chain{Name: groupChain(g.ID, d, answer)}
			for _, r := range g.Rules {
				if r.Direction != d {
					continue
				}
				if err := r.validate(); err != nil {
					return nil, fmt.Errorf("security group %s: rule %s: %w", g.ID, r.ID, err)
				}
				for _, e := range r.compile(answer) {
					c.Add("rule "+r.ID, e)
				}
			}
			list = append(list, c)
		}
	}
	return list, nil
}

func (r Rule) version() nft.Version {
	if r.IPv6 {
		return nft.V6
	}
	return nft.V4
}

// protocol takes ICMP as that of the rule's family, whichever number names it.
func (r Rule) protocol() uint8 {
	if r.Protocol == unix.IPPROTO_ICMP || r.Protocol == unix.IPPROTO_ICMPV6 {
		return r.version().ICMP()
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
	isICMP := r.protocol() == r.version().ICMP()
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

// compile gives the kernel's rules, each with its verdict. There is none for the answers
// of what has no answers.
func (r Rule) compile(answer bool) []nft.Exprs {
	v := r.version()
	h := hook{r.Direction, v} // of the packets the rule is to match
	if answer {
		h.d = h.d.opposite()
	}
	match := v.MatchFrame()
	if p := r.protocol(); p != 0 {
		match = nft.Join(match, nft.Protocol(p))
	}
	if r.First != 0 || r.Last != 0 {
		at := uint32(2)
		if answer {
			at = 0
		}
		match = nft.Join(match, portRange(at, r.First, r.Last))
	}
	if r.ICMPType != nil {
		kind := *r.ICMPType
		if answer {
			of := kinds(v)
			i := slices.Index(of.requests, kind)
			if i < 0 {
				return nil
			}
			kind = of.answers[i]
		}
		match = nft.Join(match, nft.Field(nft.TransportHeader, 0, kind))
		if r.ICMPCode != nil && !answer {
			match = nft.Join(match, nft.Field(nft.TransportHeader, 1, *r.ICMPCode))
		}
	}
	learn := nft.GoTo(h.learn(r.Direction))
	address := nft.Exprs{h.remote(0)}
	ranged := nft.Exprs{nft.LoadMeta(expr.MetaKeyPROTOCOL, nft.Reg(0)), h.remote(1)}
	switch {
	case r.Remote.IsValid() && r.Remote.Bits() > 0:
		return []nft.Exprs{nft.Join(match, nft.Within(h.remoteAt(), r.Remote), learn)}
	case r.RemoteGroup != "":
		return []nft.Exprs{
			nft.Join(match, inSet(address, memberSet(r.RemoteGroup, v)), learn),
			nft.Join(match, inSet(ranged, memberPairSet(r.RemoteGroup, v)), learn),
		}
	case r.RemoteSet != "":
		return []nft.Exprs{
			nft.Join(match, inSet(address, hostSet(r.RemoteSet, v)), learn),
			nft.Join(match, inSet(ranged, rangeSet(r.RemoteSet, v)), learn),
		}
	}
	return []nft.Exprs{nft.Join(match, learn)}
}

func portRange(at uint32, first, last uint16) nft.Exprs {
	u16 := func(v uint16) []byte { return binary.BigEndian.AppendUint16(nil, v) }
	if first == last {
		return nft.Field(nft.TransportHeader, at, u16(first)...)
	}
	return nft.Between(nft.TransportHeader, at, u16(first), u16(last))
}

// remoteAt loads the remote's address for a comparison.
func (h hook) remoteAt() expr.Any {
	e, _ := h.remote(0).(*expr.Payload)
	e.DestRegister = 1
	return e
}

// memberSets are the sets of a group's members. They are there from when the group, or a
// rule that names it, is known.
func memberSets(group string) []nftables.Set {
	var list []nftables.Set
	for _, v := range nft.Versions {
		list = append(list, nftables.Set{Name: memberSet(group, v), KeyType: v.AddrType()},
			nft.RangeSet(memberPairSet(group, v), v))
	}
	return list
}

func addressSets(set string) []nftables.Set {
	var list []nftables.Set
	for _, v := range nft.Versions {
		list = append(list, nftables.Set{Name: hostSet(set, v), KeyType: v.AddrType()},
			nft.RangeSet(rangeSet(set, v), v))
	}
	return list
}

// prefixElement is a prefix in the set that name makes for its version.
func prefixElement(name func(id string, v nft.Version) string, id string, p netip.Prefix) nft.Element {
	return nft.Range(name(id, nft.VersionOf(p.Addr())), p.Masked().Addr(), ipprefix.Last(p))
}

// elements are the address group's prefixes.
func (s Set) elements() []nft.Element {
	var list []nft.Element
	for _, p := range ipprefix.Widest(s.Prefixes) {
		if p.IsSingleIP() {
			set := hostSet(s.ID, nft.VersionOf(p.Addr()))
			list = append(list, nft.Element{Set: set, Key: nft.Addr(p.Addr())})
		} else {
			list = append(list, prefixElement(rangeSet, s.ID, p))
		}
	}
	return list
}

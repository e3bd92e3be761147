//go:build linux

package router

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/kuryr/kuryr/datapath/nft"
	"github.com/kuryr/kuryr/internal/ipprefix"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	setUnguarded = "unguarded" // ports that may send what they like
	setMACs      = "macs"      // port . MAC
	setARP       = "arp"       // port . MAC . sender's MAC . sender's address
	setIP        = "ip"        // port . MAC . address; by family
	rangeSuffix  = "_range"    // the same with prefixes
	setRanged    = "ranged"    // ports that make neighbours known with addresses of prefixes; rules fill it
)

// How often a port may make a neighbour known with an address of a prefix, a second:
// neighbours remember each.
const (
	rangedRate  = 50
	rangedBurst = 256
)

// guardTable keeps ports from sending under others' names. Every port of the namespace
// goes through one base chain and a few set look-ups; a port is elements of these sets,
// so the number of ports costs nothing. What nearly every packet is comes first: whether
// a frame is of a port at all, and of one with a guard, is asked before it is dropped.
func guardTable() table {
	t := table{family: nftables.TableFamilyBridge}
	name, mac := nftables.TypeIFName, nftables.TypeEtherAddr
	t.sets = append(t.sets,
		nftables.Set{Name: setUnguarded, KeyType: name},
		nftables.Set{Name: setMACs, Concatenation: true, KeyType: nft.Concat(name, mac)},
		noted(setRanged, time.Minute, name),
	)
	for _, ranged := range []bool{false, true} {
		s := ""
		if ranged {
			s = rangeSuffix
		}
		t.sets = append(t.sets,
			nftables.Set{
				Name: setARP + s, Concatenation: true, Interval: ranged,
				KeyType: nft.Concat(name, mac, mac, nftables.TypeIPAddr),
			},
			nftables.Set{
				Name: setIP + "4" + s, Concatenation: true, Interval: ranged,
				KeyType: nft.Concat(name, mac, nftables.TypeIPAddr),
			},
			nftables.Set{
				Name: setIP + "6" + s, Concatenation: true, Interval: ranged,
				KeyType: nft.Concat(name, mac, nftables.TypeIP6Addr),
			},
		)
	}
	// in lets what the key matches in a set or in its ranges go on to then. ofRanges
	// accepts what it matches in the set.
	ofRanges := func(comment, set string, key, then nft.Exprs) []nft.Rule {
		return []nft.Rule{
			nft.NewRule(comment, key, nft.InSet(set, nft.First), nft.Accept),
			nft.NewRule(comment+", by range", key, nft.InSet(set+rangeSuffix, nft.First), then),
		}
	}
	in := func(comment, set string, key, then nft.Exprs) []nft.Rule {
		list := ofRanges(comment, set, key, then)
		list[0].Exprs = nft.Join(key, nft.InSet(set, nft.First), then)
		return list
	}
	port := nft.Exprs{nft.LoadMeta(expr.MetaKeyIIFNAME, nft.Reg(0))}
	source := nft.Join(port, nft.Exprs{nft.Load(nft.LinkHeader, 6, 6, nft.Reg(4))})
	ether := func(kind uint16) nft.Exprs {
		return nft.Field(nft.LinkHeader, 12, byte(kind>>8), byte(kind))
	}
	icmp6 := func(kind byte) nft.Exprs {
		return nft.Join(nft.Protocol(unix.IPPROTO_ICMPV6), nft.Field(nft.TransportHeader, 0, kind))
	}
	udpFrom := func(p uint16) nft.Exprs {
		return nft.Join(nft.Protocol(unix.IPPROTO_UDP), nft.Field(nft.TransportHeader, 0, byte(p>>8), byte(p)))
	}
	sourceARP := nft.Join(source, nft.Exprs{nft.Load(nft.NetworkHeader, 8, 6, nft.Reg(6))})
	target := nft.Exprs{nft.Load(nft.TransportHeader, 8, 16, nft.Reg(6))}
	// refuse drops what matches of a port with a guard, and last whatever comes to it.
	refuse := func(comment string, match nft.Exprs) nft.Rule {
		guarded := nft.Join(nft.In(tapPrefix+"*"), port, nft.NotInSet(setUnguarded, nft.First))
		return nft.NewRule(comment, match, guarded, nft.Drop)
	}
	last := []nft.Rule{
		nft.NewRule("not from a port", nft.NotIn(tapPrefix+"*"), nft.Accept),
		nft.NewRule("port without guard", port, nft.InSet(setUnguarded, nft.First), nft.Accept),
		nft.NewRule("anything else", nft.Drop),
	}

	base := nft.Chain{Name: "prerouting", Type: nftables.ChainTypeFilter,
		Hook: nftables.ChainHookPrerouting, Priority: -300}
	base.Rules = append([]nft.Rule{
		nft.NewRule("IPv4", ether(unix.ETH_P_IP), nft.GoTo("ip4_source")),
		nft.NewRule("IPv6", ether(unix.ETH_P_IPV6), nft.GoTo("ip6_source")),
		nft.NewRule("ARP", ether(unix.ETH_P_ARP), nft.GoTo("arp_source")),
	}, last...)

	// Ethernet and IPv4 with their lengths: in any other layout the addresses would lie
	// elsewhere.
	lengths := []byte{0, 1, 8, 0, 6, 4}
	noSender := nft.Field(nft.NetworkHeader, 14, make([]byte, 4)...)
	senderARP := nft.Join(sourceARP, nft.Exprs{nft.Load(nft.NetworkHeader, 14, 4, nft.Reg(8))})
	targetARP := nft.Join(sourceARP, nft.Exprs{nft.Load(nft.NetworkHeader, 24, 4, nft.Reg(8))})
	arp := nft.Chain{Name: "arp_source"}
	arp.Rules = slices.Concat(
		[]nft.Rule{refuse("ARP of other kinds", nft.FieldNot(nft.NetworkHeader, 0, lengths...))},
		in("probe for an own address", setARP, nft.Join(noSender, targetARP), nft.Accept),
		ofRanges("own addresses", setARP, senderARP, nft.GoTo("ranged")),
		last)
	ranged := nft.Chain{Name: "ranged", Rules: []nft.Rule{
		nft.NewRule("more of them than its share", nft.Over(port, setRanged, rangedRate, rangedBurst)),
		nft.NewRule("pass", nft.Accept),
	}}

	icmpv4, icmpv6 := nft.Protocol(unix.IPPROTO_ICMP), nft.Protocol(unix.IPPROTO_ICMPV6)
	own4, own6 := nft.Join(source, nft.Exprs{nft.V4.LoadSource(nft.Reg(6))}),
		nft.Join(source, nft.Exprs{nft.V6.LoadSource(nft.Reg(6))})
	ip4 := nft.Chain{Name: "ip4_source"}
	ip4.Rules = slices.Concat(
		[]nft.Rule{refuse("DHCP server", udpFrom(67)), nft.NewRule("ICMP", icmpv4, nft.Jump("ip4_icmp"))},
		in("own address", setIP+"4", own4, nft.Accept),
		last)

	icmp4 := nft.Chain{Name: "ip4_icmp"}
	for _, kind := range []byte{3, 4, 5, 11, 12} { // those that quote a packet
		match := nft.Join(icmpv4, nft.Field(nft.TransportHeader, 0, kind))
		icmp4.Rules = append(icmp4.Rules,
			nft.NewRule(fmt.Sprintf("error, type %d", kind), match, nft.GoTo("ip4_error")))
	}

	unspecified := make([]byte, 16)
	// Most packets are TCP or UDP without an extension header.
	rare := append(nft.FieldNot(nft.NetworkHeader, 6, unix.IPPROTO_TCP),
		nft.Compare(expr.CmpOpNeq, unix.IPPROTO_UDP))
	ip6 := nft.Chain{Name: "ip6_source"}
	ip6.Rules = slices.Concat(
		[]nft.Rule{refuse("DHCPv6 server", udpFrom(547)),
			nft.NewRule("neither TCP nor UDP", rare, nft.Jump("ip6_other"))},
		in("own address", setIP+"6", own6, nft.Accept),
		last)

	other := nft.Chain{Name: "ip6_other", Rules: []nft.Rule{
		nft.NewRule("rest of a fragmented packet", fragmentOffset6(expr.CmpOpNeq), nft.Return),
		nft.NewRule("first fragment", fragmentOffset6(expr.CmpOpEq), nft.Jump("ip6_first")),
		nft.NewRule("ICMPv6", icmpv6, nft.GoTo("ip6_icmp")),
	}}

	// A rule cannot look into what another fragment has. So the first one must have the
	// upper-layer header (RFC 7112), and neighbour discovery is not fragmented (RFC
	// 6980). With other extension headers its place is not known, and what follows the packet
	// in its frame may look like it.
	header := nft.Join(nft.Field(nft.NetworkHeader, 6, unix.IPPROTO_FRAGMENT),
		nft.FieldNot(nft.NetworkHeader, 40, unix.IPPROTO_HOPOPTS))
	for _, extension := range []byte{unix.IPPROTO_ROUTING, unix.IPPROTO_FRAGMENT, unix.IPPROTO_AH, unix.IPPROTO_DSTOPTS} {
		header = append(header, nft.Compare(expr.CmpOpNeq, extension))
	}
	header = nft.Join(header, nft.Between(nft.NetworkHeader, 4, []byte{0, 8 + 8}, []byte{0xff, 0xff}),
		nft.Has(nft.TransportHeader, 0, 8))
	first := nft.Chain{Name: "ip6_first", Rules: []nft.Rule{
		refuse("neighbour discovery in fragments",
			nft.Join(icmpv6, nft.Between(nft.TransportHeader, 0, []byte{133}, []byte{137}))),
		nft.NewRule("upper-layer header", header, nft.Return),
		refuse("upper-layer header in another fragment", nil),
	}}

	noSource := nft.Field(nft.NetworkHeader, 8, unspecified...)
	icmp := nft.Chain{Name: "ip6_icmp", Rules: []nft.Rule{
		refuse("router advertisement", icmp6(134)),
		refuse("redirect", icmp6(137)),
		nft.NewRule("source not yet known", noSource, nft.GoTo("ip6_unspecified")),
		nft.NewRule("neighbour advertisement", icmp6(136), nft.GoTo("nd_source")),
		nft.NewRule("neighbour solicitation", icmp6(135), nft.GoTo("nd_solicits")),
		nft.NewRule("error", icmpv6, nft.Between(nft.TransportHeader, 0, []byte{0}, []byte{127}), nft.GoTo("ip6_error")),
	}}

	// An error quotes a packet that the port received: one for an address of its own, or
	// of what it routes for. Otherwise a port could speak into another's connections,
	// whose filters take errors about them.
	const quotes = "quotes a packet to an own address"
	quoted4 := nft.Join(icmpv4, source, nft.Exprs{nft.Load(nft.TransportHeader, 8+16, 4, nft.Reg(6))})
	quoted6 := nft.Join(icmpv6, source, nft.Exprs{nft.Load(nft.TransportHeader, 8+24, 16, nft.Reg(6))})
	error4, error6 := nft.Chain{Name: "ip4_error"}, nft.Chain{Name: "ip6_error"}
	error4.Rules = append(in(quotes, setIP+"4", quoted4, nft.Return), last...)
	error6.Rules = append(in(quotes, setIP+"6", quoted6, nft.Return), last...)

	none := nft.Chain{Name: "ip6_unspecified"}
	none.Rules = append(
		none.Rules,
		in("is this address mine", setIP+"6", nft.Join(icmp6(135), source, target), nft.Accept)...,
	)
	for _, kind := range []byte{131, 132, 143} {
		none.Rules = append(
			none.Rules,
			nft.NewRule(
				"multicast listener", icmp6(kind), source, nft.InSet(setMACs, nft.First), nft.Accept,
			),
		)
	}
	none.Rules = append(none.Rules, last...)

	solicits, ndSource := nft.Chain{Name: "nd_solicits"}, nft.Chain{Name: "nd_source"}
	solicits.Rules = append(ofRanges("own address", setIP+"6", own6, nft.GoTo("ranged")), last...)
	ndSource.Rules = append(in("own address", setIP+"6", own6, nft.GoTo("nd_target")), last...)
	// An advertisement's only option is the target's MAC; a frame with another one first
	// is not what a kernel sends.
	otherOption := nft.Join(icmpv6, nft.FieldNot(nft.TransportHeader, 24, 2, 1))
	withOption := nft.Join(icmpv6, port, nft.Exprs{nft.Load(nft.TransportHeader, 26, 6, nft.Reg(4))}, target)
	noOption := nft.Join(nft.Field(nft.NetworkHeader, 4, 0, 24), icmpv6, source, target)
	ndTarget := nft.Chain{Name: "nd_target"}
	ndTarget.Rules = slices.Concat(
		[]nft.Rule{refuse("other option", otherOption)},
		in("own target and MAC", setIP+"6", withOption, nft.Accept),
		in("own target, no option", setIP+"6", noOption, nft.Accept),
		last)

	t.chains = []nft.Chain{base, arp, ranged, ip4, icmp4, error4, ip6, other, first, icmp, error6, none,
		solicits, ndSource, ndTarget}
	return t
}

// fragmentOffset6 matches packets with a fragment header whose offset is, or is not, 0.
func fragmentOffset6(op expr.CmpOp) nft.Exprs {
	return nft.Bits(nft.Fragment6(2, 2, nft.First), []byte{0xff, 0xf8}, op, make([]byte, 2))
}

const noLinkLocalLearn = 1 << 0 // BR_BOOLOPT_NO_LL_LEARN (linux/if_bridge.h)

// guardLearning keeps the bridge from learning MACs from frames to 01:80:c2:00:00:0x
// (LLDP, LACP, 802.1X). They pass no chain in which a port's MAC could be checked, so by
// them a port could draw another's traffic to itself. Linux before 4.20 has no such
// switch.
func (s *space) guardLearning(r *run, link netlink.Link) error {
	head := nl.NewIfInfomsg(unix.AF_UNSPEC)
	head.Index = int32(link.Attrs().Index)
	req := s.request(unix.RTM_GETLINK, 0)
	req.AddData(head)
	answers, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err == nil && len(answers) != 1 {
		err = unix.ENODEV
	}
	if err != nil {
		return err
	}
	options := answers[0][unix.SizeofIfInfomsg:]
	for _, kind := range []uint16{unix.IFLA_LINKINFO, nl.IFLA_INFO_DATA, unix.IFLA_BR_MULTI_BOOLOPT} {
		attrs, err := nl.ParseRouteAttrAsMap(options)
		if err != nil {
			return err
		}
		options = attrs[kind].Value
	}
	if len(options) < 4 || nl.NativeEndian().Uint32(options)&noLinkLocalLearn != 0 {
		return nil
	}
	return r.mend("bridge "+link.Attrs().Name, "no_linklocal_learn 1", "no_linklocal_learn 0", func() error {
		req := s.request(unix.RTM_NEWLINK, unix.NLM_F_ACK)
		req.AddData(head)
		info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
		info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("bridge"))
		value, mask := nl.Uint32Attr(noLinkLocalLearn), nl.Uint32Attr(noLinkLocalLearn)
		info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(unix.IFLA_BR_MULTI_BOOLOPT, append(value, mask...))
		req.AddData(info)
		_, err := req.Execute(unix.NETLINK_ROUTE, 0)
		return err
	})
}

func (p Port) validate() error {
	if len(p.ID) < shortID {
		return fmt.Errorf("port id %q is shorter than %d characters", p.ID, shortID)
	}
	if p.Subport() {
		if err := p.Trunk.validate(); err != nil {
			return fmt.Errorf("subport %s: %w", p.ID, err)
		}
	}
	if !p.Guard {
		return nil
	}
	if len(p.MAC) != 6 {
		return fmt.Errorf("port %s: MAC %s: want 6 bytes", p.ID, p.MAC)
	}
	if slices.Contains(p.Addrs, netip.Addr{}) {
		return fmt.Errorf("port %s: invalid address", p.ID)
	}
	for _, a := range p.Allowed {
		if a.MAC != nil && len(a.MAC) != 6 || !a.Prefix.IsValid() {
			return fmt.Errorf("port %s: allowed address %s of %s: want a prefix and 6 bytes", p.ID, a.Prefix, a.MAC)
		}
	}
	return nil
}

// elements are all that the guard knows of a valid port; they are a function of the port
// alone.
func (p Port) elements() []nft.Element {
	name := nft.Link(TapName(p.ID))
	if !p.Guard {
		return []nft.Element{{Set: setUnguarded, Key: name}}
	}
	prefixes := map[string][]netip.Prefix{}
	note := func(mac net.HardwareAddr, prefix netip.Prefix) {
		prefixes[string(mac)] = append(prefixes[string(mac)], prefix.Masked())
	}
	for _, a := range p.Addrs {
		note(p.MAC, netip.PrefixFrom(a.Unmap().WithZone(""), a.Unmap().BitLen()))
	}
	note(p.MAC, netip.PrefixFrom(linkLocal(p.MAC), 128))
	for _, a := range p.Allowed {
		mac := a.MAC
		if mac == nil {
			mac = p.MAC
		}
		note(mac, a.Prefix)
		note(mac, netip.PrefixFrom(linkLocal(mac), 128))
	}
	var list []nft.Element
	for mac, own := range prefixes {
		m := nft.Padded(mac, 8)
		list = append(list, nft.Element{Set: setMACs, Key: name + m})
		for _, prefix := range ipprefix.Widest(own) {
			list = append(list, sourceElements(name, m, prefix)...)
		}
	}
	return list
}

func sourceElements(name, mac string, prefix netip.Prefix) []nft.Element {
	heads := map[string]string{setIP + nft.VersionOf(prefix.Addr()).String(): name + mac}
	if prefix.Addr().Is4() {
		heads[setARP] = name + mac + mac
	}
	var list []nft.Element
	for set, head := range heads {
		if prefix.IsSingleIP() {
			list = append(list, nft.Element{Set: set, Key: head + nft.Addr(prefix.Addr())})
			continue
		}
		list = append(list, nft.Element{
			Set: set + rangeSuffix, Key: head + nft.Addr(prefix.Addr()),
			End: head + nft.Addr(ipprefix.Last(prefix)),
		})
	}
	return list
}

// rangedElements are what the rules may have noted of ports with prefixes.
func rangedElements(ports []Port) []nft.Element {
	prefix := func(a AllowedAddress) bool { return a.Prefix.IsValid() && !a.Prefix.IsSingleIP() }
	var list []nft.Element
	for _, p := range ports {
		if slices.ContainsFunc(p.Allowed, prefix) {
			list = append(list, nft.Element{Set: setRanged,
				Key: nft.Link(TapName(p.ID))})
		}
	}
	return list
}

// portsElements joins the elements of many ports.
func portsElements(ports []Port) []nft.Element {
	var list []nft.Element
	for _, p := range ports {
		list = append(list, p.elements()...)
	}
	return list
}

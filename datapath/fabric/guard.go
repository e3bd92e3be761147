//go:build linux

package fabric

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
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

// guardTable keeps ports from sending under others' names. Every port of the namespace goes through one base chain and a few set
// look-ups; a port is elements of these sets, so the number of ports costs nothing. What
// nearly every packet is comes first: whether a frame is of a port at all, and of one
// with a guard, is asked before it is dropped.
func guardTable() table {
	t := table{family: nftables.TableFamilyBridge}
	name, mac := nftables.TypeIFName, nftables.TypeEtherAddr
	t.sets = append(t.sets,
		nftables.Set{Name: setUnguarded, KeyType: name},
		nftables.Set{Name: setMACs, Concatenation: true, KeyType: concat(name, mac)},
		noted(setRanged, time.Minute, name),
	)
	for _, ranged := range []bool{false, true} {
		s := ""
		if ranged {
			s = rangeSuffix
		}
		t.sets = append(t.sets,
			nftables.Set{Name: setARP + s, Concatenation: true, Interval: ranged, KeyType: concat(name, mac, mac, nftables.TypeIPAddr)},
			nftables.Set{Name: setIP + "4" + s, Concatenation: true, Interval: ranged, KeyType: concat(name, mac, nftables.TypeIPAddr)},
			nftables.Set{Name: setIP + "6" + s, Concatenation: true, Interval: ranged, KeyType: concat(name, mac, nftables.TypeIP6Addr)},
		)
	}
	// in lets what the key matches in a set or in its ranges go on to then. ofRanges
	// accepts what it matches in the set.
	ofRanges := func(comment, set string, key, then exprs) []rule {
		return []rule{
			{comment, join(key, inSet(set), accept)},
			{comment + ", by range", join(key, inSet(set+rangeSuffix), then)},
		}
	}
	in := func(comment, set string, key, then exprs) []rule {
		list := ofRanges(comment, set, key, then)
		list[0].exprs = join(key, inSet(set), then)
		return list
	}
	port := exprs{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg(0)}}
	source := join(port, exprs{load(linkHeader, 6, 6, reg(4))})
	ether := func(kind uint16) exprs {
		return field(linkHeader, 12, expr.CmpOpEq, []byte{byte(kind >> 8), byte(kind)})
	}
	icmp6 := func(kind byte) exprs {
		return join(proto(unix.IPPROTO_ICMPV6), field(transportHeader, 0, expr.CmpOpEq, []byte{kind}))
	}
	udpFrom := func(p uint16) exprs {
		return join(proto(unix.IPPROTO_UDP), field(transportHeader, 0, expr.CmpOpEq, []byte{byte(p >> 8), byte(p)}))
	}
	sourceARP := join(source, exprs{load(networkHeader, 8, 6, reg(6))})
	target := exprs{load(transportHeader, 8, 16, reg(6))}
	// refuse drops what matches of a port with a guard, and last whatever comes to it.
	refuse := func(comment string, match exprs) rule {
		guarded := join(iif(tapPrefix+"*"), port, notInSet(setUnguarded))
		return rule{comment, join(match, guarded, drop)}
	}
	last := []rule{
		{"not from a port", join(iifNot(tapPrefix+"*"), accept)},
		{"port without guard", join(port, inSet(setUnguarded), accept)},
		{"anything else", drop},
	}

	base := chain{name: "prerouting", kind: nftables.ChainTypeFilter,
		hook: nftables.ChainHookPrerouting, priority: -300}
	base.rules = append([]rule{
		{"IPv4", join(ether(unix.ETH_P_IP), goTo("ip4_source"))},
		{"IPv6", join(ether(unix.ETH_P_IPV6), goTo("ip6_source"))},
		{"ARP", join(ether(unix.ETH_P_ARP), goTo("arp_source"))},
	}, last...)

	// Ethernet and IPv4 with their lengths: in any other layout the addresses would lie
	// elsewhere.
	lengths := []byte{0, 1, 8, 0, 6, 4}
	noSender := field(networkHeader, 14, expr.CmpOpEq, make([]byte, 4))
	senderARP := join(sourceARP, exprs{load(networkHeader, 14, 4, reg(8))})
	targetARP := join(sourceARP, exprs{load(networkHeader, 24, 4, reg(8))})
	arp := chain{name: "arp_source"}
	arp.rules = slices.Concat(
		[]rule{refuse("ARP of other kinds", field(networkHeader, 0, expr.CmpOpNeq, lengths))},
		in("probe for an own address", setARP, join(noSender, targetARP), accept),
		ofRanges("own addresses", setARP, senderARP, goTo("ranged")),
		last)
	ranged := chain{name: "ranged", rules: []rule{
		{"more of them than its share", over(port, setRanged, rangedRate, rangedBurst)},
		{"pass", accept},
	}}

	icmpv4, icmpv6 := proto(unix.IPPROTO_ICMP), proto(unix.IPPROTO_ICMPV6)
	own4, own6 := join(source, loadSaddr(true, 6)), join(source, loadSaddr(false, 6))
	ip4 := chain{name: "ip4_source"}
	ip4.rules = slices.Concat(
		[]rule{refuse("DHCP server", udpFrom(67)), {"ICMP", join(icmpv4, jump("ip4_icmp"))}},
		in("own address", setIP+"4", own4, accept),
		last)

	icmp4 := chain{name: "ip4_icmp"}
	for _, kind := range []byte{3, 4, 5, 11, 12} { // those that quote a packet
		match := join(icmpv4, field(transportHeader, 0, expr.CmpOpEq, []byte{kind}))
		icmp4.rules = append(icmp4.rules,
			rule{fmt.Sprintf("error, type %d", kind), join(match, goTo("ip4_error"))})
	}

	unspecified := make([]byte, 16)
	// Most packets are TCP or UDP without an extension header.
	rare := append(field(networkHeader, 6, expr.CmpOpNeq, []byte{unix.IPPROTO_TCP}),
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{unix.IPPROTO_UDP}})
	ip6 := chain{name: "ip6_source"}
	ip6.rules = slices.Concat(
		[]rule{refuse("DHCPv6 server", udpFrom(547)),
			{"neither TCP nor UDP", join(rare, jump("ip6_other"))}},
		in("own address", setIP+"6", own6, accept),
		last)

	other := chain{name: "ip6_other", rules: []rule{
		{"rest of a fragmented packet", join(fragmentOffset6(expr.CmpOpNeq), back)},
		{"first fragment", join(fragmentOffset6(expr.CmpOpEq), jump("ip6_first"))},
		{"ICMPv6", join(icmpv6, goTo("ip6_icmp"))},
	}}

	// A rule cannot look into what another fragment has. So the first one must have the
	// upper-layer header (RFC 7112), and neighbour discovery is not fragmented (RFC
	// 6980).
	header := exprs{load(transportHeader, 0, 8, 1),
		&expr.Cmp{Op: expr.CmpOpGte, Register: 1, Data: make([]byte, 8)}}
	first := chain{name: "ip6_first", rules: []rule{
		refuse("neighbour discovery in fragments",
			join(icmpv6, inRange(transportHeader, 0, 133, 137))),
		{"upper-layer header", join(header, back)},
		refuse("upper-layer header in another fragment", nil),
	}}

	noSource := field(networkHeader, 8, expr.CmpOpEq, unspecified)
	icmp := chain{name: "ip6_icmp", rules: []rule{
		refuse("router advertisement", icmp6(134)),
		refuse("redirect", icmp6(137)),
		{"source not yet known", join(noSource, goTo("ip6_unspecified"))},
		{"neighbour advertisement", join(icmp6(136), goTo("nd_source"))},
		{"neighbour solicitation", join(icmp6(135), goTo("nd_solicits"))},
		{"error", join(icmpv6, inRange(transportHeader, 0, 0, 127), goTo("ip6_error"))},
	}}

	// An error quotes a packet that the port received: one for an address of its own, or
	// of what it routes for. Otherwise a port could speak into another's connections,
	// whose filters take errors about them.
	const quotes = "quotes a packet to an own address"
	quoted4 := join(icmpv4, source, exprs{load(transportHeader, 8+16, 4, reg(6))})
	quoted6 := join(icmpv6, source, exprs{load(transportHeader, 8+24, 16, reg(6))})
	error4, error6 := chain{name: "ip4_error"}, chain{name: "ip6_error"}
	error4.rules = append(in(quotes, setIP+"4", quoted4, back), last...)
	error6.rules = append(in(quotes, setIP+"6", quoted6, back), last...)

	none := chain{name: "ip6_unspecified"}
	none.rules = append(none.rules, in("is this address mine", setIP+"6", join(icmp6(135), source, target), accept)...)
	for _, kind := range []byte{131, 132, 143} {
		none.rules = append(none.rules, rule{"multicast listener", join(icmp6(kind), source, inSet(setMACs), accept)})
	}
	none.rules = append(none.rules, last...)

	solicits, ndSource := chain{name: "nd_solicits"}, chain{name: "nd_source"}
	solicits.rules = append(ofRanges("own address", setIP+"6", own6, goTo("ranged")), last...)
	ndSource.rules = append(in("own address", setIP+"6", own6, goTo("nd_target")), last...)
	// An advertisement's only option is the target's MAC; a frame with another one first
	// is not what a kernel sends.
	otherOption := join(icmpv6, field(transportHeader, 24, expr.CmpOpNeq, []byte{2, 1}))
	withOption := join(icmpv6, port, exprs{load(transportHeader, 26, 6, reg(4))}, target)
	noOption := join(field(networkHeader, 4, expr.CmpOpEq, []byte{0, 24}), icmpv6, source, target)
	ndTarget := chain{name: "nd_target"}
	ndTarget.rules = slices.Concat(
		[]rule{refuse("other option", otherOption)},
		in("own target and MAC", setIP+"6", withOption, accept),
		in("own target, no option", setIP+"6", noOption, accept),
		last)

	t.chains = []chain{base, arp, ranged, ip4, icmp4, error4, ip6, other, first, icmp, error6, none,
		solicits, ndSource, ndTarget}
	return t
}

// fragmentOffset6 matches packets with a fragment header whose offset is, or is not, 0.
func fragmentOffset6(op expr.CmpOp) exprs {
	return exprs{
		&expr.Exthdr{DestRegister: 1, Type: unix.IPPROTO_FRAGMENT, Offset: 2, Len: 2,
			Op: expr.ExthdrOpIpv6},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 2, Mask: []byte{0xff, 0xf8},
			Xor: make([]byte, 2)},
		&expr.Cmp{Op: op, Register: 1, Data: make([]byte, 2)},
	}
}

const noLinkLocalLearn = 1 << 0 // BR_BOOLOPT_NO_LL_LEARN (linux/if_bridge.h)

// guardLearning keeps the bridge from learning MACs from frames to 01:80:c2:00:00:0x (LLDP, LACP, 802.1X). They pass no chain in which a port's
// MAC could be checked, so by them a port could draw another's traffic to itself. Linux before 4.20 has no such switch.
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

// elements are all that the guard knows of a port; they are a function of the port alone.
func (p Port) elements() ([]element, error) {
	name := string(pad(TapName(p.ID), unix.IFNAMSIZ))
	if len(p.ID) < shortID {
		return nil, fmt.Errorf("port id %q is shorter than %d characters", p.ID, shortID)
	}
	if p.Subport() {
		if err := p.Trunk.validate(); err != nil {
			return nil, fmt.Errorf("subport %s: %w", p.ID, err)
		}
	}
	if !p.Guard {
		return []element{{set: setUnguarded, key: name}}, nil
	}
	if len(p.MAC) != 6 {
		return nil, fmt.Errorf("port %s: MAC %s: want 6 bytes", p.ID, p.MAC)
	}
	prefixes := map[string][]netip.Prefix{}
	note := func(mac net.HardwareAddr, prefix netip.Prefix) {
		prefixes[string(mac)] = append(prefixes[string(mac)], prefix.Masked())
	}
	for _, a := range p.Addrs {
		if !a.IsValid() {
			return nil, fmt.Errorf("port %s: invalid address", p.ID)
		}
		note(p.MAC, netip.PrefixFrom(a.Unmap().WithZone(""), a.Unmap().BitLen()))
	}
	note(p.MAC, netip.PrefixFrom(linkLocal(p.MAC), 128))
	for _, a := range p.Allowed {
		mac := a.MAC
		if mac == nil {
			mac = p.MAC
		}
		if len(mac) != 6 || !a.Prefix.IsValid() {
			return nil, fmt.Errorf("port %s: allowed address %s of %s: want a prefix and 6 bytes", p.ID, a.Prefix, mac)
		}
		note(mac, a.Prefix)
		note(mac, netip.PrefixFrom(linkLocal(mac), 128))
	}
	var list []element
	for mac, own := range prefixes {
		m := string(pad(mac, 8))
		list = append(list, element{set: setMACs, key: name + m})
		for _, prefix := range ipprefix.Widest(own) {
			list = append(list, sourceElements(name, m, prefix)...)
		}
	}
	return list, nil
}

func sourceElements(name, mac string, prefix netip.Prefix) []element {
	heads := map[string]string{setIP + suffix(prefix.Addr().Is4()): name + mac}
	if prefix.Addr().Is4() {
		heads[setARP] = name + mac + mac
	}
	var list []element
	for set, head := range heads {
		if prefix.IsSingleIP() {
			list = append(list, element{set: set, key: head + addrBytes(prefix.Addr())})
			continue
		}
		list = append(list, element{set: set + rangeSuffix, key: head + addrBytes(prefix.Addr()), end: head + addrBytes(ipprefix.Last(prefix))})
	}
	return list
}

// rangedElements are what the rules may have noted of ports with prefixes.
func rangedElements(ports []Port) []element {
	prefix := func(a AllowedAddress) bool { return a.Prefix.IsValid() && !a.Prefix.IsSingleIP() }
	var list []element
	for _, p := range ports {
		if slices.ContainsFunc(p.Allowed, prefix) {
			list = append(list, element{set: setRanged,
				key: string(pad(TapName(p.ID), unix.IFNAMSIZ))})
		}
	}
	return list
}

// portsElements joins the elements of many ports.
func portsElements(ports []Port) ([]element, error) {
	var list []element
	for _, p := range ports {
		own, err := p.elements()
		if err != nil {
			return nil, err
		}
		list = append(list, own...)
	}
	return list, nil
}

//go:build linux

package policy

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// The fixed part of the table. Each frame is looked at where it comes from a port's link (direction egress, bridge prerouting) and where it
// leaves by one (ingress, bridge postrouting), whether it was bridged or routed: so what is between two ports, between a port and its
// router, and between a port and the outside is judged alike, by what the port itself sees.
//
// A frame goes these steps:
//
//	out4    it is in "live": pass. That is all that nearly every packet meets.
//	judge   is the port filtered? Is it part of a flow that the other side began? Then by the rules of the other direction, mirrored: answers
//	new     else by the rules of its own direction
//	learn   a rule has matched: note the flow, note the packet in "live", pass
//
// An element of "live" holds the epoch and a few seconds. When rules become narrower the epoch changes, so at once every packet is
// judged anew, at the cost of one rule. What a flow's answers are judged by is the rules that let its first packet pass, with source and
// destination swapped; so a flow goes on, undisturbed, if a packet that began it would still pass, and is cut else, whichever side sends.
//
// The sets of flows are shared by all ports of a namespace. So each port has a share. A
// flow is forgotten soon (briefFor), unless it has a seat: TCP connections take one when
// both sides have sent, other flows when they last ("keep"). A rate of new flows bounds
// how many a port holds without a seat ("fresh"); those beyond it are refused.
//
// An ICMP error is accepted if it quotes a packet that passed the port in this epoch, to
// or from the address that the error comes from or goes to. Packets that are not in
// "live" are there under another number for that ("quotable").

// How long things are remembered. Those of TCP and UDP are not above connection
// tracking's own (nf_conntrack_*_timeout).
const (
	liveFor        = 30 * time.Second
	briefFor       = 40 * time.Second // longer than liveFor, since what is in "live" does not renew its flow
	tcpFor         = 5 * 24 * time.Hour
	tcpEndedFor    = time.Minute
	tcpResetFor    = 10 * time.Second
	datagramsFor   = 2 * time.Minute
	youngFor       = 4 * time.Second // then a flow of datagrams lasts
	youngLiveFor   = 5 * time.Second
	echoFor        = 30 * time.Second
	otherFor       = 2 * time.Minute
	fragmentsFor   = 2 * time.Second // a packet's fragments come at once; what is remembered longer takes the place of others'
	ratesFor       = time.Minute
	flowsAtMost    = 1 << 18 // in each set: as connection tracking has on a machine of 4 GB
	basePriority   = -250    // after the guard of package fabric
	fin, syn, rst  = 1, 2, 4
	ack            = 16
	moreFragments  = 0x2000
	fragmentOffset = 0x1fff
)

// withPorts are the transport protocols whose header begins with two ports.
var withPorts = []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_DCCP, unix.IPPROTO_SCTP, unix.IPPROTO_UDPLITE}

func hasPorts(protocol uint8) bool {
	for _, p := range withPorts {
		if p == protocol {
			return true
		}
	}
	return false
}

// icmpKinds are what one family's ICMP is made of.
type icmpKinds struct {
	// What no rule forbids, as IPv6 does not work without it: about listeners, which goes to groups, and about neighbours, which no router has passed on.
	// Anything else of these types is a packet like others, by which a port could talk with whom it likes.
	listeners  []byte
	neighbours map[Direction][]byte
	requests   []byte // with the answers at the same place
	answers    []byte
	errors     []byte
}

func (v version) kinds() icmpKinds {
	if v == v4 {
		return icmpKinds{requests: []byte{8, 13, 17}, answers: []byte{0, 14, 18}, errors: []byte{3, 11, 12}}
	}
	return icmpKinds{
		listeners: []byte{130, 131, 132, 143},
		neighbours: map[Direction][]byte{
			Egress:  {133, 135, 136}, // a router advertisement of a port's the guard drops, and this does too
			Ingress: {134, 135, 136},
		},
		requests: []byte{128}, answers: []byte{129}, errors: []byte{1, 2, 3, 4},
	}
}

// hook is one direction and family of packets.
type hook struct {
	d Direction
	v version
}

func (h hook) chain(step string) string { return step + "_" + h.d.side() + h.v.String() }
func (h hook) set(name string) string   { return name + "_" + h.d.side() + h.v.String() }

// flows is the set of the flows that began in a direction.
func (h hook) flows(began Direction) string {
	return setFlows + "_" + began.side() + h.v.String()
}

func (h hook) closing() string  { return setClosing + h.v.String() }
func (h hook) answered() string { return setAnswered + h.v.String() }

// learn is the chain that notes a packet that a rule let pass, of a flow that began in this direction.
func (h hook) learn(began Direction) string {
	return h.chain("learn") + "_began_" + began.side()
}

func (h hook) tcp(began Direction) string { return h.chain("tcp") + "_began_" + began.side() }

// port loads the port's link, and remote the address at the other end.
func (h hook) port(n int) expr.Any {
	if h.d == Egress {
		return loadMeta(expr.MetaKeyIIF, reg(n))
	}
	return loadMeta(expr.MetaKeyOIF, reg(n))
}

func (h hook) remote(n int) expr.Any {
	if h.d == Egress {
		return h.v.loadDestination(n)
	}
	return h.v.loadSource(n)
}

func (h hook) name() expr.MetaKey {
	if h.d == Egress {
		return expr.MetaKeyIIFNAME
	}
	return expr.MetaKeyOIFNAME
}

// head is how the keys of flows begin: port, remote, protocol. The next register is the second value.
func (h hook) head() (exprs, int) {
	n := 1 + h.v.words()
	return exprs{h.port(0), h.remote(1), loadMeta(expr.MetaKeyL4PROTO, reg(n))}, n + 1
}

// flow is the key of a packet with ports. The port's own address is not in it: no rule asks for it.
func (h hook) flow() exprs {
	e, n := h.head()
	own, other := uint32(0), uint32(2)
	if h.d == Ingress {
		own, other = 2, 0
	}
	return append(e, load(transportHeader, own, 2, reg(n)), load(transportHeader, other, 2, reg(n+1)))
}

// echo is the key of an ICMP request or its answer: its identifier, twice.
func (h hook) echo() exprs {
	e, n := h.head()
	return append(e, load(transportHeader, 4, 2, reg(n)), load(transportHeader, 4, 2, reg(n+1)))
}

// plain is the key of any other protocol: the family, twice.
func (h hook) plain() exprs {
	e, n := h.head()
	return append(e, loadMeta(expr.MetaKeyPROTOCOL, reg(n)), loadMeta(expr.MetaKeyPROTOCOL, reg(n+1)))
}

// live is the key of a packet as it is, with the epoch that the mark holds.
func (h hook) live() exprs { return h.inEpoch(load(transportHeader, 0, 4, 0)) }

// quotableEcho and quotablePlain are those of an ICMP request or its answer, and of a
// protocol without ports.
func (h hook) quotableEcho() exprs  { return h.inEpoch(load(transportHeader, 4, 2, 0)) }
func (h hook) quotablePlain() exprs { return h.inEpoch(loadMeta(expr.MetaKeyPROTOCOL, 0)) }

// inEpoch is a key whose fourth part is loaded by word, which gets its register here.
func (h hook) inEpoch(word expr.Any) exprs {
	e, n := h.head()
	switch w := word.(type) {
	case *expr.Payload:
		w.DestRegister = reg(n)
	case *expr.Meta:
		w.Register = reg(n)
	}
	return append(e, word, loadMeta(expr.MetaKeyMARK, reg(n+1)))
}

// quoted are the keys in "live" of the packet that an ICMP error quotes, whose header is
// taken to have no options, with the epoch that the mark holds. An error that leaves goes
// to the packet's source.
func (h hook) quoted() []exprs {
	const inner = 8
	destination, protocol, transport := uint32(inner+24), uint32(inner+6), uint32(inner+40)
	length := uint32(16)
	if h.v == v4 {
		destination, protocol, transport, length = inner+16, inner+9, inner+20, 4
	}
	remote := load(transportHeader, destination, length, reg(1))
	if h.d == Egress {
		remote = h.remote(1)
	}
	n := 1 + h.v.words()
	key := func(word expr.Any) exprs {
		return exprs{h.port(0), remote, load(transportHeader, protocol, 1, reg(n)), word,
			loadMeta(expr.MetaKeyMARK, reg(n+2))}
	}
	return []exprs{
		key(load(transportHeader, transport, 4, reg(n+1))),
		key(load(transportHeader, transport+4, 2, reg(n+1))),
		key(loadMeta(expr.MetaKeyPROTOCOL, reg(n+1))),
	}
}

// fragment matches fragments: of every kind, the first ones, all but the first. Packets that are whole match none.
func (h hook) fragment(kind string) exprs {
	u16 := func(v uint16) []byte { return binary.BigEndian.AppendUint16(nil, v) }
	if h.v == v4 {
		at := load(networkHeader, 6, 2, 1)
		switch kind {
		case "first":
			return join(bits(at, u16(fragmentOffset), expr.CmpOpEq, u16(0)), bits(at, u16(moreFragments), expr.CmpOpNeq, u16(0)))
		case "later":
			return bits(at, u16(fragmentOffset), expr.CmpOpNeq, u16(0))
		}
		return bits(at, u16(fragmentOffset|moreFragments), expr.CmpOpNeq, u16(0))
	}
	at := &expr.Exthdr{DestRegister: 1, Type: unix.IPPROTO_FRAGMENT, Offset: 2, Len: 2, Op: expr.ExthdrOpIpv6}
	switch kind {
	case "first":
		return join(bits(at, u16(0xfff8), expr.CmpOpEq, u16(0)), bits(at, u16(1), expr.CmpOpNeq, u16(0)))
	case "later":
		return bits(at, u16(0xfff8), expr.CmpOpNeq, u16(0))
	}
	return field(networkHeader, 6, unix.IPPROTO_FRAGMENT)
}

func (h hook) fragmentKey() exprs {
	n := 1 + h.v.words()
	e := exprs{h.port(0), h.remote(1)}
	if h.v == v4 {
		return append(e, load(networkHeader, 4, 2, reg(n)))
	}
	return append(e, &expr.Exthdr{DestRegister: reg(n), Type: unix.IPPROTO_FRAGMENT, Offset: 4, Len: 4, Op: expr.ExthdrOpIpv6})
}

func flags(mask byte, op expr.CmpOp, value byte) exprs {
	return join(proto(unix.IPPROTO_TCP), bits(load(transportHeader, 13, 1, 1), []byte{mask}, op, []byte{value}))
}

func icmpType(v version, kind byte) exprs {
	return join(proto(v.icmp()), field(transportHeader, 0, kind))
}

// toGroup matches what goes to a multicast group.
func (v version) toGroup() exprs {
	if v == v4 {
		return bits(load(networkHeader, 16, 1, 1), []byte{0xf0}, expr.CmpOpEq, []byte{0xe0})
	}
	return field(networkHeader, 24, 0xff)
}

// unrouted matches IPv6 with the hop limit that only what comes from the same link can have.
func unrouted() exprs { return field(networkHeader, 7, 255) }

// opposite is the direction of the answers.
func (d Direction) opposite() Direction { return !d }

// The chains that mark a packet with the epoch: of what passes as it did, and of what
// errors may quote.
const (
	chainEpoch    = "epoch"
	chainQuotable = "quotable"
)

// epochRule marks a packet with the epoch; what was judged in another one does not count.
func epochRule(epoch uint32) rule {
	return rule{comment: "what was judged before the rules became narrower is judged anew", exprs: setMark(epoch), any: true}
}

// quotableChain marks a packet with the epoch's other number.
func quotableChain() chain {
	c := chain{name: chainQuotable}
	c.add("in this epoch", jump(chainEpoch))
	c.add("what errors may quote", exprs{loadMeta(expr.MetaKeyMARK, 1),
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: markBytes(0xffffffff),
			Xor: markBytes(1)}}, toMark)
	return c
}

func baseSets() []nftables.Set {
	list := []nftables.Set{
		{Name: setPorts, IsMap: true, KeyType: nftables.TypeIFName, DataType: nftables.TypeMark},
		{Name: setWithPorts, KeyType: nftables.TypeInetProto},
		{Name: setOnLink, Concatenation: true,
			KeyType: concat(nftables.TypeIFName, nftables.TypeMark, nftables.TypeMark)},
		{Name: setOnLinkAny, KeyType: nftables.TypeIFName},
		{Name: setRevisions, Concatenation: true, KeyType: concat(nftables.TypeMark, nftables.TypeMark, nftables.TypeMark, nftables.TypeMark)},
		{Name: setPairs, Concatenation: true, KeyType: concat(nftables.TypeIFName, nftables.TypeMark, nftables.TypeMark, nftables.TypeIP6Addr, nftables.TypeMark)},
	}
	for _, d := range directions {
		for _, answer := range []bool{false, true} {
			list = append(list, nftables.Set{Name: judges(d, answer), IsMap: true, KeyType: nftables.TypeMark, DataType: nftables.TypeVerdict})
		}
	}
	list = append(list, limitSets()...)
	dynamic := func(name string, timeout time.Duration, size uint32, types ...nftables.SetDatatype) {
		list = append(list, noted(name, timeout, size, types...))
	}
	list = append(list, shareSets()...)
	for _, v := range versions {
		service := nftables.TypeInetService
		dynamic(hook{v: v}.answered(), otherFor, flowsAtMost, nftables.TypeIFIndex, v.addrType(),
			nftables.TypeInetProto, service, service)
		dynamic(hook{v: v}.closing(), otherFor, flowsAtMost, nftables.TypeIFIndex, v.addrType(),
			nftables.TypeInetProto, service, service)
		for _, d := range directions {
			h := hook{d, v}
			dynamic(h.flows(d), otherFor, flowsAtMost, nftables.TypeIFIndex, v.addrType(), nftables.TypeInetProto, service, service)
			dynamic(h.set(setLive), liveFor, flowsAtMost, nftables.TypeIFIndex, v.addrType(), nftables.TypeInetProto, nftables.TypeMark, nftables.TypeMark)
			identification := nftables.TypeInetService
			if v == v6 {
				identification = nftables.TypeMark
			}
			dynamic(h.set(setFragments), fragmentsFor, flowsAtMost, nftables.TypeIFIndex, v.addrType(), identification)
		}
	}
	return list
}

func concat(types ...nftables.SetDatatype) nftables.SetDatatype {
	return nftables.MustConcatSetType(types...)
}

func baseElements() []element {
	var list []element
	for _, p := range withPorts {
		list = append(list, element{set: setWithPorts, key: string([]byte{p})})
	}
	return list
}

func baseChains() []chain {
	var list []chain
	for _, d := range directions {
		c := chain{name: "prerouting", hook: nftables.ChainHookPrerouting, priority: basePriority}
		if d == Ingress {
			c.name, c.hook = "postrouting", nftables.ChainHookPostrouting
		}
		// A link that is not a port's passes like that of a port without filter: to ask
		// for it here would cost every packet.
		for _, v := range versions {
			c.add("IPv"+v.String(), v.matches(), goTo(hook{d, v}.chain("live")))
		}
		other := chain{name: "other_" + d.side()}
		c.add("ARP, which the guard looks at", meta(expr.MetaKeyPROTOCOL, expr.CmpOpEq, binary.BigEndian.AppendUint16(nil, unix.ETH_P_ARP)), accept)
		c.add("anything else", goTo(other.name))
		hook{d: d}.addProfile(&other)
		other.add("no rule can let it pass", drop)
		list = append(list, c, other)
		for _, v := range versions {
			list = append(list, hook{d, v}.chains()...)
		}
	}
	return append(list, chain{name: chainEpoch, rules: []rule{epochRule(0)}}, quotableChain())
}

func (h hook) chains() []chain {
	live, judge, begins := chain{name: h.chain("live")}, chain{name: h.chain("judge")}, chain{name: h.chain("new")}
	ported, unported := exprs{loadMeta(expr.MetaKeyL4PROTO, reg(0))}, exprs{loadMeta(expr.MetaKeyL4PROTO, reg(0))}
	began := h.flows(h.d.opposite()) // of what this packet would be an answer to
	answers := byMark(judges(h.d.opposite(), true))

	live.add("begins or ends a connection", flags(fin|syn|rst, expr.CmpOpNeq, 0), goTo(judge.name))
	live.add("fragment", h.fragment(""), goTo(judge.name))
	live.add("of this epoch", jump(chainEpoch))
	live.add("judged a moment ago", inSet(h.live(), h.set(setLive)), accept)
	live.add("else", goTo(judge.name))

	h.addProfile(&judge)
	judge.add("rest of a packet that passed", h.fragment("later"), inSet(h.fragmentKey(), h.set(setFragments)), accept)
	judge.add("rest of another", h.fragment("later"), drop)
	judge.add("TCP in fragments", h.fragment("first"), proto(unix.IPPROTO_TCP),
		jump(h.chain("whole")))
	if h.v == v4 {
		judge.add("multicast listener", proto(unix.IPPROTO_IGMP), h.v.toGroup(), accept)
	}
	judge.add("ICMP", proto(h.v.icmp()), goTo(h.chain("icmp")))
	judge.add("connection", flags(fin|syn|rst|ack, expr.CmpOpEq, syn), goTo(begins.name))
	judge.add("answer", inSet(ported, setWithPorts), inSet(h.flow(), began), answers)
	judge.add("answer without ports", notInSet(unported, setWithPorts), inSet(h.plain(), began), answers)
	judge.add("else", goTo(begins.name))

	whole := chain{name: h.chain("whole")}
	whole.add("its header is in the first fragment", load8(13), back)
	whole.add("its header is in several", drop)

	begins.add("by the rules of the port's groups", byMark(judges(h.d, false)))
	begins.add("unknown profile", drop)

	pass := chain{name: h.chain("pass")}
	pass.add("in this epoch", jump(chainEpoch))
	pass.add("packets like this", remember(h.live(), h.set(setLive), 0))
	pass.add("pass", accept)

	quoted := chain{name: h.chain("quoted")}
	quoted.add("what errors may quote", jump(chainQuotable))
	quoted.add("packets like this", remember(h.live(), h.set(setLive), 0))
	quoted.add("pass", accept)

	list := []chain{live, judge, whole, begins, pass, quoted, h.freshChain()}
	list = append(list, h.icmpChains(began, answers, begins.name)...)
	for _, d := range directions {
		list = append(list, h.learnChain(d), h.tcpChain(d))
		list = append(list, h.keepChains(h.keep(d), d, tcpFor)...)
		list = append(list, h.keepChains(h.last(d), d, datagramsFor)...)
	}
	return list
}

// addProfile has a chain let pass what is of a port without filter; for others the mark is the number of the profile.
func (h hook) addProfile(c *chain) {
	c.add("no profile", setMark(0))
	c.add("profile of the port", exprs{loadMeta(h.name(), 1), &expr.Lookup{SourceRegister: 1, DestRegister: 1, IsDestRegSet: true, SetName: setPorts},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1, SourceRegister: true}})
	c.add("port without filter", meta(expr.MetaKeyMARK, expr.CmpOpEq, markBytes(0)), accept)
}

func (h hook) icmpChains(began string, answers exprs, begins string) []chain {
	icmp, echo, report := chain{name: h.chain("icmp")}, chain{name: h.chain("echo")}, chain{name: h.chain("error")}
	kinds := h.v.kinds()
	for _, kind := range kinds.listeners {
		icmp.add(fmt.Sprintf("type %d, about listeners", kind), icmpType(h.v, kind), h.v.toGroup(), accept)
	}
	near := chain{name: h.chain("neighbours")}
	for _, kind := range kinds.neighbours[h.d] {
		then := accept
		if h.d == Egress { // its hop limit does not say yet that no router passes it on
			then = goTo(near.name)
		}
		icmp.add(fmt.Sprintf("type %d, about neighbours", kind), icmpType(h.v, kind), unrouted(),
			then)
	}
	for _, kind := range kinds.answers {
		icmp.add(fmt.Sprintf("type %d, an answer", kind), icmpType(h.v, kind), goTo(echo.name))
	}
	for _, kind := range kinds.errors {
		icmp.add(fmt.Sprintf("type %d, an error", kind), icmpType(h.v, kind), goTo(report.name))
	}
	icmp.add("else", goTo(begins))
	echo.add("answer", proto(h.v.icmp()), inSet(h.echo(), began), answers)
	echo.add("to nothing", drop)
	passed := hook{h.d.opposite(), h.v}.set(setLive)
	keys := h.quoted()
	report.add("in this epoch", jump(chainEpoch))
	report.add("quotes what passed", proto(h.v.icmp()), inSet(keys[0], passed), accept)
	report.add("in this epoch", jump(chainQuotable))
	for _, key := range keys {
		report.add("quotes what passed", proto(h.v.icmp()), inSet(key, passed), accept)
	}
	h.addProfile(&report) // the mark held the epoch
	report.add("else", goTo(begins))
	list := []chain{icmp, echo, report}
	if h.v == v6 && h.d == Egress {
		near.add("to a group", h.v.toGroup(), accept)
		near.add("to a link-local address", bits(load(networkHeader, 24, 2, 1), []byte{0xff, 0xc0},
			expr.CmpOpEq, []byte{0xfe, 0x80}), accept)
		near.add("to an address of the link",
			inSet(exprs{loadMeta(expr.MetaKeyIIFNAME, reg(0)), load(networkHeader, 24, 4, reg(4)),
				load(networkHeader, 28, 4, reg(5))}, setOnLink), accept)
		near.add("the link has a wider prefix",
			inSet(exprs{loadMeta(expr.MetaKeyIIFNAME, reg(0))}, setOnLinkAny), accept)
		near.add("else", goTo(begins))
		list = append(list, near)
	}
	return list
}

// learnChain notes a packet that a rule let pass, of a flow that began in a direction.
func (h hook) learnChain(began Direction) chain {
	c, flows := chain{name: h.learn(began)}, h.flows(began)
	ported := exprs{loadMeta(expr.MetaKeyL4PROTO, reg(0))}
	fresh := func(match exprs, key exprs) {
		if began == h.d {
			c.add("a new flow", match, notInSet(key, flows), jump(h.chain("fresh")))
		}
	}
	c.add("more fragments than its share", h.fragment("first"),
		over(exprs{h.port(0)}, h.fragmentRates(), fragmentRate))
	c.add("its other fragments", h.fragment("first"), remember(h.fragmentKey(), h.set(setFragments), 0))
	fresh(inSet(ported, setWithPorts), h.flow())
	c.add("TCP", proto(unix.IPPROTO_TCP), goTo(h.tcp(began)))
	kinds := h.v.kinds()
	list := kinds.requests
	if began != h.d {
		list = kinds.answers
	}
	for _, kind := range list {
		fresh(icmpType(h.v, kind), h.echo())
		c.add("answers may come", icmpType(h.v, kind), remember(h.echo(), flows, echoFor))
	}
	c.add("in this epoch", proto(h.v.icmp()), jump(chainQuotable))
	for _, kind := range list {
		c.add("errors may come", icmpType(h.v, kind), remember(h.quotableEcho(), h.set(setLive), 0))
	}
	c.add("ICMP", proto(h.v.icmp()), accept)
	unported := func(key exprs, do func(exprs) exprs) exprs {
		return join(notInSet(ported, setWithPorts), do(key))
	}
	if began == h.d {
		c.add("more new flows without ports than its share", notInSet(ported, setWithPorts),
			notInSet(h.plain(), flows), over(exprs{h.port(0)}, h.plainRates(), newPlainRate))
	}
	c.add("without ports", unported(h.plain(),
		func(key exprs) exprs { return remember(key, flows, otherFor) }), jump(chainQuotable))
	c.add("errors may come", unported(h.quotablePlain(),
		func(key exprs) exprs { return remember(key, h.set(setLive), 0) }))
	c.add("pass", notInSet(ported, setWithPorts), accept)
	if began == h.d {
		c.add("it is young", notInSet(h.flow(), flows), remember(h.flow(), h.young(), youngFor))
	}
	c.add("flow", note(h.flow(), flows, briefFor))
	c.add("a flow that lasts", notInSet(h.flow(), h.young()), goTo(h.last(began)))
	c.add("in this epoch", jump(chainEpoch))
	c.add("packets like this", remember(h.live(), h.set(setLive), youngLiveFor))
	c.add("pass", accept)
	return c
}

// tcpChain is learnChain's for TCP, whose connections have a beginning and an end. One is
// remembered for long only if both sides have sent. Otherwise a port, or a stranger that
// may reach one, could fill the set for days with packets that have no answer.
func (h hook) tcpChain(began Direction) chain {
	c, flows := chain{name: h.tcp(began)}, h.flows(began)
	only := flags(fin|syn|rst|ack, expr.CmpOpEq, syn)
	if began == h.d {
		c.add("a new one is not at its end", only, forget(h.flow(), h.closing()))
		c.add("nor is it the other side's", only, forget(h.flow(), h.flows(began.opposite())))
		c.add("nor is it answered", only, forget(h.flow(), h.answered()))
	}
	begins, ends, breaks := flags(syn, expr.CmpOpNeq, 0), flags(fin, expr.CmpOpNeq, 0), flags(rst, expr.CmpOpNeq, 0)
	if began != h.d {
		c.add("answers what begins", begins, remember(h.flow(), h.answered(), briefFor))
	}
	c.add("its seat is free", flags(fin|syn|rst, expr.CmpOpNeq, 0), h.leaveSeat())
	c.add("begins", begins, remember(h.flow(), flows, briefFor))
	c.add("errors about that may come", begins, goTo(h.chain("quoted")))
	c.add("breaks off", breaks, remember(h.flow(), h.closing(), tcpResetFor), remember(h.flow(), flows, tcpResetFor), accept)
	c.add("ends", ends, remember(h.flow(), h.closing(), tcpEndedFor))
	tcp := proto(unix.IPPROTO_TCP)
	// One side may still send much, and must learn of the path's MTU.
	c.add("at its end", tcp, inSet(h.flow(), h.closing()),
		remember(h.flow(), flows, tcpEndedFor),
		remember(h.flow(), h.closing(), tcpEndedFor), goTo(h.chain("quoted")))
	if began == h.d {
		c.add("connection, of which the other side knows", tcp, inSet(h.flow(), h.answered()),
			goTo(h.keep(began)))
		c.add("connection that has its seat", tcp, inSeat(h.flow(), h.seats()), goTo(h.keep(began)))
		c.add("connection, for all that is known", tcp, note(h.flow(), flows, briefFor))
		c.add("pass", goTo(h.chain("pass")))
	} else {
		c.add("connection", goTo(h.keep(began)))
	}
	return c
}

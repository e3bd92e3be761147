//go:build linux

package securitygroup

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/datapath/nft"
)

// The fixed part of the table. Each frame is looked at where it comes from a port's link
// (direction egress, bridge prerouting) and where it leaves by one (ingress, bridge
// postrouting), whether it was bridged or routed: so what is between two ports, between a
// port and its router, and between a port and the outside is judged alike, by what the
// port itself sees.
//
// A frame goes these steps:
//
//	out4    it is in "live": pass. That is all that nearly every packet meets.
//	judge   is the port filtered? Is it part of a flow that the other side began?
//	        Then by the rules of the other direction, mirrored: answers
//	new     otherwise by the rules of its own direction
//	learn   a rule has matched: note the flow, note the packet in "live", pass
//
// An element of "live" holds the epoch and a few seconds. When rules become narrower the
// epoch changes, so every packet is judged again, at the cost of one rule. What a
// flow's answers are judged by is the rules that let its first packet pass, with source
// and destination swapped; so a flow goes on, undisturbed, if a packet that began it
// would still pass, and is cut else, whichever side sends.
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
	liveFor      = 30 * time.Second
	briefFor     = 40 * time.Second // longer than liveFor, since what is in "live" does not renew its flow
	tcpFor       = 5 * 24 * time.Hour
	tcpEndedFor  = time.Minute
	tcpResetFor  = 10 * time.Second
	datagramsFor = 2 * time.Minute
	youngFor     = 4 * time.Second // then a flow of datagrams lasts
	youngLiveFor = 5 * time.Second
	echoFor      = 30 * time.Second
	otherFor     = 2 * time.Minute
	// a packet's fragments come together; what is remembered longer takes the place of
	// others'
	fragmentsFor   = 2 * time.Second
	ratesFor       = time.Minute
	flowsAtMost    = 1 << 18 // in each set: as connection tracking has on a machine of 4 GB
	basePriority   = -250    // after the guard of package router
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
	// What no rule forbids, as IPv6 does not work without it: about listeners, which goes to
	// groups, and about neighbours, which no router has passed on. Anything else of these
	// types is a packet like others, by which a port could talk with whom it likes.
	listeners  []byte
	neighbours map[Direction][]byte
	requests   []byte // with the answers at the same place
	answers    []byte
	errors     []byte
}

func kinds(v nft.Version) icmpKinds {
	if v == nft.V4 {
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
	v nft.Version
}

func (h hook) chain(step string) string { return step + "_" + h.d.side() + h.v.String() }
func (h hook) set(name string) string   { return name + "_" + h.d.side() + h.v.String() }

// flows is the set of the flows that began in a direction.
func (h hook) flows(began Direction) string {
	return setFlows + "_" + began.side() + h.v.String()
}

func (h hook) closing() string  { return setClosing + h.v.String() }
func (h hook) answered() string { return setAnswered + h.v.String() }

// learn is the chain that notes a packet that a rule let pass, of a flow that began in
// this direction.
func (h hook) learn(began Direction) string {
	return h.chain("learn") + "_began_" + began.side()
}

func (h hook) tcp(began Direction) string { return h.chain("tcp") + "_began_" + began.side() }

// port loads the port's link, and remote the address at the other end.
func (h hook) port(n int) expr.Any {
	if h.d == Egress {
		return nft.LoadMeta(expr.MetaKeyIIF, nft.Reg(n))
	}
	return nft.LoadMeta(expr.MetaKeyOIF, nft.Reg(n))
}

func (h hook) remote(n int) expr.Any {
	if h.d == Egress {
		return h.v.LoadDestination(nft.Reg(n))
	}
	return h.v.LoadSource(nft.Reg(n))
}

func (h hook) name() expr.MetaKey {
	if h.d == Egress {
		return expr.MetaKeyIIFNAME
	}
	return expr.MetaKeyOIFNAME
}

// head is how the keys of flows begin: port, remote, protocol. The next register is the
// second value.
func (h hook) head() (nft.Exprs, int) {
	n := 1 + h.v.Words()
	return nft.Exprs{h.port(0), h.remote(1), nft.LoadMeta(expr.MetaKeyL4PROTO, nft.Reg(n))}, n + 1
}

// flow is the key of a packet with ports. The port's own address is not in it: no rule asks for it.
func (h hook) flow() nft.Exprs {
	e, n := h.head()
	own, other := uint32(0), uint32(2)
	if h.d == Ingress {
		own, other = 2, 0
	}
	return append(
		e, nft.Load(nft.TransportHeader, own, 2, nft.Reg(n)),
		nft.Load(nft.TransportHeader, other, 2, nft.Reg(n+1)),
	)
}

// echo is the key of an ICMP request or its answer: its identifier, twice.
func (h hook) echo() nft.Exprs {
	e, n := h.head()
	return append(e, nft.Load(nft.TransportHeader, 4, 2, nft.Reg(n)), nft.Load(nft.TransportHeader, 4, 2, nft.Reg(n+1)))
}

// plain is the key of any other protocol: the family, twice.
func (h hook) plain() nft.Exprs {
	e, n := h.head()
	return append(e, nft.LoadMeta(expr.MetaKeyPROTOCOL, nft.Reg(n)), nft.LoadMeta(expr.MetaKeyPROTOCOL, nft.Reg(n+1)))
}

// live is the unchanged key of a packet, with the epoch that the mark holds.
func (h hook) live() nft.Exprs { return h.inEpoch(nft.Load(nft.TransportHeader, 0, 4, 0)) }

// quotableEcho and quotablePlain are those of an ICMP request or its answer, and of a
// protocol without ports.
func (h hook) quotableEcho() nft.Exprs  { return h.inEpoch(nft.Load(nft.TransportHeader, 4, 2, 0)) }
func (h hook) quotablePlain() nft.Exprs { return h.inEpoch(nft.LoadMeta(expr.MetaKeyPROTOCOL, 0)) }

// inEpoch is a key whose fourth part is loaded by word, which gets its register here.
func (h hook) inEpoch(word expr.Any) nft.Exprs {
	e, n := h.head()
	switch w := word.(type) {
	case *expr.Payload:
		w.DestRegister = nft.Reg(n)
	case *expr.Meta:
		w.Register = nft.Reg(n)
	}
	return append(e, word, nft.LoadMeta(expr.MetaKeyMARK, nft.Reg(n+1)))
}

// quoted are the keys in "live" of the packet that an ICMP error quotes, whose header is
// taken to have no options, with the epoch that the mark holds. An error that leaves goes
// to the packet's source.
func (h hook) quoted() []nft.Exprs {
	const inner = 8
	destination, protocol, transport := uint32(inner+24), uint32(inner+6), uint32(inner+40)
	length := uint32(16)
	if h.v == nft.V4 {
		destination, protocol, transport, length = inner+16, inner+9, inner+20, 4
	}
	remote := nft.Load(nft.TransportHeader, destination, length, nft.Reg(1))
	if h.d == Egress {
		remote = h.remote(1)
	}
	n := 1 + h.v.Words()
	key := func(word expr.Any) nft.Exprs {
		return nft.Exprs{h.port(0), remote, nft.Load(nft.TransportHeader, protocol, 1, nft.Reg(n)), word,
			nft.LoadMeta(expr.MetaKeyMARK, nft.Reg(n+2))}
	}
	return []nft.Exprs{
		key(nft.Load(nft.TransportHeader, transport, 4, nft.Reg(n+1))),
		key(nft.Load(nft.TransportHeader, transport+4, 2, nft.Reg(n+1))),
		key(nft.LoadMeta(expr.MetaKeyPROTOCOL, nft.Reg(n+1))),
	}
}

// fragment matches fragments: of every kind, the first ones, all but the first. Packets
// that are whole match none.
func (h hook) fragment(kind string) nft.Exprs {
	u16 := func(v uint16) []byte { return binary.BigEndian.AppendUint16(nil, v) }
	if h.v == nft.V4 {
		at := nft.Load(nft.NetworkHeader, 6, 2, nft.First)
		switch kind {
		case "first":
			return nft.Join(
				nft.Bits(at, u16(fragmentOffset), expr.CmpOpEq, u16(0)),
				nft.Bits(at, u16(moreFragments), expr.CmpOpNeq, u16(0)),
			)
		case "later":
			return nft.Bits(at, u16(fragmentOffset), expr.CmpOpNeq, u16(0))
		}
		return nft.Bits(at, u16(fragmentOffset|moreFragments), expr.CmpOpNeq, u16(0))
	}
	at := nft.Fragment6(2, 2, nft.First)
	switch kind {
	case "first":
		return nft.Join(nft.Bits(at, u16(0xfff8), expr.CmpOpEq, u16(0)), nft.Bits(at, u16(1), expr.CmpOpNeq, u16(0)))
	case "later":
		return nft.Bits(at, u16(0xfff8), expr.CmpOpNeq, u16(0))
	}
	return nft.Field(nft.NetworkHeader, 6, unix.IPPROTO_FRAGMENT)
}

// wholeTCP matches a first fragment whose length, as its IP header has it, leaves room for the
// header of TCP. What follows in the frame is padding, which the sender chooses.
func (h hook) wholeTCP() nft.Exprs {
	const tcp, mostIPv4, fragment6 = 20, 60, 8
	u16 := func(v uint16) []byte { return binary.BigEndian.AppendUint16(nil, v) }
	if h.v == nft.V4 {
		return nft.Between(nft.NetworkHeader, 2, u16(mostIPv4+tcp), u16(0xffff))
	}
	return nft.Join(nft.Field(nft.NetworkHeader, 6, unix.IPPROTO_FRAGMENT),
		nft.Field(nft.NetworkHeader, 40, unix.IPPROTO_TCP),
		nft.Between(nft.NetworkHeader, 4, u16(fragment6+tcp), u16(0xffff)))
}

func (h hook) fragmentKey() nft.Exprs {
	n := 1 + h.v.Words()
	e := nft.Exprs{h.port(0), h.remote(1)}
	if h.v == nft.V4 {
		return append(e, nft.Load(nft.NetworkHeader, 4, 2, nft.Reg(n)))
	}
	return append(e, nft.Fragment6(4, 4, nft.Reg(n)))
}

func flags(mask byte, op expr.CmpOp, value byte) nft.Exprs {
	return nft.Join(
		nft.Protocol(unix.IPPROTO_TCP),
		nft.Bits(nft.Load(nft.TransportHeader, 13, 1, nft.First), []byte{mask}, op, []byte{value}),
	)
}

func icmpType(v nft.Version, kind byte) nft.Exprs {
	return nft.Join(nft.Protocol(v.ICMP()), nft.Field(nft.TransportHeader, 0, kind))
}

// toGroup matches what goes to a multicast group.
func toGroup(v nft.Version) nft.Exprs {
	if v == nft.V4 {
		return nft.Bits(nft.Load(nft.NetworkHeader, 16, 1, nft.First), []byte{0xf0}, expr.CmpOpEq, []byte{0xe0})
	}
	return nft.Field(nft.NetworkHeader, 24, 0xff)
}

// unrouted matches IPv6 with the hop limit that only what comes from the same link can have.
func unrouted() nft.Exprs { return nft.Field(nft.NetworkHeader, 7, 255) }

// opposite is the direction of the answers.
func (d Direction) opposite() Direction { return !d }

// The chains that mark a packet with the epoch: of what passes as it did, and of what
// errors may quote.
const (
	chainEpoch    = "epoch"
	chainQuotable = "quotable"
)

// epochRule marks a packet with the epoch; what was judged in another one does not count.
func epochRule(epoch uint32) nft.Rule {
	return nft.Rule{
		Comment: "what was judged before the rules became narrower is judged anew",
		Exprs:   nft.SetMark(epoch, nft.First), Any: true,
	}
}

// quotableChain marks a packet with the epoch's other number.
func quotableChain() nft.Chain {
	c := nft.Chain{Name: chainQuotable}
	c.Add("in this epoch", nft.Jump(chainEpoch))
	c.Add("what errors may quote", nft.Exprs{nft.LoadMeta(expr.MetaKeyMARK, nft.First),
		nft.Mask(nft.Word(0xffffffff), nft.Word(1))}, nft.MarkFrom(nft.First))
	return c
}

func baseSets() []nftables.Set {
	list := []nftables.Set{
		{Name: setPorts, IsMap: true, KeyType: nftables.TypeIFName, DataType: nftables.TypeMark},
		{Name: setWithPorts, KeyType: nftables.TypeInetProto},
		{Name: setOnLink, Concatenation: true,
			KeyType: nft.Concat(nftables.TypeIFName, nftables.TypeMark, nftables.TypeMark)},
		{Name: setOnLinkAny, KeyType: nftables.TypeIFName},
		{
			Name: setRevisions, Concatenation: true,
			KeyType: nft.Concat(nftables.TypeMark, nftables.TypeMark, nftables.TypeMark, nftables.TypeMark),
		},
		{
			Name: setPairs, Concatenation: true,
			KeyType: nft.Concat(
				nftables.TypeIFName, nftables.TypeMark, nftables.TypeMark, nftables.TypeIP6Addr,
				nftables.TypeMark,
			),
		},
	}
	for _, d := range directions {
		for _, answer := range []bool{false, true} {
			list = append(list, nftables.Set{
				Name: judges(d, answer), IsMap: true, KeyType: nftables.TypeMark,
				DataType: nftables.TypeVerdict,
			})
		}
	}
	list = append(list, limitSets()...)
	dynamic := func(name string, timeout time.Duration, size uint32, types ...nftables.SetDatatype) {
		list = append(list, noted(name, timeout, size, types...))
	}
	list = append(list, shareSets()...)
	for _, v := range nft.Versions {
		service := nftables.TypeInetService
		dynamic(hook{v: v}.answered(), otherFor, flowsAtMost, nftables.TypeIFIndex, v.AddrType(),
			nftables.TypeInetProto, service, service)
		dynamic(hook{v: v}.closing(), otherFor, flowsAtMost, nftables.TypeIFIndex, v.AddrType(),
			nftables.TypeInetProto, service, service)
		for _, d := range directions {
			h := hook{d, v}
			dynamic(
				h.flows(d), otherFor, flowsAtMost, nftables.TypeIFIndex, v.AddrType(), nftables.TypeInetProto,
				service, service,
			)
			dynamic(
				h.set(setLive), liveFor, flowsAtMost, nftables.TypeIFIndex, v.AddrType(),
				nftables.TypeInetProto, nftables.TypeMark, nftables.TypeMark,
			)
			identification := nftables.TypeInetService
			if v == nft.V6 {
				identification = nftables.TypeMark
			}
			dynamic(h.set(setFragments), fragmentsFor, flowsAtMost, nftables.TypeIFIndex, v.AddrType(), identification)
		}
	}
	return list
}

func baseElements() []nft.Element {
	var list []nft.Element
	for _, p := range withPorts {
		list = append(list, nft.Element{Set: setWithPorts, Key: string([]byte{p})})
	}
	return list
}

func baseChains() []nft.Chain {
	var list []nft.Chain
	for _, d := range directions {
		c := nft.Chain{
			Name: "prerouting", Type: nftables.ChainTypeFilter, Hook: nftables.ChainHookPrerouting,
			Priority: basePriority,
		}
		if d == Ingress {
			c.Name, c.Hook = "postrouting", nftables.ChainHookPostrouting
		}
		// A link that is not a port's passes like that of a port without filter: to ask
		// for it here would cost every packet.
		for _, v := range nft.Versions {
			c.Add("IPv"+v.String(), v.MatchFrame(), nft.GoTo(hook{d, v}.chain("live")))
		}
		other := nft.Chain{Name: "other_" + d.side()}
		c.Add("ARP, which the guard looks at", nft.EtherType(unix.ETH_P_ARP), nft.Accept)
		c.Add("anything else", nft.GoTo(other.Name))
		hook{d: d}.addProfile(&other)
		other.Add("no rule can let it pass", nft.CountedDrop)
		list = append(list, c, other)
		for _, v := range nft.Versions {
			list = append(list, hook{d, v}.chains()...)
		}
	}
	return append(list, nft.Chain{Name: chainEpoch, Rules: []nft.Rule{epochRule(0)}}, quotableChain())
}

func (h hook) chains() []nft.Chain {
	live, judge, begins := nft.Chain{Name: h.chain("live")}, nft.Chain{Name: h.chain("judge")},
		nft.Chain{Name: h.chain("new")}
	ported, unported := nft.Exprs{nft.LoadMeta(expr.MetaKeyL4PROTO, nft.Reg(0))},
		nft.Exprs{nft.LoadMeta(expr.MetaKeyL4PROTO, nft.Reg(0))}
	began := h.flows(h.d.opposite()) // of what this packet would be an answer to
	answers := nft.ByMark(judges(h.d.opposite(), true))

	live.Add("begins or ends a connection", flags(fin|syn|rst, expr.CmpOpNeq, 0), nft.GoTo(judge.Name))
	live.Add("fragment", h.fragment(""), nft.GoTo(judge.Name))
	live.Add("of this epoch", nft.Jump(chainEpoch))
	live.Add("judged a moment ago", inSet(h.live(), h.set(setLive)), nft.Accept)
	live.Add("else", nft.GoTo(judge.Name))

	h.addProfile(&judge)
	judge.Add("rest of a packet that passed", h.fragment("later"), inSet(h.fragmentKey(), h.set(setFragments)), nft.Accept)
	judge.Add("rest of another", h.fragment("later"), nft.CountedDrop)
	judge.Add("TCP in fragments", h.fragment("first"), nft.Protocol(unix.IPPROTO_TCP),
		nft.Jump(h.chain("whole")))
	if h.v == nft.V4 {
		judge.Add("multicast listener", nft.Protocol(unix.IPPROTO_IGMP), toGroup(h.v), nft.Accept)
	}
	judge.Add("ICMP", nft.Protocol(h.v.ICMP()), nft.GoTo(h.chain("icmp")))
	judge.Add("connection", flags(fin|syn|rst|ack, expr.CmpOpEq, syn), nft.GoTo(begins.Name))
	judge.Add("answer", inSet(ported, setWithPorts), inSet(h.flow(), began), answers)
	judge.Add("answer without ports", notInSet(unported, setWithPorts), inSet(h.plain(), began), answers)
	judge.Add("else", nft.GoTo(begins.Name))

	whole := nft.Chain{Name: h.chain("whole")}
	whole.Add("its header is in the first fragment", h.wholeTCP(), nft.Has(nft.TransportHeader, 13, 1), nft.Return)
	whole.Add("its header is in several", nft.CountedDrop)

	begins.Add("by the rules of the port's groups", nft.ByMark(judges(h.d, false)))
	begins.Add("unknown profile", nft.CountedDrop)

	pass := nft.Chain{Name: h.chain("pass")}
	pass.Add("in this epoch", nft.Jump(chainEpoch))
	pass.Add("packets like this", remember(h.live(), h.set(setLive), 0))
	pass.Add("pass", nft.Accept)

	quoted := nft.Chain{Name: h.chain("quoted")}
	quoted.Add("what errors may quote", nft.Jump(chainQuotable))
	quoted.Add("packets like this", remember(h.live(), h.set(setLive), 0))
	quoted.Add("pass", nft.Accept)

	list := []nft.Chain{live, judge, whole, begins, pass, quoted, h.freshChain()}
	list = append(list, h.icmpChains(began, answers, begins.Name)...)
	for _, d := range directions {
		list = append(list, h.learnChain(d), h.tcpChain(d))
		list = append(list, h.keepChains(h.keep(d), d, tcpFor)...)
		list = append(list, h.keepChains(h.last(d), d, datagramsFor)...)
	}
	return list
}

// addProfile has a chain let pass what is of a port without filter; for others the mark
// is the number of the profile.
func (h hook) addProfile(c *nft.Chain) {
	c.Add("no profile", nft.SetMark(0, nft.First))
	c.Add("profile of the port", nft.Exprs{nft.LoadMeta(h.name(), nft.First)}, nft.Map(setPorts, nft.First, nft.First),
		nft.MarkFrom(nft.First))
	c.Add("port without filter", nft.Mark(0), nft.Accept)
}

func (h hook) icmpChains(began string, answers nft.Exprs, begins string) []nft.Chain {
	icmp, echo, report := nft.Chain{Name: h.chain("icmp")}, nft.Chain{Name: h.chain("echo")},
		nft.Chain{Name: h.chain("error")}
	kinds := kinds(h.v)
	for _, kind := range kinds.listeners {
		icmp.Add(fmt.Sprintf("type %d, about listeners", kind), icmpType(h.v, kind), toGroup(h.v), nft.Accept)
	}
	near := nft.Chain{Name: h.chain("neighbours")}
	for _, kind := range kinds.neighbours[h.d] {
		then := nft.Accept
		if h.d == Egress { // its hop limit does not say yet that no router passes it on
			then = nft.GoTo(near.Name)
		}
		icmp.Add(fmt.Sprintf("type %d, about neighbours", kind), icmpType(h.v, kind), unrouted(),
			then)
	}
	for _, kind := range kinds.answers {
		icmp.Add(fmt.Sprintf("type %d, an answer", kind), icmpType(h.v, kind), nft.GoTo(echo.Name))
	}
	for _, kind := range kinds.errors {
		icmp.Add(fmt.Sprintf("type %d, an error", kind), icmpType(h.v, kind), nft.GoTo(report.Name))
	}
	icmp.Add("else", nft.GoTo(begins))
	echo.Add("answer", nft.Protocol(h.v.ICMP()), inSet(h.echo(), began), answers)
	echo.Add("to nothing", nft.CountedDrop)
	passed := hook{h.d.opposite(), h.v}.set(setLive)
	keys := h.quoted()
	report.Add("in this epoch", nft.Jump(chainEpoch))
	report.Add("quotes what passed", nft.Protocol(h.v.ICMP()), inSet(keys[0], passed), nft.Accept)
	report.Add("in this epoch", nft.Jump(chainQuotable))
	for _, key := range keys {
		report.Add("quotes what passed", nft.Protocol(h.v.ICMP()), inSet(key, passed), nft.Accept)
	}
	h.addProfile(&report) // the mark held the epoch
	report.Add("else", nft.GoTo(begins))
	list := []nft.Chain{icmp, echo, report}
	if h.v == nft.V6 && h.d == Egress {
		near.Add("to a group", toGroup(h.v), nft.Accept)
		near.Add("to a link-local address", nft.Bits(nft.Load(nft.NetworkHeader, 24, 2, nft.First), []byte{0xff, 0xc0},
			expr.CmpOpEq, []byte{0xfe, 0x80}), nft.Accept)
		near.Add("to an address of the link",
			inSet(nft.Exprs{nft.LoadMeta(expr.MetaKeyIIFNAME, nft.Reg(0)), nft.Load(nft.NetworkHeader, 24, 4, nft.Reg(4)),
				nft.Load(nft.NetworkHeader, 28, 4, nft.Reg(5))}, setOnLink), nft.Accept)
		near.Add("the link has a wider prefix",
			inSet(nft.Exprs{nft.LoadMeta(expr.MetaKeyIIFNAME, nft.Reg(0))}, setOnLinkAny), nft.Accept)
		near.Add("else", nft.GoTo(begins))
		list = append(list, near)
	}
	return list
}

// learnChain notes a packet that a rule let pass, of a flow that began in a direction.
func (h hook) learnChain(began Direction) nft.Chain {
	c, flows := nft.Chain{Name: h.learn(began)}, h.flows(began)
	ported := nft.Exprs{nft.LoadMeta(expr.MetaKeyL4PROTO, nft.Reg(0))}
	fresh := func(match nft.Exprs, key nft.Exprs) {
		if began == h.d {
			c.Add("a new flow", match, notInSet(key, flows), nft.Jump(h.chain("fresh")))
		}
	}
	c.Add("more fragments than its share", h.fragment("first"),
		over(nft.Exprs{h.port(0)}, h.fragmentRates(), fragmentRate))
	c.Add("its other fragments", h.fragment("first"), remember(h.fragmentKey(), h.set(setFragments), 0))
	fresh(inSet(ported, setWithPorts), h.flow())
	c.Add("TCP", nft.Protocol(unix.IPPROTO_TCP), nft.GoTo(h.tcp(began)))
	kinds := kinds(h.v)
	list := kinds.requests
	if began != h.d {
		list = kinds.answers
	}
	for _, kind := range list {
		fresh(icmpType(h.v, kind), h.echo())
		c.Add("answers may come", icmpType(h.v, kind), remember(h.echo(), flows, echoFor))
	}
	c.Add("in this epoch", nft.Protocol(h.v.ICMP()), nft.Jump(chainQuotable))
	for _, kind := range list {
		c.Add("errors may come", icmpType(h.v, kind), remember(h.quotableEcho(), h.set(setLive), 0))
	}
	c.Add("ICMP", nft.Protocol(h.v.ICMP()), nft.Accept)
	unported := func(key nft.Exprs, do func(nft.Exprs) nft.Exprs) nft.Exprs {
		return nft.Join(notInSet(ported, setWithPorts), do(key))
	}
	if began == h.d {
		c.Add("more new flows without ports than its share", notInSet(ported, setWithPorts),
			notInSet(h.plain(), flows), over(nft.Exprs{h.port(0)}, h.plainRates(), newPlainRate))
	}
	c.Add("without ports", unported(h.plain(),
		func(key nft.Exprs) nft.Exprs { return remember(key, flows, otherFor) }), nft.Jump(chainQuotable))
	c.Add("errors may come", unported(h.quotablePlain(),
		func(key nft.Exprs) nft.Exprs { return remember(key, h.set(setLive), 0) }))
	c.Add("pass", notInSet(ported, setWithPorts), nft.Accept)
	if began == h.d {
		c.Add("it is young", notInSet(h.flow(), flows), remember(h.flow(), h.young(), youngFor))
	}
	c.Add("flow", note(h.flow(), flows, briefFor))
	c.Add("a flow that lasts", notInSet(h.flow(), h.young()), nft.GoTo(h.last(began)))
	c.Add("in this epoch", nft.Jump(chainEpoch))
	c.Add("packets like this", remember(h.live(), h.set(setLive), youngLiveFor))
	c.Add("pass", nft.Accept)
	return c
}

// tcpChain is learnChain's for TCP, whose connections have a beginning and an end. One is
// remembered for long only if both sides have sent. Otherwise a port, or a stranger that
// may reach one, could fill the set for days with packets that have no answer.
func (h hook) tcpChain(began Direction) nft.Chain {
	c, flows := nft.Chain{Name: h.tcp(began)}, h.flows(began)
	only := flags(fin|syn|rst|ack, expr.CmpOpEq, syn)
	if began == h.d {
		c.Add("a new one is not at its end", only, forget(h.flow(), h.closing()))
		c.Add("nor is it the other side's", only, forget(h.flow(), h.flows(began.opposite())))
		c.Add("nor is it answered", only, forget(h.flow(), h.answered()))
	}
	begins, ends, breaks := flags(syn, expr.CmpOpNeq, 0), flags(fin, expr.CmpOpNeq, 0), flags(rst, expr.CmpOpNeq, 0)
	if began != h.d {
		c.Add("answers what begins", begins, remember(h.flow(), h.answered(), briefFor))
	}
	c.Add("its seat is free", flags(fin|syn|rst, expr.CmpOpNeq, 0), h.leaveSeat())
	c.Add("begins", begins, remember(h.flow(), flows, briefFor))
	c.Add("errors about that may come", begins, nft.GoTo(h.chain("quoted")))
	c.Add(
		"breaks off", breaks, remember(h.flow(), h.closing(), tcpResetFor),
		remember(h.flow(), flows, tcpResetFor), nft.Accept,
	)
	c.Add("ends", ends, remember(h.flow(), h.closing(), tcpEndedFor))
	tcp := nft.Protocol(unix.IPPROTO_TCP)
	// One side may still send much, and must learn of the path's MTU.
	c.Add("at its end", tcp, inSet(h.flow(), h.closing()),
		remember(h.flow(), flows, tcpEndedFor),
		remember(h.flow(), h.closing(), tcpEndedFor), nft.GoTo(h.chain("quoted")))
	if began == h.d {
		c.Add("connection, of which the other side knows", tcp, inSet(h.flow(), h.answered()),
			nft.GoTo(h.keep(began)))
		c.Add("connection that has its seat", tcp, inSeat(h.flow(), h.seats()), nft.GoTo(h.keep(began)))
		c.Add("connection, for all that is known", tcp, note(h.flow(), flows, briefFor))
		c.Add("pass", nft.GoTo(h.chain("pass")))
	} else {
		c.Add("connection", nft.GoTo(h.keep(began)))
	}
	return c
}

// inSet matches packets whose key a set has.
func inSet(key nft.Exprs, set string) nft.Exprs {
	return nft.Join(key, nft.InSet(set, nft.Reg(0)))
}

// notInSet matches packets whose key a set does not have.
func notInSet(key nft.Exprs, set string) nft.Exprs {
	return nft.Join(key, nft.NotInSet(set, nft.Reg(0)))
}

// remember keeps an element in a set for this long from now on; 0 is the set's timeout.
func remember(key nft.Exprs, set string, timeout time.Duration) nft.Exprs {
	return nft.Join(key, nft.ChangeSet(nft.SetUpdate, set, timeout))
}

// note keeps an element in a set for this long, or for as long as it would stay anyway.
func note(key nft.Exprs, set string, timeout time.Duration) nft.Exprs {
	return nft.Join(key, nft.ChangeSet(nft.SetAdd, set, timeout))
}

// forget removes an element from a set.
func forget(key nft.Exprs, set string) nft.Exprs {
	return nft.Join(key, nft.ChangeSet(nft.SetDelete, set, 0))
}

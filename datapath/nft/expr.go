//go:build linux

package nft

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Exprs are expressions in the order in which nft would emit them, so that `nft list ruleset`
// can show what they mean.
type Exprs = []expr.Any

// Join returns the parts as one list.
func Join(parts ...Exprs) Exprs { return slices.Concat(parts...) }

// First is the first register, of 16 bytes.
const First = uint32(unix.NFT_REG_1)

// Reg returns the n-th of 16 registers of 4 bytes. A key of several fields fills consecutive
// ones. Reg(0) is where First begins.
func Reg(n int) uint32 { return uint32(unix.NFT_REG32_00 + n) }

// The headers that Load and Field read.
const (
	LinkHeader      = expr.PayloadBaseLLHeader
	NetworkHeader   = expr.PayloadBaseNetworkHeader
	TransportHeader = expr.PayloadBaseTransportHeader
)

// Load loads a field of a header.
func Load(base expr.PayloadBase, offset, length, register uint32) expr.Any {
	return &expr.Payload{OperationType: expr.PayloadLoad, DestRegister: register, Base: base,
		Offset: offset, Len: length}
}

// Store writes bytes to a header.
func Store(base expr.PayloadBase, offset uint32, data []byte) Exprs {
	return Exprs{&expr.Immediate{Register: First, Data: data},
		&expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: First, Base: base,
			Offset: offset, Len: uint32(len(data))}}
}

// LoadMeta loads what the kernel knows of a packet beside its headers.
func LoadMeta(key expr.MetaKey, register uint32) expr.Any {
	return &expr.Meta{Key: key, Register: register}
}

// LoadService loads meta l4proto . th dport, into the n-th register and the one after it.
func LoadService(n int) Exprs {
	return Exprs{LoadMeta(expr.MetaKeyL4PROTO, Reg(n)), Load(TransportHeader, 2, 2, Reg(n+1))}
}

// Compare compares First with a value.
func Compare(op expr.CmpOp, data ...byte) expr.Any {
	return &expr.Cmp{Op: op, Register: First, Data: data}
}

// Field matches a header that has these bytes at an offset.
func Field(base expr.PayloadBase, offset uint32, data ...byte) Exprs {
	return Exprs{Load(base, offset, uint32(len(data)), First), Compare(expr.CmpOpEq, data...)}
}

// FieldNot matches a header that has other bytes at an offset.
func FieldNot(base expr.PayloadBase, offset uint32, data ...byte) Exprs {
	return Exprs{Load(base, offset, uint32(len(data)), First), Compare(expr.CmpOpNeq, data...)}
}

// Between matches a field from first to last.
func Between(base expr.PayloadBase, offset uint32, first, last []byte) Exprs {
	return Exprs{Load(base, offset, uint32(len(first)), First),
		Compare(expr.CmpOpGte, first...), Compare(expr.CmpOpLte, last...)}
}

// Has matches packets that are long enough to have a field, whatever its value.
func Has(base expr.PayloadBase, offset, length uint32) Exprs {
	return Exprs{Load(base, offset, length, First),
		Compare(expr.CmpOpGte, make([]byte, length)...)}
}

// Meta matches what the kernel knows of a packet.
func Meta(key expr.MetaKey, data ...byte) Exprs {
	return Exprs{LoadMeta(key, First), Compare(expr.CmpOpEq, data...)}
}

// MetaNot matches packets of which the kernel knows something else.
func MetaNot(key expr.MetaKey, data ...byte) Exprs {
	return Exprs{LoadMeta(key, First), Compare(expr.CmpOpNeq, data...)}
}

// Mask changes bits of First: it becomes First&mask ^ xor.
func Mask(mask, xor []byte) expr.Any {
	return &expr.Bitwise{SourceRegister: First, DestRegister: First, Len: uint32(len(mask)),
		Mask: mask, Xor: xor}
}

// Bits compares what load loads to First, under a mask.
func Bits(load expr.Any, mask []byte, op expr.CmpOp, value []byte) Exprs {
	return Exprs{load, Mask(mask, make([]byte, len(mask))), Compare(op, value...)}
}

// AnyBit matches what has one of the bits.
func AnyBit(load expr.Any, bits ...byte) Exprs {
	return Bits(load, bits, expr.CmpOpNeq, make([]byte, len(bits)))
}

// Within matches an address, which load loads to First, by a prefix.
func Within(load expr.Any, p netip.Prefix) Exprs {
	network := p.Masked().Addr().AsSlice()
	if p.IsSingleIP() {
		return Exprs{load, Compare(expr.CmpOpEq, network...)}
	}
	return Bits(load, net.CIDRMask(p.Bits(), p.Addr().BitLen()), expr.CmpOpEq, network)
}

// To matches packets to an address of a prefix, in a table of the inet family.
func To(p netip.Prefix) Exprs {
	v := VersionOf(p.Addr())
	return Join(v.Match(), Within(v.LoadDestination(First), p))
}

// From matches packets from an address of a prefix, in a table of the inet family.
func From(p netip.Prefix) Exprs {
	v := VersionOf(p.Addr())
	return Join(v.Match(), Within(v.LoadSource(First), p))
}

// In matches packets that came by a link; "tap*" stands for all links that begin with tap.
func In(link string) Exprs { return Meta(expr.MetaKeyIIFNAME, linkData(link)...) }

// NotIn matches packets that came by another link.
func NotIn(link string) Exprs { return MetaNot(expr.MetaKeyIIFNAME, linkData(link)...) }

// Out matches packets that leave by a link.
func Out(link string) Exprs { return Meta(expr.MetaKeyOIFNAME, linkData(link)...) }

// NotOut matches packets that leave by another link.
func NotOut(link string) Exprs { return MetaNot(expr.MetaKeyOIFNAME, linkData(link)...) }

func linkData(link string) []byte {
	if n := len(link) - 1; n >= 0 && link[n] == '*' {
		return []byte(link[:n])
	}
	return []byte(Link(link))
}

// Protocol matches a transport protocol by its number.
func Protocol(number byte) Exprs { return Meta(expr.MetaKeyL4PROTO, number) }

// EtherType matches a packet's ethertype, whatever VLAN tags the frame has.
func EtherType(number uint16) Exprs {
	return Meta(expr.MetaKeyPROTOCOL, binary.BigEndian.AppendUint16(nil, number)...)
}

// ToLocal matches packets to an address of the network namespace.
func ToLocal() Exprs {
	return Exprs{&expr.Fib{Register: First, ResultADDRTYPE: true, FlagDADDR: true},
		Compare(expr.CmpOpEq, Word(unix.RTN_LOCAL)...)}
}

// ToLocalLink matches packets to an address of the link by which they came.
func ToLocalLink() Exprs {
	return Exprs{&expr.Fib{Register: First, ResultADDRTYPE: true, FlagDADDR: true, FlagIIF: true},
		Compare(expr.CmpOpEq, Word(unix.RTN_LOCAL)...)}
}

// RoutedBy matches packets that the route to their destination sends by a link.
func RoutedBy(link string) Exprs {
	return Exprs{&expr.Fib{Register: First, ResultOIFNAME: true, FlagDADDR: true},
		Compare(expr.CmpOpEq, linkData(link)...)}
}

// States of a connection, and a bit of its status (linux/netfilter/nf_conntrack_common.h).
const (
	StateInvalid     = 1 << 0
	StateEstablished = 1 << 1
	StateRelated     = 1 << 2
	StateNew         = 1 << 3
	StateUntracked   = 1 << 6
	StatusDNAT       = 1 << 5
)

// State matches packets whose connection is in one of the states.
func State(states uint32) Exprs { return AnyBit(loadCt(expr.CtKeySTATE), Word(states)...) }

// StateNot matches packets whose connection is in none of the states.
func StateNot(states uint32) Exprs {
	return Bits(loadCt(expr.CtKeySTATE), Word(states), expr.CmpOpEq, Word(0))
}

// Translated matches packets of connections whose destination was translated.
func Translated() Exprs { return AnyBit(loadCt(expr.CtKeySTATUS), Word(StatusDNAT)...) }

// NotTranslated matches packets of all other connections.
func NotTranslated() Exprs {
	return Bits(loadCt(expr.CtKeySTATUS), Word(StatusDNAT), expr.CmpOpEq, Word(0))
}

func loadCt(key expr.CtKey) expr.Any { return &expr.Ct{Key: key, Register: First} }

// Fragment6 loads a field of IPv6's fragment header; a packet without one does not match.
func Fragment6(offset, length, register uint32) expr.Any {
	return &expr.Exthdr{DestRegister: register, Type: unix.IPPROTO_FRAGMENT, Offset: offset,
		Len: length, Op: expr.ExthdrOpIpv6}
}

// Mark matches packets with a mark.
func Mark(mark uint32) Exprs { return Meta(expr.MetaKeyMARK, Word(mark)...) }

// SetMark sets the packet's mark, by way of a register.
func SetMark(mark uint32, register uint32) Exprs {
	return Join(Exprs{&expr.Immediate{Register: register, Data: Word(mark)}}, MarkFrom(register))
}

// MarkFrom sets the packet's mark to what a register has.
func MarkFrom(register uint32) Exprs {
	return Exprs{&expr.Meta{Key: expr.MetaKeyMARK, Register: register, SourceRegister: true}}
}

// Random loads a random number below a bound.
func Random(below uint32) Exprs {
	return Exprs{&expr.Numgen{Register: First, Modulus: below, Type: unix.NFT_NG_RANDOM}}
}

// InSet matches what a set has; the key begins in a register.
func InSet(set string, key uint32) Exprs {
	return Exprs{&expr.Lookup{SourceRegister: key, SetName: set}}
}

// NotInSet matches what a set does not have.
func NotInSet(set string, key uint32) Exprs {
	return Exprs{&expr.Lookup{SourceRegister: key, SetName: set, Invert: true}}
}

// Map matches what a map has, and loads the value.
func Map(name string, key, value uint32) Exprs {
	return Exprs{&expr.Lookup{SourceRegister: key, DestRegister: value, IsDestRegSet: true,
		SetName: name}}
}

// VerdictMap matches what a map of verdicts has for First, and follows the verdict.
func VerdictMap(name string) Exprs { return Map(name, First, unix.NFT_REG_VERDICT) }

// ByMark follows the verdict that a map has for the packet's mark.
func ByMark(name string) Exprs {
	return Join(Exprs{LoadMeta(expr.MetaKeyMARK, First)}, VerdictMap(name))
}

// What a rule does with an element of a set (linux/netfilter/nf_tables.h).
const (
	SetAdd    = uint32(unix.NFT_DYNSET_OP_ADD)
	SetUpdate = uint32(unix.NFT_DYNSET_OP_UPDATE)
	SetDelete = 2 // NFT_DYNSET_OP_DELETE
)

// ChangeSet changes the element whose key begins in Reg(0). A timeout of 0 is the set's. The
// statements are the element's.
func ChangeSet(op uint32, set string, timeout time.Duration, statements ...expr.Any) Exprs {
	return Exprs{&expr.Dynset{SrcRegKey: Reg(0), SetName: set, Operation: op, Timeout: timeout,
		Exprs: statements}}
}

// ChangeMap changes the element whose key begins in Reg(0) and whose value is in a register. The
// kernel needs the value even to delete an element.
func ChangeMap(op uint32, name string, value uint32, timeout time.Duration) Exprs {
	return Exprs{&expr.Dynset{SrcRegKey: Reg(0), SrcRegData: value, SetName: name, Operation: op,
		Timeout: timeout}}
}

// Over drops, and counts, packets of a key beyond a rate per second. The key's set keeps the
// rates.
func Over(key Exprs, set string, rate uint64, burst uint32) Exprs {
	limit := &expr.Limit{Type: expr.LimitTypePkts, Rate: rate, Unit: expr.LimitTimeSecond,
		Burst: burst, Over: true}
	return Join(key, ChangeSet(SetUpdate, set, 0, limit), CountedDrop)
}

// NAT translates to the address in a register, and to the port in another one; 0 keeps the port.
func NAT(kind expr.NATType, v Version, addr, port uint32) Exprs {
	return Exprs{&expr.NAT{Type: kind, Family: uint32(v.nfproto()), RegAddrMin: addr,
		RegProtoMin: port, Specified: port != 0}}
}

// Verdicts and other ends of rules.
var (
	Accept      = verdict(expr.VerdictAccept, "")
	Drop        = verdict(expr.VerdictDrop, "")
	Return      = verdict(expr.VerdictReturn, "")
	Count       = Exprs{&expr.Counter{}}
	CountedDrop = Join(Count, Drop)
	Masquerade  = Exprs{&expr.Masq{}}
	Reset       = Exprs{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}
	Unreachable = Exprs{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH,
		Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}}
)

// Trace makes the kernel announce which rules the packet meets.
var Trace = Exprs{&expr.Immediate{Register: First, Data: []byte{1}},
	&expr.Meta{Key: expr.MetaKeyNFTRACE, Register: First, SourceRegister: true}}

// GoTo continues in a chain and does not come back.
func GoTo(chain string) Exprs { return verdict(expr.VerdictGoto, chain) }

// Jump continues in a chain, and after it here.
func Jump(chain string) Exprs { return verdict(expr.VerdictJump, chain) }

func verdict(kind expr.VerdictKind, chain string) Exprs {
	return Exprs{&expr.Verdict{Kind: kind, Chain: chain}}
}

//go:build linux

package fabric

import (
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Expressions in the order nft itself would emit them, so that "nft list ruleset" can tell what they mean.

type exprs = []expr.Any

func join(parts ...exprs) exprs { return slices.Concat(parts...) }

// reg is the n-th 4-byte register; a concatenation fills consecutive ones.
func reg(n int) uint32 { return uint32(unix.NFT_REG32_00 + n) }

const (
	linkHeader      = expr.PayloadBaseLLHeader
	networkHeader   = expr.PayloadBaseNetworkHeader
	transportHeader = expr.PayloadBaseTransportHeader
)

func load(base expr.PayloadBase, offset, length uint32, register uint32) expr.Any {
	return &expr.Payload{OperationType: expr.PayloadLoad, DestRegister: register, Base: base, Offset: offset, Len: length}
}

func field(base expr.PayloadBase, offset uint32, op expr.CmpOp, data []byte) exprs {
	return exprs{load(base, offset, uint32(len(data)), 1), &expr.Cmp{Op: op, Register: 1, Data: data}}
}

func meta(key expr.MetaKey, op expr.CmpOp, data []byte) exprs {
	return exprs{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: data}}
}

// ifname is an interface name as the kernel compares it: a whole one padded to 16 bytes, "tap*" as a prefix.
func ifname(name string) []byte {
	if prefix, ok := cutSuffix(name, '*'); ok {
		return []byte(prefix)
	}
	return pad(name, unix.IFNAMSIZ)
}

func cutSuffix(s string, c byte) (string, bool) {
	if n := len(s) - 1; n >= 0 && s[n] == c {
		return s[:n], true
	}
	return s, false
}

func pad(s string, to int) []byte {
	b := make([]byte, to)
	copy(b, s)
	return b
}

func iif(name string) exprs    { return meta(expr.MetaKeyIIFNAME, expr.CmpOpEq, ifname(name)) }
func iifNot(name string) exprs { return meta(expr.MetaKeyIIFNAME, expr.CmpOpNeq, ifname(name)) }
func oif(name string) exprs    { return meta(expr.MetaKeyOIFNAME, expr.CmpOpEq, ifname(name)) }
func oifNot(name string) exprs { return meta(expr.MetaKeyOIFNAME, expr.CmpOpNeq, ifname(name)) }

func proto(number byte) exprs { return meta(expr.MetaKeyL4PROTO, expr.CmpOpEq, []byte{number}) }

// version matches the IP version in an inet table.
func version(four bool) exprs {
	n := byte(unix.NFPROTO_IPV6)
	if four {
		n = unix.NFPROTO_IPV4
	}
	return meta(expr.MetaKeyNFPROTO, expr.CmpOpEq, []byte{n})
}

// daddrIn and saddrIn match an address by a prefix.
func daddrIn(p netip.Prefix) exprs { return addrIn(p, 16, 24) }
func saddrIn(p netip.Prefix) exprs { return addrIn(p, 12, 8) }

func addrIn(p netip.Prefix, offset4, offset6 uint32) exprs {
	offset, length := offset6, uint32(16)
	if p.Addr().Is4() {
		offset, length = offset4, 4
	}
	e := append(version(p.Addr().Is4()), load(networkHeader, offset, length, 1))
	if !p.IsSingleIP() {
		e = append(e, &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: length, Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen()), Xor: make([]byte, length)})
	}
	return append(e, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Masked().Addr().AsSlice()})
}

func loadDaddr(four bool, n int) exprs {
	if four {
		return exprs{load(networkHeader, 16, 4, reg(n))}
	}
	return exprs{load(networkHeader, 24, 16, reg(n))}
}

func loadSaddr(four bool, n int) exprs {
	if four {
		return exprs{load(networkHeader, 12, 4, reg(n))}
	}
	return exprs{load(networkHeader, 8, 16, reg(n))}
}

// loadService loads meta l4proto . th dport.
func loadService(n int) exprs {
	return exprs{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg(n)}, load(transportHeader, 2, 2, reg(n+1))}
}

// toLocal matches what is addressed to this namespace itself.
func toLocal() exprs {
	return exprs{&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagDADDR: true}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)}}
}

// toLocalHere matches what is addressed to the link that it came by, not to another of the namespace.
func toLocalHere() exprs {
	return exprs{&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagDADDR: true, FlagIIF: true}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)}}
}

const (
	stateInvalid     = 1 << 0 // NF_CT_STATE_INVALID_BIT
	stateEstablished = 1 << 1 // NF_CT_STATE_BIT(IP_CT_ESTABLISHED)
	stateRelated     = 1 << 2
	stateUntracked   = 1 << 6 // NF_CT_STATE_UNTRACKED_BIT
	statusDNAT       = 1 << 5 // IPS_DST_NAT
)

// conntrack matches packets of which connection tracking says any of these bits.
func conntrack(key expr.CtKey, bits uint32) exprs { return conntrackBits(key, bits, expr.CmpOpNeq) }

// conntrackLacks matches packets of which connection tracking says none of these bits.
func conntrackLacks(key expr.CtKey, bits uint32) exprs {
	return conntrackBits(key, bits, expr.CmpOpEq)
}

func conntrackBits(key expr.CtKey, bits uint32, op expr.CmpOp) exprs {
	return exprs{
		&expr.Ct{Key: key, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: make([]byte, 4)},
		&expr.Cmp{Op: op, Register: 1, Data: make([]byte, 4)},
	}
}

// notInSet matches what a set does not have.
func notInSet(name string) exprs {
	return exprs{&expr.Lookup{SourceRegister: 1, SetName: name, Invert: true}}
}

// inRange compares a byte of a header with a first and a last value.
func inRange(base expr.PayloadBase, offset uint32, first, last byte) exprs {
	return exprs{
		load(base, offset, 1, 1),
		&expr.Cmp{Op: expr.CmpOpGte, Register: 1, Data: []byte{first}},
		&expr.Cmp{Op: expr.CmpOpLte, Register: 1, Data: []byte{last}},
	}
}

// toMark makes the mark what was loaded.
func toMark() exprs {
	return exprs{&expr.Meta{Key: expr.MetaKeyMARK, Register: 1, SourceRegister: true}}
}

// What a rule does with an element of a set (linux/netfilter/nf_tables.h).
const (
	dynsetAdd    = uint32(unix.NFT_DYNSET_OP_ADD)
	dynsetUpdate = uint32(unix.NFT_DYNSET_OP_UPDATE)
)

// change does something with a set's element, whose key was loaded.
func change(operation uint32, set string, with ...expr.Any) exprs {
	return exprs{&expr.Dynset{SrcRegKey: reg(0), SetName: set, Operation: operation, Exprs: with}}
}

func inSet(name string) exprs { return exprs{&expr.Lookup{SourceRegister: 1, SetName: name}} }
func mapped(name string) exprs {
	return exprs{&expr.Lookup{SourceRegister: 1, DestRegister: 1, IsDestRegSet: true, SetName: name}}
}

func nat(kind expr.NATType, four, port bool) exprs {
	n := &expr.NAT{Type: kind, Family: unix.NFPROTO_IPV6, RegAddrMin: 1}
	after := 4
	if four {
		n.Family, after = unix.NFPROTO_IPV4, 1
	}
	if port {
		n.RegProtoMin = reg(after)
		n.Specified = true
	}
	return exprs{n}
}

// over drops, and counts, what is beyond a rate of packets a second for its key. It is
// for the key's set.
func over(key exprs, set string, rate, burst int) exprs {
	limit := &expr.Limit{Type: expr.LimitTypePkts, Rate: uint64(rate),
		Unit: expr.LimitTimeSecond, Burst: uint32(burst), Over: true}
	return join(key, change(dynsetUpdate, set, limit), tally, drop)
}

var tally = exprs{&expr.Counter{}}

func masquerade() exprs { return exprs{&expr.Masq{}} }

func verdict(kind expr.VerdictKind) exprs { return exprs{&expr.Verdict{Kind: kind}} }
func goTo(chain string) exprs {
	return exprs{&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}}
}

func jump(chain string) exprs {
	return exprs{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}}
}

var (
	back   = verdict(expr.VerdictReturn)
	accept = verdict(expr.VerdictAccept)
	drop   = verdict(expr.VerdictDrop)
)

func addrType(four bool) nftables.SetDatatype {
	if four {
		return nftables.TypeIPAddr
	}
	return nftables.TypeIP6Addr
}

// addrWords is how many registers an address fills.
func addrWords(four bool) int {
	if four {
		return 1
	}
	return 4
}

func concat(types ...nftables.SetDatatype) nftables.SetDatatype {
	return nftables.MustConcatSetType(types...)
}

// suffix tells the two families' sets apart.
func suffix(four bool) string {
	if four {
		return "4"
	}
	return "6"
}

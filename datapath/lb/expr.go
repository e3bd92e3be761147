//go:build linux

package lb

import (
	"crypto/sha256"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Expressions in forms that nft 1.0.6 can list: it gives up (an assertion fails) on a number generator that is part of a key, for one, so that what is chosen
// goes by the packet's mark.

type exprs = []expr.Any

func join(parts ...exprs) exprs { return slices.Concat(parts...) }

// reg is the n-th 4-byte register of 16; a concatenation fills consecutive ones.
func reg(n int) uint32 { return uint32(unix.NFT_REG32_00 + n) }

const (
	lastReg = 15
	mac     = expr.PayloadBaseLLHeader
	network = expr.PayloadBaseNetworkHeader
	ports   = expr.PayloadBaseTransportHeader
)

func load(base expr.PayloadBase, offset, length uint32, n int) expr.Any {
	return &expr.Payload{OperationType: expr.PayloadLoad, DestRegister: reg(n), Base: base, Offset: offset, Len: length}
}

func loadMeta(key expr.MetaKey, n int) expr.Any { return &expr.Meta{Key: key, Register: reg(n)} }

func meta(key expr.MetaKey, op expr.CmpOp, data ...byte) exprs {
	return exprs{loadMeta(key, 0), &expr.Cmp{Op: op, Register: reg(0), Data: data}}
}

func field(base expr.PayloadBase, offset uint32, data ...byte) exprs {
	return exprs{load(base, offset, uint32(len(data)), 0), &expr.Cmp{Op: expr.CmpOpEq, Register: reg(0), Data: data}}
}

// bits matches what has one of these bits.
func bits(from expr.Any, mask ...byte) exprs {
	n := uint32(len(mask))
	return exprs{from, &expr.Bitwise{SourceRegister: reg(0), DestRegister: reg(0), Len: n, Mask: mask, Xor: make([]byte, n)}, &expr.Cmp{Op: expr.CmpOpNeq, Register: reg(0), Data: make([]byte, n)}}
}

func word(n uint32) []byte { return binaryutil.NativeEndian.PutUint32(n) }

func proto(number byte) exprs { return meta(expr.MetaKeyL4PROTO, expr.CmpOpEq, number) }

// toLocal matches what is addressed to this namespace itself.
func toLocal() exprs {
	return exprs{&expr.Fib{Register: reg(0), ResultADDRTYPE: true, FlagDADDR: true}, &expr.Cmp{Op: expr.CmpOpEq, Register: reg(0), Data: word(unix.RTN_LOCAL)}}
}

func hasMark(mark uint32) exprs { return meta(expr.MetaKeyMARK, expr.CmpOpEq, word(mark)...) }

// setMark uses the last register, so that what others hold stays.
func setMark(mark uint32) exprs {
	return exprs{&expr.Immediate{Register: reg(lastReg), Data: word(mark)}, markFrom(lastReg)}
}

func markFrom(n int) expr.Any {
	return &expr.Meta{Key: expr.MetaKeyMARK, Register: reg(n), SourceRegister: true}
}

// wasTranslated matches connections whose destination was.
func wasTranslated() exprs {
	return bits(&expr.Ct{Key: expr.CtKeySTATUS, Register: reg(0)}, word(isTranslated)...)
}

// byNoLink matches what comes by no link, but from this namespace itself.
func byNoLink() exprs { return meta(expr.MetaKeyIIF, expr.CmpOpEq, word(0)...) }

func pattern(key expr.MetaKey, prefix string) exprs {
	return meta(key, expr.CmpOpEq, []byte(prefix)...)
}

// find looks a key up that begins in the first register, and leaves what it stands for from a register on.
func find(set string, to int) expr.Any {
	return &expr.Lookup{SourceRegister: reg(0), DestRegister: reg(to), IsDestRegSet: true, SetName: set}
}

func inSet(set string) exprs { return exprs{&expr.Lookup{SourceRegister: reg(0), SetName: set}} }
func notInSet(set string) exprs {
	return exprs{&expr.Lookup{SourceRegister: reg(0), SetName: set, Invert: true}}
}

func random(of uint32) exprs {
	return exprs{&expr.Numgen{Register: reg(0), Modulus: of, Type: unix.NFT_NG_RANDOM}, markFrom(0)}
}

// byMark goes on where a verdict map says for the mark.
func byMark(set string) exprs {
	return exprs{loadMeta(expr.MetaKeyMARK, 0), &expr.Lookup{SourceRegister: reg(0), DestRegister: 0, IsDestRegSet: true, SetName: set}}
}

// The kernel wants the data of a map's element even to take it away.
const (
	dynsetUpdate = unix.NFT_DYNSET_OP_UPDATE
	dynsetDelete = 2 // NFT_DYNSET_OP_DELETE (linux/netfilter/nf_tables.h)
)

func verdict(kind expr.VerdictKind) exprs { return exprs{&expr.Verdict{Kind: kind}} }
func goTo(chain string) exprs             { return exprs{&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}} }
func jump(chain string) exprs             { return exprs{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}} }

var (
	accept     = verdict(expr.VerdictAccept)
	drop       = verdict(expr.VerdictDrop)
	masquerade = exprs{&expr.Masq{}}
	reset      = exprs{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}
	refuse     = exprs{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}}
)

// rule has a comment that says what it is for.
type rule struct {
	comment string
	exprs   exprs
}

// stamp is the comment a rule carries in the kernel: what it is for, and a hash of what it does, by which a differing rule is found without decoding
// expressions.
func (r rule) stamp(family nftables.TableFamily) (string, error) {
	hash := sha256.New()
	for _, e := range r.exprs {
		b, err := expr.Marshal(byte(family), e)
		if err != nil {
			return "", fmt.Errorf("rule %q: %w", r.comment, err)
		}
		hash.Write(b)
	}
	return fmt.Sprintf("%s #%x", r.comment, hash.Sum(nil)[:4]), nil
}

// chain is a base chain if it has a hook, else one that rules go to.
type chain struct {
	name     string
	kind     nftables.ChainType
	hook     *nftables.ChainHook
	priority nftables.ChainPriority
	rules    []rule
}

func (c *chain) add(comment string, parts ...exprs) {
	c.rules = append(c.rules, rule{comment, join(parts...)})
}

// version is a family of IP.
type version byte

const (
	v4 version = 4
	v6 version = 6
)

var versions = []version{v4, v6}

func versionOf(a netip.Addr) version {
	if a.Is4() {
		return v4
	}
	return v6
}

func (v version) String() string { return string('0' + v) }

// words is how many registers an address fills.
func (v version) words() int {
	if v == v4 {
		return 1
	}
	return 4
}

func (v version) addrType() nftables.SetDatatype {
	if v == v4 {
		return nftables.TypeIPAddr
	}
	return nftables.TypeIP6Addr
}

func (v version) number() byte {
	if v == v4 {
		return unix.NFPROTO_IPV4
	}
	return unix.NFPROTO_IPV6
}

func (v version) matches() exprs { return meta(expr.MetaKeyNFPROTO, expr.CmpOpEq, v.number()) }

func (v version) loadSource(n int) expr.Any {
	if v == v4 {
		return load(network, 12, 4, n)
	}
	return load(network, 8, 16, n)
}

func (v version) loadDestination(n int) expr.Any {
	if v == v4 {
		return load(network, 16, 4, n)
	}
	return load(network, 24, 16, n)
}

func (v version) toPrefix(p netip.Prefix) exprs {
	e := append(v.matches(), v.loadDestination(0))
	if !p.IsSingleIP() {
		n := p.Addr().BitLen()
		e = append(e, &expr.Bitwise{SourceRegister: reg(0), DestRegister: reg(0), Len: uint32(n / 8), Mask: net.CIDRMask(p.Bits(), n), Xor: make([]byte, n/8)})
	}
	return append(e, &expr.Cmp{Op: expr.CmpOpEq, Register: reg(0), Data: p.Masked().Addr().AsSlice()})
}

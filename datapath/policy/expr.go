//go:build linux

package policy

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

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
	networkHeader   = expr.PayloadBaseNetworkHeader
	transportHeader = expr.PayloadBaseTransportHeader
)

func load(base expr.PayloadBase, offset, length uint32, register uint32) expr.Any {
	return &expr.Payload{OperationType: expr.PayloadLoad, DestRegister: register, Base: base, Offset: offset, Len: length}
}

func field(base expr.PayloadBase, offset uint32, data ...byte) exprs {
	return exprs{load(base, offset, uint32(len(data)), 1), &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data}}
}

// load8 matches packets that have a byte at this place of their transport header,
// whatever it is.
func load8(offset uint32) exprs {
	return exprs{load(transportHeader, offset, 1, 1),
		&expr.Cmp{Op: expr.CmpOpGte, Register: 1, Data: []byte{0}}}
}

// bits matches a field of which, under the mask, there is (op) this value.
func bits(from expr.Any, mask []byte, op expr.CmpOp, value []byte) exprs {
	n := uint32(len(mask))
	return exprs{from, &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: n, Mask: mask, Xor: make([]byte, n)}, &expr.Cmp{Op: op, Register: 1, Data: value}}
}

func meta(key expr.MetaKey, op expr.CmpOp, data []byte) exprs {
	return exprs{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: data}}
}

func loadMeta(key expr.MetaKey, register uint32) expr.Any {
	return &expr.Meta{Key: key, Register: register}
}

func proto(number byte) exprs { return meta(expr.MetaKeyL4PROTO, expr.CmpOpEq, []byte{number}) }

func (v version) matches() exprs {
	return meta(expr.MetaKeyPROTOCOL, expr.CmpOpEq, binary.BigEndian.AppendUint16(nil, v.ethernet()))
}

func setMark(mark uint32) exprs {
	return exprs{&expr.Immediate{Register: 1, Data: markBytes(mark)}, &expr.Meta{Key: expr.MetaKeyMARK, Register: 1, SourceRegister: true}}
}

func markBytes(mark uint32) []byte { return binaryutil.NativeEndian.PutUint32(mark) }

// toMark makes the mark what was loaded.
var toMark = exprs{&expr.Meta{Key: expr.MetaKeyMARK, Register: 1, SourceRegister: true}}

func inSet(key exprs, set string) exprs {
	return join(key, exprs{&expr.Lookup{SourceRegister: reg(0), SetName: set}})
}

func notInSet(key exprs, set string) exprs {
	return join(key, exprs{&expr.Lookup{SourceRegister: reg(0), SetName: set, Invert: true}})
}

// byMark goes on where a verdict map says for the packet's mark.
func byMark(set string) exprs {
	return exprs{loadMeta(expr.MetaKeyMARK, 1), &expr.Lookup{SourceRegister: 1, DestRegister: 0, IsDestRegSet: true, SetName: set}}
}

// remember makes an element be in a set for this long from now on; 0 is as the set says.
func remember(key exprs, set string, timeout time.Duration) exprs {
	return join(key, exprs{&expr.Dynset{SrcRegKey: reg(0), SetName: set, Operation: dynsetUpdate,
		Timeout: timeout}})
}

// note makes an element be in a set for this long, or for as long as it would be anyway.
func note(key exprs, set string, timeout time.Duration) exprs {
	return join(key, exprs{&expr.Dynset{SrcRegKey: reg(0), SetName: set, Operation: dynsetAdd,
		Timeout: timeout}})
}

// What a rule does with an element of a set (linux/netfilter/nf_tables.h).
const (
	dynsetAdd    = uint32(unix.NFT_DYNSET_OP_ADD)
	dynsetUpdate = uint32(unix.NFT_DYNSET_OP_UPDATE)
	dynsetDelete = 2
)

func forget(key exprs, set string) exprs {
	return join(key, exprs{&expr.Dynset{SrcRegKey: reg(0), SetName: set, Operation: dynsetDelete}})
}

func goTo(chain string) exprs { return exprs{&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}} }
func jump(chain string) exprs { return exprs{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}} }

var (
	accept = exprs{&expr.Verdict{Kind: expr.VerdictAccept}}
	back   = exprs{&expr.Verdict{Kind: expr.VerdictReturn}}
	drop   = exprs{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop}} // for who looks by hand
)

// rule has a comment that says what it is for.
type rule struct {
	comment string
	exprs   exprs
	// any is set for a rule that is as wanted whatever it does: the one that holds the epoch.
	any bool
}

// stamp is the comment a rule carries in the kernel: what it is for, and a hash of what it does, by which a differing rule is found
// without decoding expressions.
func (r rule) stamp() (string, error) {
	if r.any {
		return r.comment, nil
	}
	hash := sha256.New()
	for _, e := range r.exprs {
		b, err := expr.Marshal(byte(nftables.TableFamilyBridge), e)
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
	hook     *nftables.ChainHook
	priority nftables.ChainPriority
	rules    []rule
}

func (c *chain) add(comment string, parts ...exprs) {
	c.rules = append(c.rules, rule{comment: comment, exprs: join(parts...)})
}

// version is a family of IP.
type version byte

const (
	v4 version = 4
	v6 version = 6
)

var versions = []version{v4, v6}

func (v version) String() string { return string('0' + v) }

func (v version) ethernet() uint16 {
	if v == v4 {
		return unix.ETH_P_IP
	}
	return unix.ETH_P_IPV6
}

func (v version) icmp() byte {
	if v == v4 {
		return unix.IPPROTO_ICMP
	}
	return unix.IPPROTO_ICMPV6
}

func (v version) addrType() nftables.SetDatatype {
	if v == v4 {
		return nftables.TypeIPAddr
	}
	return nftables.TypeIP6Addr
}

// words is how many registers an address fills.
func (v version) words() int {
	if v == v4 {
		return 1
	}
	return 4
}

func (v version) loadSource(n int) expr.Any {
	if v == v4 {
		return load(networkHeader, 12, 4, reg(n))
	}
	return load(networkHeader, 8, 16, reg(n))
}

func (v version) loadDestination(n int) expr.Any {
	if v == v4 {
		return load(networkHeader, 16, 4, reg(n))
	}
	return load(networkHeader, 24, 16, reg(n))
}

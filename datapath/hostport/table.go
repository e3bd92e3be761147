//go:build linux

package hostport

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

const (
	tableName = "kuryr_hostport"
	setEvery  = "every" // protocol and port -> address and port
	setOne    = "one"   // address of the host, protocol and port -> address and port
	// chunk is how many elements go into one message: an attribute's length has 16 bits.
	chunk = 250
	// early is before Docker's translations and after the fabric's, so that none depends on who started first.
	early = -4
)

var families = []family{
	{"4", nftables.TypeIPAddr, unix.NFPROTO_IPV4, 1, 16, 12, netip.MustParsePrefix("127.0.0.0/8")},
	{"6", nftables.TypeIP6Addr, unix.NFPROTO_IPV6, 4, 24, 8, netip.MustParsePrefix("::1/128")},
}

func table() *nftables.Table {
	return &nftables.Table{Name: tableName, Family: nftables.TableFamilyINet}
}

// sets are the maps of a family.
func (f family) sets() []*nftables.Set {
	concat := nftables.MustConcatSetType
	to := concat(f.addr, nftables.TypeInetService)
	return []*nftables.Set{
		{Table: table(), Name: setEvery + f.name, IsMap: true, Concatenation: true, KeyType: concat(nftables.TypeInetProto, nftables.TypeInetService), DataType: to},
		{Table: table(), Name: setOne + f.name, IsMap: true, Concatenation: true, KeyType: concat(f.addr, nftables.TypeInetProto, nftables.TypeInetService), DataType: to},
	}
}

// replace makes the table anew with these mappings, or takes it away where there are none, in one transaction.
func replace(all []Mapping) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	c.AddTable(table()) // so that there is one to delete
	c.DelTable(table())
	if len(all) > 0 {
		t := c.AddTable(table())
		accept := nftables.ChainPolicyAccept
		chain := func(name string, hook *nftables.ChainHook, priority *nftables.ChainPriority) *nftables.Chain {
			return c.AddChain(&nftables.Chain{Name: name, Table: t, Type: nftables.ChainTypeNAT, Hooknum: hook, Priority: nftables.ChainPriorityRef(*priority + early), Policy: &accept})
		}
		in := chain("prerouting", nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest)
		own := chain("output", nftables.ChainHookOutput, nftables.ChainPriorityNATDest)
		out := chain("postrouting", nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
		for _, f := range families {
			for _, s := range f.sets() {
				if err := c.AddSet(s, nil); err != nil {
					return fmt.Errorf("nft set %s: %w", s.Name, err)
				}
			}
			for _, from := range []*nftables.Chain{in, own} {
				c.AddRule(&nftables.Rule{Table: t, Chain: from, Exprs: f.translate(setOne)})
				c.AddRule(&nftables.Rule{Table: t, Chain: from, Exprs: f.translate(setEvery)})
			}
			c.AddRule(&nftables.Rule{Table: t, Chain: out, Exprs: f.fromLoopback()})
		}
		if err := queue(all, c.SetAddElements); err != nil {
			return err
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("nft table inet %s: %w", tableName, err)
	}
	return nil
}

// change takes mappings away and adds others in one transaction. It fails, and changes nothing, where the table is not as it was left.
func change(remove, add []Mapping) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	if err := errors.Join(queue(remove, c.SetDeleteElements), queue(add, c.SetAddElements)); err != nil {
		return err
	}
	return c.Flush()
}

// queue does something with the elements of mappings.
func queue(list []Mapping, do func(*nftables.Set, []nftables.SetElement) error) error {
	for _, f := range families {
		for i, s := range f.sets() {
			var elements []nftables.SetElement
			for _, m := range list {
				if m.To.Addr().Is4() == (f.words == 1) && m.face().IsUnspecified() == (i == 0) {
					elements = append(elements, m.element())
				}
			}
			for part := range slices.Chunk(elements, chunk) {
				if err := do(s, part); err != nil {
					return fmt.Errorf("nft set %s: %w", s.Name, err)
				}
			}
		}
	}
	return nil
}

// element has each part of key and value in registers of four bytes.
func (m Mapping) element() nftables.SetElement {
	port := func(p uint16) []byte { return append(binary.BigEndian.AppendUint16(nil, p), 0, 0) }
	key := slices.Concat([]byte{byte(m.Protocol), 0, 0, 0}, port(m.Port))
	if face := m.face(); !face.IsUnspecified() {
		key = append(face.AsSlice(), key...)
	}
	return nftables.SetElement{Key: key, Val: append(m.To.Addr().AsSlice(), port(m.To.Port())...)}
}

// family is what differs between the versions of IP.
type family struct {
	name        string
	addr        nftables.SetDatatype
	number      byte
	words       int // registers that an address fills
	destination uint32
	source      uint32 // offsets in the header
	loopback    netip.Prefix
}

func register(n int) uint32 { return uint32(unix.NFT_REG32_00 + n) }

func (f family) is() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{f.number}}}
}

// translate sends what is for the host itself to where a set says.
func (f family) translate(set string) []expr.Any {
	rule := append(f.is(), &expr.Fib{Register: 1, ResultADDRTYPE: true, FlagDADDR: true}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)})
	at := 0
	if set == setOne {
		rule = append(rule, &expr.Payload{DestRegister: register(0), Base: expr.PayloadBaseNetworkHeader, Offset: f.destination, Len: uint32(4 * f.words)})
		at = f.words
	}
	return append(rule,
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register(at)},
		&expr.Payload{DestRegister: register(at + 1), Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Lookup{SourceRegister: 1, DestRegister: 1, IsDestRegSet: true, SetName: set + f.name},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.number), RegAddrMin: 1, RegProtoMin: register(f.words), Specified: true},
	)
}

// fromLoopback gives what the host's loopback sends to a port of its own an address that can be answered.
func (f family) fromLoopback() []expr.Any {
	const translated = 1 << 5 // IPS_DST_NAT
	size := uint32(4 * f.words)
	mask := make([]byte, size)
	for i := range f.loopback.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return append(f.is(),
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: append([]byte("lo"), make([]byte, unix.IFNAMSIZ-2)...)},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: f.source, Len: size},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: size, Mask: mask, Xor: make([]byte, size)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: f.loopback.Addr().AsSlice()},
		&expr.Ct{Key: expr.CtKeySTATUS, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binary.NativeEndian.AppendUint32(nil, translated), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
		&expr.Masq{},
	)
}

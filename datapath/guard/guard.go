//go:build linux

// Package guard keeps a link of the machine from being a way through it.
//
// It owns the table kuryr_guard of the inet family in the network namespace that its caller is in. What comes in by the link and would be passed on is refused, unless it was
// translated on the way (package lb, package hostport), or is of a connection that is there. So a machine that passes on what it balances does not become a router between the
// networks behind its links, and what is for an address that nobody answers at does not go round between it and a router until its life is over.
//
// It must not judge what is for the machine itself, nor what it sends.
package guard

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Table is the name of the table.
const Table = "kuryr_guard"

// Of a connection's state and status (linux/netfilter/nf_conntrack_common.h).
const (
	stateNew   = 1 << 3
	statusDNAT = 1 << 5 // IPS_DST_NAT
)

func table() *nftables.Table {
	return &nftables.Table{Name: Table, Family: nftables.TableFamilyINet}
}

// Set guards a link of this name, which need not be there. It is there when Set returns, and guards no other. Idempotent.
func Set(link string) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	c.AddTable(table()) // so that there is one to delete
	c.DelTable(table())
	t := c.AddTable(table())
	forward := c.AddChain(&nftables.Chain{Name: "forward", Table: t, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter})
	tcp := []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}}}
	for _, refuse := range [][]expr.Any{
		append(tcp, &expr.Reject{Type: unix.NFT_REJECT_TCP_RST}),
		{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}},
	} {
		c.AddRule(&nftables.Rule{Table: t, Chain: forward, Exprs: append(through(link), refuse...)})
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("nft table inet %s: %w", Table, err)
	}
	return nil
}

// Remove takes the table away; none is fine.
func Remove() error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	c.DelTable(table())
	if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("nft table inet %s: %w", Table, err)
	}
	return nil
}

// through matches what comes in by a link, begins a connection, and is not translated.
func through(link string) []expr.Any {
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, link)
	word := func(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }
	has := func(key expr.CtKey, bits uint32, op expr.CmpOp) []expr.Any {
		return []expr.Any{
			&expr.Ct{Key: key, Register: 1},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: word(bits), Xor: word(0)},
			&expr.Cmp{Op: op, Register: 1, Data: word(0)},
		}
	}
	rule := []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: name}}
	rule = append(rule, has(expr.CtKeySTATE, stateNew, expr.CmpOpNeq)...)
	return append(rule, has(expr.CtKeySTATUS, statusDNAT, expr.CmpOpEq)...)
}

//go:build linux

package hostport

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/kuryr/kuryr/datapath/nft"
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

var loopbacks = map[nft.Version]netip.Prefix{
	nft.V4: netip.MustParsePrefix("127.0.0.0/8"),
	nft.V6: netip.MustParsePrefix("::1/128"),
}

func table() *nftables.Table {
	return nft.Table{Name: tableName, Family: nftables.TableFamilyINet}.Ref()
}

// sets are the maps of a version of IP.
func sets(v nft.Version) []*nftables.Set {
	to := nft.Concat(v.AddrType(), nftables.TypeInetService)
	return []*nftables.Set{
		{Table: table(), Name: setEvery + v.String(), IsMap: true, Concatenation: true, DataType: to,
			KeyType: nft.Concat(nftables.TypeInetProto, nftables.TypeInetService)},
		{Table: table(), Name: setOne + v.String(), IsMap: true, Concatenation: true, DataType: to,
			KeyType: nft.Concat(v.AddrType(), nftables.TypeInetProto, nftables.TypeInetService)},
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
		for _, v := range nft.Versions {
			for _, s := range sets(v) {
				if err := c.AddSet(s, nil); err != nil {
					return fmt.Errorf("nft set %s: %w", s.Name, err)
				}
			}
			for _, from := range []*nftables.Chain{in, own} {
				c.AddRule(&nftables.Rule{Table: t, Chain: from, Exprs: translate(v, setOne)})
				c.AddRule(&nftables.Rule{Table: t, Chain: from, Exprs: translate(v, setEvery)})
			}
			c.AddRule(&nftables.Rule{Table: t, Chain: out, Exprs: fromLoopback(v)})
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
	for _, v := range nft.Versions {
		for i, s := range sets(v) {
			var elements []nftables.SetElement
			for _, m := range list {
				if nft.VersionOf(m.To.Addr()) == v && m.face().IsUnspecified() == (i == 0) {
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
	key := nft.Service(uint8(m.Protocol), m.Port)
	if face := m.face(); !face.IsUnspecified() {
		key = nft.Addr(face) + key
	}
	return nftables.SetElement{Key: []byte(key), Val: []byte(nft.Endpoint(m.To))}
}

// translate sends what is for the host itself to where a set says.
func translate(v nft.Version, set string) nft.Exprs {
	local := nft.Join(v.Match(), nft.ToLocal())
	at := 0
	if set == setOne {
		local = append(local, v.LoadDestination(nft.Reg(0)))
		at = v.Words()
	}
	return nft.Join(local, nft.LoadService(at), nft.Map(set+v.String(), nft.First, nft.First),
		nft.NAT(expr.NATTypeDestNAT, v, nft.First, nft.Reg(v.Words())))
}

// fromLoopback gives what the host's loopback sends to a port of its own an address that can be
// answered.
func fromLoopback(v nft.Version) nft.Exprs {
	loopback := loopbacks[v]
	source := nft.Bits(v.LoadSource(nft.First), net.CIDRMask(loopback.Bits(), loopback.Addr().BitLen()),
		expr.CmpOpEq, loopback.Addr().AsSlice())
	return nft.Join(v.Match(), nft.NotOut("lo"), source, nft.Translated(), nft.Masquerade)
}

//go:build linux

package securitygroup

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/kuryr/kuryr/datapath/nft"
)

// A port with limits has a chain for each direction in which there is something to do,
// found by a verdict map. Packets above a limit are dropped, as Neutron's agents do it: a
// queue would need traffic control on the port's link, which need not exist yet.

const (
	limitPriority = -240 // after the filter: what that drops does not count
	maxDSCP       = 63
	// leastBurst lets two of the largest packets pass that the kernel makes of a sender's segments.
	leastBurst = 2 << 16
	// mostBurst and mostKbps are what the kernel's numbers have room for. No port is as fast.
	mostBurst = 1 << 31
	mostKbps  = 100_000_000
)

func limitSet(d Direction) string               { return "limits_" + d.side() }
func limitBase(d Direction) string              { return "limit_" + d.side() }
func limitChain(d Direction, tap string) string { return "limit_" + d.side() + "-" + tap }

func isLimitSet(set string) bool { return set == limitSet(Egress) || set == limitSet(Ingress) }

func limitSets() []nftables.Set {
	var list []nftables.Set
	for _, d := range directions {
		list = append(list, nftables.Set{Name: limitSet(d), IsMap: true,
			KeyType: nftables.TypeIFName, DataType: nftables.TypeVerdict})
	}
	return list
}

// limitBases are the base chains, which are there while a port has limits.
func limitBases() []nft.Chain {
	var list []nft.Chain
	for _, d := range directions {
		c := nft.Chain{Name: limitBase(d), Type: nftables.ChainTypeFilter,
			Hook: nftables.ChainHookPrerouting, Priority: limitPriority}
		if d == Ingress {
			c.Hook = nftables.ChainHookPostrouting
		}
		c.Add("ports with limits", nft.Exprs{nft.LoadMeta(hook{d: d}.name(), nft.First)},
			nft.VerdictMap(limitSet(d)))
		list = append(list, c)
	}
	return list
}

func (l Limits) validate() error {
	if l.IngressKbps < 0 || l.EgressKbps < 0 || l.IngressBurst < 0 || l.EgressBurst < 0 {
		return fmt.Errorf("limits %+v: want none below 0", l)
	}
	if l.DSCP > maxDSCP {
		return fmt.Errorf("DSCP %d: want at most %d", l.DSCP, maxDSCP)
	}
	return nil
}

// of gives the bytes a second and the burst in bytes of a direction; 0 is no limit, and
// so is what is beyond every port.
func (l Limits) of(d Direction) (bytes uint64, burst uint32) {
	kbps, kbits := l.IngressKbps, l.IngressBurst
	if d == Egress {
		kbps, kbits = l.EgressKbps, l.EgressBurst
	}
	if kbps == 0 || kbps >= mostKbps {
		return 0, 0
	}
	if kbits == 0 {
		kbits = kbps / 10
	}
	return uint64(kbps) * 125, uint32(max(min(kbits, mostBurst/125)*125, leastBurst))
}

// limitChains are the port's.
func (p Port) limitChains() []nft.Chain {
	var list []nft.Chain
	for _, d := range directions {
		c := nft.Chain{Name: limitChain(d, p.Tap)}
		if p.Limits.DSCP != 0 && d == Egress {
			for _, v := range nft.Versions {
				c.Add(fmt.Sprintf("DSCP %d", p.Limits.DSCP), v.MatchFrame(), mark(v, p.Limits.DSCP))
			}
		}
		if bytes, burst := p.Limits.of(d); bytes != 0 {
			limit := &expr.Limit{Type: expr.LimitTypePktBytes, Rate: bytes,
				Unit: expr.LimitTimeSecond, Burst: burst, Over: true}
			c.Add("too much", nft.Exprs{limit}, nft.CountedDrop)
		}
		if len(c.Rules) > 0 {
			list = append(list, c)
		}
	}
	return list
}

func (p Port) limitElements() []nft.Element {
	var list []nft.Element
	for _, d := range directions {
		for _, c := range p.limitChains() {
			if c.Name == limitChain(d, p.Tap) {
				list = append(list, nft.Element{Set: limitSet(d), Key: p.name(), GoTo: c.Name})
			}
		}
	}
	return list
}

// mark writes the DSCP, which is six bits in the first two bytes of either header.
func mark(v nft.Version, dscp uint8) nft.Exprs {
	mask, value := uint16(0xff03), uint16(dscp)<<2
	write := &expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: nft.First,
		Base: nft.NetworkHeader, Offset: 0, Len: 2}
	if v == nft.V4 {
		write.CsumType, write.CsumOffset = expr.CsumTypeInet, 10
	} else {
		mask, value = 0xf03f, uint16(dscp)<<6
	}
	u16 := func(v uint16) []byte { return binary.BigEndian.AppendUint16(nil, v) }
	return nft.Exprs{nft.Load(nft.NetworkHeader, 0, 2, nft.First), nft.Mask(u16(mask), u16(value)), write}
}

// queueLimits queues the chains of the ports to add, and deletes those of the others.
func (f *Filter) queueLimits(t *transaction, remove, add []Port, look bool) {
	kept := map[string]bool{}
	for _, p := range add {
		for _, c := range p.limitChains() {
			if len(kept) == 0 && !f.hasChain(limitBase(Egress)) {
				t.AddChains(filter, limitBases())
			}
			kept[c.Name] = true
			t.AddChain(filter, nft.Chain{Name: c.Name})
			t.FlushChain(filter, c.Name)
			t.AddChains(filter, []nft.Chain{c})
		}
	}
	for _, p := range remove {
		for _, c := range p.limitChains() {
			if kept[c.Name] || look && !f.hasChain(c.Name) {
				continue
			}
			kept[c.Name] = true
			t.last = append(t.last, c.Name)
		}
	}
}

//go:build linux

package policy

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// A port with limits has a chain for each direction in which there is something to do, found by a verdict map. What is above a limit is
// dropped, as Neutron's agents do it: a queue would need traffic control on the port's link, which need not exist yet.

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
		list = append(list, nftables.Set{Name: limitSet(d), IsMap: true, KeyType: nftables.TypeIFName, DataType: nftables.TypeVerdict})
	}
	return list
}

// limitBases are the base chains, which are there while a port has limits.
func limitBases() []chain {
	var list []chain
	for _, d := range directions {
		c := chain{name: limitBase(d), hook: nftables.ChainHookPrerouting, priority: limitPriority}
		if d == Ingress {
			c.hook = nftables.ChainHookPostrouting
		}
		c.add("ports with limits", exprs{loadMeta(hook{d: d}.name(), 1), &expr.Lookup{SourceRegister: 1, DestRegister: 0, IsDestRegSet: true, SetName: limitSet(d)}})
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

// of gives the bytes a second and the burst in bytes of a direction; 0 is no limit, and so is what is beyond every port.
func (l Limits) of(d Direction) (rate uint64, burst uint32) {
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
func (p Port) limitChains() []chain {
	var list []chain
	for _, d := range directions {
		c := chain{name: limitChain(d, p.Tap)}
		if p.Limits.DSCP != 0 && d == Egress {
			for _, v := range versions {
				c.add(fmt.Sprintf("DSCP %d", p.Limits.DSCP), v.matches(), v.mark(p.Limits.DSCP))
			}
		}
		if rate, burst := p.Limits.of(d); rate != 0 {
			c.add("too much", exprs{&expr.Limit{Type: expr.LimitTypePktBytes, Rate: rate, Unit: expr.LimitTimeSecond, Burst: burst, Over: true}}, drop)
		}
		if len(c.rules) > 0 {
			list = append(list, c)
		}
	}
	return list
}

func (p Port) limitElements() []element {
	var list []element
	for _, d := range directions {
		for _, c := range p.limitChains() {
			if c.name == limitChain(d, p.Tap) {
				list = append(list, element{set: limitSet(d), key: p.name(), goTo: c.name})
			}
		}
	}
	return list
}

// mark writes the DSCP, which is six bits in the first two bytes of either header.
func (v version) mark(dscp uint8) exprs {
	mask, value := uint16(0xff03), uint16(dscp)<<2
	write := &expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: 1, Base: networkHeader, Offset: 0, Len: 2}
	if v == v4 {
		write.CsumType, write.CsumOffset = expr.CsumTypeInet, 10
	} else {
		mask, value = 0xf03f, uint16(dscp)<<6
	}
	u16 := func(v uint16) []byte { return binary.BigEndian.AppendUint16(nil, v) }
	return exprs{load(networkHeader, 0, 2, 1), &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 2, Mask: u16(mask), Xor: u16(value)}, write}
}

// queueLimits has the ports' chains be as they are to be, and those of others go.
func (f *Filter) queueLimits(t *transaction, remove, add []Port, look bool) error {
	kept := map[string]bool{}
	for _, p := range add {
		for _, c := range p.limitChains() {
			if len(kept) == 0 && !f.hasChain(limitBase(Egress)) {
				if err := t.addChains(limitBases()); err != nil {
					return err
				}
			}
			kept[c.name] = true
			ref := &nftables.Chain{Name: c.name, Table: table()}
			t.conn.AddChain(ref)
			t.conn.FlushChain(ref)
			if err := t.addChains([]chain{c}); err != nil {
				return err
			}
		}
	}
	for _, p := range remove {
		for _, c := range p.limitChains() {
			if kept[c.name] || look && !f.hasChain(c.name) {
				continue
			}
			kept[c.name] = true
			t.last = append(t.last, c.name)
		}
	}
	return nil
}

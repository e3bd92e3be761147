//go:build linux

package securitygroup

import (
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/kuryr/kuryr/datapath/nft"
)

// rate is how many a second, and how many more after a pause.
type rate struct{ second, burst uint32 }

// The share of a port in what is remembered. Without seats it holds at most tcpEndedFor
// of newRate, otherFor of newPlainRate, and a burst of each: less than a set of flows
// holds. What comes in is also bounded by its source, so that one that sends much leaves
// room for others to reach the port.
var (
	newRate      = rate{3000, 1 << 15}
	newFromRate  = rate{2500, 1 << 14}
	newPlainRate = rate{200, 2000}
	fragmentRate = rate{5000, 10000}
)

// seatsAtMost is how many flows are remembered for long, and seatsOfPort how many of them
// are a port's. A seat is looked for seatTries times, at random: with half of the port's
// taken one flow in 16 finds none, with a tenth one in 10,000. So what is remembered for
// days leaves three quarters of a set of flows to what is not.
const (
	seatsAtMost = flowsAtMost / 4
	seatsOfPort = seatsAtMost / 4
	seatTries   = 4
)

func (h hook) seats() string         { return setSeats + h.v.String() }
func (h hook) rates() string         { return setRates + "_" + h.d.side() }
func (h hook) ratesFrom() string     { return setRatesFrom + h.v.String() }
func (h hook) plainRates() string    { return setRates + "_plain_" + h.d.side() }
func (h hook) fragmentRates() string { return setFragments + "_rates_" + h.d.side() }
func (h hook) young() string         { return setYoung + h.v.String() }

// keep is the chain that remembers a TCP connection of which both sides have sent, last
// the one for datagrams that last.
func (h hook) keep(began Direction) string { return h.chain("keep") + "_began_" + began.side() }
func (h hook) last(began Direction) string { return h.chain("last") + "_began_" + began.side() }

// noted is a set that rules fill. Without a size the kernel makes a small one, which
// grows, for at most 65,535. With a size it makes room for the lowest 16 bits of that
// (rhashtable_params.nelem_hint), so sizes are multiples of 65,536: room for none.
func noted(name string, timeout time.Duration, size uint32,
	key ...nftables.SetDatatype) nftables.Set {
	s := nftables.Set{Name: name, KeyType: key[0], Dynamic: true, HasTimeout: true,
		Timeout: timeout, Size: size}
	if len(key) > 1 {
		s.Concatenation, s.KeyType = true, nft.Concat(key...)
	}
	return s
}

func shareSets() []nftables.Set {
	index, service := nftables.TypeIFIndex, nftables.TypeInetService
	list := []nftables.Set{noted(setTaken, tcpFor, seatsAtMost, index, nftables.TypeMark)}
	for _, d := range directions {
		h := hook{d: d}
		for _, name := range []string{h.rates(), h.plainRates(), h.fragmentRates()} {
			list = append(list, noted(name, ratesFor, 0, index))
		}
	}
	for _, v := range nft.Versions {
		h, addr := hook{v: v}, v.AddrType()
		flow := []nftables.SetDatatype{index, addr, nftables.TypeInetProto, service, service}
		seats := noted(h.seats(), tcpFor, seatsAtMost, flow...)
		seats.IsMap, seats.DataType = true, nftables.TypeMark
		list = append(list, noted(h.ratesFrom(), ratesFor, 0, index, addr),
			noted(h.young(), youngFor, 0, flow...), seats)
	}
	return list
}

// over drops what is beyond the rate of a key.
func over(key nft.Exprs, set string, r rate) nft.Exprs {
	return nft.Over(key, set, uint64(r.second), r.burst)
}

// freshChain refuses a new flow of a port, or from a source, that has had its share of
// them.
func (h hook) freshChain() nft.Chain {
	c := nft.Chain{Name: h.chain("fresh")}
	if h.d == Egress {
		c.Add("more new flows than its share", over(nft.Exprs{h.port(0)}, h.rates(), newRate))
		return c
	}
	c.Add("more new flows than its share, from there",
		over(nft.Exprs{h.port(0), h.remote(1)}, h.ratesFrom(), newFromRate))
	c.Add("more new flows than its share", over(nft.Exprs{h.port(0)}, h.rates(), newRate))
	return c
}

// keepChains give a flow a seat, if it has none, and remember it for as long as that.
func (h hook) keepChains(name string, began Direction, timeout time.Duration) []nft.Chain {
	c, sit := nft.Chain{Name: name}, nft.Chain{Name: name + "_seat"}
	random := nft.Random(seatsOfPort)
	c.Add("has a seat", inSeat(h.flow(), h.seats()), nft.MarkFrom(nft.First), nft.Jump(sit.Name))
	for range seatTries {
		c.Add("this seat is free", random, nft.MarkFrom(nft.First), notInSet(h.taken(), setTaken),
			nft.Jump(sit.Name))
	}
	c.Add("has no seat", remember(h.flow(), h.flows(began), briefFor))
	c.Add("pass", nft.GoTo(h.chain("pass")))
	// A set that is full ends the rule: then nothing is taken, and the chain above goes on.
	sit.Add("takes or keeps the seat", remember(h.flow(), h.flows(began), timeout),
		remember(h.taken(), setTaken, timeout), h.seat(nft.SetUpdate, timeout),
		nft.GoTo(h.chain("pass")))
	return []nft.Chain{c, sit}
}

// leaveSeat frees the flow's seat.
func (h hook) leaveSeat() nft.Exprs {
	return nft.Join(inSeat(h.flow(), h.seats()), nft.MarkFrom(nft.First), forget(h.taken(), setTaken),
		h.seat(nft.SetDelete, 0))
}

// taken is the key of the port's seat whose number the mark is.
func (h hook) taken() nft.Exprs {
	return nft.Exprs{h.port(0), nft.LoadMeta(expr.MetaKeyMARK, nft.Reg(1))}
}

// seat does something with the flow's seat, whose number the mark is.
func (h hook) seat(operation uint32, timeout time.Duration) nft.Exprs {
	data := h.v.Words() + 4
	return nft.Join(h.flow(), nft.Exprs{nft.LoadMeta(expr.MetaKeyMARK, nft.Reg(data))},
		nft.ChangeMap(operation, h.seats(), nft.Reg(data), timeout))
}

// inSeat matches flows that have a seat, and loads its number.
func inSeat(flow nft.Exprs, seats string) nft.Exprs {
	return nft.Join(flow, nft.Map(seats, nft.Reg(0), nft.First))
}

package engine

import (
	"encoding/binary"
	"errors"
	"math"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/internal/ipprefix"
	"github.com/kuryr/kuryr/internal/sortslice"
	"github.com/kuryr/kuryr/sdn"
)

// usable is the range of p's addresses that hosts can have on request: all, but not the network and
// broadcast addresses of IPv4 (RFC 3021 lets point-to-point links use both).
func usable(p netip.Prefix) interval {
	iv := interval{p.Masked().Addr(), ipprefix.Last(p)}
	if p.Addr().Is4() && p.Bits() <= 30 {
		iv = interval{iv.first.Next(), iv.last.Prev()}
	}
	return iv
}

// automatic is the range of p's addresses that automatic allocation may choose from: usable, but not the subnet-router
// anycast address of IPv6 (RFC 4291 2.6.1; RFC 6164 for point-to-point links).
func automatic(p netip.Prefix) interval {
	iv := usable(p)
	if p.Addr().Is6() && p.Bits() <= 126 {
		iv.first = iv.first.Next()
	}
	return iv
}

func (iv interval) contains(a netip.Addr) bool {
	return a.BitLen() == iv.first.BitLen() && !a.Less(iv.first) && !iv.last.Less(a)
}

// allocatable lists what automatic allocation of subnet s chooses from when nothing is taken, in order.
func allocatable(s *sdn.Subnet) []interval {
	whole := automatic(s.CIDR)
	if s.WithoutRanges || whole.last.Less(whole.first) {
		return nil
	}
	ranges := []interval{whole}
	if len(s.Ranges) > 0 {
		ranges = ranges[:0]
		for _, r := range s.Ranges {
			iv := interval{r.First, r.Last}
			if iv.first.Less(whole.first) {
				iv.first = whole.first
			}
			if whole.last.Less(iv.last) {
				iv.last = whole.last
			}
			if !iv.last.Less(iv.first) {
				ranges = append(ranges, iv)
			}
		}
		ranges = merge(ranges)
	}
	return punch(ranges, holes(s))
}

// merge puts intervals in order and joins those that touch.
func merge(ranges []interval) []interval {
	sortslice.Func(ranges, func(a, b interval) int { return a.first.Compare(b.first) })
	var out []interval
	for _, iv := range ranges {
		if n := len(out); n > 0 && out[n-1].last.Next() == iv.first {
			out[n-1].last = iv.last
		} else {
			out = append(out, iv)
		}
	}
	return out
}

// holes are the single addresses that automatic allocation leaves out, in order and once each.
func holes(s *sdn.Subnet) []netip.Addr {
	out := slices.Clone(s.Reserved)
	if s.Gateway.IsValid() {
		out = append(out, s.Gateway)
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// punch takes single addresses out of intervals; both are in order.
func punch(ranges []interval, holes []netip.Addr) []interval {
	var out []interval
	for _, iv := range ranges {
		start, _ := slices.BinarySearchFunc(holes, iv.first, netip.Addr.Compare)
		open := true
		for _, h := range holes[start:] {
			if iv.last.Less(h) {
				break
			}
			if iv.first.Less(h) {
				out = append(out, interval{iv.first, h.Prev()})
			}
			if h == iv.last {
				open = false
				break
			}
			iv.first = h.Next()
		}
		if open {
			out = append(out, iv)
		}
	}
	return out
}

// size counts the addresses of intervals; beyond 2^63-1 it is that.
func size(ranges []interval) int64 {
	var total uint64
	for _, iv := range ranges {
		first, last := iv.first.As16(), iv.last.As16()
		lo, borrow := bits.Sub64(binary.BigEndian.Uint64(last[8:]), binary.BigEndian.Uint64(first[8:]), 0)
		hi, _ := bits.Sub64(binary.BigEndian.Uint64(last[:8]), binary.BigEndian.Uint64(first[:8]), borrow)
		if hi != 0 || lo >= math.MaxInt64-total {
			return math.MaxInt64
		}
		total += lo + 1
	}
	return int64(total)
}

// addressing allocates the addresses of one subnet. That no two ports have one address is kept by
// the ports' index; this knows what automatic allocation may choose.
type addressing struct {
	subnet *sdn.Subnet
	free   intervals
}

// buildAddressing makes the index of a subnet anew: everything allocatable but the addresses in
// taken, which are in order.
func buildAddressing(tx Tx, s *sdn.Subnet, taken []netip.Addr) error {
	free, err := makeIntervals(tx, addressIndexes, s.ID)
	if err != nil {
		return err
	}
	all := allocatable(s)
	for _, iv := range punch(all, taken) {
		if err := free.put(iv.first, iv.last); err != nil {
			return err
		}
	}
	var used uint64
	for _, a := range taken {
		if slices.ContainsFunc(all, func(iv interval) bool { return iv.contains(a) }) {
			used++
		}
	}
	return free.setUsed(used)
}

func openAddressing(tx Tx, s *sdn.Subnet) (addressing, error) {
	free, err := openIntervals(tx, addressIndexes, s.ID)
	return addressing{s, free}, err
}

// chooses tells whether automatic allocation could ever choose a.
func (ad addressing) chooses(a netip.Addr) bool {
	if ad.subnet.WithoutRanges || a == ad.subnet.Gateway || slices.Contains(ad.subnet.Reserved, a) || !automatic(ad.subnet.CIDR).contains(a) {
		return false
	}
	return len(ad.subnet.Ranges) == 0 || slices.ContainsFunc(ad.subnet.Ranges, func(r sdn.AddressRange) bool {
		return interval{r.First, r.Last}.contains(a)
	})
}

// take gives out any free address; it reports false when there is none.
func (ad addressing) take() (netip.Addr, bool, error) {
	return ad.takeWithin(automatic(ad.subnet.CIDR), cursorKey)
}

// takeWithin is take of a part of the subnet, which has a cursor of its own.
func (ad addressing) takeWithin(bounds interval, cursor []byte) (netip.Addr, bool, error) {
	a, ok, err := ad.free.take(bounds, cursor)
	if err != nil || !ok {
		return a, ok, err
	}
	return a, true, ad.free.setUsed(ad.free.used() + 1)
}

// claim takes a, which no port has. Outside of what automatic allocation chooses from there is nothing to note.
func (ad addressing) claim(a netip.Addr) error {
	err := ad.free.cut(a, a)
	if errors.Is(err, errNotFree) && !ad.chooses(a) {
		return nil
	}
	if err != nil {
		return err
	}
	return ad.free.setUsed(ad.free.used() + 1)
}

// release gives a back.
func (ad addressing) release(a netip.Addr) error {
	if !ad.chooses(a) {
		return nil
	}
	if err := ad.free.join(a, a); err != nil {
		return err
	}
	return ad.free.setUsed(ad.free.used() - 1)
}

func (ad addressing) usage() sdn.SubnetUsage {
	total := size(allocatable(ad.subnet))
	used := int64(min(ad.free.used(), math.MaxInt64))
	return sdn.SubnetUsage{Total: total, Used: used, Free: total - used}
}

package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/kuryr/kuryr/internal/ipprefix"
	"github.com/kuryr/kuryr/sdn"
)

// intervals is a set of free addresses of one family, kept in a table as disjoint intervals that do not touch: first
// address → last address. Every operation costs the logarithm of the number of intervals, however
// many addresses they hold.
//
// Besides the intervals the table above remembers a cursor: automatic choice goes on behind the last choice, so that an
// address that was given back is not the next to be given out.
type intervals struct {
	tx          Tx
	state, free string // tables; free is below state
}

var (
	cursorKey = []byte("cursor")
	linkKey   = []byte("link-cursor") // the cursor of hostLinks
	usedKey   = []byte("used")
)

// errNotFree says that what is to be cut is not free as a whole.
var errNotFree = errors.New("not free")

// intervalsOf names the tables of an object's set.
func intervalsOf(tx Tx, above string, id sdn.ID) intervals {
	state := above + "/" + string(id)
	return intervals{tx, state, state + "/free"}
}

// makeIntervals makes an empty set in place of the one that the object has. The cursor stays.
func makeIntervals(tx Tx, above string, id sdn.ID) (intervals, error) {
	s := intervalsOf(tx, above, id)
	if err := tx.Clear(s.free); err != nil {
		return s, err
	}
	return s, s.setUsed(0)
}

// openIntervals finds the set of an object.
func openIntervals(tx Tx, above string, id sdn.ID) (intervals, error) {
	s := intervalsOf(tx, above, id)
	if tx.Get(s.state, usedKey) == nil {
		return s, fmt.Errorf("the index of free addresses of %s is missing", id)
	}
	return s, nil
}

// dropIntervals deletes the set of an object.
func dropIntervals(tx Tx, above string, id sdn.ID) error {
	return tx.Clear(intervalsOf(tx, above, id).state)
}

type interval struct{ first, last netip.Addr }

func decodeInterval(key, value []byte) (interval, error) {
	first, ok1 := netip.AddrFromSlice(key)
	last, ok2 := netip.AddrFromSlice(value)
	if !ok1 || !ok2 || first.BitLen() != last.BitLen() || last.Less(first) {
		return interval{}, fmt.Errorf("damaged interval %x-%x in the index of free addresses", key, value)
	}
	return interval{first, last}, nil
}

// at finds the interval that holds addr, or else the next one above.
func (s intervals) at(addr netip.Addr) (iv interval, holds, found bool, err error) {
	if iv, holds, err = s.holding(addr); holds || err != nil {
		return iv, holds, holds, err
	}
	for k, v := range s.tx.Seek(s.free, addr.AsSlice()) {
		iv, err = decodeInterval(k, v)
		return iv, false, true, err
	}
	return interval{}, false, false, nil
}

func (s intervals) put(first, last netip.Addr) error {
	return s.tx.Put(s.free, first.AsSlice(), last.AsSlice())
}

func (s intervals) delete(first netip.Addr) error { return s.tx.Delete(s.free, first.AsSlice()) }

// holding finds the interval that holds addr.
func (s intervals) holding(addr netip.Addr) (iv interval, holds bool, err error) {
	k, v := s.tx.Floor(s.free, addr.AsSlice())
	if k == nil {
		return interval{}, false, nil
	}
	iv, err = decodeInterval(k, v)
	return iv, err == nil && !iv.last.Less(addr), err
}

// has tells whether addr is free.
func (s intervals) has(addr netip.Addr) (bool, error) {
	_, holds, err := s.holding(addr)
	return holds, err
}

// cut takes [first, last] out; errNotFree where not all of it is free.
func (s intervals) cut(first, last netip.Addr) error {
	iv, holds, err := s.holding(first)
	if err != nil {
		return err
	}
	if !holds || iv.last.Less(last) {
		return errNotFree
	}
	if iv.first == first {
		if err := s.delete(first); err != nil {
			return err
		}
	} else if err := s.put(iv.first, first.Prev()); err != nil {
		return err
	}
	if last.Less(iv.last) {
		return s.put(last.Next(), iv.last)
	}
	return nil
}

// join gives [first, last] back, merging it with its neighbours. It is an error if any of it is free already.
func (s intervals) join(first, last netip.Addr) error {
	iv, holds, found, err := s.at(first)
	if err != nil {
		return err
	}
	if holds || found && !last.Less(iv.first) {
		return fmt.Errorf("%v-%v is given back twice", first, last)
	}
	if found && last.Next() == iv.first {
		if err := s.delete(iv.first); err != nil {
			return err
		}
		last = iv.last
	}
	if before := first.Prev(); before.IsValid() {
		below, holds, err := s.holding(before)
		if err != nil {
			return err
		}
		if holds {
			first = below.first
		}
	}
	return s.put(first, last)
}

// take chooses a free address within bounds at or behind the cursor of that name, going
// round at the end, and cuts it out. It reports false where there is none.
func (s intervals) take(bounds interval, cursor []byte) (netip.Addr, bool, error) {
	from, _ := netip.AddrFromSlice(s.tx.Get(s.state, cursor))
	if !bounds.contains(from) {
		from = bounds.first
	}
	for _, start := range []netip.Addr{from, bounds.first} {
		iv, holds, found, err := s.at(start)
		if err != nil {
			return netip.Addr{}, false, err
		}
		addr := iv.first
		if holds {
			addr = start
		}
		if !found || bounds.last.Less(addr) {
			continue
		}
		if err := s.cut(addr, addr); err != nil {
			return netip.Addr{}, false, err
		}
		return addr, true, s.moveCursor(cursor, addr)
	}
	return netip.Addr{}, false, nil
}

// from finds the interval at or behind addr, or else the first of all.
func (s intervals) from(addr netip.Addr) (interval, bool, error) {
	if addr.IsValid() {
		iv, _, found, err := s.at(addr)
		if err != nil || found {
			return iv, found, err
		}
	}
	for k, v := range s.tx.Seek(s.free, nil) {
		iv, err := decodeInterval(k, v)
		return iv, true, err
	}
	return interval{}, false, nil
}

func (s intervals) moveCursor(cursor []byte, last netip.Addr) error {
	if next := last.Next(); next.IsValid() {
		return s.tx.Put(s.state, cursor, next.AsSlice())
	}
	return s.tx.Delete(s.state, cursor)
}

// takePrefix chooses a free, aligned prefix of the given length at or behind the cursor, going
// round at the end, and cuts it out. It costs the number of intervals that are too small, which is
// why prefixes of very different lengths want different pools.
func (s intervals) takePrefix(bits int) (netip.Prefix, bool, error) {
	from, _ := netip.AddrFromSlice(s.tx.Get(s.state, cursorKey))
	for _, start := range []netip.Addr{from, {}} {
		p, found, err := s.findPrefix(start, bits)
		if err != nil {
			return netip.Prefix{}, false, err
		}
		if !found {
			continue
		}
		last := ipprefix.Last(p)
		if err := s.cut(p.Addr(), last); err != nil {
			return netip.Prefix{}, false, err
		}
		return p, true, s.moveCursor(cursorKey, last)
	}
	return netip.Prefix{}, false, nil
}

// findPrefix finds the first free, aligned prefix of the given length that is not below start, if
// that is valid.
func (s intervals) findPrefix(start netip.Addr, bits int) (netip.Prefix, bool, error) {
	var first []byte
	if start.IsValid() {
		iv, found, err := s.from(start)
		if err != nil || !found {
			return netip.Prefix{}, false, err
		}
		first = iv.first.AsSlice()
	}
	for k, v := range s.tx.Seek(s.free, first) {
		iv, err := decodeInterval(k, v)
		if err != nil {
			return netip.Prefix{}, false, err
		}
		if start.IsValid() && iv.first.Less(start) && !iv.last.Less(start) {
			iv.first = start
		}
		if p, fits := firstPrefix(iv, bits); fits {
			return p, true, nil
		}
	}
	return netip.Prefix{}, false, nil
}

// firstPrefix is the lowest aligned prefix of the given length inside iv.
func firstPrefix(iv interval, bits int) (netip.Prefix, bool) {
	p, err := iv.first.Prefix(bits)
	if err != nil {
		return netip.Prefix{}, false
	}
	if p.Addr().Less(iv.first) {
		next := ipprefix.Last(p).Next()
		if !next.IsValid() {
			return netip.Prefix{}, false
		}
		p = netip.PrefixFrom(next, bits)
	}
	return p, !iv.last.Less(ipprefix.Last(p))
}

// used counts the addresses that were cut out one by one.
func (s intervals) used() uint64 {
	v := s.tx.Get(s.state, usedKey)
	if len(v) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(v)
}

func (s intervals) setUsed(n uint64) error {
	return s.tx.Put(s.state, usedKey, binary.BigEndian.AppendUint64(nil, n))
}

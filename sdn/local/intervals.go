package local

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/kuryr/kuryr/internal/ipprefix"
	"go.etcd.io/bbolt"
)

// intervals is a set of free addresses of one family, kept in a bucket as disjoint intervals that do not touch: first
// address → last address. Every operation costs the logarithm of the number of intervals, however many addresses they hold.
//
// Besides the intervals the bucket's parent remembers a cursor: automatic choice goes on behind the last choice, so that an
// address that was given back is not the next to be given out.
type intervals struct{ free, state *bbolt.Bucket }

var (
	freeBucket = []byte("free")
	cursorKey  = []byte("cursor")
	linkKey    = []byte("link-cursor") // the cursor of hostLinks
	usedKey    = []byte("used")
)

// errNotFree says that what is to be cut is not free as a whole.
var errNotFree = errors.New("not free")

// makeIntervals makes an empty set under name, replacing what was there. The cursor survives.
func makeIntervals(parent *bbolt.Bucket, name []byte) (intervals, error) {
	state, err := parent.CreateBucketIfNotExists(name)
	if err != nil {
		return intervals{}, err
	}
	if state.Bucket(freeBucket) != nil {
		if err := state.DeleteBucket(freeBucket); err != nil {
			return intervals{}, err
		}
	}
	free, err := state.CreateBucket(freeBucket)
	if err != nil {
		return intervals{}, err
	}
	return intervals{free, state}, state.Put(usedKey, make([]byte, 8))
}

// openIntervals finds the set under name.
func openIntervals(parent *bbolt.Bucket, name []byte) (intervals, error) {
	if state := parent.Bucket(name); state != nil {
		if free := state.Bucket(freeBucket); free != nil {
			return intervals{free, state}, nil
		}
	}
	return intervals{}, fmt.Errorf("the index of free addresses of %s is missing", name)
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
	c := s.free.Cursor()
	k, v := c.Seek(addr.AsSlice())
	if k != nil && bytes.Equal(k, addr.AsSlice()) {
		iv, err = decodeInterval(k, v)
		return iv, true, true, err
	}
	if k == nil {
		k, v = c.Last()
	} else {
		k, v = c.Prev()
	}
	if k != nil {
		below, err := decodeInterval(k, v)
		if err != nil {
			return interval{}, false, false, err
		}
		if below.first.Less(addr) && !below.last.Less(addr) {
			return below, true, true, nil
		}
	}
	if k, v = c.Seek(addr.AsSlice()); k == nil {
		return interval{}, false, false, nil
	}
	iv, err = decodeInterval(k, v)
	return iv, false, true, err
}

// has tells whether addr is free.
func (s intervals) has(addr netip.Addr) (bool, error) {
	_, holds, _, err := s.at(addr)
	return holds, err
}

// cut takes [first, last] out; errNotFree where not all of it is free.
func (s intervals) cut(first, last netip.Addr) error {
	iv, holds, _, err := s.at(first)
	if err != nil {
		return err
	}
	if !holds || iv.last.Less(last) {
		return errNotFree
	}
	if iv.first == first {
		if err := s.free.Delete(first.AsSlice()); err != nil {
			return err
		}
	} else if err := s.free.Put(iv.first.AsSlice(), first.Prev().AsSlice()); err != nil {
		return err
	}
	if last.Less(iv.last) {
		return s.free.Put(last.Next().AsSlice(), iv.last.AsSlice())
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
		if err := s.free.Delete(iv.first.AsSlice()); err != nil {
			return err
		}
		last = iv.last
	}
	if before := first.Prev(); before.IsValid() {
		below, holds, _, err := s.at(before)
		if err != nil {
			return err
		}
		if holds {
			first = below.first
		}
	}
	return s.free.Put(first.AsSlice(), last.AsSlice())
}

// take chooses a free address within bounds at or behind the cursor of that name, going
// round at the end, and cuts it out. It reports false where there is none.
func (s intervals) take(bounds interval, cursor []byte) (netip.Addr, bool, error) {
	from, _ := netip.AddrFromSlice(s.state.Get(cursor))
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
	k, v := s.free.Cursor().First()
	if k == nil {
		return interval{}, false, nil
	}
	iv, err := decodeInterval(k, v)
	return iv, true, err
}

func (s intervals) moveCursor(cursor []byte, last netip.Addr) error {
	if next := last.Next(); next.IsValid() {
		return s.state.Put(cursor, next.AsSlice())
	}
	return s.state.Delete(cursor)
}

// takePrefix chooses a free, aligned prefix of the given length at or behind the cursor, going round at the end, and cuts it out.
// It costs the number of intervals that are too small, which is why prefixes of very different lengths want different pools.
func (s intervals) takePrefix(bits int) (netip.Prefix, bool, error) {
	from, _ := netip.AddrFromSlice(s.state.Get(cursorKey))
	for _, start := range []netip.Addr{from, {}} {
		c := s.free.Cursor()
		k, v := c.First()
		if start.IsValid() {
			iv, found, err := s.from(start)
			if err != nil || !found {
				return netip.Prefix{}, false, err
			}
			k, v = c.Seek(iv.first.AsSlice())
		}
		for ; k != nil; k, v = c.Next() {
			iv, err := decodeInterval(k, v)
			if err != nil {
				return netip.Prefix{}, false, err
			}
			if start.IsValid() && iv.first.Less(start) && !iv.last.Less(start) {
				iv.first = start
			}
			p, fits := firstPrefix(iv, bits)
			if !fits {
				continue
			}
			last := ipprefix.Last(p)
			if err := s.cut(p.Addr(), last); err != nil {
				return netip.Prefix{}, false, err
			}
			return p, true, s.moveCursor(cursorKey, last)
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
	v := s.state.Get(usedKey)
	if len(v) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(v)
}

func (s intervals) setUsed(n uint64) error {
	return s.state.Put(usedKey, binary.BigEndian.AppendUint64(nil, n))
}

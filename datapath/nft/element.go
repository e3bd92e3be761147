//go:build linux

package nft

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Concat is the type of a key or value of several fields.
func Concat(types ...nftables.SetDatatype) nftables.SetDatatype {
	return nftables.MustConcatSetType(types...)
}

// Word returns a number in the machine's byte order, as marks and verdicts' numbers are kept.
func Word(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// Padded returns bytes filled up with zeros; each field of a key fills whole registers.
func Padded(s string, length int) string {
	b := make([]byte, length)
	copy(b, s)
	return string(b)
}

// Link returns the name of a link as a field of a key.
func Link(name string) string { return Padded(name, unix.IFNAMSIZ) }

// Addr returns an address as a field of a key.
func Addr(a netip.Addr) string { return string(a.AsSlice()) }

// Uint16 returns a transport port or an ethertype as a field of a key.
func Uint16(n uint16) string { return string([]byte{byte(n >> 8), byte(n), 0, 0}) }

// Service returns protocol . port as fields of a key.
func Service(protocol uint8, port uint16) string {
	return string([]byte{protocol, 0, 0, 0}) + Uint16(port)
}

// Endpoint returns address . port as fields of a key.
func Endpoint(a netip.AddrPort) string { return Addr(a.Addr()) + Uint16(a.Port()) }

// RangeSet returns a set of ranges of addresses. The ethertype before the address makes the key
// one of two fields: the kernel keeps only the ranges of such keys as a first and a last key.
func RangeSet(name string, v Version) nftables.Set {
	return nftables.Set{Name: name, Concatenation: true, Interval: true,
		KeyType: Concat(nftables.TypeEtherType, v.AddrType())}
}

// Range returns the element of a RangeSet that has the addresses from first to last.
func Range(set string, first, last netip.Addr) Element {
	ether := Uint16(VersionOf(first).EtherType())
	return Element{Set: set, Key: ether + Addr(first), End: ether + Addr(last)}
}

// Element is an element of a set or map, comparable, with its fields as the kernel has them.
type Element struct {
	Set   string
	Key   string
	End   string // of a range
	Value string // in a map
	GoTo  string // chain, in a map of verdicts
}

// String is for a person who compares.
func (e Element) String() string {
	switch {
	case e.GoTo != "":
		return fmt.Sprintf("%x : %s", e.Key, e.GoTo)
	case e.End != "":
		return fmt.Sprintf("%x-%x", e.Key, e.End)
	case e.Value != "":
		return fmt.Sprintf("%x : %x", e.Key, e.Value)
	}
	return fmt.Sprintf("%x", e.Key)
}

func (e Element) kernel() nftables.SetElement {
	n := nftables.SetElement{Key: []byte(e.Key), KeyEnd: []byte(e.End), Val: []byte(e.Value)}
	if e.GoTo != "" {
		n.VerdictData = &expr.Verdict{Kind: expr.VerdictGoto, Chain: e.GoTo}
	}
	return n
}

// Difference returns the elements to remove and to add, each once, so that a set that has some
// elements has the wanted ones. A listing of a growing set has some elements twice.
func Difference(have, want []Element) (remove, add []Element) {
	had, wanted := map[Element]bool{}, map[Element]bool{}
	for _, e := range have {
		had[e] = true
	}
	for _, e := range want {
		if !had[e] && !wanted[e] {
			add = append(add, e)
		}
		wanted[e] = true
	}
	for _, e := range have {
		if !wanted[e] {
			remove = append(remove, e)
			wanted[e] = true
		}
	}
	return remove, add
}

// Without returns the elements of a list that are not among others.
func Without(list, others []Element) []Element {
	among := make(map[Element]bool, len(others))
	for _, e := range others {
		among[e] = true
	}
	return slices.DeleteFunc(slices.Clone(list), func(e Element) bool { return among[e] })
}

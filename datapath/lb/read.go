//go:build linux

package lb

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/sdn"

	"github.com/kuryr/kuryr/datapath/nft"
)

// state is what the kernel has.
type state struct {
	// damage is what cannot be repaired in place, because it is missing, of another type or not
	// known here: then the tables are made again, in one transaction. It is nil for whole
	// tables.
	damage   []Difference
	stale    []placed // chains with other rules
	tables   []nftables.TableFamily
	chains   map[string]bool          // of the inet family, as this program makes them
	strays   []string                 // and others
	elements map[string][]nft.Element // by set; but clients
	leads    map[lead]bool            // with chain and element
}

// read reads the whole table.
func (k *kernel) read(ctx context.Context) (*state, error) {
	s := &state{chains: map[string]bool{}, elements: map[string][]nft.Element{}, leads: map[lead]bool{}}
	have, err := k.nft.ListTables()
	if err != nil {
		return nil, fmt.Errorf("list tables: %w", err)
	}
	for _, f := range []nftables.TableFamily{nftables.TableFamilyINet, nftables.TableFamilyBridge} {
		wanted := f == nftables.TableFamilyINet || k.bridge
		there := slices.ContainsFunc(have, func(t *nftables.Table) bool { return t.Name == k.name && t.Family == f })
		if there != wanted {
			s.differ("table "+k.name, wanted, there)
		}
		if there {
			s.tables = append(s.tables, f)
		}
		if !there || !wanted {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := k.readTable(ctx, s, f); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *state) differ(object string, want, have bool) {
	word := map[bool]string{true: "present"}
	s.damage = append(s.damage, Difference{Object: object, Want: word[want], Have: word[have]})
}

func (k *kernel) readTable(ctx context.Context, s *state, f nftables.TableFamily) error {
	sets, fixed := k.fixed(f)
	have, err := k.in(f).Sets(k.nft)
	if err != nil {
		return err
	}
	for _, want := range sets {
		h := have[want.Name]
		if h == nil {
			s.differ("set "+want.Name, true, false)
			continue
		}
		if !nft.SameSet(h, want) {
			s.damage = append(s.damage, Difference{Object: "set " + want.Name, Want: want.KeyType.Name, Have: h.KeyType.Name})
			continue
		}
		if strings.HasPrefix(want.Name, "client") {
			continue
		}
		if s.elements[want.Name], err = k.readSet(ctx, f, want.Name); err != nil {
			return err
		}
	}
	for _, name := range sortedKeys(have) {
		// what another version has beside: its chains cannot go while such a set leads to them
		if !slices.ContainsFunc(sets, func(want nftables.Set) bool { return want.Name == name }) {
			s.differ("set "+name, false, true)
		}
	}
	return k.readChains(s, f, fixed)
}

// readSet reads a set. Of endpoints that went no single one matters.
func (k *kernel) readSet(ctx context.Context, f nftables.TableFamily, name string) ([]nft.Element, error) {
	if strings.HasPrefix(name, "left") {
		return k.in(f).Elements(k.nft, name, false)
	}
	elements, err := k.in(f).StableElements(ctx, k.nft, name)
	if strings.HasPrefix(name, "profile") {
		for i := range elements {
			elements[i].Value = "" // its key says it all
		}
	}
	return elements, err
}

// readChains compares chains by their rules' stamps.
func (k *kernel) readChains(s *state, f nftables.TableFamily, fixed []nft.Chain) error {
	have, err := k.in(f).Chains(k.nft)
	if err != nil {
		return err
	}
	if f == nftables.TableFamilyINet {
		// A profile is known by its element, and has chains then: the kernel keeps what an
		// element leads to.
		for _, kd := range kinds {
			for _, e := range s.elements[kd.profiles()] {
				if len(e.Key) == 4 {
					l := lead{kd, profile(binary.NativeEndian.Uint32([]byte(e.Key)))}
					s.leads[l] = true
					fixed = append(slices.Clip(fixed), k.chainsOf(l)...)
				}
			}
		}
	}
	checked := map[string]bool{}
	for _, want := range fixed {
		if checked[want.Name] {
			continue
		}
		checked[want.Name] = true
		c := have[want.Name]
		if c == nil || !nft.SameChain(c, want) {
			s.damage = append(s.damage, Difference{Object: "chain " + want.Name, Want: "as this program makes it"})
			continue
		}
		same, err := k.in(f).HasRules(k.nft, want)
		if err != nil {
			return err
		}
		if !same {
			s.stale = append(s.stale, placed{f, want})
		}
	}
	if f == nftables.TableFamilyINet {
		s.chains = checked
		for _, name := range sortedKeys(have) {
			if !checked[name] {
				s.strays = append(s.strays, name)
			}
		}
	}
	return nil
}

// frontends are what the kernel's elements tell of slots and ids, as far as they make
// sense: where an endpoint is already, it may stay.
func (s *state) frontends() map[Key]*frontend {
	out := map[Key]*frontend{}
	for _, kd := range kinds { // those for all come first
		for key, f := range s.ofKind(kd) {
			switch {
			case !kd.inside:
				out[key] = f
			case out[key] == nil:
				out[key] = &frontend{inside: f}
			default:
				out[key].inside = f
			}
		}
	}
	return out
}

func (s *state) ofKind(kd kind) map[Key]*frontend {
	byID, slots := map[Key]map[uint32]netip.AddrPort{}, map[Key]map[uint32]uint32{}
	for _, e := range s.elements[kd.endpoints()] {
		if key, number, ok := kd.parse(e.Key); ok {
			if byID[key] == nil {
				byID[key] = map[uint32]netip.AddrPort{}
			}
			byID[key][number] = kd.endpoint(e.Value)
		}
	}
	for _, e := range s.elements[kd.picks()] {
		if key, number, ok := kd.parse(e.Key); ok && len(e.Value) == 4 {
			if slots[key] == nil {
				slots[key] = map[uint32]uint32{}
			}
			slots[key][number] = binary.NativeEndian.Uint32([]byte(e.Value))
		}
	}
	out := map[Key]*frontend{}
	for key, endpoints := range byID {
		f := &frontend{}
		picks, sticky := slots[key]
		for i := uint32(0); ; i++ {
			number := i
			if sticky {
				id, ok := picks[i]
				if !ok {
					break
				}
				number = id
			}
			e, ok := endpoints[number]
			if !ok {
				break
			}
			f.slots = append(f.slots, e)
			if sticky {
				f.ids = append(f.ids, number)
			}
		}
		out[key] = f
	}
	return out
}

// parse takes a key and what follows it apart.
func (k kind) parse(b string) (key Key, number uint32, ok bool) {
	if len(b) != 4*k.keyWords()+4 {
		return key, 0, false
	}
	if !k.node {
		key.Addr, _ = netip.AddrFromSlice([]byte(b[:4*k.Words()]))
		b = b[4*k.Words():]
	} else {
		key.Addr = unspecified(k.Version)
	}
	key.Protocol, key.Port = sdn.Protocol(b[0]), binary.BigEndian.Uint16([]byte(b[4:6]))
	return key, binary.NativeEndian.Uint32([]byte(b[8:12])), true
}

func (k kind) endpoint(value string) netip.AddrPort {
	n := 4 * k.Words()
	if len(value) < n+2 {
		return netip.AddrPort{}
	}
	a, _ := netip.AddrFromSlice([]byte(value[:n]))
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16([]byte(value[n:n+2])))
}

// uncollected returns the removed frontends whose flows may be left.
func (s *state) uncollected() []Key { return s.keys(kind.owed) }

// udp are the frontends of UDP.
func (s *state) udp() []Key {
	return slices.DeleteFunc(s.keys(kind.services), func(k Key) bool { return k.Protocol != sdn.UDP })
}

// keys are those of a set of each kind.
func (s *state) keys(set func(kind) string) []Key {
	var list []Key
	for _, k := range kinds {
		for _, e := range s.elements[set(k)] {
			if key, _, ok := k.parse(e.Key + "\x00\x00\x00\x00"); ok {
				list = append(list, key)
			}
		}
	}
	return list
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// isAbsent tells that something a change named is not there, or is there with another
// value: the kernel is not as it was left.
func isAbsent(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EBUSY)
}

//go:build linux

package lb

import (
	"cmp"
	"hash/fnv"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/internal/ipprefix"
	"github.com/kuryr/kuryr/internal/sortslice"
	"github.com/kuryr/kuryr/sdn"

	"github.com/kuryr/kuryr/datapath/nft"
)

// frontend is what is told of one, and which slot each endpoint has. An endpoint keeps
// its slot as far as it can, so that a change of one among a thousand is a change of one
// or two elements.
type frontend struct {
	Frontend
	slots []netip.AddrPort
	ids   []uint32 // of the slots' endpoints, by which clients remember them; only with affinity

	within bool      // it is for clients inside
	inside *frontend // for them, where they are led elsewhere
}

func (f *frontend) kind() kind {
	k := f.Key.kind()
	k.inside = f.within
	return k
}

// idBit tells ids from slots, as they are keys of one map.
const idBit = 1 << 31

// place gives endpoints slots, near to those they had; had may be nil.
func place(f Frontend, had *frontend) *frontend {
	n := &frontend{Frontend: f, slots: make([]netip.AddrPort, len(f.Endpoints))}
	todo := map[netip.AddrPort]int{}
	for _, e := range f.Endpoints {
		todo[e]++
	}
	if had != nil {
		for i, e := range had.slots {
			if i < len(n.slots) && todo[e] > 0 {
				n.slots[i] = e
				todo[e]--
			}
		}
	}
	at := 0
	for _, e := range sorted(f.Endpoints) {
		if todo[e] == 0 {
			continue
		}
		todo[e]--
		for n.slots[at].IsValid() {
			at++
		}
		n.slots[at] = e
	}
	if f.Affinity > 0 {
		n.number(had)
	}
	n.Endpoints, n.Draining = slices.Clip(n.slots), f.draining()
	if f.Inside == nil {
		return n
	}
	var before *frontend
	if had != nil {
		before = had.inside
	}
	n.inside = place(f.forInside(), before)
	n.inside.within = true
	n.Inside = &Inside{Endpoints: n.inside.Endpoints, Masquerade: f.Inside.Masquerade, Empty: f.Inside.Empty}
	return n
}

// draining are the endpoints that keep flows, as the kernel minds them: of UDP alone, in
// order and each once.
func (f Frontend) draining() []netip.AddrPort {
	if f.Protocol != sdn.UDP {
		return nil
	}
	return slices.Compact(sorted(f.Draining))
}

func sorted(list []netip.AddrPort) []netip.AddrPort {
	return sortslice.Sorted(list, netip.AddrPort.Compare)
}

// number gives endpoints their ids: what they had, else by their address and port, so
// that each has the same after a restart.
func (f *frontend) number(had *frontend) {
	byEndpoint, taken := map[netip.AddrPort]uint32{}, map[uint32]bool{}
	if had != nil {
		for i, id := range had.ids {
			byEndpoint[had.slots[i]] = id
			taken[id] = true
		}
	}
	f.ids = make([]uint32, len(f.slots))
	for i, e := range f.slots {
		id, ok := byEndpoint[e]
		if !ok {
			hash := fnv.New32a()
			b, _ := e.MarshalBinary() // never fails
			hash.Write(b)
			for id = hash.Sum32() | idBit; taken[id]; id = (id + 1) | idBit {
			}
			byEndpoint[e] = id
			taken[id] = true
		}
		f.ids[i] = id
	}
}

func (k Key) kind() kind { return kind{Version: nft.VersionOf(k.Addr), node: k.Addr.IsUnspecified()} }

// lasts tells elements that stay whatever the frontends are, until something is done or a
// time is over.
func lasts(e nft.Element) bool {
	return strings.HasPrefix(e.Set, "owed") || strings.HasPrefix(e.Set, "left")
}

// bytes returns the key as the sets have it.
func (k Key) bytes() string {
	service := nft.Service(uint8(k.Protocol), k.Port)
	if k.Addr.IsUnspecified() {
		return service
	}
	return nft.Addr(k.Addr) + service
}

// cleanup returns the element that says that the removed frontend may have stale flows.
func (k Key) cleanup() nft.Element { return nft.Element{Set: k.kind().owed(), Key: k.bytes()} }

// elements calls add with all that is the frontend's own. No element comes twice.
func (f *frontend) elements(add func(nft.Element)) {
	k, key := f.kind(), f.Key.bytes()
	add(nft.Element{Set: k.services(), Key: key, Value: string(nft.Word(uint32(f.profile())))})
	numbered := map[uint32]bool{}
	for i, e := range f.slots {
		number := uint32(i)
		if f.ids != nil {
			add(nft.Element{Set: k.picks(), Key: key + string(nft.Word(number)), Value: string(nft.Word(f.ids[i]))})
			if number = f.ids[i]; numbered[number] {
				continue
			}
			numbered[number] = true
		}
		add(nft.Element{Set: k.endpoints(), Key: key + string(nft.Word(number)), Value: nft.Endpoint(e)})
	}
	if f.within {
		return
	}
	for _, p := range ipprefix.Widest(masked(f.Sources)) {
		add(nft.Element{Set: k.sources(), Key: key + nft.Addr(p.Addr()), End: key + nft.Addr(ipprefix.Last(p))})
	}
	if f.inside != nil {
		f.inside.elements(add)
	}
}

func masked(list []netip.Prefix) []netip.Prefix {
	out := make([]netip.Prefix, len(list))
	for i, p := range list {
		out[i] = p.Masked()
	}
	return out
}

// equal reports whether two values of one key make the same of the kernel.
func (f *frontend) equal(g Frontend) bool {
	if (f.inside == nil) != (g.Inside == nil) || f.inside != nil && !f.inside.equal(g.forInside()) {
		return false
	}
	return f.profile() == g.profile() && f.Affinity == g.Affinity &&
		slices.Equal(sorted(f.Endpoints), sorted(g.Endpoints)) &&
		slices.Equal(f.Draining, g.draining()) &&
		slices.Equal(ipprefix.Widest(masked(f.Sources)), ipprefix.Widest(masked(g.Sources)))
}

// reached are the endpoints of all clients; some may come twice.
func (f *frontend) reached() iter.Seq[netip.AddrPort] {
	return func(yield func(netip.AddrPort) bool) {
		for g := f; g != nil; g = g.inside {
			for _, e := range g.slots {
				if !yield(e) {
					return
				}
			}
		}
	}
}

// keeps are the endpoints, of all clients, whose flows go on.
func (f *frontend) keeps() map[netip.AddrPort]bool {
	all := map[netip.AddrPort]bool{}
	if f == nil {
		return all
	}
	for e := range f.reached() {
		all[e] = true
	}
	for _, e := range f.Draining {
		all[e] = true
	}
	return all
}

// misleads reports whether connection tracking may have flows that are led otherwise than
// the frontend's that comes after it. It may not where all clients have had an endpoint,
// and all endpoints stay or drain.
func (f *frontend) misleads(next *frontend) bool {
	if f == nil || next == nil {
		return true
	}
	for g := f; g != nil; g = g.inside {
		if len(g.slots) == 0 {
			return true
		}
	}
	kept := next.keeps()
	for e := range f.keeps() {
		if !kept[e] {
			return true
		}
	}
	return false
}

// member is an endpoint as many frontends may share it; with port 0 it is its address, of
// all ports.
type member struct {
	netip.AddrPort
	sdn.Protocol
}

// members calls add with what others may share with the frontend, each once.
func (f *frontend) members(bridges bool, add func(member)) {
	seen := map[member]bool{}
	once := func(m member) {
		if !seen[m] {
			seen[m] = true
			add(m)
		}
	}
	for e := range f.reached() {
		once(member{netip.AddrPortFrom(e.Addr(), 0), 0})
		if bridges {
			once(member{e, f.Protocol})
		}
	}
	if !bridges {
		return // a flow that is there is led by connection tracking alone
	}
	for _, e := range f.Draining { // it answers clients on its own bridge yet
		once(member{netip.AddrPortFrom(e.Addr(), 0), 0})
		once(member{e, f.Protocol})
	}
}

// elements calls add with those of a member; the bridges' are true.
func (m member) elements(bridges bool, add func(nft.Element)) {
	v, addr := nft.VersionOf(m.Addr()), nft.Addr(m.Addr())
	if m.Port() != 0 {
		add(nft.Element{Set: answers(v), Key: addr + nft.Service(uint8(m.Protocol), m.Port())})
		return
	}
	add(nft.Element{Set: self(v), Key: addr + addr})
	if bridges {
		add(nft.Element{Set: hosts(v), Key: addr})
	}
}

func compareKeys(a, b Key) int {
	return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
}

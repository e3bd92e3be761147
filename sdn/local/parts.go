package local

import (
	"iter"
	"net/netip"
	"reflect"
	"slices"

	"github.com/kuryr/kuryr/datapath/lb"
	"github.com/kuryr/kuryr/datapath/router"
	"github.com/kuryr/kuryr/sdn"
)

// What a domain has in the data path consists of parts with keys. A change of the store names the keys
// of the parts that it may have changed, and the sync reads what they are now.

// part is a kind of parts.
type part uint8

const (
	shapePart   part = iota // the domain itself: networks, uplink, floating IPs, routes
	portPart                // a plugged port
	forwardPart             // one port of an external address
	balancePart             // an address that a load balancer has
	groupPart               // the rules of a security group
	setPart                 // the prefixes of an address group
)

// partKey names a part of a domain.
type partKey struct {
	part    part
	id      sdn.ID     // of a port, a security group, an address group, or the balance's load balancer
	addr    netip.Addr // of a balance
	forward forwardID
}

// forwardID is what tells a domain's forwards apart.
type forwardID struct {
	address  netip.Addr
	protocol uint8
	port     uint16
}

func identify(f router.Forward) forwardID { return forwardID{f.Address, f.Protocol, f.Port} }

var shapeKey = partKey{part: shapePart}

func portKey(id sdn.ID) partKey { return partKey{part: portPart, id: id} }

func groupKey(id sdn.ID) partKey { return partKey{part: groupPart, id: id} }

func setKey(id sdn.ID) partKey { return partKey{part: setPart, id: id} }

func forwardKey(f router.Forward) partKey { return partKey{part: forwardPart, forward: identify(f)} }

func balanceKey(balancer sdn.ID, a netip.Addr) partKey {
	return partKey{part: balancePart, id: balancer, addr: a}
}

// balance is an address of a load balancer in a domain, and where clients connect there.
type balance struct {
	vip       router.VIP
	frontends []lb.Frontend
}

// wanted is what parts of a domain are in the store. A nil value says that the part does not exist.
type wanted struct {
	shaped   bool // the shape is one of the parts
	shape    *router.Shape
	kept     map[sdn.ID]bool // networks that are not the shape's, and that no other domain has yet
	ports    map[string]*router.Port
	forwards map[forwardID]*router.Forward
	balances map[netip.Addr]*balance
	defined  definitions
	moved    map[partKey]sdn.ID // parts that are in another domain by now
	later    []partKey          // what cannot be removed yet
}

func newWanted() *wanted {
	return &wanted{
		kept: map[sdn.ID]bool{}, ports: map[string]*router.Port{}, forwards: map[forwardID]*router.Forward{},
		balances: map[netip.Addr]*balance{}, defined: newDefinitions(), moved: map[partKey]sdn.ID{},
	}
}

// applied is what the data path has of a domain.
type applied struct {
	shape    *router.Shape // nil: there is no domain
	unsure   bool          // the last change of the shape failed, or is under way; also needs the mutex
	ports    values[string, router.Port]
	forwards values[forwardID, router.Forward]
	balances values[netip.Addr, balance]
	// known are the revisions of the security groups and address groups that the domain was told. It may
	// have forgotten those that no port uses.
	known map[partKey]revision
}

// revisions returns the definitions as the data path knows them when it was told.
func (d definitions) revisions() map[partKey]revision {
	known := map[partKey]revision{}
	for id, g := range d.groups {
		r := revision{number: g.Revision}
		for _, rule := range g.Rules {
			if rule.RemoteSet != "" {
				r.sets = append(r.sets, sdn.ID(rule.RemoteSet))
			}
		}
		known[groupKey(id)] = r
	}
	for id, s := range d.sets {
		known[setKey(id)] = revision{number: s.Revision}
	}
	return known
}

// revision is a definition as the data path knows it.
type revision struct {
	number int64
	sets   []sdn.ID // the address groups that the rules of a security group name
}

// mostKnown bounds what is remembered of the definitions of a domain.
const mostKnown = 1 << 12

// values are parts of one kind as the data path has them. After an error it may have a part as it was
// before, or as it was to be.
type values[K comparable, V any] struct {
	is    map[K]V
	doubt map[K][]V // by keys whose last change failed: what else they may be
}

// of returns all values that a part may have, and whether it certainly has that one.
func (v *values[K, V]) of(k K) (list []V, sure bool) {
	if is, known := v.is[k]; known {
		list = append(list, is)
	}
	doubts, unsure := v.doubt[k]
	return append(list, doubts...), !unsure
}

// all returns all values that the parts may have.
func (v *values[K, V]) all() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for k, is := range v.is {
			if !yield(k, is) {
				return
			}
		}
		for k, doubts := range v.doubt {
			for _, w := range doubts {
				if !yield(k, w) {
					return
				}
			}
		}
	}
}

// differ returns what the data path removes and adds so that its parts are the wanted ones.
func (v *values[K, V]) differ(want map[K]*V) (parts router.Parts[V]) {
	for k, w := range want {
		list, sure := v.of(k)
		if w != nil && sure && len(list) == 1 && reflect.DeepEqual(list[0], *w) {
			continue
		}
		for _, old := range list {
			if w == nil || !reflect.DeepEqual(old, *w) {
				parts.Remove = append(parts.Remove, old)
			}
		}
		if w != nil {
			parts.Add = append(parts.Add, *w)
		}
	}
	return parts
}

// note remembers that the data path has the wanted parts or, after an error, may have them.
func (v *values[K, V]) note(want map[K]*V, err error) {
	if v.doubt == nil {
		v.is, v.doubt = map[K]V{}, map[K][]V{}
	}
	for k, w := range want {
		switch {
		case err != nil:
			v.suspect(k, w)
		case w == nil:
			delete(v.is, k)
			delete(v.doubt, k)
		default:
			v.is[k] = *w
			delete(v.doubt, k)
		}
	}
}

// assume notes that the data path has parts of which nothing was known, or lacks them. Of the wanted parts it
// takes these away, and those that the data path has for certain, if it is trusted.
func (v *values[K, V]) assume(want map[K]*V, trusted bool) {
	if v.doubt == nil {
		v.is, v.doubt = map[K]V{}, map[K][]V{}
	}
	for k, w := range want {
		is, known := v.is[k]
		switch {
		case !known && v.certain(k):
			v.is[k], v.doubt[k] = *w, nil
			delete(want, k)
		case trusted && v.certain(k) && reflect.DeepEqual(is, *w):
			delete(want, k)
		}
	}
}

// certain reports whether the last change of a part did not fail.
func (v *values[K, V]) certain(k K) bool {
	_, unsure := v.doubt[k]
	return !unsure
}

// noteBalances is note for balances. Of what the data path may have after an error, the keys of the
// frontends are enough to replace it: endpoints are many.
func (a *applied) noteBalances(want map[netip.Addr]*balance, err error) {
	if err != nil {
		bare := make(map[netip.Addr]*balance, len(want))
		for at, w := range want {
			bare[at] = w.bare()
		}
		want = bare
	}
	a.balances.note(want, err)
}

// bare returns a balance without what its frontends lead to.
func (b *balance) bare() *balance {
	if b == nil {
		return nil
	}
	bare := &balance{vip: b.vip}
	for _, f := range b.frontends {
		bare.frontends = append(bare.frontends, lb.Frontend{Key: f.Key})
	}
	return bare
}

// suspect notes that a part may have become w.
func (v *values[K, V]) suspect(k K, w *V) {
	if v.doubt == nil {
		v.is, v.doubt = map[K]V{}, map[K][]V{}
	}
	list, _ := v.of(k)
	doubts := v.doubt[k]
	if w != nil && !slices.ContainsFunc(list, func(old V) bool { return reflect.DeepEqual(old, *w) }) {
		doubts = append(doubts, *w)
	}
	v.doubt[k] = doubts
}

// balanced returns what differs of load balancers: frontends by their keys, and VIPs.
func (a *applied) balanced(want map[netip.Addr]*balance) (vips router.Parts[router.VIP], frontends router.Frontends) {
	for at, w := range want {
		list, sure := a.balances.of(at)
		if w == nil {
			w = &balance{}
		}
		had := map[lb.Key]*lb.Frontend{}
		for _, old := range list {
			if old.vip != w.vip {
				vips.Remove = append(vips.Remove, old.vip)
			}
			for i, f := range old.frontends {
				had[f.Key] = &old.frontends[i]
			}
		}
		if w.vip != (router.VIP{}) && (!sure || len(list) != 1 || list[0].vip != w.vip) {
			vips.Add = append(vips.Add, w.vip)
		}
		for _, f := range w.frontends {
			if old := had[f.Key]; !sure || old == nil || !reflect.DeepEqual(*old, f) {
				frontends.Set = append(frontends.Set, f)
			}
			delete(had, f.Key)
		}
		for k := range had {
			frontends.Remove = append(frontends.Remove, k)
		}
	}
	frontends.All = func() ([]lb.Frontend, error) { return a.allFrontends(want), nil }
	return vips, frontends
}

// allFrontends returns what the domain balances once want is applied.
func (a *applied) allFrontends(want map[netip.Addr]*balance) (all []lb.Frontend) {
	for _, w := range want {
		if w != nil {
			all = append(all, w.frontends...)
		}
	}
	for at, b := range a.balances.is {
		if _, other := want[at]; !other {
			all = append(all, b.frontends...)
		}
	}
	return all
}

// networksIn returns the networks of a domain, which may be nil.
func networksIn(d *router.Shape) map[sdn.ID]bool {
	has := map[sdn.ID]bool{}
	if d != nil {
		for _, b := range d.Bridges {
			has[sdn.ID(b.Network)] = true
		}
	}
	return has
}

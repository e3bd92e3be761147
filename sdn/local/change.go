package local

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"github.com/kuryr/kuryr/datapath/lb"
	"github.com/kuryr/kuryr/datapath/router"
	"github.com/kuryr/kuryr/datapath/securitygroup"
)

// change is what the kernel must learn about one domain: that it is gone, or else its shape, the ports that left it, the groups of its ports, its
// forwards, its ports and its load balancers, in this order.
type change struct {
	domain   string
	gone     bool          // edits are kept all the same, for a domain that comes back before it went
	shape    *router.Shape // nil: unchanged
	left     []router.Port // went to another domain with their network, and may come back by ports
	ports    map[string]*edit[router.Port]
	forwards map[forwardID]*edit[router.Forward]
	vips     map[netip.Addr]*edit[router.VIP]
	balanced map[lb.Key]*edit[lb.Frontend]
	groups   map[string]securitygroup.Group // by id; a later definition takes an earlier one's place
	sets     map[string]securitygroup.Set
	freed    []netip.Prefix  // what the host reached through the domain and does no longer, once the shape is right
	behind   map[string]bool // domains that must have their shape before this one is gone or gets its
}

// reshapes tells whether the change is of more than elements.
func (c *change) reshapes() bool { return c.gone || c.shape != nil }

// has tells whether the network will be in the domain.
func (c *change) has(network string) bool {
	return hasBridge(c.shape, network)
}

// hasBridge tells whether a domain, which may be nil, has the network.
func hasBridge(d *router.Shape, network string) bool {
	return d != nil && slices.ContainsFunc(d.Bridges, func(b router.Bridge) bool { return b.Network == network })
}

// edit replaces an element by another. Several may be there to remove when earlier edits did not get through.
type edit[T any] struct {
	remove []T
	add    *T
}

// forwardID is what tells a domain's forwards apart.
type forwardID struct {
	address  string
	protocol uint8
	port     uint16
}

func identify(f *router.Forward) forwardID { return forwardID{f.Address.String(), f.Protocol, f.Port} }

func (c *change) port(old, new *router.Port) {
	id := ""
	if old != nil {
		id = old.ID
	} else {
		id = new.ID
	}
	if c.ports == nil {
		c.ports = map[string]*edit[router.Port]{}
	}
	c.ports[id] = c.ports[id].then(old, new)
}

func (c *change) forward(old, new *router.Forward) {
	f := old
	if f == nil {
		f = new
	}
	if c.forwards == nil {
		c.forwards = map[forwardID]*edit[router.Forward]{}
	}
	c.forwards[identify(f)] = c.forwards[identify(f)].then(old, new)
}

func (c *change) vip(old, new *router.VIP) {
	v := old
	if v == nil {
		v = new
	}
	if c.vips == nil {
		c.vips = map[netip.Addr]*edit[router.VIP]{}
	}
	c.vips[v.Addr] = c.vips[v.Addr].then(old, new)
}

func (c *change) frontend(old, new *lb.Frontend) {
	f := old
	if f == nil {
		f = new
	}
	if c.balanced == nil {
		c.balanced = map[lb.Key]*edit[lb.Frontend]{}
	}
	c.balanced[f.Key] = c.balanced[f.Key].then(old, new)
}

func (c *change) group(g securitygroup.Group) {
	if c.groups == nil {
		c.groups = map[string]securitygroup.Group{}
	}
	c.groups[g.ID] = g
}

func (c *change) set(s securitygroup.Set) {
	if c.sets == nil {
		c.sets = map[string]securitygroup.Set{}
	}
	c.sets[s.ID] = s
}

// define takes over what other defines and c does not.
func (c *change) define(other *change) {
	for id, g := range other.groups {
		if _, known := c.groups[id]; !known {
			c.group(g)
		}
	}
	for id, s := range other.sets {
		if _, known := c.sets[id]; !known {
			c.set(s)
		}
	}
}

// then is e followed by the replacement of old by new, where e may be nil, or may have failed halfway: what it was to add is removed too,
// unless it is what is to be there in the end.
func (e *edit[T]) then(old, new *T) *edit[T] {
	next := &edit[T]{add: new}
	remove := func(v T) {
		same := func(w T) bool { return reflect.DeepEqual(v, w) }
		if (new == nil || !same(*new)) && !slices.ContainsFunc(next.remove, same) {
			next.remove = append(next.remove, v)
		}
	}
	if e != nil {
		for _, v := range e.remove {
			remove(v)
		}
		if e.add != nil {
			remove(*e.add)
		}
	}
	if old != nil {
		remove(*old)
	}
	return next
}

func (e *edit[T]) thenEdit(later *edit[T]) *edit[T] {
	if later == nil {
		return e
	}
	next := e
	for i := range later.remove {
		next = next.then(&later.remove[i], nil)
	}
	return next.then(nil, later.add)
}

// then is c followed by later, where c may have failed halfway.
func (c *change) then(later *change) *change {
	if c == nil {
		return later
	}
	next := &change{domain: c.domain, gone: c.gone, shape: c.shape, ports: maps.Clone(c.ports), forwards: maps.Clone(c.forwards),
		vips: maps.Clone(c.vips), balanced: maps.Clone(c.balanced), behind: maps.Clone(c.behind),
		freed: slices.Concat(c.freed, later.freed), left: slices.Concat(c.left, later.left)}
	switch {
	case later.gone:
		next.gone, next.shape = true, nil
	case later.shape != nil:
		next.gone, next.shape = false, later.shape
	}
	next.define(later)
	next.define(c)
	next.ports = editsThen(next.ports, later.ports)
	next.forwards = editsThen(next.forwards, later.forwards)
	next.vips = editsThen(next.vips, later.vips)
	next.balanced = editsThen(next.balanced, later.balanced)
	return next
}

// editsThen is edits followed by later ones. It changes edits, which may be nil.
func editsThen[K comparable, T any](edits, later map[K]*edit[T]) map[K]*edit[T] {
	if edits == nil && len(later) > 0 {
		edits = map[K]*edit[T]{}
	}
	for k, e := range later {
		edits[k] = edits[k].thenEdit(e)
	}
	return edits
}

func lists[K comparable, T any](edits map[K]*edit[T]) (remove, add []T) {
	for _, e := range edits {
		remove = append(remove, e.remove...)
		if e.add != nil {
			add = append(add, *e.add)
		}
	}
	return remove, add
}

package neutron

import (
	"context"
	"iter"
	"math"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// The ages of objects in a cache. What is between cacheFresh and cacheAge old is given, and read again
// in the background, as another host may have changed it. An object in use is so at most one use and
// cacheFresh behind, and no caller waits for it.
const (
	cacheFresh = 30 * time.Second
	cacheAge   = 10 * time.Minute // of networks, subnets and subnet pools
	portAge    = 30 * time.Second
	ageless    = time.Duration(math.MaxInt64) // of what Neutron or a comparison verifies at each use
)

// The numbers of objects in a cache.
const (
	maxPorts   = 4096
	maxObjects = 1 << 16 // of others
)

// A cache holds the objects of one noun that this process made, changed or read. It has one rule: an
// object may be given if it was read or written less than age ago, if mayGive allows it, and if
// nothing has contradicted it since. A caller that changes an object because of it sends its revision,
// so that Neutron refuses the change if the object was changed by another host.
//
// A change replaces the object by Neutron's answer. After a failure, or if two changes of one object
// overlapped, its state is unknown: the cache drops it. What was read is kept only if no change has
// ended and nothing was dropped since it began. An answer that contradicts an object (not found, stale)
// drops it.
type cache[T any] struct {
	now     func() time.Time
	age     time.Duration // 0 gives nothing
	most    int           // objects
	about   func(T) about
	mayGive func(T) bool // nil: all
	clone   func(T) T    // of what goes in and out; nil if objects are never changed
	seen    func(T)      // gets what was read, without a lock; may be nil

	mu      sync.Mutex
	epoch   uint64 // counts what a read must not overtake
	objects map[sdn.ID]*entry[T]
	byKey   map[string]sdn.ID
	changes map[sdn.ID]*overlap
	swept   time.Time
}

// about is what a cache needs of an object. Without a Key of this deployment the key is "".
type about struct {
	id       sdn.ID
	key      string
	revision int64
}

type entry[T any] struct {
	object  T
	about   about
	at      time.Time
	renewed bool // a renewal has begun
}

// overlap counts the changes of one object that are in flight.
type overlap struct {
	running int
	mixed   bool // another change or answer came in between
}

func newCache[T any](now func() time.Time, age time.Duration, most int, of func(T) about) *cache[T] {
	return &cache[T]{
		now: now, age: age, most: most, about: of, objects: map[sdn.ID]*entry[T]{},
		byKey: map[string]sdn.ID{}, changes: map[sdn.ID]*overlap{},
	}
}

// ofWire returns what a cache needs of wire structs. The Keys are those of the owner's projects.
func ofWire[W wire](o *owner) func(W) about {
	return func(w W) about {
		m := w.common()
		a := about{id: sdn.ID(m.ID), revision: int64(m.Revision)}
		if _, ok := o.keyOf(m); ok {
			a.key = m.Description
		}
		return a
	}
}

// get returns an object, of whatever host it is.
func (c *cache[T]) get(id sdn.ID) (object T, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.young(id); e != nil {
		return c.copied(e.object), true
	}
	return object, false
}

// young returns an object's entry, nil if it is too old.
func (c *cache[T]) young(id sdn.ID) *entry[T] {
	if e := c.objects[id]; e != nil && c.now().Sub(e.at) < c.age {
		return e
	}
	return nil
}

func (c *cache[T]) given(e *entry[T]) bool {
	return e != nil && (c.mayGive == nil || c.mayGive(e.object))
}

func (c *cache[T]) copied(object T) T {
	if c.clone == nil {
		return object
	}
	return c.clone(object)
}

// named returns the objects with the ids, each once, if all of them may be given.
func (c *cache[T]) named(ids []sdn.ID) (all []T, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, id := range ids {
		e := c.young(id)
		if !c.given(e) {
			return nil, false
		}
		if !slices.Contains(ids[:i], id) {
			all = append(all, c.copied(e.object))
		}
	}
	return all, len(all) > 0
}

// keys returns the ids of the objects with the Keys, "" for one that is not here.
func (c *cache[T]) keys(keys []sdn.Key) []sdn.ID {
	c.mu.Lock()
	defer c.mu.Unlock()
	ids := make([]sdn.ID, len(keys))
	for i, key := range keys {
		ids[i] = c.byKey[key.String()]
	}
	return ids
}

// where returns the ids of the objects that may be given and match. If there are none, it is one id
// that no object has.
func (c *cache[T]) where(match func(T) bool) []sdn.ID {
	c.mu.Lock()
	defer c.mu.Unlock()
	var ids []sdn.ID
	for id := range c.objects {
		if e := c.young(id); c.given(e) && match(e.object) {
			ids = append(ids, id)
		}
	}
	if ids == nil {
		return []sdn.ID{""}
	}
	return ids
}

// put stores what Neutron has answered about an object that the caller made or adopted. An answer
// that came in between of a change, or that is older than the object here, tells nothing: the cache
// then drops the object.
func (c *cache[T]) put(object T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.about(object)
	if change := c.changes[a.id]; change != nil {
		change.mixed = true
		return
	}
	if c.objects[a.id] != nil {
		c.epoch++
	}
	c.replace(object, a)
}

func (c *cache[T]) replace(object T, a about) {
	if e := c.objects[a.id]; e != nil && e.about.revision > a.revision {
		c.remove(a.id)
		return
	}
	c.store(object, a)
}

// begin announces a change of an object. Call end with the object afterwards, with nil if it is gone
// or its state is unknown.
func (c *cache[T]) begin(id sdn.ID) (end func(*T)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change := c.changes[id]
	if change == nil {
		change = &overlap{}
		c.changes[id] = change
	}
	change.running++
	change.mixed = change.mixed || change.running > 1
	return func(object *T) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.epoch++
		if object != nil && !change.mixed {
			c.replace(*object, c.about(*object))
		} else {
			c.remove(id)
		}
		if change.running--; change.running == 0 {
			delete(c.changes, id)
		}
	}
}

// changing makes a change and stores its answer.
func (c *cache[T]) changing(id sdn.ID, change func() (T, error)) (T, error) {
	end := c.begin(id)
	object, err := change()
	if err != nil {
		end(nil)
		return object, err
	}
	end(&object)
	return object, nil
}

// amend stores what change makes of an object, in one step. Without the object here ok is false.
// change returns false to leave the cache alone.
func (c *cache[T]) amend(id sdn.ID, change func(object T, ok bool) (T, bool)) T {
	c.mu.Lock()
	defer c.mu.Unlock()
	var object T
	e := c.objects[id]
	if e != nil {
		object = e.object
	}
	object, ok := change(object, e != nil)
	if ok {
		c.store(object, c.about(object))
	}
	return object
}

// reading begins a read. The function that it returns stores an object that was read.
func (c *cache[T]) reading() (read func(T)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	epoch := c.epoch
	return func(object T) {
		if c.seen != nil {
			defer c.seen(object)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		a := c.about(object)
		if c.epoch == epoch && c.changes[a.id] == nil && (c.mayGive == nil || c.mayGive(object)) {
			c.store(object, a)
		}
	}
}

func (c *cache[T]) store(object T, a about) {
	now := c.now()
	c.remove(a.id)
	if now.Sub(c.swept) >= c.age || len(c.objects) >= c.most {
		c.sweep(now)
	}
	if c.age == 0 {
		return
	}
	c.objects[a.id] = &entry[T]{object: c.copied(object), about: a, at: now}
	if a.key != "" {
		c.byKey[a.key] = a.id
	}
}

// sweep removes what is too old, and all if that leaves no room.
func (c *cache[T]) sweep(now time.Time) {
	c.swept = now
	for id := range c.objects {
		if c.young(id) == nil {
			c.remove(id)
		}
	}
	if len(c.objects) >= c.most {
		clear(c.objects)
		clear(c.byKey)
	}
}

// drop removes objects, which no read in flight can store again.
func (c *cache[T]) drop(ids ...sdn.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
	for _, id := range ids {
		c.remove(id)
	}
}

// dropWhere drops the objects that match.
func (c *cache[T]) dropWhere(match func(T) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
	for id, e := range c.objects {
		if match(e.object) {
			c.remove(id)
		}
	}
}

func (c *cache[T]) remove(id sdn.ID) {
	if e := c.objects[id]; e != nil {
		delete(c.objects, id)
		if c.byKey[e.about.key] == id {
			delete(c.byKey, e.about.key)
		}
	}
}

// due reports once that an object must be read again.
func (c *cache[T]) due(id sdn.ID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.objects[id]
	if e == nil || e.renewed || c.now().Sub(e.at) < cacheFresh {
		return false
	}
	e.renewed = true
	return true
}

// undue lets a later use read an object again, which could not be read now.
func (c *cache[T]) undue(id sdn.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.objects[id]; e != nil {
		e.renewed = false
	}
}

// renew reads an object that was given again in the background, if it is no longer fresh.
func renew[W wire](p *Provider, c *cache[W], k collection[W], id sdn.ID) {
	if !c.due(id) {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(sdn.Unawaited(context.Background()), p.config.Timeout)
		defer cancel()
		read := c.reading()
		switch w, err := k.read(ctx, p, id); {
		case err == nil:
			read(w)
		case sdn.IsNotFound(err):
			c.drop(id)
			return
		}
		c.undue(id)
	}()
}

// cached returns an object from the cache, or reads it.
func cached[W wire](
	ctx context.Context, p *Provider, c *cache[W], k collection[W], id sdn.ID,
) (W, error) {
	if err := ctx.Err(); err != nil {
		var none W
		return none, sdn.Unavailable(context.Cause(ctx), p.client.who(),
			"the request was given up before it was sent")
	}
	if w, ok := c.get(id); ok {
		renew(p, c, k, id)
		return w, nil
	}
	read := c.reading()
	w, err := k.read(ctx, p, id)
	if err == nil {
		read(w)
	}
	return w, err
}

// matchingCached is matching of a noun with a cache. If m names objects by id or by Key and all are in the
// cache, they come from there.
func matchingCached[W decoder[T], T any](
	ctx context.Context, p *Provider, c *cache[W], k collection[W], filter url.Values, m sdn.Match,
	matches func(T) bool,
) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		ids := m.IDs
		if len(ids) == 0 {
			ids = c.keys(m.Keys)
		}
		if all, ok := c.named(ids); ok && ctx.Err() == nil {
			for _, w := range all {
				renew(p, c, k, sdn.ID(w.common().ID))
				if t := w.decode(p.owner); matches(t) && !yield(t, nil) {
					return
				}
			}
			return
		}
		matching(ctx, p, k, filter, matches, c.reading())(yield)
	}
}

// caches are those of the provider.
type caches struct {
	networks  *cache[*networkWire]
	subnets   *cache[*subnetWire]
	pools     *cache[*subnetPoolWire]
	ports     *cache[sdn.Port]
	trunks    *cache[*trunkWire]
	balancers *cache[balancerState]
}

// newCaches returns empty caches. Config.Uncached is about what the hosts of a swarm tell each other
// by: networks, pools and ports that are bound to no host.
func newCaches(c Config, o *owner, now func() time.Time) *caches {
	age := cacheAge
	if c.Uncached {
		age = 0
	}
	all := &caches{
		networks:  newCache(now, age, maxObjects, ofWire[*networkWire](o)),
		subnets:   newCache(now, cacheAge, maxObjects, ofWire[*subnetWire](o)),
		pools:     newCache(now, age, maxObjects, ofWire[*subnetPoolWire](o)),
		ports:     newPortCache(c, now),
		trunks:    newCache(now, ageless, maxObjects, ofWire[*trunkWire](o)),
		balancers: newCache(now, ageless, maxObjects, balancerState.about),
	}
	all.networks.clone, all.subnets.clone = shallow[networkWire], shallow[subnetWire]
	all.pools.clone = shallow[subnetPoolWire]
	all.subnets.seen = all.networkLacks
	return all
}

// shallow returns a copy whose tags can be replaced.
func shallow[T any](w *T) *T {
	other := *w
	return &other
}

// networkLacks drops a network that was read before it got the subnet.
func (c *caches) networkLacks(s *subnetWire) {
	if n, ok := c.networks.get(sdn.ID(s.Network)); ok && !slices.Contains(n.Subnets, s.ID) {
		c.networks.drop(sdn.ID(s.Network))
	}
}

// forgetNetwork drops a network and its subnets: it was deleted, or Neutron says that it, or one of
// them, is absent.
func (c *caches) forgetNetwork(id sdn.ID) {
	c.subnets.dropWhere(func(w *subnetWire) bool { return w.Network == string(id) })
	c.networks.drop(id)
}

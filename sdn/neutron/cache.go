package neutron

import (
	"context"
	"iter"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// An object older than cacheFresh is still given, but read again behind the caller's back, since another host may have changed it; one older than
// cacheAge is read first. So what is in use is at most one use and cacheFresh behind, and nobody waits for it.
const (
	cacheFresh = 30 * time.Second
	cacheAge   = 10 * time.Minute
)

// caches are what this process has lately made, changed or read of what seldom changes. They are written through by its own changes; an answer
// that contradicts them (not found, stale, none at all) drops what it is about.
type caches struct {
	networks *cache[*networkWire]
	subnets  *cache[*subnetWire]
	pools    *cache[*subnetPoolWire]
}

// newCaches makes them; uncached is as in Config: what hosts tell one another stands on networks and pools.
func newCaches(now func() time.Time, uncached bool) *caches {
	age := cacheAge
	if uncached {
		age = 0
	}
	c := &caches{networks: newCache[*networkWire](now, age), subnets: newCache[*subnetWire](now, cacheAge), pools: newCache[*subnetPoolWire](now, age)}
	c.subnets.seen = c.networkLacks
	return c
}

// networkLacks drops a network that was read before somebody gave it the subnet.
func (c *caches) networkLacks(s *subnetWire) {
	if n, ok := c.networks.get(sdn.ID(s.Network)); ok && !slices.Contains(n.Subnets, s.ID) {
		c.networks.drop(sdn.ID(s.Network))
	}
}

// forgetNetwork drops a network and its subnets: it was deleted, or Neutron says that it, or one of them, is not there.
func (c *caches) forgetNetwork(id sdn.ID) {
	c.subnets.dropWhere(func(w *subnetWire) bool { return w.Network == string(id) })
	c.networks.drop(id)
}

// A cache holds wire structs by id and Key. What it gives must not be changed.
type cache[W wire] struct {
	now func() time.Time
	age time.Duration // cacheAge, or 0 where nothing is to be given

	seen  func(W) // told of what was read, with no lock held; may be nil
	owner *owner  // whose Keys objects are found by; nil for any

	mu     sync.Mutex
	epoch  uint64 // counts drops and puts: a read that one of them overtook is not kept
	byID   map[sdn.ID]entry[W]
	byKey  map[string]sdn.ID
	sweepT time.Time
}

type entry[W wire] struct {
	w       W
	at      time.Time
	renewed bool // it is being read again
}

func newCache[W wire](now func() time.Time, age time.Duration) *cache[W] {
	return &cache[W]{now: now, age: age, byID: map[sdn.ID]entry[W]{}, byKey: map[string]sdn.ID{}}
}

// get gives an object that is young enough.
func (c *cache[W]) get(id sdn.ID) (w W, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.byID[id]
	if !ok || c.now().Sub(e.at) >= c.age {
		return w, false
	}
	return e.w, true
}

// due tells once that an object is to be read again.
func (c *cache[W]) due(id sdn.ID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.byID[id]
	if !ok || e.renewed || c.now().Sub(e.at) < cacheFresh {
		return false
	}
	e.renewed = true
	c.byID[id] = e
	return true
}

// undue has a later use read the object again: it could not be read now.
func (c *cache[W]) undue(id sdn.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.byID[id]; ok {
		e.renewed = false
		c.byID[id] = e
	}
}

// renew reads an object again that was given out of the cache and is no longer fresh, behind the caller's back.
func renew[W wire](p *Provider, c *cache[W], k collection[W], id sdn.ID) {
	if !c.due(id) {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(sdn.Unawaited(context.Background()), p.config.Timeout)
		defer cancel()
		read := c.reading()
		switch w, err := k.read(ctx, p.client, id); {
		case err == nil:
			read(w)
		case sdn.IsNotFound(err):
			c.drop(id)
			return
		}
		c.undue(id)
	}()
}

// key gives the id of the object with a Key.
func (c *cache[W]) key(k sdn.Key) (sdn.ID, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id, ok := c.byKey[k.String()]
	return id, ok
}

// put holds what Neutron has just answered to a change, unless the answer to a later one was faster: then nothing is held.
func (c *cache[W]) put(w W) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
	id := sdn.ID(w.common().ID)
	if e, ok := c.byID[id]; ok && e.w.common().Revision > w.common().Revision {
		c.remove(id)
		return
	}
	c.hold(w)
}

// changing makes a change and holds what Neutron answers. After one that failed nobody knows what the object is, and no read that was under way meanwhile
// counts.
func (c *cache[W]) changing(id sdn.ID, change func() (W, error)) (W, error) {
	c.drop(id)
	w, err := change()
	if err != nil {
		c.drop(id)
		return w, err
	}
	c.put(w)
	return w, nil
}

// reading begins a read; the function it gives holds what was read, unless something was changed meanwhile.
func (c *cache[W]) reading() (read func(W)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	epoch := c.epoch
	return func(w W) {
		if c.seen != nil {
			defer c.seen(w)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.epoch == epoch {
			c.hold(w)
		}
	}
}

func (c *cache[W]) hold(w W) {
	now := c.now()
	if now.Sub(c.sweepT) >= cacheAge {
		c.sweepT = now
		for id, e := range c.byID {
			if now.Sub(e.at) >= cacheAge {
				c.remove(id)
			}
		}
	}
	m := w.common()
	c.remove(sdn.ID(m.ID))
	c.byID[sdn.ID(m.ID)] = entry[W]{w: w, at: now}
	if _, ok := c.owner.keyOf(m); ok {
		c.byKey[m.Description] = sdn.ID(m.ID)
	}
}

// drop forgets an object, and lets no read that is under way bring it back.
func (c *cache[W]) drop(id sdn.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
	c.remove(id)
}

// dropWhere drops the objects of which is says so.
func (c *cache[W]) dropWhere(is func(W) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
	for id, e := range c.byID {
		if is(e.w) {
			c.remove(id)
		}
	}
}

// clear forgets everything.
func (c *cache[W]) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
	clear(c.byID)
	clear(c.byKey)
}

func (c *cache[W]) remove(id sdn.ID) {
	if e, ok := c.byID[id]; ok {
		delete(c.byID, id)
		if key := e.w.common().Description; c.byKey[key] == id {
			delete(c.byKey, key)
		}
	}
}

// cached gives an object out of the cache, or reads it.
func cached[W wire](ctx context.Context, p *Provider, c *cache[W], k collection[W], id sdn.ID) (W, error) {
	if err := ctx.Err(); err != nil {
		var none W
		return none, sdn.Unavailable(context.Cause(ctx), p.client.who(), "the request was given up before it was sent")
	}
	if w, ok := c.get(id); ok {
		renew(p, c, k, id)
		return w, nil
	}
	read := c.reading()
	w, err := k.read(ctx, p.client, id)
	if err == nil {
		read(w)
	}
	return w, err
}

// heldBy gives the objects that m selects out of the cache, where m names them by id or by Key and all are there.
func heldBy[W wire](c *cache[W], m sdn.Match) (all []W, ok bool) {
	ids := m.IDs
	if len(ids) == 0 {
		for _, k := range m.Keys {
			id, ok := c.key(k)
			if !ok {
				return nil, false
			}
			ids = append(ids, id)
		}
	}
	for _, id := range ids {
		w, ok := c.get(id)
		if !ok {
			return nil, false
		}
		all = append(all, w)
	}
	return all, len(all) > 0
}

// finding streams what Neutron's filter finds and matches wants, out of the cache where that has it all.
func finding[W wire, T any](ctx context.Context, p *Provider, c *cache[W], k collection[W], filter url.Values, m sdn.Match, decode func(W) T, matches func(T) bool) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		if all, ok := heldBy(c, m); ok && ctx.Err() == nil {
			for _, w := range unique(all) {
				renew(p, c, k, sdn.ID(w.common().ID))
				if t := decode(w); matches(t) && !yield(t, nil) {
					return
				}
			}
			return
		}
		read := c.reading()
		for w, err := range k.find(ctx, p.client, filter) {
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			read(w)
			if t := decode(w); matches(t) && !yield(t, nil) {
				return
			}
		}
	}
}

// unique leaves out what was named twice.
func unique[W wire](all []W) []W {
	var out []W
	for _, w := range all {
		if !slices.ContainsFunc(out, func(o W) bool { return o.common().ID == w.common().ID }) {
			out = append(out, w)
		}
	}
	return out
}

package neutron

import (
	"context"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/kuryr/kuryr/internal/backoff"
	"github.com/kuryr/kuryr/sdn"
)

// sureAfter is the least age of a change for what is read to hold until the next change.
// Octavia's times of change are in seconds: what was read in the second of a change may
// be older than a second change.
const sureAfter = 2 * time.Second

// A balancerState is a load balancer as it was read last. Octavia has no revisions. Each
// change below a load balancer passes through it and moves its time of change, so one
// that has not changed need not be read again.
type balancerState struct {
	id    sdn.ID
	key   string    // its Key, "" without one
	state string    // of provisioning, with the time of the last change
	since time.Time // it was seen first
	below *tree     // nil: not read since
	sure  bool      // what is below is all that came of the last change
	ports []sdn.ID  // of the VIPs
}

func (b balancerState) about() about { return about{id: b.id} }

// balancerMemory is what this process knows of load balancers: their states, in the cache, and how
// often their parts failed.
type balancerMemory struct {
	now   func() time.Time
	known *cache[balancerState]

	mu     sync.Mutex
	failed map[string]map[string]setbacks // by Key, else ID, and part; "" is the load balancer itself
}

// setbacks are how often in a row a load balancer, or a part of it, was recreated because Octavia held
// it in ERROR, or was written again because Octavia had forgotten it.
type setbacks struct {
	times int
	next  time.Time // when it may be recreated again
}

// see stores the state of a load balancer. It returns since when it has this state, and
// what is below it if that is known.
func (m *balancerMemory) see(w *balancerWire) (since time.Time, below *tree) {
	state := w.Provisioning + " " + w.Updated.String()
	b := m.known.amend(sdn.ID(w.ID), func(b balancerState, ok bool) (balancerState, bool) {
		switch {
		case !ok:
			b = balancerState{id: sdn.ID(w.ID), key: w.decode(nil).Key.String()}
			b.state, b.since = state, m.now()
			for _, v := range w.vips() {
				b.ports = append(b.ports, v.Port)
			}
		case b.state != state:
			b.state, b.since, b.sure = state, m.now(), false
		}
		return b, true
	})
	if b.sure {
		return b.since, b.below
	}
	return b.since, nil
}

// age returns how long a load balancer has had its last state; 0 if that is unknown.
func (m *balancerMemory) age(id sdn.ID) time.Duration {
	if b, ok := m.known.get(id); ok {
		return m.now().Sub(b.since)
	}
	return 0
}

// last returns what was below a load balancer when it was read last. It may have changed
// since.
func (m *balancerMemory) last(id sdn.ID) *tree {
	b, _ := m.known.get(id)
	return b.below
}

// keep stores what is below a load balancer; begin is when reading it began.
func (m *balancerMemory) keep(id sdn.ID, below *tree, begin time.Time) {
	m.known.amend(id, func(b balancerState, ok bool) (balancerState, bool) {
		b.below = below
		b.sure = begin.Sub(b.since) >= sureAfter && !strings.HasPrefix(b.state, pendingPrefix)
		return b, ok
	})
}

// forget drops a load balancer that is gone, and returns the ports that its VIPs had.
func (m *balancerMemory) forget(id sdn.ID) (ports []sdn.ID) {
	b, _ := m.known.get(id)
	m.known.drop(id)
	return b.ports
}

// remakeBackoff is the pause until a part that is in ERROR again is recreated.
var remakeBackoff = backoff.Backoff{Min: 5 * time.Second, Max: 5 * time.Minute}

// mayAnew returns how long to wait until a part in ERROR may be recreated, and how often
// it was.
func (m *balancerMemory) mayAnew(key, part string) (wait time.Duration, times int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.failed[key][part]
	return max(f.next.Sub(m.now()), 0), f.times
}

func (m *balancerMemory) anew(key, part string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.failed[key][part]
	f.times++
	f.next = m.now().Add(remakeBackoff.After(f.times))
	if m.failed[key] == nil {
		m.failed[key] = map[string]setbacks{}
	}
	m.failed[key][part] = f
}

// well forgets the setbacks of a load balancer and its parts.
func (m *balancerMemory) well(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.failed, key)
}

// unwanted forgets those of a load balancer that a caller deletes.
func (m *balancerMemory) unwanted(id sdn.ID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.failed, string(id))
	if b, ok := m.known.get(id); ok {
		delete(m.failed, b.key)
	}
}

// below returns what is below a load balancer, from memory if nothing has changed since
// it was read. A pool has a time of change of its own: members are read only of pools
// that have changed.
func (p *Provider) below(ctx context.Context, w *balancerWire) (*tree, error) {
	_, known := p.octavia.memory.see(w)
	if known != nil {
		return known, nil
	}
	return p.readBelow(ctx, w)
}

func (p *Provider) readBelow(ctx context.Context, w *balancerWire) (*tree, error) {
	begin := p.octavia.memory.now()
	before := p.octavia.memory.last(sdn.ID(w.ID))
	of, t := url.Values{"loadbalancer_id": {w.ID}}, &tree{}
	var err error
	if t.listeners, err = sdn.All(listeners.find(ctx, p, of)); err != nil {
		return nil, err
	}
	if t.pools, err = sdn.All(pools.find(ctx, p, of)); err != nil {
		return nil, err
	}
	for _, pool := range t.pools {
		pool.seen, pool.told = begin, begin
		if same := before.pool(sdn.ID(pool.ID)); same != nil && !same.Updated.IsZero() && same.Updated == pool.Updated && same.Provisioning == pool.Provisioning {
			pool.seen = same.seen
			if same.told.Sub(same.seen) >= sureAfter {
				pool.members, pool.health, pool.told = same.members, same.health, same.told
				continue
			}
		}
		members := pools.at(sdn.ID(pool.ID), "members")
		pool.members, err = sdn.All(list[*memberWire](ctx, p.octavia.client, members, nil))
		if err != nil {
			return nil, err
		}
		if pool.Monitor != "" {
			if pool.health, err = monitors.read(ctx, p, pool.Monitor); err != nil && !sdn.IsNotFound(err) {
				return nil, err
			}
		}
	}
	p.octavia.memory.keep(sdn.ID(w.ID), t, begin)
	return t, nil
}

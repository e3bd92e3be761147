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

// balancerMemory is what load balancers were when they were read last. Octavia has no revisions, but each change below a load balancer passes through it and
// moves its time of change, so that one that has not changed need not be read again. Those times are in seconds: what was read in the second of
// a change may be of before another one, and is not believed.
type balancerMemory struct {
	now func() time.Time

	mu     sync.Mutex
	known  map[sdn.ID]*remembered
	failed map[string]map[string]setbacks // by Key, else ID, and part; "" is the load balancer itself
}

// settled is how long ago a change must have been seen first, for what is read then to hold until the next one.
const settled = 2 * time.Second

// remembered is one load balancer.
type remembered struct {
	key     string    // its Key, "" where it has none
	state   string    // of provisioning, with the time of the last change
	since   time.Time // it was seen first
	below   *tree     // nil: not read since
	settled bool      // what is below is all that came of the last change
	ports   []sdn.ID  // of the VIPs
}

// setbacks are how often in a row a load balancer, or a part of it, was made anew because Octavia held it in ERROR, or written once more because it was forgotten.
type setbacks struct {
	times int
	next  time.Time // when it may be made anew again
}

// see notes what a load balancer is now. It gives since when it has been so, and what is below it where that is known.
func (m *balancerMemory) see(w *balancerWire) (since time.Time, below *tree) {
	m.mu.Lock()
	defer m.mu.Unlock()
	state := w.Provisioning + " " + w.Updated.String()
	r := m.known[sdn.ID(w.ID)]
	switch {
	case r == nil:
		r = &remembered{key: w.decode(nil).Key.String(), state: state, since: m.now()}
		for _, v := range w.vips() {
			r.ports = append(r.ports, v.Port)
		}
		m.known[sdn.ID(w.ID)] = r
	case r.state != state:
		r.state, r.since, r.settled = state, m.now(), false
	}
	if r.settled {
		return r.since, r.below
	}
	return r.since, nil
}

// age is how long a load balancer has been as it was seen last; 0 where it was not.
func (m *balancerMemory) age(id sdn.ID) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.known[id]; r != nil {
		return m.now().Sub(r.since)
	}
	return 0
}

// last is what was below a load balancer when it was read last, be it as it may now.
func (m *balancerMemory) last(id sdn.ID) *tree {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.known[id]; r != nil {
		return r.below
	}
	return nil
}

// keep remembers what is below a load balancer; begin is when reading it began.
func (m *balancerMemory) keep(id sdn.ID, below *tree, begin time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.known[id]; r != nil {
		r.below, r.settled = below, begin.Sub(r.since) >= settled && !strings.HasPrefix(r.state, pendingPrefix)
	}
}

// forget lets go of a load balancer that is gone, and gives the ports that its VIPs had.
func (m *balancerMemory) forget(id sdn.ID) (ports []sdn.ID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.known[id]; r != nil {
		ports = r.ports
	}
	delete(m.known, id)
	return ports
}

// remakeBackoff is until a part that was recreated and is in ERROR again is recreated.
var remakeBackoff = backoff.Backoff{Min: 5 * time.Second, Max: 5 * time.Minute}

// mayAnew tells whether a part that is in ERROR may be made anew now, else how long to wait for that.
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

// unwanted forgets those of a load balancer that is to be there no more.
func (m *balancerMemory) unwanted(id sdn.ID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.failed, string(id))
	if r := m.known[id]; r != nil {
		delete(m.failed, r.key)
	}
}

// below gives what is below a load balancer: as remembered where nothing has changed since, else as Octavia says. Members are read of those pools alone that
// have changed, for a pool has a time of change of its own.
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
	c, of, t := p.octavia.client, url.Values{"loadbalancer_id": {w.ID}}, &tree{}
	var err error
	if t.listeners, err = sdn.All(listeners.find(ctx, c, of)); err != nil {
		return nil, err
	}
	if t.pools, err = sdn.All(pools.find(ctx, c, of)); err != nil {
		return nil, err
	}
	for _, pool := range t.pools {
		pool.seen, pool.told = begin, begin
		if same := before.pool(sdn.ID(pool.ID)); same != nil && !same.Updated.IsZero() && same.Updated == pool.Updated && same.Provisioning == pool.Provisioning {
			pool.seen = same.seen
			if same.told.Sub(same.seen) >= settled {
				pool.members, pool.health, pool.told = same.members, same.health, same.told
				continue
			}
		}
		if pool.members, err = sdn.All(list[*memberWire](ctx, c, pools.at(sdn.ID(pool.ID), "members"), nil)); err != nil {
			return nil, err
		}
		if pool.Monitor != "" {
			if pool.health, err = monitors.read(ctx, c, pool.Monitor); err != nil && !sdn.IsNotFound(err) {
				return nil, err
			}
		}
	}
	p.octavia.memory.keep(sdn.ID(w.ID), t, begin)
	return t, nil
}

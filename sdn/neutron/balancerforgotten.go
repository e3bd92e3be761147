package neutron

import (
	"slices"
	"strings"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// Octavia may leave parts of a load balancer in PENDING_… for good while the load balancer itself is ACTIVE. Its release 11 does so with the listeners of a
// load balancer's first request, where amphora has no jobboard: the amphora is made and serves none of them, and what would change them is refused as immutable. A listener
// or pool that is written once more as it is has the amphora be told of all of them. Other providers, such as OVN's, may work at each part by itself,
// and their load balancers do not tell when.

// pending tells whether it is in PENDING_….
func (m *octaviaMeta) pending() bool { return strings.HasPrefix(m.Provisioning, pendingPrefix) }

// forgotten are the requests that make parts of a load balancer ACTIVE which Octavia has forgotten, by the parts' ids. The load balancer is not PENDING itself.
func (m balancerMaker) forgotten(t *tree) (all []*step) {
	if !m.isAmphora {
		return nil
	}
	again := func(path, item, id, what string, body map[string]any) {
		s := put(path, item, what+" was forgotten by Octavia in PENDING_…, and is written once more", body)
		s.part = id
		all = append(all, s)
	}
	for _, l := range t.listeners {
		if !m.mine(l) {
			continue
		}
		at := l.Protocol + " " + l.Name
		pool := t.pool(l.Pool)
		switch {
		case pool != nil && pool.pending(): // its listeners are written with it
			again(pools.at(l.Pool), "pool", pool.ID, "the pool of "+at, map[string]any{"name": pool.Name})
			continue
		case l.pending():
			again(listeners.at(sdn.ID(l.ID)), "listener", l.ID, "listener "+at, map[string]any{"name": l.Name})
		}
		if pool == nil {
			continue
		}
		if h := pool.health; h != nil && h.pending() {
			again(monitors.at(pool.Monitor), "healthmonitor", h.ID, "the health monitor of "+at, map[string]any{"delay": h.Delay})
		}
		wanted := slices.IndexFunc(m.spec.Listeners, func(w sdn.Listener) bool { return protocols[l.Protocol] == w.Protocol && l.Port == w.Port })
		if wanted >= 0 && slices.ContainsFunc(pool.members, func(have *memberWire) bool { return have.pending() }) {
			s := m.putMembers(m.spec.Listeners[wanted], pool)
			s.part = pool.ID + " members"
			all = append(all, s)
		}
	}
	return all
}

// nextForgotten is the first of them that may be done now; nil where there is none, and then wait is how long until one may, 0 where none is left. What does not help is
// done less and less often, and holds up no other.
func (p *Provider) nextForgotten(m balancerMaker, t *tree, key string) (next *step, wait time.Duration) {
	for _, s := range m.forgotten(t) {
		later, _ := p.octavia.memory.mayAnew(key, s.part)
		if later == 0 {
			return s, 0
		}
		if wait == 0 || later < wait {
			wait = later
		}
	}
	return nil, wait
}

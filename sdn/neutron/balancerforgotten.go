package neutron

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// Octavia may leave parts of a load balancer in PENDING_… for good while the load balancer itself is ACTIVE. Its release 11 does so with the listeners of a
// load balancer's first request, where amphora has no jobboard: the amphora is made and serves none of them, and what would change them is refused as immutable. A listener
// or pool that is written once more as it is has the amphora be told of all of them. Other providers may work at each part by itself,
// and their load balancers do not tell when.
//
// OVN's provider loses the status of one pool where a load balancer has several of a protocol: on
// the deletion of a health monitor it reports the first pool, and the monitor's own pool stays in
// PENDING_UPDATE. Octavia then refuses its members and monitors. A pool written again is reported.

// lostAfter is how long a pool of OVN's may stay in PENDING_… while its load balancer does not
// change. After that its status is lost.
const lostAfter = 10 * time.Second

// pending tells whether it is in PENDING_….
func (m *octaviaMeta) pending() bool { return strings.HasPrefix(m.Provisioning, pendingPrefix) }

// forgotten returns the requests that make ACTIVE what Octavia has forgotten of a load balancer
// that is ACTIVE and has not changed for the time quiet.
func (m balancerMaker) forgotten(t *tree, quiet time.Duration) (all []*step) {
	if !m.isAmphora && (!m.isOVN || quiet < lostAfter) {
		return nil
	}
	again := func(path, item, what string, part *octaviaMeta, body map[string]any) {
		what = fmt.Sprintf("%s (%s) stays in %s, and is written again", what, part.ID, part.Provisioning)
		s := put(path, item, what, body)
		s.part = part.ID
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
			again(pools.at(l.Pool), "pool", "the pool of "+at, &pool.octaviaMeta,
				map[string]any{"name": pool.Name})
			continue
		case m.isOVN: // its other parts take changes in any state
			continue
		case l.pending():
			again(listeners.at(sdn.ID(l.ID)), "listener", "listener "+at, &l.octaviaMeta,
				map[string]any{"name": l.Name})
		}
		if pool == nil {
			continue
		}
		if h := pool.health; h != nil && h.pending() {
			again(monitors.at(pool.Monitor), "healthmonitor", "the health monitor of "+at, &h.octaviaMeta,
				map[string]any{"delay": h.Delay})
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

// nextForgotten returns the first of them that is due, nil if there is none. wait is how long
// until it is due. A request that does not help is due less and less often.
func (p *Provider) nextForgotten(all []*step, key string) (next *step, wait time.Duration) {
	for _, s := range all {
		if later, _ := p.octavia.memory.mayAnew(key, s.part); next == nil || later < wait {
			next, wait = s, later
		}
	}
	return next, wait
}

package neutron

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

// A step is one request that brings a load balancer nearer to what it is to be. It locks the whole tree, so that there is one at a time.
type step struct {
	what   string // for the status: "the members of tcp-80 are being changed"
	do     func(context.Context, *client) error
	repair string // part in ERROR that it replaces: "health monitor <id>"; "" is none
	part   string // that Octavia has forgotten, by which it is remembered that this was tried
}

func put(path, item, what string, body map[string]any) *step {
	return &step{what: what, do: func(ctx context.Context, c *client) error {
		return c.put(ctx, path, 0, map[string]any{item: body}, nil)
	}}
}

// post makes something. Where its answer was lost, the next step's look finds what there is.
func post(path, item, what string, body map[string]any) *step {
	return &step{what: what, do: func(ctx context.Context, c *client) error {
		return c.post(ctx, path, map[string]any{item: body}, nil)
	}}
}

func remove(path, what string) *step {
	return &step{what: what, do: func(ctx context.Context, c *client) error {
		return ignoreAbsent(c.remove(ctx, path, 0))
	}}
}

// next is what is to be done now, nil where all is as it is to be. Members come first, for connections wait for them; then what is new, and last what is no
// longer wanted. What is in ERROR holds up none of these.
func (m balancerMaker) next(w *balancerWire, t *tree) (*step, error) {
	if s := m.nextOfItself(w); s != nil {
		return s, nil
	}
	for _, l := range m.spec.Listeners {
		if err := m.free(l, t); err != nil {
			return nil, err
		}
		if s := m.nextOfMembers(l, m.poolOf(l, t)); s != nil {
			return s, nil
		}
	}
	var repair *step
	for _, l := range m.spec.Listeners {
		switch s := m.nextOfListener(w, l, t); {
		case s != nil && s.repair == "":
			return s, nil
		case repair == nil:
			repair = s
		}
	}
	if s := m.nextToGo(t); s != nil {
		return s, nil
	}
	for _, l := range m.spec.Listeners {
		if repair == nil {
			repair = m.repairOfMembers(l, m.poolOf(l, t))
		}
	}
	return repair, nil
}

// nextOfItself changes the load balancer's own attributes. One that is shared is not ours to change.
func (m balancerMaker) nextOfItself(w *balancerWire) *step {
	if m.spec.Shared {
		return nil
	}
	body := map[string]any{}
	if m.spec.Name != "" && m.spec.Name != w.Name {
		body["name"] = m.spec.Name
	}
	if text := cmp.Or(m.spec.Key.String(), m.spec.Description); text != "" && text != w.Description {
		body["description"] = text
	}
	if m.spec.Tags != nil && !sameSet(m.spec.Tags, w.Tags) {
		body["tags"] = append([]string{}, valid.TagSet(m.spec.Tags)...)
	}
	if m.spec.Groups != nil && m.can.Groups && !sameSet(m.spec.Groups, w.Groups) {
		body["vip_sg_ids"] = append([]sdn.ID{}, m.spec.Groups...)
	}
	if len(body) == 0 {
		return nil
	}
	return put(balancers.at(sdn.ID(w.ID)), "loadbalancer", "its own attributes are being changed", body)
}

// mine tells whether a listener is meant by the value: those of another's Key never are, those of no Key are where the whole load balancer is.
func (m balancerMaker) mine(l *listenerWire) bool {
	key := l.key()
	return key == m.owner && !key.IsZero() || key.IsZero() && !m.spec.Shared
}

// free refuses a listener whose place is another's.
func (m balancerMaker) free(l sdn.Listener, t *tree) error {
	if have := t.at(l.Protocol, l.Port); have != nil && !m.mine(have) {
		return sdn.Conflict(sdn.Exists, "load balancer", "listeners", "%s is a listener of another that shares the load balancer (%s)", place(l), cmp.Or(have.Description, have.Name, have.ID))
	}
	return nil
}

// poolOf is the pool that a listener has and may keep, nil where there is none such.
func (m balancerMaker) poolOf(l sdn.Listener, t *tree) *poolWire {
	have := t.at(l.Protocol, l.Port)
	if have == nil || have.Protocol != listenerProtocol(l) {
		return nil
	}
	if pool := t.pool(have.Pool); pool != nil && pool.Protocol == poolProtocol(l) && pool.Provisioning != stateError {
		return pool
	}
	return nil
}

// nextOfMembers makes a pool's members the wanted ones in one request.
func (m balancerMaker) nextOfMembers(l sdn.Listener, pool *poolWire) *step {
	if pool == nil || sameMembers(l.Pool, pool.places()) {
		return nil
	}
	return m.putMembers(l, pool)
}

// repairOfMembers writes the wanted ones once more, where Octavia holds some in ERROR.
func (m balancerMaker) repairOfMembers(l sdn.Listener, pool *poolWire) *step {
	if pool == nil {
		return nil
	}
	for _, have := range pool.members {
		if broken := have.broken("member"); broken != "" {
			s := m.putMembers(l, pool)
			s.repair = broken
			return s
		}
	}
	return nil
}

func (m balancerMaker) putMembers(l sdn.Listener, pool *poolWire) *step {
	return &step{what: fmt.Sprintf("the members of %s are being changed", place(l)), do: func(ctx context.Context, c *client) error {
		return c.do(ctx, http.MethodPut, pools.at(sdn.ID(pool.ID), "members"), 0, map[string]any{"members": m.members(l.Pool, pool.places())}, nil)
	}}
}

// nextOfListener makes or changes a listener, its pool and that one's health monitor. What Octavia holds in ERROR, and what cannot be changed into what is wanted,
// goes, to be made anew.
func (m balancerMaker) nextOfListener(w *balancerWire, l sdn.Listener, t *tree) *step {
	have, at := t.at(l.Protocol, l.Port), place(l)
	pool := m.poolOf(l, t)
	switch {
	case have == nil:
		body := m.listener(l)
		body["loadbalancer_id"] = w.ID
		return m.writeListener(http.MethodPost, listeners.path, fmt.Sprintf("listener %s is being added", at), body, func(attribute string) bool { return timeouts(l)[attribute] == 0 })
	case have.Provisioning == stateError || have.Protocol != listenerProtocol(l):
		return m.removal(have, t, fmt.Sprintf("listener %s is being made anew", at))
	case pool == nil && t.pool(have.Pool) != nil:
		s := remove(pools.at(have.Pool), fmt.Sprintf("the pool of %s is being made anew", at))
		s.repair = t.pool(have.Pool).broken("pool")
		return s
	}
	if body := m.listenerChange(l, have); len(body) > 0 {
		return m.writeListener(http.MethodPut, listeners.at(sdn.ID(have.ID)), fmt.Sprintf("listener %s is being changed", at), body, func(attribute string) bool {
			ms, said := body[attribute]
			return said && ms == nil
		})
	}
	if pool == nil {
		body := m.pool(l)
		body["listener_id"] = have.ID
		return post(pools.path, "pool", fmt.Sprintf("the pool of %s is being added", at), body)
	}
	if body := m.poolChange(l, pool); len(body) > 0 {
		return put(pools.at(sdn.ID(pool.ID)), "pool", fmt.Sprintf("the pool of %s is being changed", at), body)
	}
	return m.nextOfMonitor(l, pool)
}

func (m balancerMaker) nextOfMonitor(l sdn.Listener, pool *poolWire) *step {
	at, have := place(l), pool.health
	switch {
	case l.Pool.Health == nil && have == nil:
		return nil
	case l.Pool.Health == nil:
		return remove(monitors.at(sdn.ID(have.ID)), fmt.Sprintf("the health monitor of %s is being removed", at))
	case have == nil:
		body := m.monitor(l)
		body["pool_id"] = pool.ID
		return post(monitors.path, "healthmonitor", fmt.Sprintf("the health monitor of %s is being added", at), body)
	}
	body, anew := m.monitorChange(l, have)
	switch {
	case anew || have.Provisioning == stateError:
		s := remove(monitors.at(sdn.ID(have.ID)), fmt.Sprintf("the health monitor of %s is being made anew", at))
		s.repair = have.broken("health monitor")
		return s
	case len(body) > 0:
		return put(monitors.at(sdn.ID(have.ID)), "healthmonitor", fmt.Sprintf("the health monitor of %s is being changed", at), body)
	}
	return nil
}

// nextToGo removes one of those listeners that are meant and not wanted, or a pool that none sends to.
func (m balancerMaker) nextToGo(t *tree) *step {
	for _, have := range t.listeners {
		wanted := slices.ContainsFunc(m.spec.Listeners, func(l sdn.Listener) bool {
			return l.Protocol == protocols[have.Protocol] && l.Port == have.Port
		})
		if !wanted && m.mine(have) {
			return m.removal(have, t, fmt.Sprintf("listener %s %d is being removed", have.Protocol, have.Port))
		}
	}
	if m.spec.Shared {
		return nil // they may be of another that is just being made
	}
	for _, pool := range t.pools {
		key, _ := sdn.ParseKey(pool.Description)
		if key.IsZero() && !slices.ContainsFunc(t.listeners, func(l *listenerWire) bool { return string(l.Pool) == pool.ID }) {
			return remove(pools.at(sdn.ID(pool.ID)), "a pool that no listener sends to is being removed")
		}
	}
	return nil
}

// removal removes a listener, its pool first: alone that would stay behind.
func (m balancerMaker) removal(l *listenerWire, t *tree, what string) *step {
	shared := slices.ContainsFunc(t.listeners, func(o *listenerWire) bool { return o != l && o.Pool == l.Pool })
	if pool := t.pool(l.Pool); pool != nil && !shared {
		return remove(pools.at(l.Pool), what)
	}
	s := remove(listeners.at(sdn.ID(l.ID)), what)
	s.repair = l.broken("listener")
	return s
}

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

package neutron

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

// A step is one request that brings a load balancer nearer to its spec. Octavia locks the
// whole tree for each, so there is one at a time.
type step struct {
	what   string // for the status: "the members of tcp-80 are being changed"
	do     func(context.Context, *Provider) error
	repair string // part in ERROR that it replaces: "health monitor <id>"; "" is none
	part   string // that Octavia has forgotten, by which it is remembered that this was tried
}

// changing, adding and removing are the steps of one request of a collection. If the answer is lost, the
// next step's look finds what there is.
func (k collection[W]) changing(id sdn.ID, what string, body map[string]any) *step {
	return &step{what: what, do: func(ctx context.Context, p *Provider) error {
		_, err := k.update(ctx, p, id, 0, body)
		return err
	}}
}

func (k collection[W]) adding(what string, body map[string]any) *step {
	return &step{what: what, do: func(ctx context.Context, p *Provider) error {
		_, err := k.create(ctx, p, body)
		return err
	}}
}

func (k collection[W]) removing(id sdn.ID, what string) *step {
	return &step{what: what, do: func(ctx context.Context, p *Provider) error {
		return k.erase(ctx, p, id, 0)
	}}
}

// next returns the next step, nil if nothing differs. Members come first, as connections
// wait for them, then what is new, then what is no longer wanted. Repairs of what is in
// ERROR come last.
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

// nextOfItself changes the load balancer's own attributes, unless it is shared.
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
	return balancers.changing(sdn.ID(w.ID), "its own attributes are being changed", body)
}

// mine reports whether the spec is about a listener: never about one of another's Key,
// and about one without a Key if the spec is about the whole load balancer.
func (m balancerMaker) mine(l *listenerWire) bool {
	key := l.key()
	return key == m.owner && !key.IsZero() || key.IsZero() && !m.spec.Shared
}

// free refuses a listener at the port of another's.
func (m balancerMaker) free(l sdn.Listener, t *tree) error {
	if have := t.at(l.Protocol, l.Port); have != nil && !m.mine(have) {
		return sdn.Conflict(sdn.Exists, "load balancer", "listeners",
			"%s is a listener of another that shares the load balancer (%s)",
			place(l), cmp.Or(have.Description, have.Name, have.ID))
	}
	return nil
}

// poolOf returns the pool that a listener has and may keep, nil if there is none.
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

// nextOfMembers writes a pool's members by one request.
func (m balancerMaker) nextOfMembers(l sdn.Listener, pool *poolWire) *step {
	if pool == nil || sameMembers(l.Pool, pool.places()) {
		return nil
	}
	return m.putMembers(l, pool)
}

// repairOfMembers writes them again if Octavia holds some in ERROR.
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
	what := fmt.Sprintf("the members of %s are being changed", place(l))
	return &step{what: what, do: func(ctx context.Context, p *Provider) error {
		body := map[string]any{"members": m.members(l.Pool, pool.places())}
		return p.octavia.client.put(ctx, pools.at(sdn.ID(pool.ID), "members"), 0, body, nil)
	}}
}

// nextOfListener makes or changes a listener, its pool and the pool's health monitor.
// What is in ERROR, and what cannot be changed into the spec's, is deleted and made
// again.
func (m balancerMaker) nextOfListener(w *balancerWire, l sdn.Listener, t *tree) *step {
	have, at := t.at(l.Protocol, l.Port), place(l)
	pool := m.poolOf(l, t)
	switch {
	case have == nil:
		body := m.listener(l)
		body["loadbalancer_id"] = w.ID
		what := fmt.Sprintf("listener %s is being added", at)
		isLeft := func(attribute string) bool { return timeouts(l)[attribute] == 0 }
		return m.writeListener(what, isLeft, func(ctx context.Context, p *Provider) (*listenerWire, error) {
			return listeners.create(ctx, p, body)
		})
	case have.Provisioning == stateError || have.Protocol != listenerProtocol(l):
		return m.removal(have, t, fmt.Sprintf("listener %s is being made anew", at))
	case pool == nil && t.pool(have.Pool) != nil:
		s := pools.removing(have.Pool, fmt.Sprintf("the pool of %s is being made anew", at))
		s.repair = t.pool(have.Pool).broken("pool")
		return s
	}
	if body := m.listenerChange(l, have); len(body) > 0 {
		what := fmt.Sprintf("listener %s is being changed", at)
		isLeft := func(attribute string) bool {
			ms, said := body[attribute]
			return said && ms == nil
		}
		return m.writeListener(what, isLeft, func(ctx context.Context, p *Provider) (*listenerWire, error) {
			return listeners.update(ctx, p, sdn.ID(have.ID), 0, body)
		})
	}
	if pool == nil {
		body := m.pool(l)
		body["listener_id"] = have.ID
		return pools.adding(fmt.Sprintf("the pool of %s is being added", at), body)
	}
	if body := m.poolChange(l, pool); len(body) > 0 {
		return pools.changing(sdn.ID(pool.ID), fmt.Sprintf("the pool of %s is being changed", at), body)
	}
	return m.nextOfMonitor(l, pool)
}

func (m balancerMaker) nextOfMonitor(l sdn.Listener, pool *poolWire) *step {
	at, have := place(l), pool.health
	switch {
	case l.Pool.Health == nil && have == nil:
		return nil
	case l.Pool.Health == nil:
		return monitors.removing(sdn.ID(have.ID), fmt.Sprintf("the health monitor of %s is being removed", at))
	case have == nil:
		body := m.monitor(l)
		body["pool_id"] = pool.ID
		return monitors.adding(fmt.Sprintf("the health monitor of %s is being added", at), body)
	}
	body, anew := m.monitorChange(l, have)
	switch {
	case anew || have.Provisioning == stateError:
		s := monitors.removing(sdn.ID(have.ID), fmt.Sprintf("the health monitor of %s is being made anew", at))
		s.repair = have.broken("health monitor")
		return s
	case len(body) > 0:
		return monitors.changing(sdn.ID(have.ID), fmt.Sprintf("the health monitor of %s is being changed", at), body)
	}
	return nil
}

// nextToGo removes a listener that the spec no longer has, or a pool without a listener.
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
			return pools.removing(sdn.ID(pool.ID), "a pool that no listener sends to is being removed")
		}
	}
	return nil
}

// removal removes a listener, its pool first: that would stay.
func (m balancerMaker) removal(l *listenerWire, t *tree, what string) *step {
	shared := slices.ContainsFunc(t.listeners, func(o *listenerWire) bool { return o != l && o.Pool == l.Pool })
	if pool := t.pool(l.Pool); pool != nil && !shared {
		return pools.removing(l.Pool, what)
	}
	s := listeners.removing(sdn.ID(l.ID), what)
	s.repair = l.broken("listener")
	return s
}

// Octavia may leave parts of a load balancer in PENDING_… while the load balancer itself is ACTIVE. Its
// release 11 does so with the listeners of a load balancer's first request, if amphora has no jobboard:
// the amphora serves none of them, and Octavia refuses changes of them as immutable. If a listener or
// pool is written again without a change, the amphora gets all of them. Other providers may work at
// each part by itself, and their load balancers do not tell when.
//
// OVN's provider loses the status of one pool where a load balancer has several of a protocol: on
// the deletion of a health monitor it reports the first pool, and the monitor's own pool stays in
// PENDING_UPDATE. Octavia then refuses its members and monitors. A pool written again is reported.

// lostAfter is how long a pool of OVN's may stay in PENDING_… while its load balancer does not
// change. After that its status is lost.
const lostAfter = 10 * time.Second

// pending reports whether it is in PENDING_….
func (m *octaviaMeta) pending() bool { return strings.HasPrefix(m.Provisioning, pendingPrefix) }

// forgotten returns the requests that make ACTIVE what Octavia has forgotten of a load balancer
// that is ACTIVE and has not changed for the time quiet.
func (m balancerMaker) forgotten(t *tree, quiet time.Duration) (all []*step) {
	if !m.isAmphora && (!m.isOVN || quiet < lostAfter) {
		return nil
	}
	again := func(
		write func(sdn.ID, string, map[string]any) *step, what string, part *octaviaMeta,
		attribute string, value any,
	) {
		what = fmt.Sprintf("%s (%s) stays in %s, and is written again", what, part.ID, part.Provisioning)
		s := write(sdn.ID(part.ID), what, map[string]any{attribute: value})
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
			again(pools.changing, "the pool of "+at, &pool.octaviaMeta, "name", pool.Name)
			continue
		case m.isOVN: // its other parts take changes in any state
			continue
		case l.pending():
			again(listeners.changing, "listener "+at, &l.octaviaMeta, "name", l.Name)
		}
		if pool == nil {
			continue
		}
		if h := pool.health; h != nil && h.pending() {
			again(monitors.changing, "the health monitor of "+at, &h.octaviaMeta, "delay", h.Delay)
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

package neutron

import (
	"context"
	"slices"
	"sync"

	"github.com/kuryr/kuryr/sdn"
)

// A listener of which no timeout is said has Octavia's, which its operator chooses (section haproxy_amphora of octavia.conf) and which no request tells. One that had another goes back to it by a null in a PUT. What
// it is, the answers to requests tell that have left it to Octavia; until there was one, it is taken for what it is where the operator says nothing.

// octaviasTimeouts are those, by attribute, in milliseconds.
var octaviasTimeouts = map[string]int64{"timeout_client_data": 50000, "timeout_member_data": 50000, "timeout_member_connect": 5000, "timeout_tcp_inspect": 0}

// timeouts are those that a listener is to have, by attribute, in milliseconds; 0 is Octavia's.
func timeouts(l sdn.Listener) map[string]int64 {
	return map[string]int64{
		"timeout_client_data": l.ClientTimeout.Milliseconds(), "timeout_member_data": l.MemberTimeout.Milliseconds(),
		"timeout_member_connect": l.ConnectTimeout.Milliseconds(), "timeout_tcp_inspect": l.InspectTimeout.Milliseconds(),
	}
}

// timeouts are those that it has; 0 also where Octavia does not tell it.
func (l *listenerWire) timeouts() map[string]int64 {
	return map[string]int64{
		"timeout_client_data": l.ClientTimeout, "timeout_member_data": l.MemberTimeout, "timeout_member_connect": l.ConnectTimeout, "timeout_tcp_inspect": l.InspectTimeout,
	}
}

// usualTimeouts are what listeners were seen to have whose timeouts were left to Octavia. Of one attribute there may be several, where the operator has changed it: with each of them a listener stays as it is, until this process ends.
type usualTimeouts struct {
	mu   sync.Mutex
	seen map[string][]int64
}

// is tells whether a timeout that a listener has may be Octavia's own.
func (u *usualTimeouts) is(attribute string, ms int64) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if seen := u.seen[attribute]; len(seen) > 0 {
		return ms == 0 || slices.Contains(seen, ms)
	}
	return ms == 0 || ms == octaviasTimeouts[attribute]
}

// learn notes what a listener has of the timeouts that a request has left to Octavia.
func (u *usualTimeouts) learn(l *listenerWire, left func(attribute string) bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for attribute, ms := range l.timeouts() {
		if ms == 0 || !left(attribute) || slices.Contains(u.seen[attribute], ms) {
			continue
		}
		if u.seen == nil {
			u.seen = map[string][]int64{}
		}
		u.seen[attribute] = append(u.seen[attribute], ms)
	}
}

// learnFrom does so with the listeners of a load balancer that was made at once.
func (u *usualTimeouts) learnFrom(made []*listenerWire, of []sdn.Listener) {
	for _, l := range made {
		at := slices.IndexFunc(of, func(o sdn.Listener) bool { return o.Protocol == protocols[l.Protocol] && o.Port == l.Port })
		if at >= 0 {
			u.learn(l, func(attribute string) bool { return timeouts(of[at])[attribute] == 0 })
		}
	}
}

// writeListener makes or changes a listener, and learns from the answer; left tells what the request leaves to Octavia.
func (m balancerMaker) writeListener(method, path, what string, body map[string]any, left func(attribute string) bool) *step {
	return &step{what: what, do: func(ctx context.Context, c *client) error {
		answer := envelope[listenerWire]{name: listeners.item}
		if err := c.do(ctx, method, path, 0, map[string]any{listeners.item: body}, &answer); err != nil {
			return err
		}
		m.usual.learn(&answer.value, left)
		return nil
	}}
}

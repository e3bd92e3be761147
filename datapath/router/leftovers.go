//go:build linux

package router

import (
	"context"
	"sync"

	"github.com/kuryr/kuryr/datapath/securitygroup"
)

// collectAfter is how many ports with security groups go before a router's filter is
// cleared of what no port has any more: seldom enough that it costs each of them little,
// and often enough that groups that come and go with their containers do not pile up.
const collectAfter = 256

// leftovers counts, by router, the ports with groups that went since the filter was last cleared.
type leftovers struct {
	mu sync.Mutex
	of map[string]int
}

// due counts ports that went, and reports whether it is time to clear.
func (l *leftovers) due(router string, gone []Port) bool {
	n := 0
	for _, p := range gone {
		if p.Filtered() {
			n++
		}
	}
	if n == 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of == nil {
		l.of = map[string]int{}
	}
	l.of[router] += n
	if l.of[router] < collectAfter {
		return false
	}
	delete(l.of, router)
	return true
}

func (l *leftovers) forget(router string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.of, router)
}

// collectLeftovers clears a router's filter when enough ports have gone. What fails is
// left to the next time.
func (k *Kernel) collectLeftovers(ctx context.Context, s *space, router string, gone []Port) {
	if !k.leftovers.due(router, gone) {
		return
	}
	if err := s.filtering(func(p *securitygroup.Filter) error { return p.Collect() }); err != nil {
		k.log.WarnContext(
			ctx, "sets of security groups not collected", "router", router, "err", err,
		)
	}
}

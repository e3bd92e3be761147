//go:build linux

package router

import (
	"context"
	"sync"

	"github.com/kuryr/kuryr/datapath/securitygroup"
)

// collectAfter is how many ports with security groups go before a domain's filter is
// cleared of what no port has any more: seldom enough that it costs each of them little,
// and often enough that groups that come and go with their containers do not pile up.
const collectAfter = 256

// leftovers counts, by domain, the ports with groups that went since the filter was last cleared.
type leftovers struct {
	mu sync.Mutex
	of map[string]int
}

// due counts ports that went, and reports whether it is time to clear.
func (l *leftovers) due(domain string, gone []Port) bool {
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
	l.of[domain] += n
	if l.of[domain] < collectAfter {
		return false
	}
	delete(l.of, domain)
	return true
}

func (l *leftovers) forget(domain string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.of, domain)
}

// collectLeftovers clears a domain's filter when enough ports have gone. What fails is
// left to the next time.
func (f *Fabric) collectLeftovers(ctx context.Context, s *space, domain string, gone []Port) {
	if !f.leftovers.due(domain, gone) {
		return
	}
	if err := s.filtering(domain, func(p *securitygroup.Filter) error { return p.Collect() }); err != nil {
		f.log.WarnContext(
			ctx, "sets of security groups not collected", "domain", domain, "err", err,
		)
	}
}

package neutron

import (
	"fmt"
	"sync"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

const (
	breakerFailures = 5               // in a row that open the breaker
	breakerPause    = 5 * time.Second // until one request may look whether the endpoint is back
)

// A breaker makes requests to an endpoint that does not answer fail at once, so that nobody waits in vain for what another has
// just waited for in vain. After breakerFailures in a row it is open; every breakerPause one request goes through, and the first
// that is answered closes it.
type breaker struct {
	what   string // in the error: "Neutron", "Keystone"
	now    func() time.Time
	closed func() // called when the endpoint is back

	mu       sync.Mutex
	failures int
	since    time.Time // of the first failure in a row
	probe    time.Time // when the next request may go through; zero while closed
	last     string    // what the last failure was
}

// allow refuses a request while the breaker is open. An allowed request is followed by a call of done, unless its caller gave it up: that must
// neither open the breaker nor close it.
func (b *breaker) allow() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.probe.IsZero() {
		return nil
	}
	now := b.now()
	if left := b.probe.Sub(now); left > 0 {
		return &sdn.Error{
			Kind: sdn.KindUnavailable, Noun: b.what, RetryAfter: left,
			Detail: fmt.Sprintf("has not answered since %s; the last attempt: %s", b.since.Format(time.TimeOnly), b.last),
		}
	}
	b.probe = now.Add(breakerPause)
	return nil
}

// done tells how a request ended: failed where the endpoint did not answer or could not, not where it refused.
func (b *breaker) done(failed bool, err error) {
	b.mu.Lock()
	back := false
	if !failed {
		back = !b.probe.IsZero()
		b.failures, b.probe = 0, time.Time{}
	} else {
		if b.failures++; b.failures == 1 {
			b.since = b.now()
		}
		b.last = err.Error()
		if b.failures >= breakerFailures {
			b.probe = b.now().Add(breakerPause)
		}
	}
	b.mu.Unlock()
	if back && b.closed != nil {
		b.closed()
	}
}

package neutron

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/kuryr/kuryr/internal/backoff"
	"github.com/kuryr/kuryr/sdn"
)

const (
	maxAttempts = 4  // of one request
	maxBudget   = 20 // retries in flight or just done, of all requests
	budgetGain  = .1 // of a retry, that each success gives back
)

// retryBackoff is the pause between attempts of one request.
var retryBackoff = backoff.Backoff{Min: 200 * time.Millisecond, Max: 5 * time.Second}

// A budget limits the load of retries on a Neutron in trouble: each takes one, each
// success returns a tenth.
type budget struct {
	mu   sync.Mutex
	left float64
}

func newBudget() *budget { return &budget{left: maxBudget} }

func (b *budget) take() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}

func (b *budget) gain() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left = min(b.left+budgetGain, maxBudget)
}

// once marks a PUT as an action, which is not repeated, as a POST is not.
func once(ctx context.Context) context.Context { return context.WithValue(ctx, onceKey{}, true) }

type onceKey struct{}

// mayRepeat reports whether a request that failed with the status may be sent again without a look
// first. A POST never may: it would create a second object. A conditional PUT may not when its answer
// was lost: it may itself have broken the condition.
func mayRepeat(r *http.Request, status int) bool {
	conditional := r.Header.Get("If-Match") != ""
	switch r.Method {
	case http.MethodGet:
		return status == 0 || status == http.StatusTooManyRequests || status >= 500
	case http.MethodPut:
		if r.Context().Value(onceKey{}) != nil || conditional && status != http.StatusTooManyRequests {
			return false
		}
		fallthrough
	case http.MethodDelete:
		return status == 0 || status == http.StatusTooManyRequests || status >= 502 && status <= 504
	}
	return false
}

// retryable reports whether an error may pass with time. Those of the breaker and of this client's
// settings do not.
func retryable(err error) bool {
	return sdn.IsUnavailable(err) && !errors.Is(err, errNotSent)
}

// errNotSent marks errors of requests that were not sent: the breaker was open or there was no
// session.
var errNotSent = sdn.ErrNotSent

// notSent marks err without changing its text.
func notSent(err error) error { return unsent{err} }

type unsent struct{ error }

func (e unsent) Unwrap() []error { return []error{e.error, errNotSent} }

// busy marks the error of a request that was answered 429 or 503, by Neutron or a proxy.
type busy struct{ error }

func (b busy) Unwrap() error { return b.error }

// isBusy reports such an error. One that is joined to another failure does not count.
func isBusy(err error) bool { return errors.As(err, &busy{}) && retryable(err) }

// makeAgain waits until the creation that attempt n, counting from 1, could not do may be
// requested again. It is false if the answer was neither 429 nor 503, or if attempts,
// budget or time are used up. Neutron may have made the object: look by its Key before
// the next request, and for a duplicate after it.
func (c *client) makeAgain(ctx context.Context, n int, err error) bool {
	return isBusy(err) && n < maxAttempts && c.budget.take() && c.backoff(ctx, n, err)
}

// pause returns how long to wait before attempt n+1, n counting from 1: what Neutron
// asked for, or a random time with a bound that doubles. So requests that failed together
// are not repeated together.
func pause(n int, err error) time.Duration {
	if asked := sdn.RetryAfterOf(err); asked > 0 {
		return asked + rand.N(retryBackoff.Min)
	}
	return retryBackoff.After(n)
}

// awaitRetry waits for the pause. It reports whether there is time for another attempt.
func awaitRetry(ctx context.Context, n int, err error) bool {
	wait := pause(n, err)
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= wait || wait > maxRetryAfter {
		return false
	}
	return backoff.Sleep(ctx, wait) == nil
}

// maxRetryAfter is the longest pause that Neutron can ask for; after a longer one the
// call fails.
const maxRetryAfter = 15 * time.Second

const (
	breakerFailures = 5               // in a row that open the breaker
	breakerPause    = 5 * time.Second // until one request may look for the endpoint
)

// A breaker makes requests fail without a wait while an endpoint does not answer. After
// breakerFailures in a row it is open. Every breakerPause it lets one request through,
// and the first answer closes it.
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

// allow refuses a request while the breaker is open. Call done after an allowed request,
// unless its caller gave it up: that neither opens nor closes the breaker.
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

// done notes the end of a request: failed if the endpoint did not answer, not if it
// refused.
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

//go:build linux

package identity

import (
	"net/netip"
	"sync"

	"github.com/kuryr/kuryr/internal/httpserve"
	"golang.org/x/time/rate"
)

// maxBuckets is how many clients of a generation are told apart.
const maxBuckets = 4096

// buckets are token buckets by a client's name. There are at most two generations of
// them: of a flood of names those that have not come again are forgotten.
type buckets struct {
	rate  rate.Limit
	burst int

	mu         sync.Mutex
	young, old map[string]*rate.Limiter
}

// newBuckets fill at so many a second, up to burst; 0 a second is no bound.
func newBuckets(perSecond float64, burst int) *buckets {
	limit := rate.Limit(perSecond)
	if perSecond == 0 {
		limit = rate.Inf
	}
	return &buckets{rate: limit, burst: burst, young: map[string]*rate.Limiter{}}
}

func (b *buckets) of(name string) *rate.Limiter {
	b.mu.Lock()
	defer b.mu.Unlock()
	if l := b.young[name]; l != nil {
		return l
	}
	l := b.old[name]
	if l == nil {
		l = rate.NewLimiter(b.rate, b.burst)
	}
	if len(b.young) >= maxBuckets {
		b.old, b.young = b.young, map[string]*rate.Limiter{}
	}
	b.young[name] = l
	return l
}

// take takes one, and reports whether one was left.
func (b *buckets) take(name string) bool { return b.of(name).Allow() }

// left reports whether there is one.
func (b *buckets) left(name string) bool {
	return b.rate == rate.Inf || b.of(name).Tokens() >= 1
}

// addressOf is what clients of one machine have in common, see httpserve.
func addressOf(remote string) string {
	ap, err := netip.ParseAddrPort(remote)
	if err != nil {
		return remote
	}
	return httpserve.AddressOf(ap.Addr())
}

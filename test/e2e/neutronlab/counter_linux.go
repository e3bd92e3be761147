package neutronlab

import (
	"context"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"time"

	"github.com/kuryr/kuryr/sdn/neutron"
)

// Counter is a proxy before Neutron that remembers each call, those that nobody waits for apart.
type Counter struct {
	*Front
	mu        sync.Mutex
	calls     []string
	unawaited []string
	open      int       // calls under way
	since     time.Time // when the first of those began
	spent     time.Duration
}

// NewCounter starts a proxy on the central host, which answers until Close.
func (l *Lab) NewCounter(ctx context.Context) (*Counter, error) {
	c := &Counter{}
	var err error
	c.Front, err = l.NewFront(ctx, Endpoint, nil, func(proxy *httputil.ReverseProxy) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			call := r.Method + " " + strings.TrimPrefix(r.URL.RequestURI(), "/v2.0")
			if r.UserAgent() == neutron.BackgroundAgent {
				proxy.ServeHTTP(w, r)
				c.endUnawaited(call)
				return
			}
			c.begin()
			defer c.end(call)
			proxy.ServeHTTP(w, r)
		})
	})
	return c, err
}

func (c *Counter) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == 0 {
		c.since = time.Now()
	}
	c.open++
}

func (c *Counter) end(call string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, call)
	if c.open--; c.open == 0 {
		c.spent += time.Since(c.since)
	}
}

func (c *Counter) endUnawaited(call string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unawaited = append(c.unawaited, call)
}

// TakeUnawaited returns the calls that nobody waited for and that ended since it was called last.
func (c *Counter) TakeUnawaited() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	calls := c.unawaited
	c.unawaited = nil
	return calls
}

// Take returns the calls that were waited for and ended since Take was called last, and
// for how long at least one was under way.
func (c *Counter) Take() ([]string, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	calls, spent := c.calls, c.spent
	c.calls, c.spent = nil, 0
	return calls, spent
}

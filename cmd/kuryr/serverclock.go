//go:build linux && kubernetes

package main

import (
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
)

// serverClock tells the API server's time, by the Date of its last answer (RFC 9110, 6.6.1: whole seconds). What the cluster says of times is not judged by this machine's clock, which may be wrong.
// Before the first answer it is this machine's.
type serverClock struct{ ahead atomic.Int64 } // of this machine's, in nanoseconds

// watch has the clock look at the answers of this way to the API server.
func (s *serverClock) watch(c *rest.Config) {
	c.Wrap(func(next http.RoundTripper) http.RoundTripper { return clockedTransport{s, next} })
}

func (s *serverClock) now() time.Time { return time.Now().Add(time.Duration(s.ahead.Load())) }

type clockedTransport struct {
	clock *serverClock
	next  http.RoundTripper
}

// RoundTrip asks, and takes the time from the answer.
func (t clockedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := t.next.RoundTrip(r)
	if err == nil {
		if at, wrong := http.ParseTime(answer.Header.Get("Date")); wrong == nil {
			t.clock.ahead.Store(int64(time.Until(at)))
		}
	}
	return answer, err
}

// WrappedRoundTripper lets client-go find the transport below.
func (t clockedTransport) WrappedRoundTripper() http.RoundTripper { return t.next }

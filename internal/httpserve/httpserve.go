// Package httpserve runs an HTTP server until a context ends.
//
// It owns the way a server ends (what is in progress may finish for a while, then it is
// cut off), how many connections it has, which of them is closed for a new one, and what
// becomes of a request's body that its handler leaves. It must not know what is served,
// nor who may connect.
package httpserve

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"
)

// endTimeout is how long calls in progress may take when the server is to end.
const endTimeout = 10 * time.Second

// Run lets s answer on l until ctx ends, then waits for calls in progress, at most ten
// seconds, and returns nil. Calls get a context that does not end with ctx. It closes l.
//
// At most 512 connections are open concurrently. A new one takes the place of the oldest
// that has sent nothing yet, otherwise of the oldest that is idle between calls. A
// connection is closed if its request is answered before the request's body was read to its end.
//
// The listener l decides which clients may connect. By plain TCP every client may: such a
// listener is served as by RunPublic.
func Run(ctx context.Context, s *http.Server, l net.Listener) error {
	_, plain := l.(*net.TCPListener)
	return run(ctx, s, newLimiter(l, maxConns, plain, s.ErrorLog))
}

// RunPublic is Run for a listener that lets every client in. One address has at most 128
// connections (of IPv6 the first 64 bits count), and a new one takes the place of the
// oldest whose client has not proved who it is, also if that has a call in progress: see
// Authenticated.
func RunPublic(ctx context.Context, s *http.Server, l net.Listener) error {
	return run(ctx, s, newLimiter(l, maxConns, true, s.ErrorLog))
}

func run(ctx context.Context, s *http.Server, limited *limiter) error {
	s.ConnState = limited.state
	s.BaseContext = func(net.Listener) context.Context { return context.WithoutCancel(ctx) }
	inner := s.ConnContext
	s.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		if inner != nil {
			ctx = inner(ctx, conn)
		}
		return context.WithValue(ctx, connKey{}, &carrier{limited, conn})
	}
	s.Handler = undrained(s.Handler)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(limited) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	// Clients keep connections open between calls; Shutdown closes those that are idle and
	// waits for the others.
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	err := s.Shutdown(stop)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.Close()
	}
	<-ended
	return err
}

type connKey struct{}

// carrier is the connection that a request came by.
type carrier struct {
	limiter *limiter
	conn    net.Conn
}

// Authenticated notes that the client of the request with the context has proved who it
// is. Its connection is not closed for another one while the request is in progress.
func Authenticated(ctx context.Context) {
	if c, ok := ctx.Value(connKey{}).(*carrier); ok {
		c.limiter.authenticated(c.conn)
	}
}

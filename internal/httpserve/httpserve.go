// Package httpserve runs an HTTP server until a context ends.
//
// It owns the way a server ends (what is in progress may finish for a while, then it is cut off) and how many connections it has. It must not know what is
// served, nor who may connect.
package httpserve

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"
)

// patience is how long calls in progress may take when the server is to end.
const patience = 10 * time.Second

// Run lets s answer on l until ctx ends, then waits for calls in progress, at most ten seconds, and returns nil. Calls get a
// context that does not end with ctx. It closes l. At most 512 connections are open at once; one that has no call in progress gives way to
// a new one.
func Run(ctx context.Context, s *http.Server, l net.Listener) error {
	return run(ctx, s, l, maxConns)
}

func run(ctx context.Context, s *http.Server, l net.Listener, most int) error {
	limited := newLimiter(l, most, s.ErrorLog)
	s.ConnState = limited.state
	s.BaseContext = func(net.Listener) context.Context { return context.WithoutCancel(ctx) }
	served := make(chan error, 1)
	go func() { served <- s.Serve(limited) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	// Clients keep connections open between calls; Shutdown closes those that are idle and waits for the others.
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	err := s.Shutdown(stop)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.Close()
	}
	<-served
	return err
}

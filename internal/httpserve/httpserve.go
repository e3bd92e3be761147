// Package httpserve runs an HTTP server until a context ends.
//
// It owns the way a server ends: what is in progress may finish for a while, then it is cut off. It must not know what is
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
// context that does not end with ctx. It closes l.
func Run(ctx context.Context, s *http.Server, l net.Listener) error {
	s.BaseContext = func(net.Listener) context.Context { return context.WithoutCancel(ctx) }
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
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

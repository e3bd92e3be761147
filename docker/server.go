package docker

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"
)

// Limits of the HTTP server. An engine's requests are a few kB; one network with thousands of published ports fits in 1 MiB.
const (
	maxBody        = 1 << 20
	maxHeader      = 16 << 10
	headerTimeout  = 10 * time.Second
	readTimeout    = 30 * time.Second
	idleTimeout    = 5 * time.Minute
	shutdownPeriod = 10 * time.Second
)

// Serve answers on l until ctx ends, then lets calls in progress finish and returns nil. Who may connect is l's affair
// (internal/rootsock makes listeners that only root can talk to). It closes l.
func (d *Driver) Serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler:           d.Handler(),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      readTimeout + d.timeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		BaseContext:       func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	// An engine keeps connections open between calls; Shutdown closes those that are idle and waits for the others.
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownPeriod)
	defer cancel()
	err := server.Shutdown(stop)
	if errors.Is(err, context.DeadlineExceeded) {
		err = server.Close()
	}
	<-served
	return err
}

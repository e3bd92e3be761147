package docker

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/kuryr/kuryr/internal/httpserve"
)

// Limits of the HTTP server. An engine's requests are a few kB. Those of a container with 70,000
// published ports, each of about 110 bytes, fit in maxBody.
const (
	maxBody       = 8 << 20
	maxHeader     = 16 << 10
	headerTimeout = 10 * time.Second
	readTimeout   = 30 * time.Second
	idleTimeout   = 5 * time.Minute
)

// Serve answers on l until ctx ends, then lets calls in progress finish and returns nil. Who may connect is l's affair
// (internal/rootsock makes listeners that only root can talk to). It closes l.
func (d *Driver) Serve(ctx context.Context, l net.Listener) error {
	return httpserve.Run(ctx, &http.Server{
		Handler:           d.Handler(),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      readTimeout + d.timeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
	}, l)
}

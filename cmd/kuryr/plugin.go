//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"

	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/internal/rootsock"
	"github.com/kuryr/kuryr/internal/tlsfiles"
)

// listenPlugin opens all that Docker calls the plugin by: the socket, the address, or both.
func listenPlugin(ctx context.Context, c config.Docker, log *slog.Logger) (all []net.Listener, err error) {
	defer func() {
		if err != nil {
			for _, l := range all {
				err = errors.Join(err, l.Close())
			}
			all = nil
		}
	}()
	if c.Listen != "" {
		files := tlsfiles.Files{Cert: c.TLSCert, Key: c.TLSKey, ClientCA: c.TLSClientCA, ClientNames: c.TLSClientNames}
		if len(c.TLSClientNames) == 0 {
			log.WarnContext(ctx, "every client of docker.tls_client_ca may connect", "unset", "docker.tls_client_names")
		}
		l, err := tlsfiles.Listen(ctx, strings.TrimPrefix(c.Listen, "tcp://"), files, log)
		if err != nil {
			return all, fmt.Errorf("docker.listen: %w", err)
		}
		all = append(all, l)
	}
	if c.Socket != "" {
		l, err := rootsock.Listen(c.Socket)
		if err != nil {
			return all, fmt.Errorf("docker's plugin socket: %w", err)
		}
		all = append(all, l)
	}
	return all, nil
}

// pluginAddresses are where Docker calls the plugin.
func pluginAddresses(c config.Docker) string {
	var all []string
	for _, a := range []string{c.Socket, c.Listen} {
		if a != "" {
			all = append(all, a)
		}
	}
	return strings.Join(all, ", ")
}

// Package hostports tells whether a transport port of the host is free, so that publishing one never takes it from a program
// that answers there.
//
// It owns nothing: it binds a socket and closes it at once. It must not keep a port reserved, and knows nothing of Docker.
package hostports

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/kuryr/kuryr/sdn"
)

// ErrInUse is what Free answers for a port that a program of this host has.
var ErrInUse = errors.New("a program of this host listens there")

// Free returns nil when no program of the calling process's network namespace listens at the port on any address of the
// family, and ErrInUse when one does. Protocols other than TCP and UDP are taken to be free.
func Free(ctx context.Context, protocol sdn.Protocol, v6 bool, port uint16) error {
	family, wildcard := "4", "0.0.0.0"
	if v6 {
		family, wildcard = "6", "::"
	}
	address := net.JoinHostPort(wildcard, fmt.Sprint(port))
	var config net.ListenConfig
	var err error
	switch protocol {
	case sdn.TCP:
		var l net.Listener
		if l, err = config.Listen(ctx, "tcp"+family, address); err == nil {
			return l.Close()
		}
	case sdn.UDP:
		var c net.PacketConn
		if c, err = config.ListenPacket(ctx, "udp"+family, address); err == nil {
			return c.Close()
		}
	default:
		return nil
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return ErrInUse
	case errors.Is(err, syscall.EAFNOSUPPORT), errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil // no such family here: nobody can listen
	}
	return fmt.Errorf("port %d: %w", port, err)
}

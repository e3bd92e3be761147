//go:build linux

// Package sdnotify tells the service manager how far the service is (sd_notify(3)).
//
// It owns the one datagram to the socket in NOTIFY_SOCKET. It must not decide when the service is ready, nor fail where there is no
// service manager.
package sdnotify

import (
	"errors"
	"fmt"
	"net"
	"os"
)

// What the service manager understands.
const (
	Ready    = "READY=1"
	Stopping = "STOPPING=1"
)

// Send tells state to the service manager that NOTIFY_SOCKET in the environment names; without one it does nothing.
func Send(state string) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	// A leading @ stands for the abstract name space, also in package net.
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("tell the service manager: %w", err)
	}
	_, err = conn.Write([]byte(state))
	if err = errors.Join(err, conn.Close()); err != nil {
		return fmt.Errorf("tell the service manager: %w", err)
	}
	return nil
}

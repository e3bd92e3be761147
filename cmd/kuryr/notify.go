//go:build linux

package main

import (
	"errors"
	"fmt"
	"net"
	"os"
)

// States of a service that its manager understands (sd_notify(3)).
const (
	notifyReady    = "READY=1"
	notifyStopping = "STOPPING=1"
)

// notify sends the state to the service manager that NOTIFY_SOCKET names. Without one it does
// nothing.
func notify(state string) error {
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

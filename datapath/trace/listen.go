//go:build linux

package trace

import (
	"fmt"

	"github.com/mdlayher/netlink"
	vns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// groupTrace is NFNLGRP_NFTRACE.
const groupTrace = 9

// listener hears what nftables tells of traced packets in one namespace.
type listener struct{ conn *netlink.Conn }

func openListener(ns vns.NsHandle) (*listener, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: int(ns)})
	if err == nil {
		if err = conn.JoinGroup(groupTrace); err != nil {
			_ = conn.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("listen to nftables' trace: %w", err)
	}
	return &listener{conn}, nil
}

// run gives the steps until the socket is closed.
func (l *listener) run(site int, heard func(step)) error {
	for {
		messages, err := l.conn.Receive()
		if err != nil {
			return err
		}
		for _, m := range messages {
			if s, ok, err := parseStep(m); err == nil && ok {
				s.site = site
				heard(s)
			}
		}
	}
}

func (l *listener) close() error { return l.conn.Close() }

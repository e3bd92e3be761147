//go:build linux

package firewall

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// quiet is how long a firewall must have been left alone before the doors are looked at:
	// its owner writes in many steps.
	quiet = 50 * time.Millisecond
	// atMost is the longest a door may stay shut under changes that never pause; it also
	// bounds the work, to one look in that time.
	atMost = 500 * time.Millisecond
	// lookTimeout is the deadline of one look; firewalld does not answer while it reloads.
	lookTimeout = 30 * time.Second
	// retries is how often a look that failed is repeated, after 1, 2, 4 … seconds; then
	// only the next event helps.
	retries = 5
)

// Watch opens the doors, and again whenever a firewall that concerns us was changed, until
// ctx ends; it returns nil then. It also turns a switch that EnableForwarding turned on, or
// found on, on again when another program turns it off. Another error means that the kernel
// does not let Kuryr listen.
//
// It sleeps until the kernel announces a change (nftables' netlink group) of a filter table
// or of firewalld's table. That covers `iptables -F`, Docker's start, `ufw reload` and
// firewalld's start and reload alike, for each of them rewrites its table then; so no
// connection to the message bus is kept. Our own repairs are announced too: the look that
// follows finds nothing to do. Changes by the legacy iptables are not announced; Check says
// so.
//
// When something was taken from Kuryr's own table (`nft flush ruleset`, a restart of
// nftables.service), Config.TableLost is called first.
func (h *Host) Watch(ctx context.Context) error {
	monitor, err := openMonitor()
	if err != nil {
		return err
	}
	switches, err := openSwitches()
	if err != nil {
		_ = monitor.Close()
		return err
	}
	changed, lost := make(chan struct{}, 1), make(chan struct{}, 1)
	switched := make(chan struct{}, 1)
	done := make(chan error, 2)
	go func() { done <- monitor.run(changed, lost) }()
	go func() { done <- switches.run(switched) }()
	stop := func(running int) {
		_, _ = monitor.Close(), switches.Close()
		for range running {
			<-done
		}
	}

	var timer debounce
	defer timer.stop()
	failed, tableLost, turned := 0, false, true
	for {
		if turned {
			h.keepForwarding(ctx)
		}
		if tableLost && h.tableLost != nil {
			h.log.Warn("restoring Kuryr's nftables table", "table", ownTable)
			h.tableLost(ctx)
		}
		tableLost, turned = false, false
		failed = h.look(ctx, failed)
		if failed > 0 && failed <= retries {
			timer.after(time.Second << (failed - 1))
		}
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				stop(2)
				return nil
			case err := <-done:
				stop(1)
				return fmt.Errorf("listen for changes of firewalls: %w", err)
			case <-changed:
				failed = 0
				timer.event(time.Now())
			case <-lost:
				tableLost = true
				timer.event(time.Now())
			case <-switched:
				turned = true
				timer.event(time.Now())
			case <-timer.fired():
				waiting = false
			}
		}
		timer.stop()
	}
}

// keepForwarding turns the switches on again that EnableForwarding was asked for.
func (h *Host) keepForwarding(ctx context.Context) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.enable(ctx, h.keep4, h.keep6); err != nil && ctx.Err() == nil {
		h.log.Warn("keep host forwarding on", "err", err)
	}
}

// look opens the doors, and returns how many looks have failed in a row.
func (h *Host) look(ctx context.Context, failed int) int {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	if _, err := h.OpenDoors(ctx); err != nil && ctx.Err() != context.Canceled {
		h.log.Warn("doors through firewalls are not all open", "err", err)
		return failed + 1
	}
	return 0
}

// debounce fires once some time after the last of many events.
type debounce struct {
	timer *time.Timer
	first time.Time // the first event since it fired last; zero when there was none
}

func (d *debounce) event(now time.Time) {
	if d.first.IsZero() {
		d.first = now
	}
	d.after(min(quiet, max(0, atMost-now.Sub(d.first))))
}

func (d *debounce) after(wait time.Duration) {
	if d.timer == nil {
		d.timer = time.NewTimer(wait)
		return
	}
	d.timer.Reset(wait)
}

// fired is nil, so never ready, when no timer runs.
func (d *debounce) fired() <-chan time.Time {
	if d.timer == nil {
		return nil
	}
	return d.timer.C
}

func (d *debounce) stop() {
	if d.timer != nil {
		d.timer.Stop()
	}
	d.timer, d.first = nil, time.Time{}
}

// monitor is a socket in nftables' notification group. It is read here, not by the
// nftables library, because that takes every rule of every table apart, of which we need
// a name.
type monitor struct{ *os.File }

func openMonitor() (*monitor, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open a netfilter socket: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("bind a netfilter socket: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, unix.NFNLGRP_NFTABLES); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("join the nftables notification group: %w", err)
	}
	return &monitor{os.NewFile(uintptr(fd), "nftables notifications")}, nil
}

// run puts a token into changed or lost, which hold one each, when what it hears concerns
// doors or our own table; it returns when the socket is closed or broken.
func (m *monitor) run(changed, lost chan<- struct{}) error {
	buf := make([]byte, 64<<10)
	for {
		n, err := m.Read(buf)
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return err
		}
		// ENOBUFS: there was more than the socket holds, so we do not know what we missed. A
		// full buffer: likewise.
		doors, own := true, true
		if err == nil && n < len(buf) {
			doors, own = concerns(buf[:n])
		}
		for _, to := range []struct {
			channel chan<- struct{}
			wanted  bool
		}{{changed, doors}, {lost, own}} {
			if !to.wanted {
				continue
			}
			select {
			case to.channel <- struct{}{}:
			default: // one is waiting already
			}
		}
	}
}

// switches is a socket in the groups in which the kernel announces changes of forwarding.
type switches struct{ *os.File }

func openSwitches() (*switches, error) {
	const kind = unix.SOCK_RAW | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	fd, err := unix.Socket(unix.AF_NETLINK, kind, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a routing socket: %w", err)
	}
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	for _, group := range []int{unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF} {
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group)
		}
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("listen for changes of forwarding: %w", err)
	}
	return &switches{os.NewFile(uintptr(fd), "forwarding notifications")}, nil
}

// run puts a token into turned, which holds one, when a host-wide switch was turned; it
// returns when the socket is closed or broken.
func (s *switches) run(turned chan<- struct{}) error {
	buf := make([]byte, 64<<10)
	for {
		n, err := s.Read(buf)
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return err
		}
		if err == nil && n < len(buf) && !turnsSwitch(buf[:n]) {
			continue
		}
		select {
		case turned <- struct{}{}:
		default:
		}
	}
}

// turnsSwitch reports whether one of the netlink messages is about forwarding of all links.
// Messages about one link come with every link that is made. A message that is not
// understood counts.
func turnsSwitch(b []byte) bool {
	const header, confHeader, attrHeader, ifindex, forwarding = unix.NLMSG_HDRLEN, 4, 4, 1, 2
	const all = -1
	for len(b) >= header {
		size := int(binary.NativeEndian.Uint32(b))
		if size < header+confHeader || size > len(b) {
			return true
		}
		kind, attrs := binary.NativeEndian.Uint16(b[4:]), b[header+confHeader:size]
		b = b[min((size+3)&^3, len(b)):]
		if kind != unix.RTM_NEWNETCONF {
			continue
		}
		host, turned := false, false
		for len(attrs) >= attrHeader {
			length := int(binary.NativeEndian.Uint16(attrs))
			if length < attrHeader+4 || length > len(attrs) {
				return true
			}
			switch binary.NativeEndian.Uint16(attrs[2:]) {
			case ifindex:
				host = int32(binary.NativeEndian.Uint32(attrs[attrHeader:])) == all
			case forwarding:
				turned = true
			}
			attrs = attrs[min((length+3)&^3, len(attrs)):]
		}
		if host && turned {
			return true
		}
	}
	return false
}

// concerns reports whether one of the netlink messages is about a table, chain or rule of
// an iptables filter table or of firewalld's, and whether one removes a table, chain or
// rule of ours. What it cannot take apart concerns us in both ways.
func concerns(b []byte) (doors, own bool) {
	const header, genHeader, attrHeader = unix.NLMSG_HDRLEN, 4, 4
	for len(b) >= header {
		size := int(binary.NativeEndian.Uint32(b))
		if size < header || size > len(b) {
			return true, true
		}
		kind := binary.NativeEndian.Uint16(b[4:])
		body := b[header:size]
		b = b[min((size+3)&^3, len(b)):]
		if kind>>8 != unix.NFNL_SUBSYS_NFTABLES {
			continue
		}
		switch kind & 0xff {
		case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE, unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN,
			unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		default:
			continue
		}
		if len(body) < genHeader+attrHeader {
			return true, true
		}
		// In all three kinds the first attribute is number 1, the table's name.
		attr := body[genHeader:]
		length := int(binary.NativeEndian.Uint16(attr))
		if length <= attrHeader || length > len(attr) || binary.NativeEndian.Uint16(attr[2:])&^unix.NLA_F_NESTED != 1 {
			return true, true
		}
		family, table := body[0], string(attr[attrHeader:length-1])
		switch kind & 0xff {
		case unix.NFT_MSG_DELTABLE, unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_DELRULE:
			own = own || table == ownTable && family == unix.NFPROTO_INET
		}
		doors = doors || table == "firewalld" ||
			table == "filter" && (family == unix.NFPROTO_IPV4 || family == unix.NFPROTO_IPV6)
	}
	return doors, own
}

//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// nftWatch hears what the kernel of one host tells of changes of its rules, when they have been made. It is there while single changes are measured alone: a
// kernel that somebody listens to writes a message for each element.
type nftWatch struct {
	conn *netlink.Conn

	mu     sync.Mutex
	needle []byte
	found  chan time.Time
}

// watchNFT is called in the host's namespace.
func watchNFT() (*nftWatch, error) {
	const groupNFT, buffer = 7, 64 << 20
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	if err := errors.Join(conn.SetReadBuffer(buffer), conn.JoinGroup(groupNFT)); err != nil {
		conn.Close()
		return nil, fmt.Errorf("nftables: %w", err)
	}
	w := &nftWatch{conn: conn}
	go w.read()
	return w, nil
}

func (w *nftWatch) read() {
	for {
		messages, err := w.conn.Receive()
		now := time.Now()
		if errors.Is(err, unix.ENOBUFS) {
			continue
		}
		if err != nil {
			return
		}
		w.mu.Lock()
		for _, m := range messages {
			if w.found != nil && bytes.Contains(m.Data, w.needle) {
				w.found <- now
				w.found = nil
			}
		}
		w.mu.Unlock()
	}
}

// expect returns a function that waits until the kernel has told of a change of something with this address, and says when.
func (w *nftWatch) expect(a netip.Addr) func(context.Context) (time.Time, error) {
	found := make(chan time.Time, 1)
	w.mu.Lock()
	w.needle, w.found = a.AsSlice(), found
	w.mu.Unlock()
	return func(ctx context.Context) (time.Time, error) {
		select {
		case at := <-found:
			return at, nil
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("the kernel was told nothing of %s: %w", a, ctx.Err())
		}
	}
}

func (w *nftWatch) close() { w.conn.Close() }

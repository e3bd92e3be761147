package tlsfiles

import (
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"
)

// Limits of a listener. An engine keeps a few connections; all the others are strangers,
// who must not crowd it out. Where any client is let in the server behind chooses whom to
// close (package httpserve), for which it must get more than it keeps.
const (
	handshakeTime  = 10 * time.Second
	maxHandshakes  = 64
	maxConnections = 256
	maxAnyClient   = 1024
	// complaintPause is the least time between two log lines about strangers.
	complaintPause = time.Second
)

// Listen accepts TCP connections at address and hands out those whose client has proved
// who it is, or any that speak TLS (Files.AnyClient). Handshakes run beside one another
// and are cut off after ten seconds; when sixty-four are in progress a new one cuts off the
// oldest. Beyond 256 connections handed out and not closed yet (1024 of any clients),
// further ones wait.
func Listen(ctx context.Context, address string, f Files, log *slog.Logger) (net.Listener, error) {
	config, err := ServerConfig(f, log)
	if err != nil {
		return nil, err
	}
	inner, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	most := maxConnections
	if f.AnyClient {
		most = maxAnyClient
	}
	l := &listener{
		Listener: inner, config: config, log: log, ready: make(chan net.Conn), ended: make(chan struct{}),
		slots: make(chan struct{}, most), underway: list.New(),
	}
	go l.run()
	return l, nil
}

type listener struct {
	net.Listener
	config *tls.Config
	log    *slog.Logger
	ready  chan net.Conn
	slots  chan struct{} // one for each connection handed out

	once  sync.Once
	ended chan struct{}
	cause error // set before ended is closed

	mu        sync.Mutex
	underway  *list.List // of net.Conn, the oldest first
	complaint time.Time  // when a stranger was last logged
}

// Accept returns the next connection whose handshake is done.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.ready:
		return conn, nil
	case <-l.ended:
		return nil, l.cause
	}
}

// Close stops accepting and cuts handshakes off.
func (l *listener) Close() error {
	err := l.Listener.Close()
	l.end(net.ErrClosed)
	l.mu.Lock()
	defer l.mu.Unlock()
	for e := l.underway.Front(); e != nil; e = e.Next() {
		_ = e.Value.(net.Conn).Close()
	}
	return err
}

func (l *listener) end(cause error) {
	l.once.Do(func() { l.cause = cause; close(l.ended) })
}

func (l *listener) run() {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			if temporary(err) { // too many open files: wait, as net/http does
				if !l.pause(100 * time.Millisecond) {
					return
				}
				continue
			}
			l.end(err)
			return
		}
		entry := l.begin(conn)
		go l.handshake(conn, entry)
	}
}

// begin notes a handshake that starts, and makes room for it.
func (l *listener) begin(conn net.Conn) *list.Element {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.underway.Len() >= maxHandshakes {
		oldest := l.underway.Front()
		l.underway.Remove(oldest)
		_ = oldest.Value.(net.Conn).Close()
	}
	return l.underway.PushBack(conn)
}

func (l *listener) handshake(conn net.Conn, entry *list.Element) {
	secure := tls.Server(conn, l.config)
	ctx, cancel := context.WithTimeout(context.Background(), handshakeTime)
	err := secure.HandshakeContext(ctx)
	cancel()
	l.mu.Lock()
	l.underway.Remove(entry) // nothing, if it was cut off
	l.mu.Unlock()
	if err != nil {
		l.warn(conn.RemoteAddr(), err)
		_ = conn.Close()
		return
	}
	if !l.take() {
		_ = conn.Close()
		return
	}
	counted := &counted{Conn: secure, release: func() { <-l.slots }}
	select {
	case l.ready <- counted:
	case <-l.ended:
		_ = counted.Close()
	}
}

// take waits for a slot, and reports whether it got one.
func (l *listener) take() bool {
	timer := time.NewTimer(handshakeTime)
	defer timer.Stop()
	select {
	case l.slots <- struct{}{}:
		return true
	case <-timer.C:
		return false
	case <-l.ended:
		return false
	}
}

// warn logs refused clients, at most once a second, so that they cannot fill the log.
func (l *listener) warn(from net.Addr, err error) {
	l.mu.Lock()
	now := time.Now()
	quiet := now.Sub(l.complaint) < complaintPause
	if !quiet {
		l.complaint = now
	}
	l.mu.Unlock()
	if !quiet && !errors.Is(err, net.ErrClosed) {
		l.log.Warn("a connection was refused", "from", fmt.Sprint(from), "err", err)
	}
}

// pause waits, and reports whether the listener is still open.
func (l *listener) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.ended:
		return false
	}
}

func temporary(err error) bool {
	var t interface{ Temporary() bool }
	return errors.As(err, &t) && t.Temporary()
}

// counted gives its slot back when it is closed, once.
type counted struct {
	net.Conn
	once    sync.Once
	release func()
}

// Close ends the connection.
func (c *counted) Close() error {
	err := c.Conn.Close()
	c.once.Do(c.release)
	return err
}

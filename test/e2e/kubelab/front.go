package kubelab

import (
	"context"
	"io"
	"net"
	"sync"
	"time"
)

// Front stands before the API server, passes bytes on, and may do so late or not at all.
// Its certificates are the server's own.
type Front struct {
	listener net.Listener
	dial     func(context.Context) (net.Conn, error)
	ctx      context.Context
	close    context.CancelFunc

	mu    sync.Mutex
	delay time.Duration
	cut   bool
	conns map[net.Conn]struct{}
}

func newFront(listener net.Listener, dial func(context.Context) (net.Conn, error)) *Front {
	f := &Front{listener: listener, dial: dial, conns: map[net.Conn]struct{}{}}
	f.ctx, f.close = context.WithCancel(context.Background())
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go f.serve(conn)
		}
	}()
	return f
}

// Endpoint is the server's URL by way of the front.
func (f *Front) Endpoint() string { return "https://" + f.listener.Addr().String() }

// Delay has everything that clients say come to the server so much later, from now on.
func (f *Front) Delay(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.delay = d
}

// Cut ends every connection, and each new one at once, until Mend.
func (f *Front) Cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut = true
	for conn := range f.conns {
		conn.Close()
	}
}

// Mend ends Cut.
func (f *Front) Mend() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut = false
}

// Close ends the front and every connection.
func (f *Front) Close() {
	f.close()
	f.listener.Close()
	f.Cut()
}

// keep notes a connection for Cut; it is false where there is to be none.
func (f *Front) keep(conn net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cut {
		return false
	}
	f.conns[conn] = struct{}{}
	return true
}

func (f *Front) serve(client net.Conn) {
	defer client.Close()
	if !f.keep(client) {
		return
	}
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.conns, client)
	}()
	server, err := f.dial(f.ctx)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		_, _ = io.Copy(client, server)
		client.Close()
	}()
	f.forward(server, client)
}

// late is something said, and when it is to arrive.
type late struct {
	text []byte
	at   time.Time
}

// forward passes on what the client says: all of it late by the same time, so that many
// requests at once are not late by their sum.
func (f *Front) forward(server io.Writer, client io.Reader) {
	said := make(chan late, 4096)
	go func() {
		defer close(said)
		for {
			text := make([]byte, 16<<10)
			n, err := client.Read(text)
			if n > 0 {
				f.mu.Lock()
				at := time.Now().Add(f.delay)
				f.mu.Unlock()
				select {
				case said <- late{text[:n], at}:
				case <-f.ctx.Done():
					return
				}
			}
			if err != nil {
				return
			}
		}
	}()
	for s := range said {
		if wait := time.Until(s.at); wait > 0 {
			select {
			case <-time.After(wait):
			case <-f.ctx.Done():
				return
			}
		}
		if _, err := server.Write(s.text); err != nil {
			return
		}
	}
}

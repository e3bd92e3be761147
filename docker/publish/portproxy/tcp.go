//go:build linux

package portproxy

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"

	"github.com/kuryr/kuryr/sdn"
)

// tcpCarrier is a published TCP port.
type tcpCarrier struct {
	proxy    *Proxy
	forward  Forward
	listener *net.TCPListener
	stopped  chan struct{}

	mu    sync.Mutex
	conns map[*net.TCPConn]bool
}

// network names a protocol for package net. The family keeps an IPv6 socket from taking
// the IPv4 port too.
func network(f Forward) string {
	name := "tcp"
	if f.Protocol == sdn.UDP {
		name = "udp"
	}
	if f.Listen.Addr().Is4() {
		return name + "4"
	}
	return name + "6"
}

func (p *Proxy) listenTCP(f Forward) (carrier, error) {
	var config net.ListenConfig
	config.SetMultipathTCP(false) // the kernel splices plain TCP
	l, err := config.Listen(context.Background(), network(f), f.Listen.String())
	if err != nil {
		return nil, err
	}
	return &tcpCarrier{
		proxy: p, forward: f, listener: l.(*net.TCPListener), stopped: make(chan struct{}),
		conns: map[*net.TCPConn]bool{},
	}, nil
}

func (t *tcpCarrier) run() {
	for {
		client, err := t.listener.AcceptTCP()
		if err == nil {
			go t.carry(client)
			continue
		}
		if errors.Is(err, net.ErrClosed) || !pause(t.stopped) {
			return
		}
	}
}

func (t *tcpCarrier) stop() {
	close(t.stopped)
	_ = t.listener.Close()
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.conns {
		abort(c)
	}
	t.conns = nil
}

// keep notes a connection, to be closed by stop. It tells whether there is still somebody
// to keep it.
func (t *tcpCarrier) keep(c *net.TCPConn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.conns == nil {
		return false
	}
	t.conns[c] = true
	return true
}

func (t *tcpCarrier) drop(c *net.TCPConn) {
	t.mu.Lock()
	delete(t.conns, c)
	t.mu.Unlock()
	_ = c.Close()
}

// abort closes a connection with a reset: the other end is not to take what it has for all.
func abort(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// carry is one connection. The client hears of a container that does not answer by a reset.
func (t *tcpCarrier) carry(client *net.TCPConn) {
	if !t.keep(client) || !t.proxy.enter("tcp") {
		abort(client)
		t.drop(client)
		return
	}
	defer t.proxy.leave("tcp")
	defer t.drop(client)
	conn, err := dial(t.forward)
	if err != nil {
		t.proxy.unreached(t.forward, err)
		abort(client)
		return
	}
	server := conn.(*net.TCPConn)
	defer t.drop(server)
	if !t.keep(server) {
		abort(server)
		abort(client)
		return
	}
	var both sync.WaitGroup
	both.Go(func() { flow(server, client) })
	both.Go(func() { flow(client, server) })
	both.Wait()
}

// flow copies one direction, which the kernel does by itself (splice), and passes its end
// on; the other direction may go on after that.
func flow(to, from *net.TCPConn) {
	if _, err := io.Copy(to, from); err != nil {
		abort(to)
		abort(from)
		return
	}
	_ = to.CloseWrite() // fails only where the other direction has ended both
}

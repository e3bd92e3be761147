package httpserve

import (
	"container/list"
	"log"
	"net"
	"net/http"
	"sync"
	"time"
)

// maxConns is how many connections a server has at once. A client has one for each call in progress, and a few that are idle; what a
// connection holds before its call is a few ten kB.
const maxConns = 512

// quiet is the least time between two lines in the log about too many connections.
const quiet = time.Minute

// limiter keeps a server's connections below a number. A new one takes the place of the oldest that has sent nothing yet, or else of
// the oldest that is idle between calls, so that connections which only lie there keep nobody out. Where all have a call in progress the
// next waits in the kernel: a call has an end.
type limiter struct {
	net.Listener
	max int
	log *log.Logger

	mu      sync.Mutex
	changed *sync.Cond
	fresh   *list.List // connections that have sent nothing, the oldest first
	idle    *list.List
	conns   map[net.Conn]place
	closed  bool
	refused int // connections closed since the last line in the log
	told    time.Time
}

// place is where a connection stands; a connection with a call in progress is in no list.
type place struct {
	in      *list.List
	element *list.Element
}

func newLimiter(l net.Listener, most int, logger *log.Logger) *limiter {
	if logger == nil {
		logger = log.Default()
	}
	m := &limiter{Listener: l, max: most, log: logger, fresh: list.New(), idle: list.New(), conns: map[net.Conn]place{}}
	m.changed = sync.NewCond(&m.mu)
	return m
}

// Accept returns the next connection when there is room for it.
func (m *limiter) Accept() (net.Conn, error) {
	conn, err := m.Listener.Accept()
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.conns) >= m.max && !m.closed {
		if !m.evict() {
			m.tell("all have a call in progress")
			m.changed.Wait()
		}
	}
	if m.closed {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	m.put(conn, m.fresh)
	return conn, nil
}

// evict closes the connection that is missed least. It tells whether there was one.
func (m *limiter) evict() bool {
	oldest := m.fresh.Front()
	if oldest == nil {
		oldest = m.idle.Front()
	}
	if oldest == nil {
		return false
	}
	conn, _ := oldest.Value.(net.Conn)
	m.drop(conn)
	_ = conn.Close()
	m.refused++
	m.tell("those without a call are closed")
	return true
}

// tell writes to the log, seldom.
func (m *limiter) tell(what string) {
	if now := time.Now(); m.told.IsZero() || now.Sub(m.told) >= quiet {
		m.log.Printf("too many connections to %s: %d at once; %s (%d so far)", m.Addr(), m.max, what, m.refused)
		m.told = now
	}
}

func (m *limiter) put(conn net.Conn, in *list.List) {
	m.take(conn)
	p := place{in: in}
	if in != nil {
		p.element = in.PushBack(conn)
	}
	m.conns[conn] = p
	if in != nil {
		m.changed.Broadcast() // one that waits may take its place
	}
}

func (m *limiter) take(conn net.Conn) {
	if p := m.conns[conn]; p.in != nil {
		p.in.Remove(p.element)
	}
}

func (m *limiter) drop(conn net.Conn) {
	m.take(conn)
	delete(m.conns, conn)
	m.changed.Broadcast()
}

// state is the server's ConnState hook.
func (m *limiter) state(conn net.Conn, s http.ConnState) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ours := m.conns[conn]; !ours {
		return // closed here already
	}
	switch s {
	case http.StateActive:
		m.put(conn, nil)
	case http.StateIdle:
		m.put(conn, m.idle)
	case http.StateClosed, http.StateHijacked:
		m.drop(conn)
	case http.StateNew: // Accept has noted it
	}
}

// Close stops listening, and waiting for room.
func (m *limiter) Close() error {
	m.mu.Lock()
	m.closed = true
	m.changed.Broadcast()
	m.mu.Unlock()
	return m.Listener.Close()
}

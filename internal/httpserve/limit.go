package httpserve

import (
	"container/list"
	"log"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// maxConns is how many connections a server has concurrently. A client has one for each call
// in progress, and a few that are idle; what a connection holds before its call is a few
// ten kB.
const maxConns = 512

// shareOfAddress is the part of them that one address may have.
const shareOfAddress = 4

// quiet is the least time between two lines in the log about too many connections.
const quiet = time.Minute

// limiter keeps a server's connections, and those of each address, below a number. A new
// one takes the place of the oldest stranger, whatever that does, otherwise of the oldest
// that is idle between calls: so neither connections that only lie there nor strangers'
// requests that never end keep other clients out. Where all have a known client's call in
// progress the next waits in the kernel: a call has an end.
type limiter struct {
	net.Listener
	max        int
	perAddress int
	public     bool // clients are known when they have proved who they are, not from their first request on
	log        *log.Logger

	mu        sync.Mutex
	changed   *sync.Cond
	strangers *list.List // connections whose clients have proved nothing, by when that began
	idle      *list.List // of known clients, without a call
	conns     map[net.Conn]*place
	addresses map[string]int
	closed    bool
	refused   int // connections closed since the last line in the log
	told      time.Time
}

// place is where a connection stands; that of a known client's call in progress is in no
// list.
type place struct {
	in      *list.List
	element *list.Element
	address string // "" where addresses are not counted
	known   bool   // the client of the last request, or of the one in progress
}

func newLimiter(l net.Listener, most int, public bool, logger *log.Logger) *limiter {
	if logger == nil {
		logger = log.Default()
	}
	m := &limiter{
		Listener: l, max: most, perAddress: max(most/shareOfAddress, 1), public: public, log: logger,
		strangers: list.New(), idle: list.New(), conns: map[net.Conn]*place{}, addresses: map[string]int{},
	}
	m.changed = sync.NewCond(&m.mu)
	return m
}

// Accept returns the next connection when there is room for it.
func (m *limiter) Accept() (net.Conn, error) {
	for {
		conn, err := m.Listener.Accept()
		if err != nil {
			return nil, err
		}
		admitted, err := m.admit(conn)
		if err != nil {
			_ = conn.Close()
			return nil, err
		}
		if admitted {
			return conn, nil
		}
		shut(conn)
	}
}

// admit makes room for a connection. It reports false where its address has too many
// calls in progress.
func (m *limiter) admit(conn net.Conn) (bool, error) {
	address := ""
	if m.public {
		address = addressOf(conn.RemoteAddr())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	mine := func(p *place) bool { return p.address == address }
	if address != "" && m.addresses[address] >= m.perAddress && !m.evict(mine) {
		m.refused++
		m.tell("one address has its share, all with a call in progress")
		return false, nil
	}
	for len(m.conns) >= m.max && !m.closed {
		if !m.evict(func(*place) bool { return true }) {
			m.tell("all have a call in progress")
			m.changed.Wait()
		}
	}
	if m.closed {
		return false, net.ErrClosed
	}
	m.conns[conn] = &place{address: address}
	m.addresses[address]++
	m.put(conn, m.strangers)
	return true, nil
}

// evict closes the connection that is missed least of those that fit. It reports whether
// there was one.
func (m *limiter) evict(fits func(*place) bool) bool {
	for _, l := range []*list.List{m.strangers, m.idle} {
		for e := l.Front(); e != nil; e = e.Next() {
			conn, _ := e.Value.(net.Conn)
			if !fits(m.conns[conn]) {
				continue
			}
			m.drop(conn)
			shut(conn)
			m.refused++
			m.tell("those of unknown clients and those without a call are closed")
			return true
		}
	}
	return false
}

// shut closes a connection, and does not wait for that: TLS tells its peer first.
func shut(conn net.Conn) {
	go func() { _ = conn.Close() }()
}

// tell writes to the log, seldom.
func (m *limiter) tell(what string) {
	if now := time.Now(); m.told.IsZero() || now.Sub(m.told) >= quiet {
		m.log.Printf("too many connections to %s: %d open; %s (%d so far)", m.Addr(), m.max, what, m.refused)
		m.told = now
	}
}

// put moves a connection to a list, or to none.
func (m *limiter) put(conn net.Conn, in *list.List) {
	p := m.conns[conn]
	if p.in == in {
		return // strangers stay in the order in which they came
	}
	m.take(p)
	if p.in = in; in != nil {
		p.element = in.PushBack(conn)
		m.changed.Broadcast() // one that waits may take its place
	}
}

func (m *limiter) take(p *place) {
	if p.in != nil {
		p.in.Remove(p.element)
		p.in, p.element = nil, nil
	}
}

func (m *limiter) drop(conn net.Conn) {
	p := m.conns[conn]
	m.take(p)
	delete(m.conns, conn)
	if m.addresses[p.address]--; m.addresses[p.address] == 0 {
		delete(m.addresses, p.address)
	}
	m.changed.Broadcast()
}

// state is the server's ConnState hook.
func (m *limiter) state(conn net.Conn, s http.ConnState) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.conns[conn]
	if p == nil {
		return // closed here already
	}
	switch s {
	case http.StateActive:
		p.known = !m.public
		m.sort(conn, p, nil)
	case http.StateIdle:
		m.sort(conn, p, m.idle)
	case http.StateClosed, http.StateHijacked:
		m.drop(conn)
	case http.StateNew: // Accept has noted it
	}
}

// sort puts the connection of a known client where it is said, and that of another among
// the strangers.
func (m *limiter) sort(conn net.Conn, p *place, known *list.List) {
	if !p.known {
		known = m.strangers
	}
	m.put(conn, known)
}

// authenticated notes that the client of the call in progress is known.
func (m *limiter) authenticated(conn net.Conn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.conns[conn]; p != nil {
		p.known = true
		m.put(conn, nil)
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

func addressOf(remote net.Addr) string {
	tcp, ok := remote.(*net.TCPAddr)
	if !ok {
		return ""
	}
	return AddressOf(tcp.AddrPort().Addr())
}

// AddressOf is what the clients of one machine have in common: their IPv4 address, or the
// first 64 bits of their IPv6 address.
func AddressOf(a netip.Addr) string {
	a = a.Unmap().WithZone("")
	if a.Is4() {
		return a.String()
	}
	p, err := a.Prefix(64)
	if err != nil {
		return a.String()
	}
	return p.String()
}

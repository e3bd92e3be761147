//go:build linux

// Package portproxy publishes ports of containers on the host where the SDN cannot: it
// listens on the host and dials from within the container's own network namespace, so it
// needs neither a route from the host to the container nor a rule in any firewall.
//
// It owns the listening sockets and the connections of one process and nothing on disk:
// what is to be published after a restart, its user tells it again. It must not know of
// Docker or of an SDN. What a container sees as the source is its own address, not the
// client's: that is the price of a proxy. TCP and UDP are carried; connections end with
// the process.
package portproxy

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/internal/hostports"
	"github.com/kuryr/kuryr/sdn"
)

// The bounds of a Proxy unless its Config says otherwise.
const (
	DefaultConnections = 16384            // TCP connections and UDP flows at once
	DefaultIdle        = 90 * time.Second // after which a UDP flow is over, as in Docker's own proxy
	// DialTime is how long a container may take to accept a connection.
	DialTime = 10 * time.Second
)

// ErrProtocol says that a protocol other than TCP and UDP was asked for.
var ErrProtocol = errors.New("only TCP and UDP can be published by the proxy of this host")

// ErrNoFamily says that the host has no IPv6, or no IPv4.
var ErrNoFamily = errors.New("this host has no addresses of that family")

// Forward leads a port of the host to one of a container.
type Forward struct {
	Protocol sdn.Protocol
	// Listen is the host's; the unspecified address is every one of its family.
	Listen netip.AddrPort
	// Namespace is the path of the container's network namespace. It is opened for each
	// connection, so that a proxy keeps no namespace alive.
	Namespace string
	// Target is the container's own address and port, of either family.
	Target netip.AddrPort
}

// Config is what a Proxy is made of.
type Config struct {
	Connections int           // 0: DefaultConnections
	Idle        time.Duration // 0: DefaultIdle
	Logger      *slog.Logger  // nil: slog.Default
}

// Proxy carries what is published. It is a prometheus.Collector. All methods may be
// called at once from many goroutines.
type Proxy struct {
	idle    time.Duration
	log     *slog.Logger
	room    chan struct{} // a place for each connection and flow
	open    *prometheus.GaugeVec
	total   *prometheus.CounterVec
	refused *prometheus.CounterVec

	mu     sync.Mutex
	owners map[string]map[Forward]carrier
	ports  map[hostPort][]netip.Addr // where each is published
	closed bool
}

// hostPort is a port of the host, on whichever address.
type hostPort struct {
	protocol sdn.Protocol
	port     uint16
}

func portOf(f Forward) hostPort { return hostPort{f.Protocol, f.Listen.Port()} }

// carrier is one Forward at work.
type carrier interface {
	// run carries until stop was called.
	run()
	// stop closes the listening socket and all connections. It does not wait for run.
	stop()
}

// New makes a Proxy that publishes nothing yet.
func New(c Config) *Proxy {
	if c.Connections <= 0 {
		c.Connections = DefaultConnections
	}
	if c.Idle <= 0 {
		c.Idle = DefaultIdle
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return &Proxy{
		idle: c.Idle, log: c.Logger, room: make(chan struct{}, c.Connections), owners: map[string]map[Forward]carrier{},
		ports: map[hostPort][]netip.Addr{},
		open: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kuryr_proxy_connections",
			Help: "TCP connections and UDP flows that the proxy of published ports carries, by protocol.",
		}, []string{"protocol"}),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kuryr_proxy_connections_total",
			Help: "TCP connections and UDP flows that the proxy of published ports has carried, by " +
				"protocol.",
		}, []string{"protocol"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kuryr_proxy_refused_total",
			Help: "Connections and flows that the proxy of published ports could not carry, by why " +
				"(full, container).",
		}, []string{"why"}),
	}
}

// Describe is prometheus.Collector's.
func (p *Proxy) Describe(ch chan<- *prometheus.Desc) {
	p.open.Describe(ch)
	p.total.Describe(ch)
	p.refused.Describe(ch)
}

// Collect is prometheus.Collector's.
func (p *Proxy) Collect(ch chan<- prometheus.Metric) {
	p.open.Collect(ch)
	p.total.Collect(ch)
	p.refused.Collect(ch)
}

// Start publishes for an owner, who may have published the same already. The errors are
// hostports' ErrHeld for what another owner has, ErrInUse, ErrNoAddress and ErrNoFiles,
// and this package's ErrNoFamily and ErrProtocol.
func (p *Proxy) Start(owner string, f Forward) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return net.ErrClosed
	}
	if p.owners[owner][f] != nil {
		return nil
	}
	if p.held(f) {
		return hostports.ErrHeld
	}
	c, err := p.listen(f)
	if err != nil {
		return explain(f, err)
	}
	if p.owners[owner] == nil {
		p.owners[owner] = map[Forward]carrier{}
	}
	p.owners[owner][f] = c
	p.ports[portOf(f)] = append(p.ports[portOf(f)], f.Listen.Addr())
	go c.run()
	return nil
}

// held tells whether a port of the host is published already, as bind(2) sees it.
func (p *Proxy) held(f Forward) bool {
	a := f.Listen.Addr()
	return slices.ContainsFunc(p.ports[portOf(f)], func(b netip.Addr) bool {
		return a.Is6() == b.Is6() && (a == b || a.IsUnspecified() || b.IsUnspecified())
	})
}

// Has reports whether an owner has published something.
func (p *Proxy) Has(owner string, f Forward) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.owners[owner][f] != nil
}

func (p *Proxy) listen(f Forward) (carrier, error) {
	switch f.Protocol {
	case sdn.TCP:
		return p.listenTCP(f)
	case sdn.UDP:
		return p.listenUDP(f)
	}
	return nil, ErrProtocol
}

// Stop ends one publication of an owner, with its connections; one that he does not have is fine.
func (p *Proxy) Stop(owner string, f Forward) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.owners[owner][f]; c != nil {
		c.stop()
		delete(p.owners[owner], f)
		left := slices.DeleteFunc(p.ports[portOf(f)], func(a netip.Addr) bool { return a == f.Listen.Addr() })
		if p.ports[portOf(f)] = left; len(left) == 0 {
			delete(p.ports, portOf(f))
		}
	}
	if len(p.owners[owner]) == 0 {
		delete(p.owners, owner)
	}
}

// StopAll ends all publications of an owner.
func (p *Proxy) StopAll(owner string) {
	for _, f := range p.Forwards(owner) {
		p.Stop(owner, f)
	}
}

// Forwards are the publications of an owner.
func (p *Proxy) Forwards(owner string) []Forward {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.owners[owner]))
}

// Close ends everything; nothing can be started any more.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	owners := slices.Collect(maps.Keys(p.owners))
	p.mu.Unlock()
	for _, owner := range owners {
		p.StopAll(owner)
	}
}

// enter takes a place for a connection or flow, and tells whether there was one.
func (p *Proxy) enter(protocol string) bool {
	select {
	case p.room <- struct{}{}:
		p.open.WithLabelValues(protocol).Inc()
		p.total.WithLabelValues(protocol).Inc()
		return true
	default:
		p.refused.WithLabelValues("full").Inc()
		return false
	}
}

func (p *Proxy) leave(protocol string) {
	<-p.room
	p.open.WithLabelValues(protocol).Dec()
}

// unreached notes that a container could not be dialled.
func (p *Proxy) unreached(f Forward, err error) {
	p.refused.WithLabelValues("container").Inc()
	p.log.Debug("a published port leads to nobody", "listen", f.Listen, "target", f.Target, "err", err)
}

// pause waits before a listener that failed is asked again, as one does while the process
// has no file descriptors left. It tells whether the listener is still wanted.
func pause(stopped <-chan struct{}) bool {
	t := time.NewTimer(100 * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-stopped:
		return false
	}
}

// explain puts what the kernel said into the errors that Start names.
func explain(f Forward, err error) error {
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return hostports.ErrInUse
	case errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EADDRNOTAVAIL) && f.Listen.Addr().IsUnspecified():
		return ErrNoFamily
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return hostports.ErrNoAddress
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return hostports.ErrNoFiles
	case errors.Is(err, ErrProtocol):
		return err
	}
	return fmt.Errorf("listen on %s: %w", f.Listen, err)
}

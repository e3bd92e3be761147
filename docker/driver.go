package docker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/sdn"
)

// Binder plugs ports on this host. *bind.Binder is one.
type Binder interface {
	// Plug makes the interface of a port and tells its names; plugged already, it tells them again.
	Plug(ctx context.Context, i bind.Interface) (bind.Result, error)
	// Unplug takes the interface of a port away; absent is nil.
	Unplug(ctx context.Context, port sdn.Port) error
	// Connected tells whether a container has the interface of a port.
	Connected(ctx context.Context, port sdn.Port) (bool, error)
}

// Scope is how far a driver's networks reach, in the engine's words.
type Scope string

// The scopes an engine knows.
const (
	Local  Scope = "local"
	Global Scope = "global"
)

// AutoPool is a range that networks without a subnet of their own are cut from.
type AutoPool struct {
	Prefix netip.Prefix
	Len    int // prefix length of a network
}

// Config is what a Driver is made of. Provider and Binder are needed, the rest has defaults.
type Config struct {
	Provider sdn.Provider
	Binder   Binder
	Host     string // the name ports are bound to; "" is the machine's host name
	// Scope is the capability_scope, Local by default. ConnectivityScope is the same unless set.
	Scope             Scope
	ConnectivityScope Scope
	// Pools4 and Pools6 are tried in their order; nil is DefaultPools4 and DefaultPools6.
	Pools4, Pools6 []AutoPool
	// HostRoutes tells what the host routes, which no automatic pool may overlap. nil: nothing is known.
	HostRoutes func(ctx context.Context) ([]netip.Prefix, error)
	// PortFree tells whether a port of the host may be published. nil: whatever the SDN allows.
	PortFree   PortFree
	Logger     *slog.Logger          // nil: slog.Default
	Registerer prometheus.Registerer // nil: no metrics
	// CallTimeout is the longest a call may take; 0 is 25 s, below the 30 s after which an engine gives a managed plugin up.
	CallTimeout time.Duration
	// MaxCalls is how many calls are served at once, others wait; 0 is 256.
	MaxCalls int
}

// PortFree returns an error, in words for the engine's user, for a transport port that a program of the host has.
type PortFree func(ctx context.Context, protocol sdn.Protocol, v6 bool, port uint16) error

// The ranges of automatic pools, away from those that Docker itself takes (172.17.0.0/16 to 172.31.0.0/16, 192.168.0.0/16),
// Kubernetes' usual ones (10.96.0.0/12, 10.244.0.0/16) and carrier-grade NAT's (100.64.0.0/10). A host's own routes are kept
// clear of in any case.
var (
	DefaultPools4 = []AutoPool{
		{Prefix: netip.MustParsePrefix("10.200.0.0/13"), Len: 24},
		{Prefix: netip.MustParsePrefix("10.224.0.0/13"), Len: 24},
	}
	DefaultPools6 = []AutoPool{{Prefix: netip.MustParsePrefix("fd6b:7572:7972::/48"), Len: 64}}
)

// Driver answers the engine. Make one with New; all its methods may be called at once from many goroutines.
type Driver struct {
	sdn        sdn.Provider
	binder     Binder
	host       string
	hostKey    string // stands for host in Keys, where there is little room
	scope      Scope
	reach      Scope
	pools      map[bool][]AutoPool // by whether IPv6
	hostRoutes func(ctx context.Context) ([]netip.Prefix, error)
	portFree   PortFree
	log        *slog.Logger
	metrics    *metrics
	timeout    time.Duration
	slots      chan struct{}
	locks      locks

	// handed are the pools this process has answered a RequestPool with, and when: a hint, not state, that tells a pool the engine may
	// be building a network on from one whose answer was lost when an earlier process was killed.
	mu     sync.Mutex
	handed map[sdn.ID]time.Time
	// refusals are releases to come that mean nothing, by how many. A hint too.
	refusals map[refusedAddress]int
}

// New makes a Driver. It asks nothing of the provider.
func New(c Config) (*Driver, error) {
	if c.Provider == nil || c.Binder == nil {
		return nil, fmt.Errorf("docker: a provider and a binder are needed")
	}
	if c.Host == "" {
		name, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("docker: host name: %w", err)
		}
		c.Host = name
	}
	if c.Scope == "" {
		c.Scope = Local
	}
	if c.ConnectivityScope == "" {
		c.ConnectivityScope = c.Scope
	}
	for name, s := range map[string]Scope{"scope": c.Scope, "connectivity scope": c.ConnectivityScope} {
		if s != Local && s != Global {
			return nil, fmt.Errorf("docker: %s must be %q or %q, not %q", name, Local, Global, s)
		}
	}
	if c.Pools4 == nil {
		c.Pools4 = DefaultPools4
	}
	if c.Pools6 == nil {
		c.Pools6 = DefaultPools6
	}
	if err := checkAutoPools(c.Pools4, false); err != nil {
		return nil, err
	}
	if err := checkAutoPools(c.Pools6, true); err != nil {
		return nil, err
	}
	if c.HostRoutes == nil {
		c.HostRoutes = func(context.Context) ([]netip.Prefix, error) { return nil, nil }
	}
	if c.PortFree == nil {
		c.PortFree = func(context.Context, sdn.Protocol, bool, uint16) error { return nil }
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.CallTimeout <= 0 {
		c.CallTimeout = 25 * time.Second
	}
	if c.MaxCalls <= 0 {
		c.MaxCalls = 256
	}
	m, err := newMetrics(c.Registerer)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(c.Host))
	return &Driver{
		sdn: c.Provider, binder: c.Binder, host: c.Host, hostKey: hex.EncodeToString(sum[:4]),
		scope: c.Scope, reach: c.ConnectivityScope,
		pools:      map[bool][]AutoPool{false: c.Pools4, true: c.Pools6},
		hostRoutes: c.HostRoutes, portFree: c.PortFree, log: c.Logger, metrics: m, timeout: c.CallTimeout,
		slots: make(chan struct{}, c.MaxCalls), handed: map[sdn.ID]time.Time{}, refusals: map[refusedAddress]int{},
	}, nil
}

// Handler serves the plugin protocol, both drivers and the handshake.
func (d *Driver) Handler() http.Handler { return http.HandlerFunc(d.serveHTTP) }

// The kinds of our Keys.
const (
	kindPool         = "docker-pool"
	kindPort         = "docker-port"
	kindEndpoint     = "docker-endpoint"
	kindNetwork      = "docker-network"
	kindSubnet       = "docker-subnet"
	kindRouter       = "docker-router"
	kindSharedRouter = "docker-shared-router"
	kindHidden       = "docker-ipam"
	kindHiddenSubnet = "docker-ipam-subnet"
	kindPublish      = "docker-publish"
)

func (d *Driver) key(kind, name string) sdn.Key {
	return sdn.Key{Owner: d.sdn.Installation(), Kind: kind, Name: name}
}

// ours tells whether an object was made by this front end as a thing of one of the kinds.
func (d *Driver) ours(m sdn.Meta, kinds ...string) bool {
	if m.Foreign || m.Key.Owner != d.sdn.Installation() {
		return false
	}
	for _, k := range kinds {
		if m.Key.Kind == k {
			return true
		}
	}
	return false
}

package docker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"

	endpoints "github.com/kuryr/kuryr/docker/endpoint"
	"github.com/kuryr/kuryr/docker/engine"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/docker/ipam"
	networks "github.com/kuryr/kuryr/docker/network"
	"github.com/kuryr/kuryr/docker/publish"
	"github.com/kuryr/kuryr/docker/publish/portproxy"
	"github.com/kuryr/kuryr/docker/swarm"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// Binder plugs ports on this host. *bind.Binder is one.
type Binder = endpoints.Binder

// Scope is how far a driver's networks reach, in the engine's words.
type Scope string

// The scopes an engine knows.
const (
	Local  Scope = "local"
	Global Scope = "global"
)

// AutoPool is a range that networks without a range of their own are allocated from.
type AutoPool = ipam.AutoPool

// Config is what a Driver is made of. Provider, Binder and StateDir are needed, the rest has
// defaults.
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
	// HostPorts keeps published ports from other programs of the host. nil: whatever the SDN allows.
	HostPorts  publish.HostPorts
	Logger     *slog.Logger          // nil: slog.Default
	Registerer prometheus.Registerer // nil: no metrics
	// Routed gives every network a router, with a way out where the SDN has one, unless it is asked not to have one: what a host
	// without another way out wants. Without, a network has a router only where an option asks for one, and its containers the
	// gateways of its subnets nevertheless.
	Routed bool
	// DeleteEmptySubnets deletes a subnet with its last endpoint; the next request for an address makes it again.
	DeleteEmptySubnets bool
	// WaitActive is how long Join waits for the SDN to say that a port's traffic flows (sdn.PortActive); 0: it does not wait. A
	// Join whose port is not ACTIVE by then fails.
	WaitActive time.Duration
	// ProcessExternalConnectivity has the ports that a container exposes opened by a security group of its own, where the SDN has such.
	ProcessExternalConnectivity bool
	// StateDir is the folder for what must outlive the machine's restart: the database
	// (DatabasePath), pending cleanups, and what the engine's calls are about to create.
	StateDir string
	// RunDir is the folder for what is remembered of the endpoints of this host, at most until its restart. "": it is in memory alone.
	RunDir string
	// CallTimeout is the longest a call may take; 0 is 25 s, below the 30 s after which an engine gives a managed plugin up.
	CallTimeout time.Duration
	// MaxCalls is how many calls are served at once, others wait; 0 is 256.
	MaxCalls int
	// Engine is Docker itself, to find what it no longer has; nil: nothing is compared with it.
	Engine engine.Source
	// ForgetAfter is how long Docker must have been without something before that is deleted; 0:
	// nothing is.
	ForgetAfter time.Duration

	orphanTTL time.Duration // of reconcile.Config; for tests
	unsynced  bool          // the database does not wait for the disk; for tests
}

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

// Driver answers the engine. Make one with New. Its methods may be called concurrently.
type Driver struct {
	config  Config
	daemon  identity.Daemon
	log     *slog.Logger
	metrics *metrics
	slots   chan struct{}
	large   *semaphore.Weighted // bytes of large bodies
	proxy   *portproxy.Proxy

	database  *reconcile.Store
	ipam      *ipam.Service
	networks  *networks.Service
	swarm     *swarm.Service // nil in the local scope
	endpoints *endpoints.Service
	routes    map[string]route // by path
	earlier   *upgrade
	recovery  *reconcile.Kind[struct{}, []string]
}

// New makes a Driver. It asks nothing of the provider. What an earlier process published by its
// proxy is published again. Close it when done.
func New(c Config) (*Driver, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	m, err := newMetrics(c.Registerer)
	if err != nil {
		return nil, err
	}
	proxy := portproxy.New(portproxy.Config{Logger: c.Logger})
	if c.Registerer != nil {
		if err := c.Registerer.Register(proxy); err != nil {
			return nil, fmt.Errorf("docker: metrics: %w", err)
		}
	}
	d := &Driver{
		config: c, log: c.Logger, metrics: m, slots: make(chan struct{}, c.MaxCalls),
		large: semaphore.NewWeighted(largeBodies), proxy: proxy,
	}
	if err := d.openDatabase(); err != nil {
		proxy.Close()
		return nil, err
	}
	return d, nil
}

// complete sets the defaults, and refuses what cannot be.
func (c *Config) complete() (err error) {
	if c.Provider == nil || c.Binder == nil {
		return errors.New("docker: a provider and a binder are needed")
	}
	if c.StateDir == "" {
		return errors.New("docker: StateDir is empty: the database needs a folder")
	}
	if c.Host == "" {
		if c.Host, err = os.Hostname(); err != nil {
			return fmt.Errorf("docker: host name: %w", err)
		}
	}
	c.Scope = cmp.Or(c.Scope, Local)
	c.ConnectivityScope = cmp.Or(c.ConnectivityScope, c.Scope)
	for name, s := range map[string]Scope{"scope": c.Scope, "connectivity scope": c.ConnectivityScope} {
		if s != Local && s != Global {
			return fmt.Errorf("docker: %s must be %q or %q, not %q", name, Local, Global, s)
		}
	}
	if c.Pools4 == nil {
		c.Pools4 = DefaultPools4
	}
	if c.Pools6 == nil {
		c.Pools6 = DefaultPools6
	}
	if c.HostRoutes == nil {
		c.HostRoutes = func(context.Context) ([]netip.Prefix, error) { return nil, nil }
	}
	c.Logger = cmp.Or(c.Logger, slog.Default())
	if c.CallTimeout <= 0 {
		c.CallTimeout = 25 * time.Second
	}
	if c.MaxCalls <= 0 {
		c.MaxCalls = 256
	}
	return errors.Join(ipam.CheckPools(c.Pools4, false), ipam.CheckPools(c.Pools6, true))
}

// Close closes the proxy of published ports and the database, after Run has returned. Containers
// keep their interfaces and their ports, and another Driver takes them over.
func (d *Driver) Close() {
	d.writeRecords()
	d.proxy.Close()
	d.closeDatabase()
}

// Handler serves the plugin protocol, both drivers and the handshake.
func (d *Driver) Handler() http.Handler { return http.HandlerFunc(d.serveHTTP) }

// maxBackoff is the longest wait between two attempts, as while the SDN is unavailable.
const maxBackoff = time.Minute

// DatabasePath returns the file in which a Driver with this state folder keeps its intents.
func DatabasePath(stateDir string) string { return filepath.Join(stateDir, "docker.db") }

// openDatabase opens the database, registers the kinds of the services, imports what an earlier
// version left on the disk, and starts the kinds. It is an error if another process has the
// database open, if a later version wrote it, or if the file system has no room for it.
func (d *Driver) openDatabase() error {
	c, grace := d.config, d.config.ForgetAfter
	if grace == 0 {
		grace = -1 // never
	}
	store, err := reconcile.Open(reconcile.Config{
		Path: DatabasePath(c.StateDir), Volatile: c.unsynced, GracePeriod: grace,
		OrphanTTL: c.orphanTTL, MaxBackoff: maxBackoff, Logger: d.log, Registerer: c.Registerer,
	})
	if err != nil {
		return fmt.Errorf("docker: %w", err)
	}
	d.database = store
	if err := d.startServices(context.Background()); err != nil {
		return errors.Join(fmt.Errorf("docker: start the database: %w", err), store.Close())
	}
	return nil
}

func (d *Driver) startServices(ctx context.Context) error {
	d.newServices()
	if err := d.earlier.records(ctx); err != nil {
		return err
	}
	if err := d.database.Start(ctx); err != nil {
		return err
	}
	d.networks.Start(ctx)
	d.endpoints.Start(ctx)
	d.writeRecords()
	return nil
}

// newServices registers the kinds of rows: pools, networks, endpoints, addresses. The owners of rows
// are imported first.
func (d *Driver) newServices() {
	c := d.config
	d.daemon = identity.Daemon{
		SDN: c.Provider, Names: identity.NewNamer(c.Provider.Installation(), c.Host, d.database.ID(), true),
		Host: c.Host, Store: d.database, Timeout: c.CallTimeout, Log: d.log,
	}
	var lister *engine.Lister
	if c.Engine != nil {
		lister = engine.NewLister(c.Engine)
		d.daemon.Engine = lister
	}
	d.ipam = ipam.New(ipam.Config{
		Daemon: d.daemon, Global: c.Scope == Global, Pools4: c.Pools4, Pools6: c.Pools6, HostRoutes: c.HostRoutes,
	})
	d.networks = networks.New(networks.Config{
		Daemon: d.daemon, Pools: d.ipam, Routed: c.Routed, DeleteEmpty: c.DeleteEmptySubnets,
		HasEndpoints: func(id string) bool { return d.endpoints.Has(id) },
		InUse:        func(id string) bool { return d.endpoints.InUse(id) },
	})
	e := endpoints.Config{
		Daemon: d.daemon, Binder: c.Binder, Networks: d.networks, Addresses: d.ipam,
		HostPorts: c.HostPorts, Proxy: d.proxy, WaitActive: c.WaitActive,
		ExposedGroups: c.ProcessExternalConnectivity, Refused: d.ipam.Refused,
		Records: folderIn(c.RunDir, endpointsFolder),
	}
	if c.Scope == Global {
		d.swarm = swarm.New(swarm.Config{
			Daemon: d.daemon, Binder: c.Binder, Networks: d.networks, IPAM: d.ipam,
			DeleteEndpoint: func(ctx context.Context, id string) error { return d.endpoints.Delete(ctx, id) },
		})
		e.Networks, e.Addresses, e.YieldMAC = d.swarm, d.swarm, d.swarm.YieldMAC
	}
	d.endpoints = endpoints.New(e)
	d.ipam.Attach(d.networks, d.endpoints)
	if lister != nil {
		lister.Attach(d.ipam.Unlisted)
		lister.Attach(d.endpoints.Unlisted)
	}
	d.newRecovery()
	d.earlier = &upgrade{
		Daemon: d.daemon, stateDir: c.StateDir, runDir: c.RunDir,
		endpoints: d.endpoints, addresses: d.ipam, networks: d.networks, swarm: d.swarm,
	}
	d.routes = d.newRoutes()
}

// writeRecords writes what the previous version needs if it is installed next, at any time.
func (d *Driver) writeRecords() {
	if err := d.endpoints.WriteRecords(); err != nil {
		d.log.Error("records for the previous version not written", "err", err)
	}
}

func (d *Driver) closeDatabase() {
	if err := d.database.Close(); err != nil {
		d.log.Error("database not closed cleanly", "err", err)
	}
}

// Intents returns the rows of the Driver's database, by kind and key.
func (d *Driver) Intents() map[string]json.RawMessage { return d.database.Rows() }

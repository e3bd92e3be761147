// Package ipam serves the IPAM half of Docker's plugin protocol: ranges, which are subnet pools of
// the SDN, and the addresses of endpoints, which are ports.
//
// It owns three kinds of rows: the pool of a range, the hidden network of a pool that another
// network driver uses, and the port of an address. The SDN is called by their targets, and by
// look-ups of what has no row.
//
// The package must not know how a network or an endpoint is made. Their services say which subnet
// a pool has (Service.Bind), and which address an endpoint has (Endpoints).
package ipam

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/keymutex"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// The names of the kinds, which are part of the file's format.
const (
	kindPool    = "pool"
	kindHidden  = "hidden"
	kindAddress = "address"
)

// AutoPool is a range that networks without a range of their own are allocated from.
type AutoPool struct {
	Prefix netip.Prefix
	Len    int // prefix length of a network
}

// Config is what a Service needs.
type Config struct {
	Provider sdn.Provider
	Namer    identity.Namer
	Host     string // that ports are bound to
	// Global is set if the daemon serves a swarm: each range of the global address space is
	// requested once.
	Global bool
	// Pools4 and Pools6 are tried in their order.
	Pools4, Pools6 []AutoPool
	// HostRoutes returns the routes of the host, which no automatic range overlaps.
	HostRoutes func(ctx context.Context) ([]netip.Prefix, error)
	// Timeout bounds the calls of the SDN that no caller waits for.
	Timeout time.Duration
	Logger  *slog.Logger
	// Engine lists what the engine has, an engine.Lister; nil if no row is judged.
	Engine reconcile.Engine
}

// Networks is what ipam asks of the service of networks.
type Networks interface {
	// Hold makes the subnet of a pool exist, and keeps it until release is called.
	Hold(ctx context.Context, pool string) (release func(), err error)
	// Emptied says that the last address of a row was released on the subnet of a pool.
	Emptied(ctx context.Context, pool string)
	// Of returns the engine's id of the network that uses a pool, and the name of its row; "" if
	// there is none.
	Of(pool string) (id, ref string)
	// Subnets returns the subnets of a pool, as far as the row of its network has them.
	Subnets(pool string) []sdn.Subnet
}

// Endpoints is what ipam asks of the service of endpoints.
type Endpoints interface {
	// Of returns the id of the endpoint that has the port of an address row, "" if none has it.
	// inUse says that the endpoint is being started, or that a container has its interface.
	Of(address string) (id string, inUse bool)
	// DropUnused deletes an endpoint because another needs its port, unless it is in use. An error
	// of reconcile.IsPending says that the port is not free yet.
	DropUnused(ctx context.Context, id string) (inUse bool, err error)
}

type (
	poolRow    = reconcile.Row[PoolSpec, PoolState]
	addressRow = reconcile.Row[AddressSpec, AddressState]
)

// Service answers the engine's IPAM calls. Its methods may be called concurrently.
type Service struct {
	cfg   Config
	sdn   sdn.Provider
	names identity.Namer
	log   *slog.Logger
	store *reconcile.Store

	networks  Networks
	endpoints Endpoints

	pools     *reconcile.Kind[PoolSpec, PoolState]
	hidden    *reconcile.Kind[HiddenSpec, HiddenState]
	addresses *reconcile.Kind[AddressSpec, AddressState]

	// locks are taken in this order: "automatic", "range/CIDR" (LockRanges), "unanswered",
	// "mac/NETWORK/MAC" or "address/KEY", "poolid/ID". Those of Networks come before them:
	// RequestAddress holds a network from before "range", and ReleaseAddress has none of these when it
	// calls Emptied.
	locks keymutex.Mutex

	mu     sync.Mutex
	bound  map[string][]sdn.Subnet    // by pool
	poolOn map[sdn.ID]map[string]bool // the same, by subnet
	gone   uint64                     // how often a pool has lost its subnets
	issued map[string]issued          // by pool
	// next is where the search for an automatic range begins, by whether it is of IPv6.
	next map[bool]netip.Addr
}

// New registers the kinds of ranges at a store that is not started yet. Attach follows.
func New(store *reconcile.Store, c Config) *Service {
	s := &Service{
		cfg: c, sdn: c.Provider, names: c.Namer, log: c.Logger, store: store,
		bound: map[string][]sdn.Subnet{}, poolOn: map[sdn.ID]map[string]bool{},
		issued: map[string]issued{}, next: map[bool]netip.Addr{},
	}
	s.pools = reconcile.Register(store, kindPool, poolTarget{s}, reconcile.Options[PoolSpec, PoolState]{
		Timeout: c.Timeout, Answered: poolClaims, Removed: s.forgetPool,
		Engine: c.Engine, Listed: s.poolListed, Used: poolUsed,
	})
	s.hidden = reconcile.Register(store, kindHidden, hiddenTarget{s}, reconcile.Options[HiddenSpec, HiddenState]{
		Timeout: c.Timeout, Engine: c.Engine, Listed: s.hiddenListed, Used: hiddenUsed,
	})
	return s
}

// Attach sets what ipam asks, before the store is started; without endpoints e is nil. It registers
// the kind of addresses after that of networks: an address that is imported needs to know its pool,
// which the row of its network tells.
func (s *Service) Attach(n Networks, e Endpoints) {
	if s.networks, s.endpoints = n, e; e == nil {
		s.endpoints = noEndpoints{}
	}
	options := reconcile.Options[AddressSpec, AddressState]{
		Timeout: s.cfg.Timeout, Answered: addressClaims, Stale: never, InUse: s.addressInUse,
		Engine: s.cfg.Engine, Listed: s.addressListed,
	}
	s.addresses = reconcile.Register(s.store, kindAddress, addressTarget{s}, options)
}

// Bind says which subnets a pool has by a network, also by one of an earlier process; none if no
// network uses the pool any longer. An existing subnet stands for the range. Only an operator's
// pool that kuryr-libnetwork used can have several.
func (s *Service) Bind(pool string, subnets []sdn.Subnet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bindLocked(pool, subnets)
}

// bindFound is Bind of subnets that were found in the SDN, unless a network is gone since the
// search began, with s.gone at that time: they may have been its.
func (s *Service) bindFound(pool string, subnets []sdn.Subnet, began uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone == began {
		s.bindLocked(pool, subnets)
	}
}

func (s *Service) bindLocked(pool string, subnets []sdn.Subnet) {
	s.unbindLocked(pool)
	if len(subnets) == 0 {
		s.gone++
		return
	}
	s.bound[pool] = subnets
	for _, sub := range subnets {
		if s.poolOn[sub.ID] == nil {
			s.poolOn[sub.ID] = map[string]bool{}
		}
		s.poolOn[sub.ID][pool] = true
	}
	if i, ok := s.issued[pool]; ok {
		i.used = true
		s.issued[pool] = i
	}
}

func (s *Service) unbindLocked(pool string) {
	for _, sub := range s.bound[pool] {
		if delete(s.poolOn[sub.ID], pool); len(s.poolOn[sub.ID]) == 0 {
			delete(s.poolOn, sub.ID)
		}
	}
	delete(s.bound, pool)
}

// boundTo returns the subnets of a pool. A network that the store has imported does not tell them,
// but its row has them. They are not bound: the network may be gone when that is done.
func (s *Service) boundTo(pool string) []sdn.Subnet {
	s.mu.Lock()
	subnets := s.bound[pool]
	s.mu.Unlock()
	if len(subnets) == 0 {
		return s.networks.Subnets(pool)
	}
	return subnets
}

// boundAt returns a pool that is bound to a subnet, "" if none is.
func (s *Service) boundAt(subnet sdn.ID) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for pool := range s.poolOn[subnet] {
		return pool
	}
	return ""
}

func (s *Service) addressInUse(a addressRow) bool {
	_, inUse := s.endpoints.Of(a.Key)
	return inUse
}

// never is the answer to whether an address can be taken from a row whose engine may have forgotten
// it: a plugin call must not wait for the engine.
func never(context.Context, addressRow) (bool, error) { return false, nil }

// noEndpoints stands for a service that is not attached.
type noEndpoints struct{}

// Of implements Endpoints.
func (noEndpoints) Of(string) (id string, inUse bool) { return "", false }

// DropUnused implements Endpoints.
func (noEndpoints) DropUnused(context.Context, string) (inUse bool, err error) { return false, nil }

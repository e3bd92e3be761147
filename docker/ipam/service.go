// Package ipam serves the IPAM half of Docker's plugin protocol: ranges, which are subnet pools of
// the SDN, and the addresses of endpoints, which are ports.
//
// It owns three kinds of rows: the pool of a range, the hidden network of a pool that another
// network driver uses, and the port of an address. The SDN is called by their targets, and by
// look-ups of what has no row.
//
// The package must not know how a network or an endpoint is made. Their services say which subnets
// a pool has (Networks), and which address an endpoint has (Endpoints).
package ipam

import (
	"context"
	"net/netip"
	"slices"
	"sync"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/engine"
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
	identity.Daemon
	// Global is set if the daemon serves a swarm: each range of the global address space is
	// requested once.
	Global bool
	// Pools4 and Pools6 are tried in their order.
	Pools4, Pools6 []AutoPool
	// HostRoutes returns the routes of the host, which no automatic range overlaps.
	HostRoutes func(ctx context.Context) ([]netip.Prefix, error)
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
	// Subnets returns the subnets of a pool, as far as the row of its network has them. An existing
	// subnet stands for the range.
	Subnets(pool string) []sdn.Subnet
	// PoolAt returns a pool that has a subnet by the row of its network, "" if none has.
	PoolAt(subnet sdn.ID) string
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
	hiddenRow  = reconcile.Row[HiddenSpec, HiddenState]
	addressRow = reconcile.Row[AddressSpec, AddressState]
)

// Service answers the engine's IPAM calls. Its methods may be called concurrently.
type Service struct {
	Config
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
	issued map[string]issued // by pool
	// next is where the search for an automatic range begins, by whether it is of IPv6.
	next map[bool]netip.Addr
}

// New registers the kinds of ranges at a store that is not started yet. Attach follows.
func New(c Config) *Service {
	s := &Service{Config: c, issued: map[string]issued{}, next: map[bool]netip.Addr{}}
	s.pools = reconcile.Register(c.Store, kindPool, poolTarget{s}, reconcile.Options[PoolSpec, PoolState]{
		Timeout: c.Timeout, Answered: poolClaims, Removed: s.forgetPool, Engine: c.Engine, Listed: s.poolListed,
		// An engine that has a gateway of a pool can have been killed before it created the network,
		// which is a row of its own.
		Used: func(poolRow) bool { return false },
	})
	s.hidden = reconcile.Register(c.Store, kindHidden, hiddenTarget{s}, reconcile.Options[HiddenSpec, HiddenState]{
		Timeout: c.Timeout, Engine: c.Engine, Listed: s.hiddenListed,
		Used: func(hiddenRow) bool { return false }, // its addresses are rows
	})
	return s
}

// Attach sets what ipam asks, before the store is started. It registers the kind of addresses after
// that of networks: an address that is imported needs to know its pool, which the row of its
// network tells.
func (s *Service) Attach(n Networks, e Endpoints) {
	s.networks, s.endpoints = n, e
	s.addresses = reconcile.Register(s.Store, kindAddress, addressTarget{s},
		reconcile.Options[AddressSpec, AddressState]{
			Timeout: s.Timeout, Answered: addressClaims, InUse: s.addressInUse,
			Engine: s.Engine, Listed: s.addressListed,
			// A plugin call must not wait for the engine, which may have forgotten an address.
			Stale: func(context.Context, addressRow) (bool, error) { return false, nil },
		})
}

func (s *Service) addressInUse(a addressRow) bool {
	_, inUse := s.endpoints.Of(a.Key)
	return inUse
}

// The engine does not tell which pools its networks have, so pools are judged by their ranges, and
// addresses by its endpoints. The global address space is a swarm's, of which an engine does not
// know all.

func (s *Service) poolListed(p poolRow, content any) bool {
	return p.Spec.Space == api.GlobalSpace || len(s.users(p, content.(*engine.Content))) > 0
}

func (s *Service) hiddenListed(h hiddenRow, content any) bool {
	p, ok := s.pools.Get(h.Key)
	return ok && s.poolListed(p, content)
}

func (s *Service) addressListed(a addressRow, content any) bool {
	listed, _ := s.endpointListed(a, content.(*engine.Content))
	return listed
}

// endpointListed reports whether an endpoint has an address of a port, or can have it. Otherwise
// the networks are those whose endpoints the list does not have all of.
func (s *Service) endpointListed(a addressRow, c *engine.Content) (listed bool, unknown []string) {
	for _, q := range a.Spec.Asked {
		p, ok := s.pools.Get(q.Pool)
		if !ok || p.Spec.Space == api.GlobalSpace {
			return true, nil
		}
		for _, network := range s.users(p, c) {
			if c.IsShared(network) {
				return true, nil // for an endpoint on another node
			}
			if slices.ContainsFunc(a.Last.Port.Addresses, func(on sdn.Address) bool {
				return c.HasAddress(network, on.Addr)
			}) {
				return true, nil
			}
			if !c.All(network) {
				unknown = append(unknown, network)
			}
		}
	}
	return len(unknown) > 0, unknown
}

// Unlisted returns the networks on which a list lacks the endpoint of an address. It is for
// engine.Lister.Attach.
func (s *Service) Unlisted(c *engine.Content) (networks []string) {
	for a := range s.addresses.Rows() {
		if a.Phase == reconcile.Wanted {
			_, unknown := s.endpointListed(a, c)
			networks = append(networks, unknown...)
		}
	}
	return networks
}

// users returns the engine's networks that a pool is for: the one that was made of it, or those of
// other network drivers that have its range.
func (s *Service) users(p poolRow, c *engine.Content) (ids []string) {
	if id, _ := s.networks.Of(p.Key); id != "" {
		if _, ok := c.Network(id); ok || c.IsShared(id) {
			ids = append(ids, id)
		}
		return ids
	}
	ids = c.InRange(p.Spec.CIDR)
	if len(ids) == 0 {
		return nil
	}
	made := map[string]bool{}
	for other := range s.ofRange(p.Spec.CIDR) {
		id, _ := s.networks.Of(other.Key)
		made[id] = true
	}
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return made[id] })
}

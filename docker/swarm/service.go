// Package swarm serves the networks of a Docker swarm. A manager of the swarm allocates a
// network, its ranges and all of its addresses; each node creates the network when it
// needs it.
//
// Other managers can free what this host's manager allocated, and the last node deletes
// the network. So the state is in the SDN, in tags that all hosts read (docker/identity):
//
//   - TagAllocated and TagNode of the network: the manager has it, and the nodes that have it.
//     Without both it gets TagDeleted, and the host that set it deletes it.
//   - TagHeld of a port: the manager has its address.
//   - TagReleased and TagLetGo of a subnet pool: it is deleted with the network.
//
// The rows of this host are its pending work: what a manager asked for until the manager
// is answered (allocation, hold), what it frees until that is done (allocation, hold,
// global-pool), and what this host has as a node (share, node-address). The files:
// network.go and pool.go are the manager's networks and ranges, node.go is a node's part
// of a network, address.go has the addresses of both, and shared.go changes what the hosts
// share.
//
// The package must not make endpoints, and it must not decide by a row what another host
// has.
package swarm

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/kuryr/kuryr/docker/endpoint"
	"github.com/kuryr/kuryr/docker/engine"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/docker/ipam"
	"github.com/kuryr/kuryr/docker/network"
	"github.com/kuryr/kuryr/internal/keymutex"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// Config is what a Service needs.
type Config struct {
	identity.Daemon
	Binder   endpoint.Binder
	Networks *network.Service
	IPAM     *ipam.Service // of the ranges and addresses that a swarm does not have
	// DeleteEndpoint deletes an endpoint of this host (docker/endpoint).
	DeleteEndpoint func(ctx context.Context, endpointID string) error
}

// Service answers the calls about a swarm's networks. Its methods may be called
// concurrently.
type Service struct {
	Config
	locks      keymutex.Mutex // network/ID first, then range/CIDR
	allocation *reconcile.Kind[allocation, none]
	release    *reconcile.Kind[release, none]
	hold       *reconcile.Kind[hold, held]
	share      *reconcile.Kind[share, shareState]
	address    *reconcile.Kind[address, none]

	// issued has the pools of networks that a manager was given in this process, and
	// when: the manager may be about to allocate another network with the range.
	issued sync.Map
	// given has the ports whose addresses a manager was given in this process.
	given sync.Map
}

type none = struct{}

// New registers the kinds of rows. It makes no call of the SDN.
func New(c Config) *Service {
	s := &Service{Config: c}
	s.allocation = reconcile.Register(c.Store, "allocation", allocationTarget{s},
		reconcile.Options[allocation, none]{Timeout: c.Timeout, Start: unanswered[allocation, none]})
	s.release = reconcile.Register(c.Store, "global-pool", poolTarget{s},
		reconcile.Options[release, none]{Timeout: c.Timeout})
	s.hold = reconcile.Register(c.Store, "hold", holdTarget{s},
		reconcile.Options[hold, held]{Timeout: c.Timeout, Start: unanswered[hold, held]})
	s.share = reconcile.Register(c.Store, "share", shareTarget{s},
		reconcile.Options[share, shareState]{Timeout: c.Timeout, Confirm: true})
	s.address = reconcile.Register(c.Store, "node-address", addressTarget{s},
		reconcile.Options[address, none]{Timeout: c.Timeout})
	return s
}

// unanswered deletes at the start what a manager was not told of: once does not keep
// other rows.
func unanswered[S, T any](reconcile.Row[S, T], bool) reconcile.Action { return reconcile.Delete }

// once makes what a manager asked for and forgets its row before the manager is answered.
func once[S, T any](ctx context.Context, k *reconcile.Kind[S, T], q reconcile.Request[S]) (T, error) {
	made, err := k.Set(ctx, q)
	if err != nil {
		return made, err
	}
	if err := k.Forget(ctx, q.Key); err != nil {
		return made, errors.Join(err, k.Remove(context.WithoutCancel(ctx), q.Key))
	}
	return made, nil
}

// free commits the deletion of what any manager may have made, and makes one attempt.
// Run repeats it until the SDN is available.
func free[S, T any](ctx context.Context, s *Service, k *reconcile.Kind[S, T], r reconcile.Row[S, T]) error {
	r.Phase = reconcile.Deleting
	if err := k.Import(ctx, []reconcile.Row[S, T]{r}); err != nil {
		return err
	}
	return s.Queued(ctx, k.Remove(ctx, r.Key))
}

// finish completes the deletion of a row before the SDN is asked what there is.
func finish[S, T any](ctx context.Context, k *reconcile.Kind[S, T], key string) error {
	if r, ok := k.Get(key); !ok || r.Phase != reconcile.Deleting {
		return nil
	}
	return k.Remove(ctx, key)
}

func unavailable(err error) bool {
	return sdn.IsUnavailable(err) || errors.Is(err, context.DeadlineExceeded)
}

// lookTime bounds what is looked up before a release is committed.
const lookTime = 5 * time.Second

// recent is how long a manager may take from RequestPool to AllocateNetwork.
const recent = time.Minute

// issue notes that a manager was given the pool of a network.
func (s *Service) issue(pool sdn.ID) {
	now := time.Now()
	s.issued.Store(pool, now)
	time.AfterFunc(recent, func() { s.issued.CompareAndDelete(pool, now) })
}

// IsSwarm reports whether a network is a swarm's, by its id.
func IsSwarm(networkID string) bool { return !engine.IsLocal(networkID) }

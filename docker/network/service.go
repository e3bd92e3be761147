// Package network keeps Docker's networks in the SDN: networks of their own, with a router or
// without, and existing networks of others.
//
// It owns two kinds of rows: the network, and the tags of an existing one. The SDN is called by
// their targets, and by look-ups of what a call names.
//
// The package must not know how an address is requested or an endpoint is made. Package ipam has
// the pools of the ranges; View is what others know of a network.
package network

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/engine"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/docker/ipam"
	"github.com/kuryr/kuryr/internal/keymutex"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/internal/sortslice"
	"github.com/kuryr/kuryr/sdn"
)

// Config is what a Service needs.
type Config struct {
	identity.Daemon
	Pools *ipam.Service
	// HasEndpoints reports whether a network has endpoints.
	HasEndpoints func(network string) bool
	// InUse reports whether a container has an interface on a network, or will have.
	InUse func(network string) bool
	// Routed gives every network a router, unless an option says otherwise.
	Routed bool
	// DeleteEmpty deletes a subnet with its last address.
	DeleteEmpty bool
}

// Service keeps Docker's networks.
type Service struct {
	Config
	// locks are taken in the order pool, network. A lock of a pool is held while its subnet is
	// deleted or made again; that of a network while its spec is changed. Package ipam locks
	// ranges.
	locks    keymutex.Mutex
	mu       sync.Mutex
	holds    map[string]hold // by pool
	networks *reconcile.Kind[Spec, Last]
	tags     *reconcile.Kind[TagSpec, struct{}]
}

type (
	row    = reconcile.Row[Spec, Last]
	tagRow = reconcile.Row[TagSpec, struct{}]
)

// The prefixes of locks and claims.
const (
	lockPool    = "pool/"
	lockNetwork = "network/"
	claimPool   = "network-of-pool/"
)

const (
	callTimeout = 10 * time.Second
	// maxTagged is how many networks may have tags to be written or deleted.
	maxTagged = 20000
)

// New registers the kinds of networks. It calls neither the SDN nor Docker.
func New(c Config) *Service {
	s := &Service{Config: c, holds: map[string]hold{}}
	s.networks = reconcile.Register(c.Store, "network", s.lister(), reconcile.Options[Spec, Last]{
		Timeout: callTimeout,
		Start: func(r row, _ bool) reconcile.Action {
			if !r.Done && r.Last.ID != "" {
				return reconcile.Ensure
			}
			return reconcile.Keep // Docker has no network whose creation was not answered
		},
		Engine: c.Engine,
		Listed: func(r row, content any) bool { return listed(r.Key, content) },
		Used:   func(r row) bool { return r.Acked || s.HasEndpoints(r.Key) },
		// Docker waits for its plugins, so they must not list it because of a conflict.
		Stale:   func(context.Context, row) (bool, error) { return false, nil },
		InUse:   func(r row) bool { return s.InUse(r.Key) },
		Removed: s.forget,
	})
	s.tags = reconcile.Register(c.Store, "network-tags", tagTarget{s},
		reconcile.Options[TagSpec, struct{}]{
			Timeout: callTimeout, MaxRows: maxTagged, Engine: c.Engine,
			Listed: func(r tagRow, content any) bool { return listed(r.Key, content) },
			Used:   func(tagRow) bool { return false }, // the network's row tells
		})
	return s
}

// listed reports whether a list of Docker has a network. Those of a swarm other nodes can have.
func listed(id string, content any) bool {
	c, ok := content.(*engine.Content)
	if !ok {
		return true
	}
	_, has := c.Network(id)
	return has || c.IsShared(id)
}

// Start stores which tags existing networks must have, after the store was started. It makes no call
// of the SDN.
func (s *Service) Start(ctx context.Context) {
	for r := range s.networks.Rows() {
		if r.Phase != reconcile.Wanted || r.Spec.Existing == "" {
			continue
		}
		if t, ok := s.tags.Get(r.Key); !ok || t.Phase != reconcile.Wanted {
			s.setTags(ctx, r.Key, r.Spec, r.Last)
		}
	}
}

// Finish completes what an earlier process was asked for and what no row of the store says: tags
// of networks that are gone, networks whose DeleteNetwork was lost, and empty subnets. It is
// called after Start, and again if it fails.
func (s *Service) Finish(ctx context.Context) error {
	return errors.Join(s.finishTags(ctx), s.dropReleased(ctx, ""), s.tidyAll(ctx))
}

// finishTags deletes the tags whose network has no row, unless a link of an earlier version says
// that Docker has it.
func (s *Service) finishTags(ctx context.Context) error {
	var errs []error
	for r := range s.tags.Rows() {
		if r.Phase != reconcile.Wanted {
			continue
		}
		n, found := s.networks.Get(r.Key)
		if found = found && n.Phase == reconcile.Wanted; found && !r.Done {
			s.setTags(ctx, r.Key, n.Spec, n.Last)
		}
		var err error
		if !found && n.Phase != reconcile.Deleting {
			found, err = s.lookUpLink(ctx, r.Key)
		}
		if err == nil && !found {
			err = s.tags.RemoveLater(ctx, r.Key)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("compare tags of network %s: %w", r.Spec.Network, err))
		}
	}
	return errors.Join(errs...)
}

func (s *Service) forget(r row) {
	if _, ok := s.tags.Get(r.Key); ok {
		go s.dropTags(r.Key) // after the call that holds the lock; Finish repeats it after a kill
	}
}

// Find returns a network of Docker's. The error is a refusal if there is none.
func (s *Service) Find(ctx context.Context, id string) (View, error) {
	r, ok := s.networks.Get(id)
	if !ok {
		if _, err := s.lookUp(ctx, id); err != nil {
			return View{}, err
		}
		r, ok = s.networks.Get(id)
	}
	switch {
	case !ok:
		return View{}, api.Refuse("there is no network %s", id)
	case r.Phase == reconcile.Deleting:
		return View{}, api.Refuse("network %s is being deleted", id)
	}
	r, err := s.known(ctx, r)
	if err != nil {
		return View{}, err
	}
	// Routes and name servers of a subnet are its operator's, who changes them at any time.
	query := sdn.SubnetQuery{Networks: []sdn.ID{r.Last.ID}}
	subnets, err := sdn.All(s.SDN.FindSubnets(ctx, query))
	if err != nil {
		return View{}, err
	}
	sortslice.Func(subnets, byRange)
	s.networks.Ack(id) // its engine uses it
	s.noteHeard(id, r.Spec, true)
	return View{
		Ref: s.networks.Ref(id), ID: r.Last.ID, Project: r.Last.Project, MTU: r.Last.MTU,
		Subnets: subnets, NoPortSecurity: r.Last.NoPortSecurity, Options: r.Spec.options(),
	}, nil
}

// GwAllocCheck answers that a network without a way out needs no gateways.
func (s *Service) GwAllocCheck(
	_ context.Context, r *api.GwAllocCheckRequest,
) (api.GwAllocCheckResponse, error) {
	none := !r.Options.Routed()
	return api.GwAllocCheckResponse{SkipIPv4: none, SkipIPv6: none}, nil
}

// Delete deletes a network, and the pools of it that Docker has released. While the SDN is
// unavailable the deletion is stored, which is a success.
func (s *Service) Delete(ctx context.Context, id string) error {
	unlock, err := s.locks.Lock(ctx, lockNetwork+id)
	if err != nil {
		return err
	}
	defer unlock()
	r, ok := s.networks.Get(id)
	if !ok {
		found, err := s.lookUp(ctx, id)
		switch {
		case sdn.IsUnavailable(err):
			return s.ImportDelete(ctx, id)
		case err != nil || !found:
			return err
		}
		r, _ = s.networks.Get(id)
	}
	return s.delete(ctx, r)
}

func (s *Service) delete(ctx context.Context, r row) error {
	err := s.networks.RemoveTree(ctx, r.Key)
	if r.Spec.Existing != "" && (err == nil || reconcile.IsPending(err)) {
		if err := s.removeTags(ctx, r.Key, r.Spec, r.Last); err != nil && !reconcile.IsPending(err) {
			s.Log.WarnContext(ctx, "network tags not deleted", "network", r.Spec.Existing, "err", err)
		}
	}
	if err != nil {
		return s.pending(ctx, r.Key, err)
	}
	for _, g := range r.Spec.Ranges {
		if g.Pool == "" && g.PoolID != "" { // an operator's, which kuryr-libnetwork used
			if err := s.Pools.Unmark(ctx, g.PoolID, r.Last.ID); err != nil {
				s.Log.WarnContext(ctx, "existing subnet pool keeps its tag", "pool", g.PoolID, "err", err)
			}
		}
	}
	return s.pending(ctx, r.Key, s.Pools.NetworkGone(ctx, r.Spec.pools()))
}

// pending returns nil for a deletion that is stored and waits for the SDN, and otherwise what
// prevents it.
func (s *Service) pending(ctx context.Context, id string, err error) error {
	if !reconcile.IsPending(err) {
		return err
	}
	cause := err
	if p, ok := errors.AsType[*reconcile.PendingError](err); ok {
		cause = p.Err
	}
	waits := sdn.IsUnavailable(cause) || errors.Is(cause, context.DeadlineExceeded) ||
		errors.Is(cause, context.Canceled)
	if !waits {
		return cause
	}
	s.Log.InfoContext(ctx, "cleanup queued", "network", id, "err", cause)
	return nil
}

// dropReleased deletes the networks, but one, of which Docker has released all pools, and that
// have no endpoints: it deletes a network right after its pools, so that call was lost.
func (s *Service) dropReleased(ctx context.Context, but string) error {
	var errs []error
	for r := range s.networks.Rows() {
		if r.Phase == reconcile.Wanted && r.Key != but && s.isReleased(r) && !s.HasEndpoints(r.Key) {
			if err := s.dropLocked(ctx, r.Key); err != nil {
				errs = append(errs, fmt.Errorf("delete released network %s: %w", r.Key, err))
			}
		}
	}
	return errors.Join(errs...)
}

// dropLocked deletes a network that has no endpoints still.
func (s *Service) dropLocked(ctx context.Context, id string) error {
	unlock, err := s.locks.Lock(ctx, lockNetwork+id)
	if err != nil {
		return err
	}
	defer unlock()
	r, ok := s.networks.Get(id)
	if !ok || r.Phase != reconcile.Wanted || !s.isReleased(r) || s.HasEndpoints(id) {
		return nil
	}
	return s.delete(ctx, r)
}

// isReleased reports whether Docker has released all pools of a network, and it has some.
func (s *Service) isReleased(r row) bool {
	has := false
	for _, g := range r.Spec.Ranges {
		if g.Pool == "" || !s.Pools.IsReleased(g.Pool) {
			return false
		}
		has = true
	}
	return has
}

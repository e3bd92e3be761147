package raven

import (
	"context"
	"errors"
	"net/netip"
	"sync"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

// offer is what pools take from a KuryrNetwork. Nothing else of it has any looked at: many namespaces may share a network, and each of them has a KuryrNetwork.
type offer struct {
	network string // the SDN's id
	kind    string // of the pools that the namespace's pods are to have ports of
	policy  string
	ready   bool
}

// offerOf is what a KuryrNetwork offers: nothing where it is being deleted, or before there is a network.
func offerOf(n *v1.KuryrNetwork) offer {
	if !n.DeletionTimestamp.IsZero() || n.Status.Network == "" {
		return offer{}
	}
	return offer{n.Status.Network, core.KindOfPool(v1.PoolKey(n, "")), n.Status.PoolPolicy, core.IsReady(n.Status.Conditions)}
}

// networkMade counts the network's routes, and has its pools looked at, unless all are anyway: at the start.
func (r *Raven) networkMade(ctx context.Context, e event.CreateEvent, q core.Queue) {
	n := e.Object.(*v1.KuryrNetwork)
	if e.IsInInitialList {
		r.routed.change(nil, r.nodes.PrefixesOf(n))
		return
	}
	r.networkChanged(ctx, nil, n, q)
}

// networkChanged has the pools looked at that a change of a KuryrNetwork concerns, and no other on the same network. No network before is one that has come, none now one that is gone.
func (r *Raven) networkChanged(ctx context.Context, old, is *v1.KuryrNetwork, q core.Queue) {
	var was, now offer
	if old != nil {
		was = offerOf(old)
	}
	if is != nil {
		now = offerOf(is)
	} else if was == (offer{}) { // the beginning of its deletion may not have been told
		was = offer{network: old.Status.Network, kind: core.KindOfPool(v1.PoolKey(old, ""))}
	}
	var all []ctrl.Request
	var errs []error
	add := func(requests []ctrl.Request, err error) {
		all, errs = append(all, requests...), append(errs, err)
	}
	if was != now {
		namespace := old
		if old == nil {
			namespace = is
		}
		add(r.poolsOfPods(ctx, namespace.Spec.Namespace, old))
		add(r.poolsLeft(ctx, was, now))
	}
	if was.network != now.network || was.policy != now.policy {
		for _, o := range []offer{was, now} {
			if o.policy != "" {
				add(r.poolsRequested(ctx, core.ByNetwork, o.network))
			}
		}
	}
	if r.routed.change(r.nodes.PrefixesOf(old), r.nodes.PrefixesOf(is)) {
		add(r.poolsRequested(ctx, core.ByNetwork, string(r.ground.Nodes.Network.ID)))
	}
	if err := errors.Join(errs...); err != nil {
		r.Log.ErrorContext(ctx, "pools of a network", "error", err)
	}
	for _, one := range all {
		q.Add(one)
	}
}

// poolsLeft are the pools that nobody wants any more: none has their kind, or none the network.
func (r *Raven) poolsLeft(ctx context.Context, was, now offer) ([]ctrl.Request, error) {
	if was.network == "" || was.kind == now.kind {
		return nil, nil
	}
	if user, err := r.OneNetwork(ctx, core.ByKind, was.kind); user != nil || err != nil {
		return nil, err
	}
	if other, err := r.OneNetwork(ctx, core.ByStaying, was.network); other == nil && err == nil {
		return r.poolsRequested(ctx, core.ByNetwork, was.network)
	}
	return r.poolsRequested(ctx, core.ByKind, was.kind)
}

func (r *Raven) poolsRequested(ctx context.Context, index, value string) ([]ctrl.Request, error) {
	if value == "" {
		return nil, nil
	}
	all, err := r.PoolsBy(ctx, index, value)
	return requestsFor(all), err
}

// routed counts the KuryrNetworks that have a range which nodes need a route to: it is the first and the last of them that nodes' own ports are to know of. It is told of each change once.
type routed struct {
	mu sync.Mutex
	n  map[netip.Prefix]int
}

// change tells whether there is a range more or less now.
func (r *routed) change(was, is []netip.Prefix) (changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.n == nil {
		r.n = map[netip.Prefix]int{}
	}
	before := map[netip.Prefix]bool{}
	for _, p := range append(append([]netip.Prefix{}, was...), is...) {
		before[p] = r.n[p] > 0
	}
	for _, p := range was {
		r.n[p]--
	}
	for _, p := range is {
		r.n[p]++
	}
	for p, had := range before {
		changed = changed || had != (r.n[p] > 0)
		if r.n[p] <= 0 {
			delete(r.n, p)
		}
	}
	return changed
}

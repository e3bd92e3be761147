package raven

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/kube/raven/node"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// What a pod sends to a VIP is judged before it is translated to an endpoint. So with
// Config.UnderlayIsolation load balancers have no endpoints that pods are kept from: addresses on
// the nodes' network, unless the security group lets pods there too (API servers, name servers), a
// pod on its node's network has the address, or the namespace is granted it. A hand-made
// EndpointSlice may say anything of itself, so only the pod that it names is believed.

// barrier is the nodes' network and what of it pods reach, as the security group has it.
type barrier struct {
	mu       sync.Mutex
	underlay []netip.Prefix
	servers  []netip.AddrPort
}

// set notes what the group has, and reports whether that differs from before.
func (b *barrier) set(underlay []netip.Prefix, servers []netip.AddrPort) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	changed = !slices.Equal(b.underlay, underlay) || !slices.Equal(b.servers, servers)
	b.underlay, b.servers = underlay, servers
	return changed
}

// bars reports whether the group keeps pods from an address and port.
func (b *barrier) bars(at netip.AddrPort, p sdn.Protocol) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case !slices.ContainsFunc(b.underlay, func(n netip.Prefix) bool { return n.Contains(at.Addr()) }):
		return false
	case at.Port() == node.PortDNS && (p == sdn.UDP || p == sdn.TCP):
		return false
	}
	return p != sdn.TCP || !slices.Contains(b.servers, at)
}

// barred returns what tells of an endpoint of the Service whether it is left out. After all have
// been asked about, missing reports whether the cache lacked a pod that may allow one of them.
func (w *balancing) barred(ctx context.Context) (
	is func(endpoint, sdn.Protocol) bool, missing func() (time.Duration, error),
) {
	if !w.cfg.UnderlayIsolation {
		return nil, func() (time.Duration, error) { return 0, nil }
	}
	var errs []error
	unseen := map[string]bool{}
	is = func(e endpoint, p sdn.Protocol) bool {
		if !w.barrier.bars(e.addr, p) || w.grants.Endpoint(e.addr.Addr()) {
			return false
		}
		there, has, err := w.hasNodeAddress(ctx, e)
		if errs = append(errs, err); !there && e.pod != "" {
			unseen[e.pod] = true
		}
		return !has
	}
	missing = func() (again time.Duration, err error) {
		for pod := range unseen {
			if !w.known.unseen[pod] { // the slice may have come before the pod; it is asked for once
				again = pendingPause
			}
		}
		w.known.unseen = unseen
		return again, errors.Join(errs...)
	}
	return is, missing
}

// hasNodeAddress reports whether the pod of an endpoint is there, and is on the network of a node
// that has the endpoint's address.
func (w *balancing) hasNodeAddress(ctx context.Context, e endpoint) (there, has bool, err error) {
	if e.pod == "" {
		return false, false, nil
	}
	var pod corev1.Pod
	if err := w.Client.Get(ctx, client.ObjectKey{Namespace: w.lb.Namespace, Name: e.pod}, &pod); err != nil {
		return false, false, client.IgnoreNotFound(err)
	}
	if !pod.Spec.HostNetwork || pod.Spec.NodeName == "" {
		return true, false, nil
	}
	var node corev1.Node
	if err := w.Client.Get(ctx, client.ObjectKey{Name: pod.Spec.NodeName}, &node); err != nil {
		return true, false, client.IgnoreNotFound(err)
	}
	return true, slices.ContainsFunc(node.Status.Addresses, func(a corev1.NodeAddress) bool {
		addr, err := netip.ParseAddr(a.Address)
		return err == nil && addr.Unmap() == e.addr.Addr()
	}), nil
}

// wakeBalancers has all load balancers looked at: the nodes' network is another.
func (r *Raven) wakeBalancers(ctx context.Context) error {
	if !r.cfg.Services {
		return nil
	}
	var all v1.KuryrLoadBalancerList
	if err := r.Client.List(ctx, &all); err != nil {
		return err
	}
	for i := range all.Items {
		r.balancerWakes.Enqueue(core.Request(all.Items[i].Namespace, all.Items[i].Name))
	}
	return nil
}

// isolating notes what the group keeps pods from. If that is something else, all load balancers are
// reconciled.
func (r *Raven) isolating(ctx context.Context, underlay []netip.Prefix, servers []netip.AddrPort) error {
	if !r.barrier.set(underlay, servers) {
		return nil
	}
	return r.wakeBalancers(ctx)
}

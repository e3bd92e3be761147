// Package namespace gives each namespace that has pods a KuryrNetwork, and each KuryrNetwork
// a network in the SDN with its subnets on the cluster's router.
//
// It owns KuryrNetworks and the networks that it makes for them. It must not make ports. An
// existing network that a namespace names is used and never deleted.
package namespace

import (
	"context"
	"errors"
	"slices"
	"strings"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Config is what the reconcilers of namespaces and networks need besides the core.
type Config struct {
	Infrastructure *core.Infrastructure

	Project string   // of networks whose namespace names none; "" is the provider's own
	Network string   // id of the network of namespaces that name none; "" is one for each
	Subnets []string // of that network; none is all
	// Isolated is that pods are kept from the nodes' network unless their namespace has groups
	// of its own.
	Isolated bool

	// IsLoadBalancerSubnet reports whether a subnet of a KuryrNetwork's network is one of load
	// balancers, where pods get no address.
	IsLoadBalancerSubnet func(s sdn.Subnet, network string) bool
	// Removing is called before the subnets of a KuryrNetwork are detached from the router.
	Removing func(network string)
}

// controllers is what both reconcilers have.
type controllers struct {
	*core.Core
	Config
}

// namespaces creates the KuryrNetwork of each namespace that needs one, and deletes those of
// namespaces that have gone.
type namespaces struct{ *controllers }

// Reconcile compares the KuryrNetworks of one namespace with the one that it needs.
func (r namespaces) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	ns := &corev1.Namespace{}
	if err := r.Client.Get(ctx, req.NamespacedName, ns); apierrors.IsNotFound(err) {
		ns = nil
	} else if err != nil {
		return core.Result(0, err)
	}
	networks, err := r.NetworksBy(ctx, core.ByNamespace, req.Name)
	if err != nil {
		return core.Result(0, err)
	}
	pods, err := r.hasPods(ctx, ns, networks)
	if err != nil {
		return core.Result(0, err)
	}
	missing, stale := decide(ns, networks, pods, r.Config)
	var errs []error
	for _, n := range stale {
		err := r.Client.Delete(ctx, n, client.Preconditions{UID: &n.UID})
		errs = append(errs, client.IgnoreNotFound(err))
	}
	if missing != nil {
		if err := r.Client.Create(ctx, missing); !apierrors.IsAlreadyExists(err) {
			errs = append(errs, err)
		}
	}
	return core.Result(0, errors.Join(errs...))
}

// hasPods reports whether a namespace has pods that get ports. They are not looked for in one
// that has its network, or needs one without them.
func (r namespaces) hasPods(ctx context.Context, ns *corev1.Namespace, networks []v1.KuryrNetwork) (bool, error) {
	has := func(n v1.KuryrNetwork) bool { return isOf(&n, ns) }
	if ns == nil || ns.Name == metav1.NamespaceDefault || slices.ContainsFunc(networks, has) {
		return false, nil
	}
	var pods corev1.PodList
	err := r.Client.List(ctx, &pods, client.InNamespace(ns.Name))
	return slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return core.Networked(&p) }), err
}

// decide returns the KuryrNetwork that a namespace needs and does not have, and those of
// namespaces of its name that have gone. The namespace "default" needs one from the start,
// any other with its first pod. A namespace that has gone is nil.
func decide(ns *corev1.Namespace, networks []v1.KuryrNetwork, pods bool, cfg Config) (
	missing *v1.KuryrNetwork, stale []*v1.KuryrNetwork,
) {
	has := false
	for i := range networks {
		n := &networks[i]
		switch {
		case ns != nil && isOf(n, ns):
			has = true
		case n.DeletionTimestamp.IsZero():
			stale = append(stale, n)
		}
	}
	needs := ns != nil && ns.DeletionTimestamp.IsZero() && (pods || ns.Name == metav1.NamespaceDefault)
	if has || !needs {
		return nil, stale
	}
	return networkOf(ns, cfg), stale
}

// isOf reports whether a KuryrNetwork is that of a namespace.
func isOf(n *v1.KuryrNetwork, ns *corev1.Namespace) bool {
	return n.Spec.UID == ns.UID && n.Name == v1.NetworkName(ns.Name, ns.UID)
}

// networkOf returns the KuryrNetwork of a namespace, as its annotations say.
func networkOf(ns *corev1.Namespace, cfg Config) *v1.KuryrNetwork {
	says := func(annotation string) string { return strings.TrimSpace(ns.Annotations[annotation]) }
	n := &v1.KuryrNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: v1.NetworkName(ns.Name, ns.UID), Finalizers: []string{v1.Finalizer}},
		Spec: v1.KuryrNetworkSpec{
			Namespace: ns.Name, UID: ns.UID, ProjectID: says(v1.AnnotationProject),
			Network: says(v1.AnnotationNetwork), Subnets: core.SplitList(ns.Annotations[v1.AnnotationSubnets]),
		},
	}
	if n.Spec.ProjectID == "" {
		n.Spec.ProjectID = cfg.Project
	}
	if n.Spec.Network == "" {
		n.Spec.Network, n.Spec.Subnets = cfg.Network, cfg.Subnets
	}
	return n
}

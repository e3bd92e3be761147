package core

import (
	"context"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// NetworkOf returns the KuryrNetwork of a namespace, nil while none is ready.
func (r *Core) NetworkOf(ctx context.Context, namespace string) (*v1.KuryrNetwork, error) {
	var ns corev1.Namespace
	if err := r.Client.Get(ctx, types.NamespacedName{Name: namespace}, &ns); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	var n v1.KuryrNetwork
	if err := r.Client.Get(ctx, types.NamespacedName{Name: v1.NetworkName(ns.Name, ns.UID)}, &n); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if !n.DeletionTimestamp.IsZero() || n.Status.Network == "" || !IsReady(n.Status.Conditions) {
		return nil, nil
	}
	return &n, nil
}

// AnyNetworkOf returns the KuryrNetwork of a namespace, ready or not, nil for none.
func (r *Core) AnyNetworkOf(ctx context.Context, namespace string) (*v1.KuryrNetwork, error) {
	var ns corev1.Namespace
	if err := r.Client.Get(ctx, client.ObjectKey{Name: namespace}, &ns); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	var n v1.KuryrNetwork
	if err := r.Client.Get(ctx, client.ObjectKey{Name: v1.NetworkName(ns.Name, ns.UID)}, &n); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return &n, nil
}

// NamespaceOf returns the namespace of a KuryrNetwork, nil if it has gone or is another
// one of that name.
func (r *Core) NamespaceOf(ctx context.Context, n *v1.KuryrNetwork) (*corev1.Namespace, error) {
	var ns corev1.Namespace
	err := r.Client.Get(ctx, types.NamespacedName{Name: n.Spec.Namespace}, &ns)
	if apierrors.IsNotFound(err) || err == nil && ns.UID != n.Spec.UID {
		return nil, nil
	}
	return &ns, err
}

package raven

import (
	"context"
	"errors"
	"slices"
	"strings"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// namespaces asks for a KuryrNetwork for each namespace that needs one, and for none any more of namespaces that are gone.
type namespaces struct{ *Raven }

// Reconcile looks at one namespace.
func (r namespaces) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var ns corev1.Namespace
	err := r.Client.Get(ctx, req.NamespacedName, &ns)
	if client.IgnoreNotFound(err) != nil {
		return core.Result(0, err)
	}
	gone := err != nil
	var networks v1.KuryrNetworkList
	if err := r.Client.List(ctx, &networks, client.MatchingFields{core.ByNamespace: req.Name}); err != nil {
		return core.Result(0, err)
	}
	errs, have := []error{}, false
	for i := range networks.Items {
		n := &networks.Items[i]
		if !gone && n.Spec.UID == ns.UID && n.Name == v1.NetworkName(ns.Name, ns.UID) {
			have = true
		} else if n.DeletionTimestamp.IsZero() { // a namespace of that name that was before
			errs = append(errs, client.IgnoreNotFound(r.Client.Delete(ctx, n, client.Preconditions{UID: &n.UID})))
		}
	}
	if !gone && !have && ns.DeletionTimestamp.IsZero() {
		errs = append(errs, r.networkFor(ctx, &ns))
	}
	return core.Result(0, errors.Join(errs...))
}

// networkFor makes the KuryrNetwork of a namespace that needs one: "default" from the start on, any other with its first pod.
func (r namespaces) networkFor(ctx context.Context, ns *corev1.Namespace) error {
	if ns.Name != metav1.NamespaceDefault {
		var pods corev1.PodList
		if err := r.Client.List(ctx, &pods, client.InNamespace(ns.Name)); err != nil {
			return err
		}
		if !slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return core.Networked(&p) }) {
			return nil
		}
	}
	n := &v1.KuryrNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: v1.NetworkName(ns.Name, ns.UID), Finalizers: []string{v1.Finalizer}},
		Spec: v1.KuryrNetworkSpec{
			Namespace: ns.Name, UID: ns.UID, ProjectID: strings.TrimSpace(ns.Annotations[v1.AnnotationProject]),
			Network: strings.TrimSpace(ns.Annotations[v1.AnnotationNetwork]), Subnets: core.SplitList(ns.Annotations[v1.AnnotationSubnets]),
		},
	}
	if n.Spec.ProjectID == "" {
		n.Spec.ProjectID = r.cfg.Project
	}
	if n.Spec.Network == "" {
		n.Spec.Network, n.Spec.Subnets = r.cfg.Network, r.cfg.Subnets
	}
	err := r.Client.Create(ctx, n)
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

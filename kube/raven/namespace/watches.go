package namespace

import (
	"context"
	"slices"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

// Controllers returns the controllers of namespaces and of their networks.
func Controllers(c *core.Core, cfg Config) []core.Controller {
	r := &controllers{c, cfg}
	networked := predicate.NewPredicateFuncs(func(o client.Object) bool { return core.Networked(o.(*corev1.Pod)) })
	annotated := predicate.Or(predicate.AnnotationChangedPredicate{}, core.Deleted{})
	return []core.Controller{
		{Name: "namespaces", Reconciler: namespaces{r}, Watches: []core.Watch{
			{Of: &corev1.Namespace{}, Handler: core.Itself},
			// The first pod needs the network. No change of a pod matters.
			{Of: &corev1.Pod{}, When: predicate.And(core.Created, networked), Handler: core.On(c, namespaceOfPod)},
			{
				Of: &v1.KuryrNetwork{}, When: predicate.GenerationChangedPredicate{},
				Handler: core.On(c, namespaceOfNetwork),
			},
		}},
		{Name: "networks", Reconciler: networks{r}, Watches: []core.Watch{
			{Of: &v1.KuryrNetwork{}, Handler: core.Itself},
			{Of: &corev1.Namespace{}, When: annotated, Handler: core.On(c, networkOfNamespace)},
			{Of: &v1.KuryrPortPool{}, When: core.Gone, Handler: core.On(c, r.networksOfPool)},
			{Of: &v1.KuryrNetwork{}, When: core.Gone, Handler: core.On(c, r.networksAfter)},
		}},
	}
}

func namespaceOfPod(_ context.Context, p *corev1.Pod) ([]ctrl.Request, error) {
	return core.One("", p.Namespace), nil
}

func namespaceOfNetwork(_ context.Context, n *v1.KuryrNetwork) ([]ctrl.Request, error) {
	return core.One("", n.Spec.Namespace), nil
}

func networkOfNamespace(_ context.Context, ns *corev1.Namespace) ([]ctrl.Request, error) {
	return core.One("", v1.NetworkName(ns.Name, ns.UID)), nil
}

// networksOfPool returns the networks whose deletion waits for their pools.
func (r *controllers) networksOfPool(ctx context.Context, p *v1.KuryrPortPool) ([]ctrl.Request, error) {
	return r.deleting(ctx, p.Spec.Network)
}

// networksAfter returns the networks whose deletion may have waited for this one, whose
// namespace was on theirs.
func (r *controllers) networksAfter(ctx context.Context, n *v1.KuryrNetwork) ([]ctrl.Request, error) {
	all, err := r.deleting(ctx, n.Status.Network)
	return slices.DeleteFunc(all, func(o ctrl.Request) bool { return o.Name == n.Name }), err
}

func (r *controllers) deleting(ctx context.Context, network string) (all []ctrl.Request, err error) {
	networks, err := r.NetworksBy(ctx, core.ByLeaving, network)
	for i := range networks {
		all = append(all, core.Request("", networks[i].Name))
	}
	return all, err
}

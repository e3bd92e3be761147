package raven

import (
	"context"
	"slices"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// placements asks for a KuryrPortPool wherever pods of a namespace are on a node. A request's namespace is that of the pods, its name the node's.
type placements struct{ *Raven }

// Reconcile looks at the pods of one namespace on one node.
func (r placements) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	pods, err := r.PodsOn(ctx, req.Name, client.InNamespace(req.Namespace))
	if err != nil {
		return core.Result(0, err)
	}
	if !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return core.Networked(&p) && p.DeletionTimestamp.IsZero() }) {
		return core.Result(0, nil)
	}
	n, err := r.NetworkOf(ctx, req.Namespace)
	if err != nil || n == nil { // its becoming ready brings this back
		return core.Result(0, err)
	}
	p := &v1.KuryrPortPool{Spec: v1.PoolKey(n, req.Name)}
	p.Name = v1.PoolName(p.Spec)
	err = r.Client.Get(ctx, types.NamespacedName{Name: p.Name}, &v1.KuryrPortPool{})
	if !apierrors.IsNotFound(err) {
		return core.Result(0, err)
	}
	policy, wrong, err := r.policyOf(ctx, p)
	if err != nil {
		return core.Result(0, err)
	}
	for _, w := range wrong {
		r.Warn(w.about, core.EventRefused, "Pool", "%s", w.text)
	}
	p.Finalizers = []string{v1.Finalizer}
	p.Labels = map[string]string{v1.LabelNode: v1.NodeLabel(req.Name)}
	p.Spec.NetworkName = "kuryr-ns-" + req.Namespace
	setPolicy(&p.Spec, policy)
	if err := r.Client.Create(ctx, p); !apierrors.IsAlreadyExists(err) {
		return core.Result(0, err)
	}
	return core.Result(0, nil)
}

// owner makes the pool the owner of a port, which does not keep the pool: its finalizer does.
func owner(p *v1.KuryrPortPool) metav1.OwnerReference {
	no := false
	return metav1.OwnerReference{APIVersion: v1.GroupVersion.String(), Kind: "KuryrPortPool", Name: p.Name, UID: p.UID, BlockOwnerDeletion: &no}
}

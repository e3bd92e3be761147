package raven

import (
	"context"

	"github.com/kuryr/kuryr/kube/raven/core"
	networkingv1 "k8s.io/api/networking/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// policies tells the owners of network policies what they would not notice otherwise.
type policies struct{ *Raven }

// Reconcile writes an Event on one NetworkPolicy.
func (r policies) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var p networkingv1.NetworkPolicy
	if err := r.Client.Get(ctx, req.NamespacedName, &p); err != nil {
		return core.Result(0, client.IgnoreNotFound(err))
	}
	if p.DeletionTimestamp.IsZero() {
		r.Warn(&p, core.EventUnserved, "NetworkPolicy", "Kuryr does not enforce network policies yet: this one filters nothing")
	}
	return core.Result(0, nil)
}

package raven

import (
	"context"
	"time"

	"github.com/kuryr/kuryr/kube/raven/core"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Pauses between attempts at one object.
const (
	firstRetry = 200 * time.Millisecond
	lastRetry  = time.Minute
)

// Add has the manager run Raven on the one replica that leads: Prepare first, the reconcilers when it has succeeded. Where it fails the manager ends with its error.
func (r *Raven) Add(m ctrl.Manager) error {
	return m.Add(leading(func(ctx context.Context) error {
		if err := r.Prepare(ctx); err != nil || ctx.Err() != nil {
			return err
		}
		r.Log.InfoContext(ctx, "prepared: the router, the subnet pools and the VIP network are there", "router", r.ground.Router)
		for _, c := range r.registrations() {
			if err := r.register(m, c); err != nil {
				return err
			}
		}
		<-ctx.Done()
		return nil
	}))
}

// leading is what runs on the leader.
type leading func(context.Context) error

// Start runs it.
func (f leading) Start(ctx context.Context) error { return f(ctx) }

// NeedLeaderElection has the manager wait until it leads.
func (leading) NeedLeaderElection() bool { return true }

func (r *Raven) options() controller.Options {
	unique := true
	return controller.Options{
		MaxConcurrentReconciles: r.cfg.Workers, SkipNameValidation: &unique,
		RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
	}
}

// register has the manager run a controller.
func (r *Raven) register(m ctrl.Manager, c core.Controller) error {
	b := ctrl.NewControllerManagedBy(m).Named(c.Name).WithOptions(r.options())
	for _, w := range c.Watches {
		if w.Optional && !served(m, w.Of) {
			continue
		}
		var options []builder.WatchesOption
		if w.When != nil {
			options = append(options, builder.WithPredicates(w.When))
		}
		b = b.Watches(w.Of, w.Handler, options...)
	}
	if c.Enqueuer != nil {
		b = b.WatchesRawSource(c.Enqueuer)
	}
	return b.Complete(c.Reconciler)
}

// served tells whether the API server knows the kind of an object. One that cannot be asked is told of by the watch.
func served(m ctrl.Manager, o client.Object) bool {
	kind, err := m.GetClient().GroupVersionKindFor(o)
	if err != nil {
		return false
	}
	_, err = m.GetRESTMapper().RESTMapping(kind.GroupKind(), kind.Version)
	return !meta.IsNoMatchError(err)
}

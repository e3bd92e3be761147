package raven

import (
	"context"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/sdn"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
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
		r.log.InfoContext(ctx, "prepared: the router, the subnet pools and the VIP network are there", "router", r.ground.router)
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
func (r *Raven) register(m ctrl.Manager, c registration) error {
	b := ctrl.NewControllerManagedBy(m).Named(c.name).WithOptions(r.options())
	for _, w := range c.watches {
		var options []builder.WatchesOption
		if w.when != nil {
			options = append(options, builder.WithPredicates(w.when))
		}
		b = b.Watches(w.of, w.what, options...)
	}
	if c.wakes != nil {
		b = b.WatchesRawSource(source.Channel(c.wakes, itself))
	}
	return b.Complete(c.reconciler)
}

// wake has a pool looked at, of which nothing in Kubernetes has changed.
func (r *Raven) wake(pool string) {
	select {
	case r.wakes <- event.GenericEvent{Object: &v1.KuryrPortPool{ObjectMeta: metav1.ObjectMeta{Name: pool}}}:
	default: // so many are woken that this one's turn comes with its next event
	}
}

// countPorts tells the cap of what is there at the start. Without one of the configuration it is nine tenths of the SDN's quota, which others may need some of.
func (r *Raven) countPorts(ctx context.Context) error {
	if r.cfg.MaxPorts == 0 && r.sdn.Capabilities().Quotas {
		var usage map[sdn.Noun]sdn.Usage
		err := r.ask(ctx, func(ctx context.Context) (err error) { usage, err = r.sdn.Usage(ctx, r.cfg.Project); return err })
		if err != nil && !sdn.IsDenied(err) {
			return err
		}
		if limit := usage[sdn.NounPort].Limit; limit > 0 {
			r.budget.limit(int(limit * 9 / 10))
		}
	}
	var all v1.KuryrPortPoolList
	if err := r.api.List(ctx, &all); err != nil {
		return err
	}
	for i := range all.Items {
		ports, err := r.portsOf(ctx, all.Items[i].Name)
		if err != nil {
			return err
		}
		r.budget.set(all.Items[i].Name, len(ports)+len(all.Items[i].Status.Pending))
	}
	return nil
}

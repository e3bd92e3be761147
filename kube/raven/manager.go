package raven

import (
	"context"
	"maps"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
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
		r.log.InfoContext(ctx, "prepared: the router, the subnet pools and the VIP network are there", "router", r.ground.router)
		for _, add := range []func(ctrl.Manager) error{r.addNamespaces, r.addNetworks, r.addPlacements, r.addNodes, r.addPools, r.addPolicies, r.addIsolation} {
			if err := add(m); err != nil {
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

func (r *Raven) addNamespaces(m ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(m).Named("namespaces").WithOptions(r.options()).
		For(&corev1.Namespace{}).
		Watches(&corev1.Pod{}, to(func(_ context.Context, o client.Object) []ctrl.Request {
			return []ctrl.Request{request("", o.GetNamespace())}
		}), builder.WithPredicates(predicate.Funcs{
			CreateFunc: func(e event.CreateEvent) bool { return wired(e.Object.(*corev1.Pod)) },
			UpdateFunc: func(event.UpdateEvent) bool { return false }, // the first pod needs the network, and no pod's change
			DeleteFunc: func(event.DeleteEvent) bool { return false },
		})).
		Watches(&v1.KuryrNetwork{}, to(func(_ context.Context, o client.Object) []ctrl.Request {
			return []ctrl.Request{request("", o.(*v1.KuryrNetwork).Spec.Namespace)}
		}), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Complete(namespaces{r})
}

func (r *Raven) addNetworks(m ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(m).Named("networks").WithOptions(r.options()).
		For(&v1.KuryrNetwork{}).
		Watches(&corev1.Namespace{}, to(func(_ context.Context, o client.Object) []ctrl.Request {
			return []ctrl.Request{request("", v1.NetworkName(o.GetName(), o.GetUID()))}
		}), builder.WithPredicates(predicate.Or(predicate.AnnotationChangedPredicate{}, deleted{}))).
		Watches(&v1.KuryrPortPool{}, to(func(ctx context.Context, o client.Object) []ctrl.Request {
			all, err := r.networksWith(ctx, o.(*v1.KuryrPortPool).Spec.Network)
			if err != nil {
				r.log.ErrorContext(ctx, "networks of a pool", "pool", o.GetName(), "error", err)
			}
			var requests []ctrl.Request
			for i := range all {
				requests = append(requests, request("", all[i].Name))
			}
			return requests
		}), builder.WithPredicates(deleted{})).
		Watches(&v1.KuryrNetwork{}, to(r.heldUp), builder.WithPredicates(deleted{}, predicate.Funcs{CreateFunc: func(event.CreateEvent) bool { return false }})).
		Complete(networks{r})
}

// heldUp are the networks that wait to be deleted and may have waited for the end of this one, whose namespace was on theirs.
func (r *Raven) heldUp(ctx context.Context, o client.Object) (all []ctrl.Request) {
	others, err := r.networksWith(ctx, o.(*v1.KuryrNetwork).Status.Network)
	if err != nil {
		r.log.ErrorContext(ctx, "networks of a network", "network", o.GetName(), "error", err)
	}
	for i := range others {
		if others[i].Name != o.GetName() && !others[i].DeletionTimestamp.IsZero() {
			all = append(all, request("", others[i].Name))
		}
	}
	return all
}

func (r *Raven) addPlacements(m ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(m).Named("placements").WithOptions(r.options()).
		Watches(&corev1.Pod{}, to(func(_ context.Context, o client.Object) []ctrl.Request {
			p := o.(*corev1.Pod)
			if p.Spec.NodeName == "" || !wired(p) {
				return nil
			}
			return []ctrl.Request{request(p.Namespace, p.Spec.NodeName)}
		}), builder.WithPredicates(predicate.Funcs{
			UpdateFunc: func(e event.UpdateEvent) bool {
				return e.ObjectOld.(*corev1.Pod).Spec.NodeName != e.ObjectNew.(*corev1.Pod).Spec.NodeName
			},
			DeleteFunc: func(event.DeleteEvent) bool { return false },
		})).
		Watches(&v1.KuryrNetwork{}, to(func(ctx context.Context, o client.Object) []ctrl.Request {
			return r.placementsOf(ctx, o.(*v1.KuryrNetwork).Spec.Namespace)
		})).
		Watches(&v1.KuryrPortPool{}, to(func(ctx context.Context, o client.Object) []ctrl.Request {
			networks, err := r.networksWith(ctx, o.(*v1.KuryrPortPool).Spec.Network)
			if err != nil {
				r.log.ErrorContext(ctx, "networks of a pool", "pool", o.GetName(), "error", err)
			}
			var requests []ctrl.Request
			for i := range networks {
				requests = append(requests, request(networks[i].Spec.Namespace, o.(*v1.KuryrPortPool).Spec.Node))
			}
			return requests
		}), builder.WithPredicates(deleted{})). // a pool that was deleted and is needed is made again
		Complete(placements{r})
}

func (r *Raven) addNodes(m ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(m).Named("nodes").WithOptions(r.options()).
		For(&corev1.Node{}, builder.WithPredicates(predicate.Or(predicate.LabelChangedPredicate{}, deleted{}))).
		Watches(&v1.KuryrPortPool{}, to(func(_ context.Context, o client.Object) []ctrl.Request {
			return []ctrl.Request{request("", o.(*v1.KuryrPortPool).Spec.Node)}
		}), builder.WithPredicates(deleted{}, predicate.NewPredicateFuncs(func(o client.Object) bool { return o.(*v1.KuryrPortPool).Spec.ForNode }))).
		Complete(nodes{r})
}

func (r *Raven) addPools(m ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(m).Named("pools").WithOptions(r.options()).
		For(&v1.KuryrPortPool{}, builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		Watches(&v1.KuryrPort{}, handler.Funcs{
			CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) { r.portChanged(e.Object, q, false) },
			UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) { r.portChanged(e.ObjectNew, q, false) },
			DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) { r.portChanged(e.Object, q, true) },
		}).
		Watches(&corev1.Pod{}, to(r.poolsOfPod), builder.WithPredicates(predicate.Funcs{UpdateFunc: podMatters})).
		Watches(&corev1.Node{}, to(func(ctx context.Context, o client.Object) []ctrl.Request {
			if o.GetDeletionTimestamp().IsZero() {
				if err := r.nodeCollides(o.(*corev1.Node)); err != nil {
					r.warn(o, eventRefused, "Node", "%s", oneLine(err))
				}
			}
			all, err := r.poolsOn(ctx, o.GetName())
			if err != nil {
				r.log.ErrorContext(ctx, "pools of a node", "node", o.GetName(), "error", err)
			}
			return requestsFor(all)
		}), builder.WithPredicates(predicate.Or(predicate.AnnotationChangedPredicate{}, predicate.LabelChangedPredicate{}, deleted{}))).
		Watches(&v1.KuryrNetwork{}, to(func(ctx context.Context, o client.Object) []ctrl.Request {
			all, err := r.poolsWith(ctx, o.(*v1.KuryrNetwork).Status.Network)
			if own := string(r.ground.nodes.network.ID); err == nil && own != "" && r.outside(o.(*v1.KuryrNetwork)) {
				var nodes []v1.KuryrPortPool
				nodes, err = r.poolsWith(ctx, own)
				all = append(all, nodes...)
			}
			if err != nil {
				r.log.ErrorContext(ctx, "pools of a network", "network", o.GetName(), "error", err)
			}
			return requestsFor(all)
		})).
		Watches(&corev1.Namespace{}, to(func(ctx context.Context, o client.Object) []ctrl.Request {
			n, err := r.networkOf(ctx, o.GetName())
			if err != nil || n == nil {
				return nil
			}
			all, err := r.poolsWith(ctx, n.Status.Network)
			if err != nil {
				r.log.ErrorContext(ctx, "pools of a namespace", "namespace", o.GetName(), "error", err)
			}
			return requestsFor(all)
		}), builder.WithPredicates(predicate.AnnotationChangedPredicate{})).
		WatchesRawSource(&r.wakes).
		Complete(pools{r})
}

func (r *Raven) addPolicies(m ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(m).Named("networkpolicies").WithOptions(r.options()).
		For(&networkingv1.NetworkPolicy{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Complete(policies{r})
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

func to(f handler.MapFunc) handler.EventHandler { return handler.EnqueueRequestsFromMapFunc(f) }

// deleted lets pass what is or is being deleted, and what is there at the start.
type deleted = deletedPredicate[client.Object]

type deletedPredicate[T client.Object] struct{ predicate.TypedFuncs[T] }

// Update lets the beginning of a deletion pass.
func (deletedPredicate[T]) Update(e event.TypedUpdateEvent[T]) bool {
	return e.ObjectOld.GetDeletionTimestamp().IsZero() != e.ObjectNew.GetDeletionTimestamp().IsZero()
}

// podMatters tells whether a pool has to look at a pod's change.
func podMatters(e event.UpdateEvent) bool {
	was, is := e.ObjectOld.(*corev1.Pod), e.ObjectNew.(*corev1.Pod)
	return was.Spec.NodeName != is.Spec.NodeName || finished(was) != finished(is) || was.DeletionTimestamp.IsZero() != is.DeletionTimestamp.IsZero() ||
		!maps.Equal(withoutVIF(was.Annotations), withoutVIF(is.Annotations))
}

// withoutVIF leaves out the annotation that claimants write.
func withoutVIF(annotations map[string]string) map[string]string {
	if annotations[v1.AnnotationVIF] == "" {
		return annotations
	}
	rest := maps.Clone(annotations)
	delete(rest, v1.AnnotationVIF)
	return rest
}

func requestsFor(pools []v1.KuryrPortPool) (all []ctrl.Request) {
	for i := range pools {
		all = append(all, request("", pools[i].Name))
	}
	return all
}

// poolsOfPod are the pool that the pod is to have its port from, and the one that it has its port of: another one where the namespace's groups have changed.
func (r *Raven) poolsOfPod(ctx context.Context, o client.Object) []ctrl.Request {
	p := o.(*corev1.Pod)
	if p.Spec.NodeName == "" || p.Spec.HostNetwork {
		return nil
	}
	var all []ctrl.Request
	n, err := r.networkOf(ctx, p.Namespace)
	if err == nil && n != nil {
		all = append(all, request("", v1.PoolName(v1.PoolKey(n, p.Spec.NodeName))))
	}
	ports, err := r.portsOfPod(ctx, p.UID)
	if err != nil {
		r.log.ErrorContext(ctx, "ports of a pod", "pod", p.Name, "error", err)
	}
	for i := range ports {
		all = append(all, request("", ports[i].Spec.Pool))
	}
	return all
}

// portChanged has the port's pool looked at. One that is gone may be what a pod waits for that wishes its address.
func (r *Raven) portChanged(o client.Object, q queue, gone bool) {
	p := o.(*v1.KuryrPort)
	q.Add(request("", p.Spec.Pool))
	if !gone {
		return
	}
	r.memory.vanished(p.Spec.Pool, p.Name)
	if v1.PortStatus(p.Labels[v1.LabelPortStatus]) != v1.PortDeleting { // its finalizer was torn away
		r.memory.suspects(p.Spec.Pool)
	}
	if p.Spec.Dedicated == "" {
		return
	}
	for _, pool := range r.memory.wishing() {
		q.Add(request("", pool))
	}
}

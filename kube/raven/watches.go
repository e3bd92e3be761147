package raven

import (
	"context"
	"errors"
	"maps"
	"slices"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/kube/raven/namespace"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

// registrations are all controllers.
func (r *Raven) registrations() []core.Controller {
	return slices.Concat(r.serviceRegistrations(), namespace.Controllers(r.Core, r.namespaceConfig()), r.nodes.Controllers(), []core.Controller{
		{Name: "placements", Reconciler: placements{r}, Watches: []core.Watch{
			{Of: &corev1.Pod{}, When: predicate.Funcs{UpdateFunc: podPlaced, DeleteFunc: core.NeverDeleted}, Handler: core.On(r.Core, r.placementOfPod)},
			{Of: &v1.KuryrNetwork{}, Handler: core.On(r.Core, r.placementsOfNetwork)},
			{Of: &v1.KuryrPortPool{}, When: core.Gone, Handler: core.On(r.Core, r.placementsOfPool)}, // a pool that was deleted and is needed is made again
		}},
		{Name: "pools", Reconciler: pools{r}, Enqueuer: &r.poolWakes, Watches: []core.Watch{
			{Of: &v1.KuryrPortPool{}, When: predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}), Handler: core.Itself},
			{Of: &v1.KuryrPort{}, Handler: handler.Funcs{
				CreateFunc: func(_ context.Context, e event.CreateEvent, q core.Queue) { r.portChanged(e.Object, q, false) },
				UpdateFunc: func(_ context.Context, e event.UpdateEvent, q core.Queue) { r.portChanged(e.ObjectNew, q, false) },
				DeleteFunc: func(_ context.Context, e event.DeleteEvent, q core.Queue) { r.portChanged(e.Object, q, true) },
			}},
			{Of: &corev1.Pod{}, When: predicate.Funcs{UpdateFunc: podMatters}, Handler: core.On(r.Core, r.poolsOfPod)},
			{Of: &corev1.Node{}, When: predicate.Or(predicate.AnnotationChangedPredicate{}, predicate.LabelChangedPredicate{}, core.Deleted{}), Handler: core.On(r.Core, r.poolsOfNode)},
			{Of: &v1.KuryrNetwork{}, Handler: handler.Funcs{
				CreateFunc: func(ctx context.Context, e event.CreateEvent, q core.Queue) { r.networkMade(ctx, e, q) },
				UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q core.Queue) {
					r.networkChanged(ctx, e.ObjectOld.(*v1.KuryrNetwork), e.ObjectNew.(*v1.KuryrNetwork), q)
				},
				DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q core.Queue) {
					r.networkChanged(ctx, e.Object.(*v1.KuryrNetwork), nil, q)
				},
			}},
			{Of: &corev1.Namespace{}, When: predicate.AnnotationChangedPredicate{}, Handler: core.On(r.Core, r.poolsOfNamespace)},
		}},
		{Name: "networkpolicies", Reconciler: policies{r}, Watches: []core.Watch{
			{Of: &networkingv1.NetworkPolicy{}, When: predicate.GenerationChangedPredicate{}, Handler: core.Itself},
		}},
	})
}

// namespaceConfig returns what the reconcilers of namespaces and networks need.
func (r *Raven) namespaceConfig() namespace.Config {
	return namespace.Config{
		Infrastructure: &r.ground, Project: r.cfg.Project, Network: r.cfg.Network, Subnets: r.cfg.Subnets,
		Isolated: r.cfg.UnderlayIsolation, IsLoadBalancerSubnet: r.isLBSubnet, Removing: r.forgetLBSubnets,
	}
}

// podPlaced tells whether a change has put a pod on a node.
func podPlaced(e event.UpdateEvent) bool {
	return e.ObjectOld.(*corev1.Pod).Spec.NodeName != e.ObjectNew.(*corev1.Pod).Spec.NodeName
}

// podMatters tells whether a pool has to look at a pod's change.
func podMatters(e event.UpdateEvent) bool {
	was, is := e.ObjectOld.(*corev1.Pod), e.ObjectNew.(*corev1.Pod)
	return was.Spec.NodeName != is.Spec.NodeName || core.Finished(was) != core.Finished(is) || was.DeletionTimestamp.IsZero() != is.DeletionTimestamp.IsZero() ||
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
		all = append(all, core.Request("", pools[i].Name))
	}
	return all
}

func (r *Raven) placementOfPod(_ context.Context, p *corev1.Pod) ([]ctrl.Request, error) {
	if p.Spec.NodeName == "" || !core.Networked(p) {
		return nil, nil
	}
	return core.One(p.Namespace, p.Spec.NodeName), nil
}

// placementsOfNetwork are the requests for all nodes with pods of the network's namespace.
func (r *Raven) placementsOfNetwork(ctx context.Context, n *v1.KuryrNetwork) (all []ctrl.Request, err error) {
	var pods corev1.PodList
	if err := r.Client.List(ctx, &pods, client.InNamespace(n.Spec.Namespace)); err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for i := range pods.Items {
		node := pods.Items[i].Spec.NodeName
		if node != "" && !seen[node] && core.Networked(&pods.Items[i]) {
			seen[node] = true
			all = append(all, core.Request(n.Spec.Namespace, node))
		}
	}
	return all, nil
}

// placementsOfPool are the requests for all namespaces with pods on the pool's node.
func (r *Raven) placementsOfPool(ctx context.Context, p *v1.KuryrPortPool) (all []ctrl.Request, err error) {
	pods, err := r.PodsOn(ctx, p.Spec.Node)
	for i := range pods {
		if one := core.Request(pods[i].Namespace, p.Spec.Node); core.Networked(&pods[i]) && !slices.Contains(all, one) {
			all = append(all, one)
		}
	}
	return all, err
}

// poolsOfPod are the pool that the pod is to have its port from, and the one that it has
// its port of: another one where the namespace's groups have changed.
func (r *Raven) poolsOfPod(ctx context.Context, p *corev1.Pod) (all []ctrl.Request, err error) {
	if p.Spec.NodeName == "" || p.Spec.HostNetwork {
		return nil, nil
	}
	n, err := r.NetworkOf(ctx, p.Namespace)
	if err == nil && n != nil {
		all = append(all, core.Request("", v1.PoolName(v1.PoolKey(n, p.Spec.NodeName))))
	}
	ports, failed := r.PortsOfPod(ctx, p.UID)
	for i := range ports {
		all = append(all, core.Request("", ports[i].Spec.Pool))
	}
	return all, errors.Join(err, failed)
}

// poolsOfNode are the node's pools. What collides with the cluster's ranges is told of the node.
func (r *Raven) poolsOfNode(ctx context.Context, n *corev1.Node) ([]ctrl.Request, error) {
	if n.DeletionTimestamp.IsZero() {
		if err := r.nodeCollides(n); err != nil {
			r.Warn(n, core.EventRefused, "Node", "%s", core.Message(err))
		}
	}
	all, err := r.PoolsOn(ctx, n.Name)
	return requestsFor(all), err
}

// poolsOfNamespace are the pools of the namespace's pods: what these may wish has changed.
func (r *Raven) poolsOfNamespace(ctx context.Context, ns *corev1.Namespace) ([]ctrl.Request, error) {
	return r.poolsOfPods(ctx, ns.Name, nil)
}

// poolsOfPods are the pools that the pods of a namespace are to have their ports from,
// those that they have them of, and those that they were to have them from by a network
// as it was.
func (r *Raven) poolsOfPods(ctx context.Context, namespace string, was *v1.KuryrNetwork) (all []ctrl.Request, err error) {
	var pods corev1.PodList
	if err := r.Client.List(ctx, &pods, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	var errs []error
	for i := range pods.Items {
		p := &pods.Items[i]
		of, err := r.poolsOfPod(ctx, p)
		if p.Spec.NodeName != "" && was != nil && was.Status.Network != "" {
			of = append(of, core.Request("", v1.PoolName(v1.PoolKey(was, p.Spec.NodeName))))
		}
		all, errs = append(all, of...), append(errs, err)
	}
	return all, errors.Join(errs...)
}

// portChanged has the port's pool looked at. One that is gone may be what a pod waits for
// that wishes its address.
func (r *Raven) portChanged(o client.Object, q core.Queue, gone bool) {
	p := o.(*v1.KuryrPort)
	q.Add(core.Request("", p.Spec.Pool))
	if !gone {
		return
	}
	r.memory.vanished(p.Spec.Pool, p.Name)
	if p.Status.Pod != nil {
		r.memory.taken(p.Status.Pod.UID, p.Spec.Pool)
	}
	if v1.PortStatus(p.Labels[v1.LabelPortStatus]) != v1.PortDeleting { // its finalizer was torn away
		r.memory.suspects(p.Spec.Pool)
	}
	if p.Spec.Dedicated == "" {
		return
	}
	for _, pool := range r.memory.wishing() {
		q.Add(core.Request("", pool))
	}
}

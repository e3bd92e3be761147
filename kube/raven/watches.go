package raven

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// registration is one controller of Raven's: a reconciler, and all that brings objects before it. Nothing else does, but the reconciler's own answers.
type registration struct {
	name       string
	reconciler reconcile.Reconciler
	watches    []watch
	wakes      *wakes // has objects looked at of which nothing in Kubernetes has changed; nil is none
}

// watch has objects looked at when one of a kind changes.
type watch struct {
	of   client.Object
	when predicate.Predicate // what of the changes counts; nil is each
	what handler.EventHandler

	optional bool // an API server may not know the kind
}

// registrations are all controllers.
func (r *Raven) registrations() []registration {
	return append(r.serviceRegistrations(), []registration{
		{name: "namespaces", reconciler: namespaces{r}, watches: []watch{
			{of: &corev1.Namespace{}, what: itself},
			{of: &corev1.Pod{}, when: predicate.And(made, predicate.NewPredicateFuncs(isWired)), what: on(r, r.namespaceOfPod)}, // the first pod needs the network, and no pod's change
			{of: &v1.KuryrNetwork{}, when: predicate.GenerationChangedPredicate{}, what: on(r, r.namespaceOfNetwork)},
		}},
		{name: "networks", reconciler: networks{r}, watches: []watch{
			{of: &v1.KuryrNetwork{}, what: itself},
			{of: &corev1.Namespace{}, when: predicate.Or(predicate.AnnotationChangedPredicate{}, deleted{}), what: on(r, r.networkOfNamespace)},
			{of: &v1.KuryrPortPool{}, when: gone, what: on(r, r.networksOfPool)},
			{of: &v1.KuryrNetwork{}, when: gone, what: on(r, r.heldUp)},
		}},
		{name: "placements", reconciler: placements{r}, watches: []watch{
			{of: &corev1.Pod{}, when: predicate.Funcs{UpdateFunc: podPlaced, DeleteFunc: neverDeleted}, what: on(r, r.placementOfPod)},
			{of: &v1.KuryrNetwork{}, what: on(r, r.placementsOfNetwork)},
			{of: &v1.KuryrPortPool{}, when: gone, what: on(r, r.placementsOfPool)}, // a pool that was deleted and is needed is made again
		}},
		{name: "nodes", reconciler: nodes{r}, watches: []watch{
			{of: &corev1.Node{}, when: predicate.Or(predicate.LabelChangedPredicate{}, deleted{}), what: itself},
			{of: &v1.KuryrPortPool{}, when: deleted{}, what: on(r, r.nodeOfPool)},
		}},
		{name: "pools", reconciler: pools{r}, wakes: &r.poolWakes, watches: []watch{
			{of: &v1.KuryrPortPool{}, when: predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}), what: itself},
			{of: &v1.KuryrPort{}, what: handler.Funcs{
				CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) { r.portChanged(e.Object, q, false) },
				UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) { r.portChanged(e.ObjectNew, q, false) },
				DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) { r.portChanged(e.Object, q, true) },
			}},
			{of: &corev1.Pod{}, when: predicate.Funcs{UpdateFunc: podMatters}, what: on(r, r.poolsOfPod)},
			{of: &corev1.Node{}, when: predicate.Or(predicate.AnnotationChangedPredicate{}, predicate.LabelChangedPredicate{}, deleted{}), what: on(r, r.poolsOfNode)},
			{of: &v1.KuryrNetwork{}, what: handler.Funcs{
				CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { r.networkMade(ctx, e, q) },
				UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
					r.networkChanged(ctx, e.ObjectOld.(*v1.KuryrNetwork), e.ObjectNew.(*v1.KuryrNetwork), q)
				},
				DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) {
					r.networkChanged(ctx, e.Object.(*v1.KuryrNetwork), nil, q)
				},
			}},
			{of: &corev1.Namespace{}, when: predicate.AnnotationChangedPredicate{}, what: on(r, r.poolsOfNamespace)},
		}},
		{name: "networkpolicies", reconciler: policies{r}, watches: []watch{
			{of: &networkingv1.NetworkPolicy{}, when: predicate.GenerationChangedPredicate{}, what: itself},
		}},
		{name: "isolation", reconciler: isolation{r}, watches: []watch{
			{of: &corev1.Node{}, when: predicate.Funcs{UpdateFunc: nodeMoved}, what: on(r, isolationOf[*corev1.Node])},
			{of: &discoveryv1.EndpointSlice{}, when: predicate.NewPredicateFuncs(isAPIServers), what: on(r, isolationOf[*discoveryv1.EndpointSlice])},
		}},
	}...)
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// itself has the object looked at that changes.
var itself = &handler.EnqueueRequestForObject{}

// on has what f finds looked at, of an object that changes.
func on[T client.Object](r *Raven, f func(context.Context, T) ([]ctrl.Request, error)) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []ctrl.Request {
		all, err := f(ctx, o.(T))
		if err != nil {
			r.log.ErrorContext(ctx, "what the change of an object concerns", "kind", fmt.Sprintf("%T", o), "name", o.GetName(), "error", err)
		}
		return all
	})
}

// made lets pass what comes, and what is there at the start.
var made = predicate.Funcs{UpdateFunc: func(event.UpdateEvent) bool { return false }, DeleteFunc: neverDeleted}

func neverDeleted(event.DeleteEvent) bool { return false }

// deleted lets pass what is or is being deleted, and what is there at the start.
type deleted = deletedPredicate[client.Object]

type deletedPredicate[T client.Object] struct{ predicate.TypedFuncs[T] }

// Update lets the beginning of a deletion pass.
func (deletedPredicate[T]) Update(e event.TypedUpdateEvent[T]) bool {
	return e.ObjectOld.GetDeletionTimestamp().IsZero() != e.ObjectNew.GetDeletionTimestamp().IsZero()
}

// gone lets pass what is or is being deleted, and nothing of what is there at the start.
var gone = predicate.And(deleted{}, predicate.Not(made))

func isWired(o client.Object) bool { return wired(o.(*corev1.Pod)) }

// podPlaced tells whether a change has put a pod on a node.
func podPlaced(e event.UpdateEvent) bool {
	return e.ObjectOld.(*corev1.Pod).Spec.NodeName != e.ObjectNew.(*corev1.Pod).Spec.NodeName
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

// nodeMoved tells whether a node has other addresses.
func nodeMoved(e event.UpdateEvent) bool {
	return !equality.Semantic.DeepEqual(e.ObjectOld.(*corev1.Node).Status.Addresses, e.ObjectNew.(*corev1.Node).Status.Addresses)
}

func isAPIServers(o client.Object) bool {
	return o.GetNamespace() == metav1.NamespaceDefault && o.GetName() == apiService &&
		o.GetLabels()[discoveryv1.LabelServiceName] == apiService
}

func request(namespace, name string) ctrl.Request {
	return ctrl.Request{NamespacedName: client.ObjectKey{Namespace: namespace, Name: name}}
}

func just(namespace, name string) []ctrl.Request { return []ctrl.Request{request(namespace, name)} }

func requestsFor(pools []v1.KuryrPortPool) (all []ctrl.Request) {
	for i := range pools {
		all = append(all, request("", pools[i].Name))
	}
	return all
}

func (r *Raven) namespaceOfPod(_ context.Context, p *corev1.Pod) ([]ctrl.Request, error) {
	return just("", p.Namespace), nil
}

func (r *Raven) namespaceOfNetwork(_ context.Context, n *v1.KuryrNetwork) ([]ctrl.Request, error) {
	return just("", n.Spec.Namespace), nil
}

func (r *Raven) networkOfNamespace(_ context.Context, ns *corev1.Namespace) ([]ctrl.Request, error) {
	return just("", v1.NetworkName(ns.Name, ns.UID)), nil
}

// networksOfPool are the networks that wait for their pools to be gone.
func (r *Raven) networksOfPool(ctx context.Context, p *v1.KuryrPortPool) ([]ctrl.Request, error) {
	return r.leaving(ctx, p.Spec.Network)
}

// heldUp are the networks that wait to be deleted and may have waited for the end of this one, whose namespace was on theirs.
func (r *Raven) heldUp(ctx context.Context, n *v1.KuryrNetwork) ([]ctrl.Request, error) {
	all, err := r.leaving(ctx, n.Status.Network)
	return slices.DeleteFunc(all, func(o ctrl.Request) bool { return o.Name == n.Name }), err
}

func (r *Raven) leaving(ctx context.Context, network string) (all []ctrl.Request, err error) {
	networks, err := r.networksBy(ctx, byLeaving, network)
	for i := range networks {
		all = append(all, request("", networks[i].Name))
	}
	return all, err
}

func (r *Raven) placementOfPod(_ context.Context, p *corev1.Pod) ([]ctrl.Request, error) {
	if p.Spec.NodeName == "" || !wired(p) {
		return nil, nil
	}
	return just(p.Namespace, p.Spec.NodeName), nil
}

// placementsOfNetwork are the requests for all nodes with pods of the network's namespace.
func (r *Raven) placementsOfNetwork(ctx context.Context, n *v1.KuryrNetwork) (all []ctrl.Request, err error) {
	var pods corev1.PodList
	if err := r.api.List(ctx, &pods, client.InNamespace(n.Spec.Namespace)); err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for i := range pods.Items {
		node := pods.Items[i].Spec.NodeName
		if node != "" && !seen[node] && wired(&pods.Items[i]) {
			seen[node] = true
			all = append(all, request(n.Spec.Namespace, node))
		}
	}
	return all, nil
}

// placementsOfPool are the requests for all namespaces with pods on the pool's node.
func (r *Raven) placementsOfPool(ctx context.Context, p *v1.KuryrPortPool) (all []ctrl.Request, err error) {
	pods, err := r.podsOn(ctx, p.Spec.Node)
	for i := range pods {
		if one := request(pods[i].Namespace, p.Spec.Node); wired(&pods[i]) && !slices.Contains(all, one) {
			all = append(all, one)
		}
	}
	return all, err
}

func (r *Raven) nodeOfPool(_ context.Context, p *v1.KuryrPortPool) ([]ctrl.Request, error) {
	if !p.Spec.ForNode {
		return nil, nil
	}
	return just("", p.Spec.Node), nil
}

// poolsOfPod are the pool that the pod is to have its port from, and the one that it has its port of: another one where the namespace's groups have changed.
func (r *Raven) poolsOfPod(ctx context.Context, p *corev1.Pod) (all []ctrl.Request, err error) {
	if p.Spec.NodeName == "" || p.Spec.HostNetwork {
		return nil, nil
	}
	n, err := r.networkOf(ctx, p.Namespace)
	if err == nil && n != nil {
		all = append(all, request("", v1.PoolName(v1.PoolKey(n, p.Spec.NodeName))))
	}
	ports, failed := r.portsOfPod(ctx, p.UID)
	for i := range ports {
		all = append(all, request("", ports[i].Spec.Pool))
	}
	return all, errors.Join(err, failed)
}

// poolsOfNode are the node's pools. What collides with the cluster's ranges is told of the node.
func (r *Raven) poolsOfNode(ctx context.Context, n *corev1.Node) ([]ctrl.Request, error) {
	if n.DeletionTimestamp.IsZero() {
		if err := r.nodeCollides(n); err != nil {
			r.warn(n, eventRefused, "Node", "%s", oneLine(err))
		}
	}
	all, err := r.poolsOn(ctx, n.Name)
	return requestsFor(all), err
}

// poolsOfNamespace are the pools of the namespace's pods: what these may wish has changed.
func (r *Raven) poolsOfNamespace(ctx context.Context, ns *corev1.Namespace) ([]ctrl.Request, error) {
	return r.poolsOfPods(ctx, ns.Name, nil)
}

// poolsOfPods are the pools that the pods of a namespace are to have their ports from, those that they have them of, and those that they were to have them from by a network as it was.
func (r *Raven) poolsOfPods(ctx context.Context, namespace string, was *v1.KuryrNetwork) (all []ctrl.Request, err error) {
	var pods corev1.PodList
	if err := r.api.List(ctx, &pods, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	var errs []error
	for i := range pods.Items {
		p := &pods.Items[i]
		of, err := r.poolsOfPod(ctx, p)
		if p.Spec.NodeName != "" && was != nil && was.Status.Network != "" {
			of = append(of, request("", v1.PoolName(v1.PoolKey(was, p.Spec.NodeName))))
		}
		all, errs = append(all, of...), append(errs, err)
	}
	return all, errors.Join(errs...)
}

// portChanged has the port's pool looked at. One that is gone may be what a pod waits for that wishes its address.
func (r *Raven) portChanged(o client.Object, q queue, gone bool) {
	p := o.(*v1.KuryrPort)
	q.Add(request("", p.Spec.Pool))
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
		q.Add(request("", pool))
	}
}

// isolationOf is the one object that stands for all of the isolation.
func isolationOf[T client.Object](context.Context, T) ([]ctrl.Request, error) {
	return just("", isolatedName), nil
}

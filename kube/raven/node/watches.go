package node

import (
	"context"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

// Controllers returns the controllers of nodes' own ports, of the routes to nodes, and of
// the isolation from the nodes' network.
func (r *Node) Controllers() []core.Controller {
	labelled := predicate.Or(predicate.LabelChangedPredicate{}, core.Deleted{})
	changed := predicate.Or(predicate.GenerationChangedPredicate{}, core.Deleted{})
	ready := predicate.Or(predicate.Funcs{UpdateFunc: becameReady}, core.Deleted{})
	routes := core.Controller{Name: "noderoutes", Reconciler: nodeRoutes{r}, Watches: []core.Watch{
		{Of: &corev1.Node{}, When: ready, Handler: core.On(r.Core, r.routesOfNode)},
		{Of: &v1.KuryrPort{}, When: changed, Handler: core.On(r.Core, r.routesOfPort)},
	}}
	if r.cfg.Balanced {
		routes.Watches = append(routes.Watches, core.Watch{
			Of: &networkingv1.ServiceCIDR{}, Handler: core.On(r.Core, routesOf[*networkingv1.ServiceCIDR]), Optional: true,
		})
	}
	return []core.Controller{
		{Name: "nodes", Reconciler: nodes{r}, Watches: []core.Watch{
			{Of: &corev1.Node{}, When: labelled, Handler: core.Itself},
			{Of: &v1.KuryrPortPool{}, When: core.Deleted{}, Handler: core.On(r.Core, nodeOfPool)},
		}},
		routes,
		{Name: "isolation", Reconciler: isolation{r}, Watches: []core.Watch{
			{
				Of: &corev1.Node{}, When: predicate.Funcs{UpdateFunc: nodeMoved},
				Handler: core.On(r.Core, isolationOf[*corev1.Node]),
			},
			{
				Of: &discoveryv1.EndpointSlice{}, When: predicate.NewPredicateFuncs(isAPIServers),
				Handler: core.On(r.Core, isolationOf[*discoveryv1.EndpointSlice]),
			},
		}},
	}
}

// nodeMoved reports whether a node has other addresses.
func nodeMoved(e event.UpdateEvent) bool {
	was, is := e.ObjectOld.(*corev1.Node), e.ObjectNew.(*corev1.Node)
	return !equality.Semantic.DeepEqual(was.Status.Addresses, is.Status.Addresses)
}

func isAPIServers(o client.Object) bool {
	return o.GetNamespace() == metav1.NamespaceDefault && o.GetName() == APIService &&
		o.GetLabels()[discoveryv1.LabelServiceName] == APIService
}

func nodeOfPool(_ context.Context, p *v1.KuryrPortPool) ([]ctrl.Request, error) {
	if !p.Spec.ForNode {
		return nil, nil
	}
	return core.One("", p.Spec.Node), nil
}

// isolationOf is the one object that stands for all of the isolation.
func isolationOf[T client.Object](context.Context, T) ([]ctrl.Request, error) {
	return core.One("", isolatedName), nil
}

// becameReady reports whether a node has become ready, or is no longer.
func becameReady(e event.UpdateEvent) bool {
	return IsReady(e.ObjectOld.(*corev1.Node)) != IsReady(e.ObjectNew.(*corev1.Node))
}

// routesOf is the one object that stands for all routes.
func routesOf[T client.Object](context.Context, T) ([]ctrl.Request, error) {
	return core.One("", allRoutes), nil
}

// routesOfNode is the same where a node has changed.
func (r *Node) routesOfNode(_ context.Context, n *corev1.Node) ([]ctrl.Request, error) {
	return r.routesBy(n.Name)
}

// routesOfPort is the same where a port is a node's own.
func (r *Node) routesOfPort(_ context.Context, p *v1.KuryrPort) ([]ctrl.Request, error) {
	if !p.Spec.ForNode {
		return nil, nil
	}
	return r.routesBy(p.Spec.Node)
}

func (r *Node) routesBy(node string) ([]ctrl.Request, error) {
	if r.cfg.Balanced { // otherwise all nodes are compared anyway
		r.routes.mark(node)
	}
	return core.One("", allRoutes), nil
}

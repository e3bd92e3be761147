package raven

import (
	"context"
	"errors"
	"maps"
	"slices"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

// serviceRegistrations are the controllers of Services. Where Services are another's,
// only what Raven has made for them before is looked at, to take it away, and where nodes
// balance them, those that wait for an address.
func (r *Raven) serviceRegistrations() []core.Controller {
	of := core.Controller{Name: "services", Reconciler: services{r}, Watches: []core.Watch{
		{Of: &v1.KuryrLoadBalancer{}, Handler: core.Itself},
	}}
	shared := predicate.Funcs{CreateFunc: func(event.CreateEvent) bool { return false }, UpdateFunc: sharersMatter}
	in := core.Controller{Name: "loadbalancers", Reconciler: balancers{r}, Enqueuer: &r.balancerWakes, Watches: []core.Watch{
		{Of: &v1.KuryrLoadBalancer{}, When: predicate.Or(predicate.GenerationChangedPredicate{}, core.Deleted{}), Handler: core.Itself},
		// An owner waits for its users, also where all are deleted since Services are another's.
		{Of: &v1.KuryrLoadBalancer{}, When: shared, Handler: core.On(r.Core, r.sharers)},
	}}
	if r.cfg.Services || r.cfg.NodeBalanced {
		of.Watches = append(of.Watches, core.Watch{Of: &corev1.Service{}, When: predicate.Funcs{UpdateFunc: serviceMatters}, Handler: core.Itself})
	}
	if r.cfg.Services {
		in.Watches = append(in.Watches,
			core.Watch{Of: &discoveryv1.EndpointSlice{}, Handler: core.On(r.Core, serviceOfSlice)},
			core.Watch{Of: &v1.KuryrLoadBalancer{}, Handler: handler.Funcs{
				UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q core.Queue) {
					r.applied.shown(e.ObjectNew.(*v1.KuryrLoadBalancer))
					r.released(ctx, e.ObjectOld.(*v1.KuryrLoadBalancer), e.ObjectNew.(*v1.KuryrLoadBalancer), q)
				},
				DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q core.Queue) {
					r.released(ctx, e.Object.(*v1.KuryrLoadBalancer), nil, q)
				},
			}},
			core.Watch{Of: &corev1.Service{}, When: predicate.Funcs{CreateFunc: func(event.CreateEvent) bool { return false }, UpdateFunc: wantsAnother}, Handler: core.On(r.Core, r.rivals)},
			core.Watch{Of: &networkingv1.ServiceCIDR{}, Handler: core.On(r.Core, r.unready), Optional: true},
			// A Service may be seen before its namespace.
			core.Watch{Of: &corev1.Namespace{}, When: predicate.Funcs{
				CreateFunc: func(e event.CreateEvent) bool { return !e.IsInInitialList },
				UpdateFunc: core.GrantsChanged, DeleteFunc: core.NeverDeleted,
			}, Handler: core.On(r.Core, r.balancersOfNamespace)},
		)
	}
	if r.cfg.Services && r.cfg.NamespaceVIPs {
		in.Watches = append(in.Watches, core.Watch{Of: &v1.KuryrNetwork{}, When: predicate.Funcs{UpdateFunc: networkCame, DeleteFunc: core.NeverDeleted}, Handler: core.On(r.Core, r.balancersOnNetwork)})
	}
	all := []core.Controller{of, in}
	if r.cfg.Services {
		all = append(all,
			core.Controller{Name: "strays", Reconciler: strays{r}, Watches: []core.Watch{{Of: &corev1.Namespace{}, When: core.Created, Handler: core.On(r.Core, strayOf)}}},
			core.Controller{Name: "legs", Reconciler: legs{r}, Watches: []core.Watch{{Of: &corev1.Namespace{}, When: core.Created, Handler: core.On(r.Core, legsOf)}}},
		)
	}
	return all
}

// serviceMatters tells whether anything of a Service has changed that counts here: most
// that changes Services are those who write their status or their notes.
func serviceMatters(e event.UpdateEvent) bool {
	was, is := e.ObjectOld.(*corev1.Service), e.ObjectNew.(*corev1.Service)
	return was.UID != is.UID || was.DeletionTimestamp.IsZero() != is.DeletionTimestamp.IsZero() || !maps.Equal(was.Labels, is.Labels) || !maps.Equal(was.Annotations, is.Annotations) ||
		!equality.Semantic.DeepEqual(was.Spec, is.Spec) || !equality.Semantic.DeepEqual(was.Status.LoadBalancer, is.Status.LoadBalancer)
}

// wantsAnother tells whether a Service asks for another address than it did.
func wantsAnother(e event.UpdateEvent) bool {
	return wantedAddress(e.ObjectOld.(*corev1.Service)) != wantedAddress(e.ObjectNew.(*corev1.Service))
}

// serviceOfSlice is the Service whose endpoints a slice has.
func serviceOfSlice(_ context.Context, s *discoveryv1.EndpointSlice) ([]ctrl.Request, error) {
	name := s.Labels[discoveryv1.LabelServiceName]
	if name == "" {
		return nil, nil
	}
	return core.One(s.Namespace, name), nil
}

// released has those looked at that may have waited for an address which a load balancer had.
func (r *Raven) released(ctx context.Context, was, is *v1.KuryrLoadBalancer, q core.Queue) {
	var left []string
	if f := was.Status.FloatingIP; f != nil && (is == nil || is.Status.FloatingIP == nil || is.Status.FloatingIP.Address != f.Address) {
		left = append(left, f.Address)
	}
	if f := was.Spec.FloatingIP; f != nil && f.Address != "" && is == nil {
		left = append(left, f.Address)
	}
	var errs []error
	for _, address := range left {
		all, err := r.wanting(ctx, address, was.Spec.ServiceUID)
		errs = append(errs, err)
		for _, one := range all {
			q.Add(one)
		}
	}
	for _, vip := range releasedVIPs(was, is) {
		var all v1.KuryrLoadBalancerList
		errs = append(errs, r.Client.List(ctx, &all, client.MatchingFields{core.ByVIP: vip}))
		for i := range all.Items {
			q.Add(core.Request(all.Items[i].Namespace, all.Items[i].Name))
		}
	}
	if err := errors.Join(errs...); err != nil {
		r.Log.ErrorContext(ctx, "who waits for an address", "name", was.Name, "namespace", was.Namespace, "error", err)
	}
}

// releasedVIPs returns the ClusterIPs that a load balancer had, each once: all if it has gone, else those
// that its status does not tell of any more.
func releasedVIPs(was, is *v1.KuryrLoadBalancer) (all []string) {
	if is == nil {
		all = slices.Clone(was.Spec.VIPs)
	}
	for _, of := range was.Status.LoadBalancers {
		has := is != nil && slices.ContainsFunc(is.Status.LoadBalancers, func(o v1.LoadBalancerOfVIP) bool {
			return !o.Own && o.VIP == of.VIP
		})
		if !of.Own && !has && !slices.Contains(all, of.VIP) {
			all = append(all, of.VIP)
		}
	}
	return all
}

// rivals are the Services that ask for the address which this one asks for, or did.
func (r *Raven) rivals(ctx context.Context, s *corev1.Service) ([]ctrl.Request, error) {
	address := wantedAddress(s)
	if address == "" {
		return nil, nil
	}
	return r.wanting(ctx, address, s.UID)
}

func (r *Raven) wanting(ctx context.Context, address string, but types.UID) (all []ctrl.Request, err error) {
	var services corev1.ServiceList
	if err := r.Client.List(ctx, &services, client.MatchingFields{core.ByWanted: address}); err != nil {
		return nil, err
	}
	for i := range services.Items {
		if s := &services.Items[i]; s.UID != but {
			all = append(all, core.Request(s.Namespace, s.Name))
		}
	}
	return all, nil
}

// balancersOfNamespace returns the load balancers of a namespace, which is granted something else.
func (r *Raven) balancersOfNamespace(ctx context.Context, ns *corev1.Namespace) (all []ctrl.Request, err error) {
	var lbs v1.KuryrLoadBalancerList
	if err := r.Client.List(ctx, &lbs, client.InNamespace(ns.Name)); err != nil {
		return nil, err
	}
	for i := range lbs.Items {
		all = append(all, core.Request(lbs.Items[i].Namespace, lbs.Items[i].Name))
	}
	return all, nil
}

// unready are all load balancers that are not what they are to be: a new range of
// ClusterIPs may be what one waits for.
func (r *Raven) unready(ctx context.Context, _ *networkingv1.ServiceCIDR) (all []ctrl.Request, err error) {
	var lbs v1.KuryrLoadBalancerList
	if err := r.Client.List(ctx, &lbs); err != nil {
		return nil, err
	}
	for i := range lbs.Items {
		if !core.IsReady(lbs.Items[i].Status.Conditions) {
			all = append(all, core.Request(lbs.Items[i].Namespace, lbs.Items[i].Name))
		}
	}
	return all, nil
}

package raven

import (
	"context"
	"slices"
	"time"

	"github.com/kuryr/kuryr/internal/failpoint"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// services has each Service with a VIP have a KuryrLoadBalancer that says what it says, and tells in the Service's status where it is reached from outside. What the SDN does about it
// is the other reconciler's: balancers.
type services struct{ *Raven }

// Reconcile looks at the Service and the KuryrLoadBalancer of one name.
func (r services) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var service *corev1.Service
	var lb *v1.KuryrLoadBalancer
	var balancer v1.KuryrLoadBalancer
	if err := r.Client.Get(ctx, req.NamespacedName, &balancer); client.IgnoreNotFound(err) != nil {
		return core.Result(0, err)
	} else if err == nil {
		lb = &balancer
	}
	if lb == nil && !r.cfg.Services && !r.cfg.NodeBalanced {
		return core.Result(0, nil)
	}
	var found corev1.Service
	if err := r.Client.Get(ctx, req.NamespacedName, &found); client.IgnoreNotFound(err) != nil {
		return core.Result(0, err)
	} else if err == nil {
		service = &found
	}
	if lb == nil && r.cfg.NodeBalanced {
		r.unbalanced(req.NamespacedName, service)
		return core.Result(0, nil)
	}
	err := r.follow(ctx, req, service, lb)
	if apierrors.IsAlreadyExists(err) { // the cache is behind
		return ctrl.Result{RequeueAfter: core.ConflictRetry}, nil
	}
	if apierrors.IsInvalid(err) && service != nil { // as with more ports than a KuryrLoadBalancer has room for
		r.note(service, []string{core.Message(err)})
	}
	return core.Result(r.held(service, lb), err)
}

// heldPause is how long the load balancer of an earlier Service of the name may take to go before the owner of this one is told.
const heldPause = 10 * time.Second

// held tells the owner of a Service that an earlier load balancer, its own or another Service's, has its
// name and does not go, as where the SDN is at work on it for minutes; again is when to tell that.
func (r services) held(service *corev1.Service, lb *v1.KuryrLoadBalancer) (again time.Duration) {
	if !r.cfg.Services || service == nil || !balanced(service) || lb == nil || lb.DeletionTimestamp.IsZero() {
		return 0
	}
	now := r.Now()
	if since := now.Sub(r.applied.waits(client.ObjectKeyFromObject(service), service.UID, now)); since < heldPause {
		return heldPause - since
	}
	note := "the load balancer of the Service that had this name before has not gone yet"
	if lb.Spec.ServiceUID == service.UID {
		note = "the Service's KuryrLoadBalancer was deleted, and has not gone yet"
	}
	if c := meta.FindStatusCondition(lb.Status.Conditions, v1.ConditionReady); c != nil && c.Message != "" {
		note += ": " + c.Message
	}
	r.note(service, []string{note})
	return 0
}

// follow has what there is be what is wanted.
func (r services) follow(ctx context.Context, req ctrl.Request, service *corev1.Service, lb *v1.KuryrLoadBalancer) error {
	wanted := r.cfg.Services && service != nil && balanced(service)
	if lb != nil && (!wanted || lb.Spec.ServiceUID != service.UID) {
		if !wanted && service != nil && service.UID == lb.Spec.ServiceUID && shows(service, lb) {
			if err := r.publish(ctx, service, corev1.LoadBalancerStatus{}); err != nil {
				return err
			}
		}
		return r.dismiss(ctx, lb)
	}
	if !wanted {
		return nil
	}
	can, err := r.canBalance(ctx)
	if err != nil { // a Service that is judged by what is not known would be told wrong, and stay so
		return err
	}
	spec, notes, err := r.specOf(ctx, service, lb, can)
	if err != nil {
		return err
	}
	r.note(service, notes)
	switch {
	case lb == nil:
		yes, no := true, false
		lb = &v1.KuryrLoadBalancer{Spec: spec}
		lb.Namespace, lb.Name = req.Namespace, req.Name
		lb.Finalizers = []string{v1.Finalizer}
		lb.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: service.Name, UID: service.UID, Controller: &yes, BlockOwnerDeletion: &no}}
		err := r.Client.Create(ctx, lb)
		failpoint.Here("raven.service.created")
		return err
	case !lb.DeletionTimestamp.IsZero():
		if c := meta.FindStatusCondition(lb.Status.Conditions, v1.ConditionReady); c != nil && c.Reason == v1.ReasonInUse {
			r.balancerWakes.Enqueue(req) // it need not wait for its users any more
		}
		if exposed(service) { // it takes the address with it
			return r.publish(ctx, service, corev1.LoadBalancerStatus{})
		}
		return nil // its end brings this back
	case controllerutil.AddFinalizer(lb, v1.Finalizer) || !equality.Semantic.DeepEqual(lb.Spec, spec): // somebody may have torn it away
		lb.Spec = spec
		if err := r.Client.Update(ctx, lb); err != nil {
			return client.IgnoreNotFound(err)
		}
		failpoint.Here("raven.service.changed")
	}
	if !exposed(service) {
		return nil // the status is another's, or the API server has emptied it with the type
	}
	return r.publish(ctx, service, ingressOf(service, lb))
}

// specOf is what a Service says of its KuryrLoadBalancer, which may not be there, and what its owner is to be told.
func (r *Raven) specOf(ctx context.Context, service *corev1.Service, lb *v1.KuryrLoadBalancer, can sdn.Capabilities) (spec v1.KuryrLoadBalancerSpec, notes []string, err error) {
	asks, itself := service, lb != nil && slices.ContainsFunc(lb.Status.LoadBalancers, func(of v1.LoadBalancerOfVIP) bool { return of.ID == service.Annotations[annotationShared] })
	if itself {
		asks = service.DeepCopy()
		delete(asks.Annotations, annotationShared)
	}
	spec, notes = loadBalancerSpec(asks, can)
	if itself {
		notes = append(notes, "annotation "+annotationShared+" has no effect: it names the Service's own load balancer")
	}
	own, note, err := r.ownVIPs(ctx, service, &spec)
	if err != nil {
		return spec, nil, err
	}
	if spec.OwnVIPs = own; note != "" {
		notes = append(notes, note)
	}
	return spec, notes, nil
}

// outdated tells whether a floating IP is of what the Service said before, and not shown by it any more: it may be on its way out.
func outdated(s *corev1.Service, lb *v1.KuryrLoadBalancer) bool {
	if c := meta.FindStatusCondition(lb.Status.Conditions, v1.ConditionFloatingIP); c != nil && c.ObservedGeneration == lb.Generation {
		return false
	}
	return !slices.ContainsFunc(s.Status.LoadBalancer.Ingress, func(i corev1.LoadBalancerIngress) bool {
		return i.IP == lb.Status.FloatingIP.Address || i.Hostname != ""
	})
}

// unbalanced tells the owner of a Service, where nodes balance, what of it Kuryr does not do: the SDN's router brings pods' connections to any node, and there are no floating IPs. An address
// another may have given it.
func (r services) unbalanced(key client.ObjectKey, s *corev1.Service) {
	var notes []string
	if s != nil && balanced(s) {
		notes = nearness(s, "pods' connections come to any node and get what is near that one; only a node's own programs get what is near them")
		if exposed(s) && len(s.Status.LoadBalancer.Ingress) == 0 {
			note := "type LoadBalancer: with controller.load_balancers: node there are no floating IPs, so the Service gets no address from Kuryr"
			if slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.NodePort != 0 }) {
				note += "; its NodePorts answer"
			}
			notes = append(notes, note)
		}
	}
	if len(notes) == 0 {
		r.applied.forget(key)
		return
	}
	r.note(s, notes)
}

// shows tells whether a Service's status says what Raven has written.
func shows(s *corev1.Service, lb *v1.KuryrLoadBalancer) bool {
	return len(s.Status.LoadBalancer.Ingress) > 0 && equality.Semantic.DeepEqual(s.Status.LoadBalancer, ingressOf(s, lb))
}

// dismiss has a KuryrLoadBalancer go.
func (r services) dismiss(ctx context.Context, lb *v1.KuryrLoadBalancer) error {
	if !lb.DeletionTimestamp.IsZero() {
		return nil
	}
	err := r.Client.Delete(ctx, lb, client.Preconditions{UID: &lb.UID})
	failpoint.Here("raven.service.dismissed")
	return client.IgnoreNotFound(err)
}

// ingressOf is where a Service of type LoadBalancer is reached, as far as that is so. Clients' packets keep this address until they are in the SDN: so ipMode is VIP, unless the load
// balancer does what an endpoint cannot do without.
func ingressOf(s *corev1.Service, lb *v1.KuryrLoadBalancer) (status corev1.LoadBalancerStatus) {
	var addresses []string
	switch {
	case lb.Spec.SharedID != "":
		if share := shareOf(lb, lb.Spec.SharedID); share != nil && share.Address != "" {
			addresses = []string{share.Address}
		}
	case internal(s):
		for _, of := range lb.Status.LoadBalancers {
			if lb.Spec.OwnVIPs == of.Own && (of.Own || slices.Contains(lb.Spec.VIPs, of.VIP)) {
				addresses = append(addresses, of.VIP)
			}
		}
	case lb.Status.FloatingIP != nil && lb.Status.FloatingIP.ID != "" && !outdated(s, lb):
		addresses = []string{lb.Status.FloatingIP.Address}
	}
	if len(addresses) > 0 && lb.Spec.Options.Hostname != "" {
		return corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{Hostname: lb.Spec.Options.Hostname}}}
	}
	for _, a := range addresses {
		mode := corev1.LoadBalancerIPModeVIP
		if o := lb.Spec.Options; o.ProxyProtocol > 0 || o.ForwardedFor || o.Certificate != "" {
			mode = corev1.LoadBalancerIPModeProxy // who went to an endpoint straight would not be understood there
		}
		status.Ingress = append(status.Ingress, corev1.LoadBalancerIngress{IP: a, IPMode: &mode})
	}
	return status
}

// publish writes a Service's status, if it is another.
func (r services) publish(ctx context.Context, s *corev1.Service, status corev1.LoadBalancerStatus) error {
	if equality.Semantic.DeepEqual(s.Status.LoadBalancer, status) {
		return nil
	}
	before := s.DeepCopy()
	s.Status.LoadBalancer = status
	if err := r.Client.Status().Patch(ctx, s, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return client.IgnoreNotFound(err)
	}
	failpoint.Here("raven.service.published")
	for _, i := range status.Ingress {
		r.Note(s, core.EventMade, "LoadBalancer", "the Service is reached at %s", i.IP+i.Hostname)
	}
	return nil
}

// note tells a Service's owner what of it is not served, once.
func (r services) note(s *corev1.Service, notes []string) {
	for _, text := range r.applied.news(client.ObjectKeyFromObject(s), s.UID, notes) {
		r.Warn(s, core.EventUnserved, "LoadBalancer", "%s", text)
	}
}

// serviceOf is a Service as Events are about it.
func serviceOf(lb *v1.KuryrLoadBalancer) *corev1.Service {
	return &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: lb.Namespace, Name: lb.Name, UID: lb.Spec.ServiceUID},
	}
}

package raven

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kuryr/kuryr/internal/failpoint"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

// With Config.NamespaceVIPs a Service of type LoadBalancer has VIPs of its own besides its ClusterIPs, one of each of their families, on a subnet of load balancers that its namespace's
// network has for them; the SDN chooses the addresses. There its floating IP leads, there alone is restricted who may connect, and there an internal load balancer is reached.

// lbSubnets remembers namespaces' subnets of load balancers that are there with their leg of the router.
type lbSubnets struct {
	mu    sync.Mutex
	known map[sdn.Key]sdn.ID
}

func (l *lbSubnets) get(key sdn.Key) (sdn.ID, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	id, ok := l.known[key]
	return id, ok
}

// set notes where one is; "" is that it is to be looked for again.
func (l *lbSubnets) set(key sdn.Key, id sdn.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known == nil {
		l.known = map[sdn.Key]sdn.ID{}
	}
	if l.known[key] = id; id == "" {
		delete(l.known, key)
	}
}

// all are those that are there.
func (l *lbSubnets) all() map[sdn.Key]sdn.ID {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.known)
}

// lbSubnetKey is that of a network's subnet of load balancers of a family.
func (r *Raven) lbSubnetKey(network string, six bool) sdn.Key {
	return r.Key(v1.KeyKindSubnet, network+".lb"+familyOf(six))
}

// forgetLBSubnets forgets the subnets of load balancers of a network that is being deleted, before
// their interfaces of the router go, which a resync would attach again.
func (r *Raven) forgetLBSubnets(network string) {
	for _, six := range []bool{false, true} {
		r.lbSubnets.set(r.lbSubnetKey(network, six), "")
	}
}

// isLBSubnet tells whether it is one, where pods get no address.
func (r *Raven) isLBSubnet(s sdn.Subnet, network string) bool {
	return !s.Foreign && (s.Key == r.lbSubnetKey(network, false) || s.Key == r.lbSubnetKey(network, true))
}

func familyOf(six bool) string {
	if six {
		return "-v6"
	}
	return "-v4"
}

// isFamily tells whether a text is an address of a family.
func isFamily(text string, six bool) bool {
	a, err := netip.ParseAddr(text)
	return err == nil && a.Is6() == six
}

func hasFamily(texts []string, six bool) bool {
	return slices.ContainsFunc(texts, func(text string) bool { return isFamily(text, six) })
}

// lbSubnetLen is the prefix length of an IPv4 subnet of load balancers, where its namespace's own is larger.
const lbSubnetLen = 24

// lbSubnetOf gives the subnet that a namespace's VIPs of a family are on. It is made when it is first asked for, of the subnet pool that the pods' subnet is of, and goes with the network.
func (r *Raven) lbSubnetOf(ctx context.Context, namespace string, six bool) (sdn.ID, error) {
	n, err := r.NetworkOf(ctx, namespace)
	if err != nil {
		return "", err
	}
	if n == nil {
		return "", core.Waiting("the namespace has no network yet that the load balancer's VIP could be on")
	}
	key := r.lbSubnetKey(n.Name, six)
	if id, ok := r.lbSubnets.get(key); ok {
		return id, nil
	}
	there, err := r.SubnetsOf(ctx, sdn.ID(n.Status.Network))
	if err != nil {
		return "", err
	}
	var pods sdn.Subnet
	for _, s := range n.Status.Subnets {
		if of := there[sdn.ID(s.ID)]; of.CIDR.IsValid() && of.CIDR.Addr().Is6() == six {
			pods = of
		}
	}
	if pods.Pool == "" {
		return "", unserving("the namespace's network has no subnet of the family of the Service's ClusterIP that a range for load balancers could be taken from beside")
	}
	spec := sdn.SubnetSpec{
		Base:    r.Base(v1.KeyKindSubnet, key.Name, "kuryr-lb-"+namespace, n.Spec.ProjectID),
		Network: sdn.ID(n.Status.Network), Pool: pods.Pool, PrefixLen: pods.CIDR.Bits(), NoDHCP: true,
	}
	if !six {
		spec.PrefixLen = max(spec.PrefixLen, lbSubnetLen)
	}
	var made sdn.Subnet
	err = r.Call(ctx, func(ctx context.Context) (err error) {
		if made, err = r.SDN.EnsureSubnet(ctx, spec); err != nil {
			return err
		}
		failpoint.Here("raven.ownvips.subnet")
		return r.SDN.AttachSubnet(ctx, r.ground.Router, made.ID, netip.Addr{})
	})
	if err != nil {
		return "", err
	}
	failpoint.Here("raven.ownvips.attached")
	r.ForgetSubnets(sdn.ID(n.Status.Network))
	r.lbSubnets.set(key, made.ID)
	return made.ID, nil
}

// ownVIPs tells whether a Service is to have VIPs of its own; the note tells its owner why not. A network that is not Raven's is not changed, and nobody is to come in by a VIP that should be
// restricted and cannot be.
func (r *Raven) ownVIPs(ctx context.Context, s *corev1.Service, spec *v1.KuryrLoadBalancerSpec) (own bool, note string, err error) {
	sources, _ := sourcesOf(s)
	if !r.cfg.NamespaceVIPs || !exposed(s) || spec.SharedID != "" || len(sources) > 0 && (len(spec.Sources) == 0 || spec.FloatingIP == nil && !internal(s)) {
		return false, "", nil
	}
	existing, err := r.onExisting(ctx, s.Namespace)
	if err != nil {
		return false, "", err
	}
	if existing {
		return false, "the namespace is on an existing network, which gets no subnet of load balancers: the Service is reached at its ClusterIP and its floating IP leads there", nil
	}
	return true, "", nil
}

// onExisting tells whether a namespace is on a network that is not Raven's, or will be.
func (r *Raven) onExisting(ctx context.Context, namespace string) (bool, error) {
	n, err := r.AnyNetworkOf(ctx, namespace)
	if err != nil {
		return false, err
	}
	if n != nil {
		return n.Spec.Network != "", nil
	}
	var ns corev1.Namespace
	if err := r.Client.Get(ctx, client.ObjectKey{Name: namespace}, &ns); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	return r.cfg.Network != "" || strings.TrimSpace(ns.Annotations[v1.AnnotationNetwork]) != "", nil
}

// networkCame tells whether a namespace's network has become ready, or is to go.
func networkCame(e event.UpdateEvent) bool {
	was, is := e.ObjectOld.(*v1.KuryrNetwork), e.ObjectNew.(*v1.KuryrNetwork)
	return !core.IsReady(was.Status.Conditions) && core.IsReady(is.Status.Conditions) || was.DeletionTimestamp.IsZero() != is.DeletionTimestamp.IsZero()
}

// balancersOnNetwork are the load balancers that may have waited for their namespace's network, or that hold it up.
func (r *Raven) balancersOnNetwork(ctx context.Context, n *v1.KuryrNetwork) (all []ctrl.Request, err error) {
	var lbs v1.KuryrLoadBalancerList
	if err := r.Client.List(ctx, &lbs, client.InNamespace(n.Spec.Namespace)); err != nil {
		return nil, err
	}
	for i := range lbs.Items {
		if lb := &lbs.Items[i]; (lb.Spec.OwnVIPs || lb.Spec.SharedID != "") && (!n.DeletionTimestamp.IsZero() || !core.IsReady(lb.Status.Conditions)) {
			all = append(all, core.Request(lb.Namespace, lb.Name))
		}
	}
	return all, nil
}

// programOwn has the Service's own VIPs be served, one of each family of its ClusterIPs, and others go.
func (w *balancing) programOwn(ctx context.Context, of balancerOf, endpoints func(six bool) map[portName][]endpoint, members map[netip.Addr]bool) (again time.Duration, errs []error) {
	wanted := map[bool]bool{}
	for _, six := range []bool{false, true} {
		wanted[six] = w.lb.Spec.OwnVIPs && hasFamily(w.lb.Spec.VIPs, six)
	}
	leaving := false
	if w.lb.Spec.OwnVIPs {
		n, err := w.AnyNetworkOf(ctx, w.lb.Namespace)
		if err != nil {
			return 0, []error{err}
		}
		if leaving = n != nil && !n.DeletionTimestamp.IsZero(); leaving { // else it could not go
			clear(wanted)
			errs = append(errs, core.Waiting("the network that the load balancer's VIP was on is going"))
		}
	}
	again, failed := w.retireOwn(ctx, wanted, leaving)
	errs = append(errs, failed...)
	for _, six := range []bool{false, true} {
		if !wanted[six] {
			continue
		}
		of.own, of.six, of.vip, of.cluster, of.endpoints, of.floats = true, six, sdn.VIP{}, nil, endpoints(six), w.floats(six)
		of.leaves = w.ground.HasWayOut[six]
		of.base = w.Base(v1.KeyKindLoadBalancer, v1.OwnLoadBalancerKey(w.lb.Spec.ServiceUID, six), w.lb.Namespace+"/"+w.lb.Name+".lb", w.cfg.Project)
		then, err := w.apply(ctx, of, members)
		if sdn.IsNotFound(err) { // somebody has taken the subnet away
			if n, failed := w.NetworkOf(ctx, w.lb.Namespace); failed == nil && n != nil {
				w.lbSubnets.set(w.lbSubnetKey(n.Name, six), "")
			}
		}
		again, errs = core.Sooner(again, then), append(errs, err)
	}
	return again, errs
}

// retireOwn deletes the own load balancers of families that are not wanted, unless others share them; with look, whoever shares them, and also where nothing is known of any.
func (w *balancing) retireOwn(ctx context.Context, wanted map[bool]bool, look bool) (again time.Duration, errs []error) {
	for _, six := range []bool{false, true} {
		if wanted[six] || !look && ownVIP(w.lb, six) == nil && !w.changed() {
			continue
		}
		then, err := w.retireOne(ctx, six, look)
		again, errs = core.Sooner(again, then), append(errs, err)
	}
	return again, errs
}

func (w *balancing) retireOne(ctx context.Context, six, look bool) (again time.Duration, err error) {
	if !look {
		if kept, again, err := w.keepVIP(ctx, six); kept || err != nil {
			return again, err
		}
		if err := w.markLeaving(ctx, six); err != nil {
			return 0, err
		}
	}
	if err := w.dropBalancers(ctx, []sdn.Key{w.ownKey(six)}); err != nil {
		return 0, err
	}
	failpoint.Here("raven.ownvips.retired")
	delete(w.known.seen, balancerOf{own: true, six: six}.name())
	w.lb.Status.LoadBalancers = slices.DeleteFunc(w.lb.Status.LoadBalancers, func(of v1.LoadBalancerOfVIP) bool { return of.Own && isFamily(of.VIP, six) })
	return 0, nil
}

// ownKey is that of the load balancer of the Service's own VIP of a family.
func (w *balancing) ownKey(six bool) sdn.Key {
	return w.Key(v1.KeyKindLoadBalancer, v1.OwnLoadBalancerKey(w.lb.Spec.ServiceUID, six))
}

// ownVIP is what the status tells of a Service's own VIP of a family; nil is nothing.
func ownVIP(lb *v1.KuryrLoadBalancer, six bool) *v1.LoadBalancerOfVIP {
	for i := range lb.Status.LoadBalancers {
		if of := &lb.Status.LoadBalancers[i]; of.Own && isFamily(of.VIP, six) {
			return of
		}
	}
	return nil
}

package raven

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/kuryr/kuryr/internal/failpoint"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

// A Service of type LoadBalancer may name a load balancer of the SDN (annotation load-balancer-id) whose VIP and floating IP are to be its address outside: its ports become listeners there, beside
// others'. The load balancer is a user's, who keeps it, or another Service's of the namespace: then it is on a VIP of that Service's own, since a ClusterIP goes with its Service, and may be another's
// at once. It goes with the last who shares it.
//
// Nothing of it is lost, as whoever shares says so first, in its own status and in the Guests of the load balancer's host, which cannot go without having seen that: its finalizer goes by the revision
// that it has read. A host that goes with guests has one of them inherit, and stand for it. Who has it go without guests, though it stays itself, says that first, so that nobody comes meanwhile.

// share has the Service be at the load balancer that it asks to share, and leave others. Guests that have gone without a word are forgotten.
func (w *balancing) share(ctx context.Context, of balancerOf, endpoints func(six bool) map[portName][]endpoint, members map[netip.Addr]bool) (again time.Duration, errs []error) {
	again, err := w.forgetGuests(ctx)
	errs = append(errs, err)
	for _, s := range slices.Clone(w.lb.Status.Shares) {
		if s.ID == w.lb.Spec.SharedID {
			continue
		}
		then, err := w.leave(ctx, s)
		again, errs = sooner(again, then), append(errs, err)
	}
	if w.lb.Spec.SharedID == "" {
		return again, errs
	}
	if s := shareOf(w.lb, w.lb.Spec.SharedID); s != nil && s.Inherited != "" {
		leaving, err := w.networkLeaves(ctx)
		if err == nil && leaving { // else it could not go
			_, err = w.leave(ctx, *s)
		}
		if err != nil || leaving {
			return again, append(errs, err, waiting{"the network that the shared VIP was on is going"})
		}
	}
	then, err := w.join(ctx, of, endpoints, members)
	return sooner(again, then), append(errs, err)
}

// join has the Service's ports be listeners of the load balancer that it asks to share.
func (w *balancing) join(ctx context.Context, of balancerOf, endpoints func(six bool) map[portName][]endpoint, members map[netip.Addr]bool) (again time.Duration, err error) {
	id := sdn.ID(w.lb.Spec.SharedID)
	fresh := w.look || w.known.shared.ID != id || len(w.known.shared.VIPs) == 0
	if fresh {
		w.known.shared = sdn.LoadBalancer{}
		err := w.ask(ctx, func(ctx context.Context) (err error) { w.known.shared, err = w.sdn.LoadBalancer(ctx, id); return err })
		if sdn.IsNotFound(err) { // no other gets its id
			err = unserving{waiting{fmt.Sprintf("annotation %s: there is no load balancer %s", annotationShared, id)}}
			w.note(err.Error())
		}
		if err != nil {
			return 0, err
		}
	}
	there := w.known.shared
	if len(there.VIPs) == 0 {
		return pendingPause, waiting{"the load balancer that is shared has no VIP yet"}
	}
	host, again, err := w.hostOf(ctx, there)
	if host == nil && err == nil {
		err = w.sharable(ctx, there)
	}
	if errors.As(err, &unserving{}) {
		w.note(err.Error())
	}
	if sdn.IsNotFound(err) {
		w.known.shared = sdn.LoadBalancer{}
	}
	if err != nil {
		return again, err
	}
	of.own, of.floats, of.cluster, of.vip, of.six = true, true, nil, there.VIPs[0], there.VIPs[0].Addr.Is6()
	of.leaves = w.ground.leaves[of.six]
	of.can = w.sdn.Capabilities().LoadBalancerOf(there.Backend)
	if len(w.lb.Spec.Sources) > 0 && !of.can.SourceRanges {
		err := unserving{waiting{"spec.loadBalancerSourceRanges: the load balancer that is to be shared lets everybody connect"}}
		w.note(err.Error())
		return 0, err
	}
	if err := w.enter(ctx, host, string(id)); err != nil {
		return 0, err
	}
	of.base = w.base(v1.KeyKindLoadBalancer, v1.GuestKey(w.lb.Spec.ServiceUID), "", "")
	of.endpoints, of.vips = endpoints(of.six), append(w.vipsOf(), of.vip.Addr)
	spec, has, notes := of.loadBalancer()
	w.notes = append(w.notes, notes...)
	for a := range has {
		members[a] = true
	}
	spec = sdn.LoadBalancerSpec{Base: spec.Base, ID: id, Shared: true, Listeners: spec.Listeners}
	made, again, err := w.step(ctx, "shared "+string(id), spec, true)
	if made != nil && len(made.VIPs) > 0 {
		w.known.shared.VIPs, w.known.shared.Listeners = made.VIPs, made.Listeners
	}
	if sdn.IsNotFound(err) {
		w.known.shared = sdn.LoadBalancer{}
	}
	if made != nil && host != nil && host.UID == w.lb.UID {
		err = errors.Join(err, w.adopt(ctx, *made))
	}
	if err != nil {
		return again, err
	}
	return 0, w.address(ctx, host, fresh)
}

// beside gives of a value the listeners whose ports no other has at a load balancer that is shared.
func (w *balancing) beside(ctx context.Context, spec sdn.LoadBalancerSpec) (sdn.LoadBalancerSpec, error) {
	query := sdn.LoadBalancerQuery{Match: sdn.Match{Keys: []sdn.Key{spec.Key}}}
	if spec.ID != "" {
		query.Match = sdn.Match{IDs: []sdn.ID{spec.ID}}
	}
	var there sdn.LoadBalancer
	err := w.ask(ctx, func(ctx context.Context) (err error) {
		there, _, err = sdn.First(w.sdn.FindLoadBalancers(ctx, query))
		return err
	})
	spec.Listeners = slices.DeleteFunc(slices.Clone(spec.Listeners), func(l sdn.Listener) bool {
		return slices.ContainsFunc(there.Listeners, func(o sdn.Listener) bool {
			others := o.Key != spec.Key && (!o.Key.IsZero() || spec.Shared)
			return others && o.Protocol == l.Protocol && o.Port == l.Port
		})
	})
	return spec, err
}

// sharable returns an error if a user's load balancer is not one that Services of the namespace
// may share. Listeners that the Service has there already stay, unless it is another project's.
func (w *balancing) sharable(ctx context.Context, there sdn.LoadBalancer) error {
	id := string(there.ID)
	if !w.usable(there.Meta, w.grants) {
		err := denied{waiting{fmt.Sprintf("annotation %s: load balancer %s is of another project", annotationShared, id)}}
		if s := shareOf(w.lb, id); s != nil {
			_, left := w.leave(ctx, *s)
			return errors.Join(err, left)
		}
		return err
	}
	if w.grants.loadBalancer(id) {
		return nil
	}
	what := fmt.Sprintf("annotation %s: the namespace is not granted load balancer %s (%s)",
		annotationShared, id, v1.AnnotationAllowLoadBalancers)
	if w.listensAt(there) {
		w.refuse(what + "; the Service's listeners stay")
		return nil
	}
	return denied{waiting{what}}
}

// listensAt reports whether the Service has listeners at another's load balancer.
func (w *balancing) listensAt(there sdn.LoadBalancer) bool {
	return slices.ContainsFunc(there.Listeners, func(l sdn.Listener) bool {
		return l.Key == w.guestKey(w.lb.Spec.ServiceUID)
	})
}

// hostOf is the KuryrLoadBalancer that has a load balancer which is to be shared, nil for one of a user's.
func (w *balancing) hostOf(ctx context.Context, there sdn.LoadBalancer) (host *v1.KuryrLoadBalancer, again time.Duration, err error) {
	uid := serviceOfKey(there.Key)
	if there.Foreign || uid == "" {
		return nil, 0, nil
	}
	var all v1.KuryrLoadBalancerList
	if err := w.api.List(ctx, &all, client.MatchingFields{byServed: string(uid)}); err != nil {
		return nil, 0, err
	}
	for i := range all.Items {
		lb := &all.Items[i]
		forged, err := w.forged(ctx, lb)
		if err != nil {
			return nil, 0, err
		}
		switch {
		case forged:
		case lb.Namespace != w.lb.Namespace && namedIn(there.Name, w.lb.Namespace): // it only says so
		case lb.Namespace != w.lb.Namespace:
			return nil, 0, unserving{waiting{fmt.Sprintf("annotation %s: the load balancer is of the namespace %s, and so shared only there", annotationShared, lb.Namespace)}}
		case !lb.DeletionTimestamp.IsZero():
		case lb.Spec.ServiceUID == uid && there.Key.Name != v1.OwnLoadBalancerKey(uid, there.VIPs[0].Addr.Is6()):
			return nil, 0, unserving{waiting{fmt.Sprintf("annotation %s: the VIP is the ClusterIP of the Service %s, and goes with it; only with controller.vip_placement: namespace it has one that can be shared", annotationShared, lb.Name)}}
		case lb.Spec.ServiceUID == uid || inherits(lb, there.ID):
			return lb, 0, nil
		}
	}
	if slices.ContainsFunc(all.Items, func(lb v1.KuryrLoadBalancer) bool { return lb.Namespace == w.lb.Namespace }) {
		return nil, 0, waiting{"the load balancer that is to be shared is another's, who is about to go"}
	}
	again, err = w.succeed(ctx, there.ID, uid)
	return w.lb, again, err
}

// succeed has this one stand for a load balancer that nobody stands for: the status of who did was lost, or the whole of its KuryrLoadBalancer, and the listeners that it has left behind go first. A
// Service that is there has its KuryrLoadBalancer made anew.
func (w *balancing) succeed(ctx context.Context, id sdn.ID, uid types.UID) (again time.Duration, err error) {
	names, err := w.servicesByUID(ctx) // of all namespaces, as a UID tells none
	if err != nil {
		return 0, err
	}
	if names[uid] != "" { // or a cache is behind
		return pendingPause, waiting{"the load balancer that is to be shared is another's, whose KuryrLoadBalancer is being made anew"}
	}
	var there sdn.LoadBalancer
	if err := w.ask(ctx, func(ctx context.Context) (err error) { there, err = w.sdn.LoadBalancer(ctx, id); return err }); err != nil {
		return 0, err
	}
	if !w.owns(there.Meta) || !w.listensAt(there) && !madeIn(there, w.lb.Namespace) {
		return 0, unserving{waiting{fmt.Sprintf("annotation %s: the load balancer is of another namespace, and so shared only there", annotationShared)}}
	}
	keys := map[sdn.Key]bool{}
	for _, l := range there.Listeners {
		keys[cmp.Or(l.Key, there.Key)] = true
	}
	if keys[there.Key] {
		if again, err := w.strip(ctx, string(id), there.Key); err != nil {
			return again, err
		}
	}
	w.inherit(string(id), uid)
	delete(w.known.digests, "shared "+string(id)) // so that its guests are found
	return 0, nil
}

// madeIn tells whether a load balancer was made for a Service of a namespace, by its name: its Key tells a UID alone, of which nobody knows any more.
func madeIn(there sdn.LoadBalancer, namespace string) bool { return namedIn(there.Name, namespace) }

// servicesByUID are the names of Services that Kuryr is to serve.
func (w *balancing) servicesByUID(ctx context.Context, in ...client.ListOption) (map[types.UID]string, error) {
	var all corev1.ServiceList
	err := w.api.List(ctx, &all, in...)
	names := map[types.UID]string{}
	for i := range all.Items {
		if s := &all.Items[i]; balanced(s) {
			names[s.UID] = s.Name
		}
	}
	return names, err
}

// inherit has this one stand for a load balancer.
func (w *balancing) inherit(id string, uid types.UID) {
	if s := shareOf(w.lb, id); s != nil {
		s.Inherited = uid
		return
	}
	w.lb.Status.Shares = append(w.lb.Status.Shares, v1.LoadBalancerShare{ID: id, Inherited: uid})
}

// inherits tells whether a KuryrLoadBalancer stands for a load balancer whose Service has gone.
func inherits(lb *v1.KuryrLoadBalancer, id sdn.ID) bool {
	s := shareOf(lb, string(id))
	return s != nil && s.Inherited != ""
}

// shareOf is what a KuryrLoadBalancer's status says of a load balancer that it shares, nil for nothing.
func shareOf(lb *v1.KuryrLoadBalancer, id string) *v1.LoadBalancerShare {
	if i := slices.IndexFunc(lb.Status.Shares, func(s v1.LoadBalancerShare) bool { return s.ID == id }); i >= 0 {
		return &lb.Status.Shares[i]
	}
	return nil
}

// enter tells whom it concerns, before it is so, that the Service is at a load balancer.
func (w *balancing) enter(ctx context.Context, host *v1.KuryrLoadBalancer, id string) error {
	others := host != nil && host.UID != w.lb.UID
	if others && !lends(host, id) {
		return waiting{"the load balancer that is to be shared is about to go, or to be told of"}
	}
	if shareOf(w.lb, id) == nil {
		w.lb.Status.Shares = append(w.lb.Status.Shares, v1.LoadBalancerShare{ID: id})
	}
	if !slices.Equal(w.before.Shares, w.lb.Status.Shares) {
		if err := w.tellNow(ctx); err != nil {
			return err
		}
		failpoint.Here("raven.share.noted")
	}
	me := v1.LoadBalancerGuest{LoadBalancer: id, ServiceUID: w.lb.Spec.ServiceUID, Name: w.lb.Name}
	if !others || isGuest(host, id, me.ServiceUID) {
		return nil
	}
	delete(w.known.digests, "shared "+id) // the host may have taken this one for lost
	host.Status.Guests = append(host.Status.Guests, me)
	err := w.api.Status().Update(ctx, host)
	failpoint.Here("raven.share.entered")
	return err
}

// address notes where the Service is reached. Of another Service's load balancer its KuryrLoadBalancer tells; who leads a floating IP to one without is not told of, and so seen at an audit.
func (w *balancing) address(ctx context.Context, host *v1.KuryrLoadBalancer, fresh bool) error {
	share, vip := shareOf(w.lb, w.lb.Spec.SharedID), w.known.shared.VIPs[0]
	own := host != nil && !inherits(host, w.known.shared.ID)
	if !own && !fresh && share.Address != "" {
		return nil
	}
	address := vip.Addr.String()
	if own {
		if a, err := netip.ParseAddr(ledFrom(host.Status.FloatingIP)); err == nil && a.Is6() == vip.Addr.Is6() {
			address = a.String()
		}
	} else if vip.Port != "" {
		err := w.ask(ctx, func(ctx context.Context) error {
			f, found, err := sdn.First(w.sdn.FindFloatingIPs(ctx, sdn.FloatingIPQuery{Ports: []sdn.ID{vip.Port}}))
			if found {
				address = f.Address.String()
			}
			return err
		})
		if err != nil && !sdn.IsUnsupported(err) {
			return err
		}
	}
	share.Address = address
	return nil
}

// leaveAll takes the Service from all that it shares.
func (w *balancing) leaveAll(ctx context.Context) (again time.Duration, _ error) {
	var errs []error
	for _, s := range slices.Clone(w.lb.Status.Shares) {
		then, err := w.leave(ctx, s)
		again, errs = sooner(again, then), append(errs, err)
	}
	return again, errors.Join(errs...)
}

// leave takes the Service's listeners from a load balancer, which goes with the last who leaves where it is nobody's any more.
func (w *balancing) leave(ctx context.Context, s v1.LoadBalancerShare) (again time.Duration, err error) {
	w.known.shared = sdn.LoadBalancer{}
	delete(w.known.digests, "shared "+s.ID)
	passed := true
	if s.Inherited != "" {
		passed, err = w.bequeath(ctx, s)
		if err == nil && !passed {
			passed, err = w.endShared(ctx, s) // whatever state it is in
		}
		if err != nil {
			return 0, err
		}
	}
	if passed {
		if again, err = w.strip(ctx, s.ID, w.guestKey(w.lb.Spec.ServiceUID)); err != nil {
			return again, err
		}
	}
	failpoint.Here("raven.share.stripped")
	var hosts v1.KuryrLoadBalancerList
	if err := w.api.List(ctx, &hosts, client.InNamespace(w.lb.Namespace), client.MatchingFields{byGuest: string(w.lb.Spec.ServiceUID)}); err != nil {
		return 0, err
	}
	for i := range hosts.Items {
		host := &hosts.Items[i]
		host.Status.Guests = slices.DeleteFunc(host.Status.Guests, func(g v1.LoadBalancerGuest) bool {
			return g.LoadBalancer == s.ID && g.ServiceUID == w.lb.Spec.ServiceUID
		})
		if err := w.api.Status().Update(ctx, host); client.IgnoreNotFound(err) != nil {
			return 0, err
		}
	}
	failpoint.Here("raven.share.left")
	w.lb.Status.Shares = slices.DeleteFunc(w.lb.Status.Shares, func(o v1.LoadBalancerShare) bool { return o.ID == s.ID })
	w.lb.Status.Guests = slices.DeleteFunc(w.lb.Status.Guests, func(g v1.LoadBalancerGuest) bool { return g.LoadBalancer == s.ID })
	return 0, w.tellNow(ctx)
}

// strip takes the listeners with this Key from a load balancer.
func (w *balancing) strip(ctx context.Context, id string, key sdn.Key) (again time.Duration, err error) {
	name := "leaving " + id
	_, again, err = w.step(ctx, name, sdn.LoadBalancerSpec{Base: sdn.Base{Key: key}, ID: sdn.ID(id), Shared: true}, false)
	delete(w.known.digests, name)
	if sdn.IsNotFound(err) || sdn.IsUnsupported(err) {
		return 0, nil
	}
	return again, err
}

// networkLeaves tells whether the namespace's network is there no more for long.
func (w *balancing) networkLeaves(ctx context.Context) (bool, error) {
	n, err := w.anyNetworkOf(ctx, w.lb.Namespace)
	return err == nil && (n == nil || !n.DeletionTimestamp.IsZero()), err
}

// endShared deletes a load balancer that no other Service shares any more and whose Service has gone. It
// stays if the SDN does not confirm that the Service stands for it.
func (w *balancing) endShared(ctx context.Context, s v1.LoadBalancerShare) (stays bool, err error) {
	var there sdn.LoadBalancer
	err = w.ask(ctx, func(ctx context.Context) (err error) {
		there, err = w.sdn.LoadBalancer(ctx, sdn.ID(s.ID))
		return err
	})
	if sdn.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	hosts, err := w.hosts(ctx, there)
	if err != nil || !hosts || serviceOfKey(there.Key) == w.lb.Spec.ServiceUID {
		return true, err
	}
	if s.Keep { // its floating IP leads nowhere then
		there.VIPs = nil
	}
	return false, w.dropStray(ctx, there, s.Inherited)
}

// ledFrom is the address of a floating IP that leads somewhere, "" for none.
func ledFrom(f *v1.LoadBalancerFloatingIPStatus) string {
	if f == nil || f.ID == "" {
		return ""
	}
	return f.Address
}

func addressOfFloating(f *v1.LoadBalancerFloatingIPStatus) string {
	if f == nil {
		return ""
	}
	return f.Address
}

// sharersMatter tells whether something has changed of a KuryrLoadBalancer that those who share load balancers with it, or it itself, must see to.
func sharersMatter(e event.UpdateEvent) bool {
	was, is := e.ObjectOld.(*v1.KuryrLoadBalancer), e.ObjectNew.(*v1.KuryrLoadBalancer)
	if len(sharedWith(was))+len(sharedWith(is)) == 0 {
		return false
	}
	return was.DeletionTimestamp.IsZero() != is.DeletionTimestamp.IsZero() || !slices.Equal(was.Status.LoadBalancers, is.Status.LoadBalancers) || !slices.Equal(was.Status.Guests, is.Status.Guests) ||
		!slices.Equal(was.Status.Shares, is.Status.Shares) || ledFrom(was.Status.FloatingIP) != ledFrom(is.Status.FloatingIP)
}

// sharedWith are the SDN's ids of load balancers that a KuryrLoadBalancer may have in common with others.
func sharedWith(lb *v1.KuryrLoadBalancer) (ids []string) {
	for _, of := range lb.Status.LoadBalancers {
		if of.Own {
			ids = append(ids, of.ID)
		}
	}
	for _, s := range lb.Status.Shares {
		ids = append(ids, s.ID)
	}
	return ids
}

// sharers are a KuryrLoadBalancer, those that it has load balancers in common with or that ask for one of its, and those that know it as a guest.
func (r *Raven) sharers(ctx context.Context, lb *v1.KuryrLoadBalancer) (all []ctrl.Request, err error) {
	all = append(all, request(lb.Namespace, lb.Name))
	found := []client.ListOption{client.MatchingFields{byGuest: string(lb.Spec.ServiceUID)}}
	for _, id := range sharedWith(lb) {
		found = append(found, client.MatchingFields{byShared: id})
	}
	for _, by := range found {
		var some v1.KuryrLoadBalancerList
		if err := r.api.List(ctx, &some, by); err != nil {
			return all, err
		}
		for i := range some.Items {
			all = append(all, request(some.Items[i].Namespace, some.Items[i].Name))
		}
	}
	return all, nil
}

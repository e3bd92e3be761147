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
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

// A Service of type LoadBalancer may name a load balancer of the SDN (annotation load-balancer-id)
// whose VIP and floating IP are its address outside: its ports become listeners there, beside others'.
// The load balancer is a user's, who keeps it, or the own VIP of another Service of the namespace, its
// owner. A ClusterIP is not shared: it goes with its Service, and may be another's immediately.
//
// A Service that shares a load balancer writes that first: into its own status, and into the Guests of
// the owner's. The owner's finalizer stays while there are users, so its deletion waits for them.
// Before an owner that stays deletes the load balancer, it marks it as leaving, so that no Service can
// begin to share it. Optimistic locking of the owner's status orders all of these writes.
//
// A load balancer whose owner was removed by force, with its finalizer, is orphaned: who shares it goes
// on, and the last that leaves deletes it.

// share makes the Service a user of the load balancer that it asks to share, and leaves others. It
// removes its own users that have gone without having left.
func (w *balancing) share(ctx context.Context, of balancerOf, endpoints func(six bool) map[portName][]endpoint,
	members map[netip.Addr]bool,
) (again time.Duration, errs []error) {
	again, err := w.removeLostUsers(ctx)
	errs = append(errs, err)
	for _, s := range slices.Clone(w.lb.Status.Shares) {
		if s.ID == w.lb.Spec.SharedID {
			continue
		}
		then, err := w.leave(ctx, s)
		again, errs = core.Sooner(again, then), append(errs, err)
	}
	if w.lb.Spec.SharedID == "" {
		return again, errs
	}
	then, err := w.join(ctx, of, endpoints, members)
	return core.Sooner(again, then), append(errs, err)
}

// join makes the Service's ports listeners of the load balancer that it asks to share.
func (w *balancing) join(ctx context.Context, of balancerOf, endpoints func(six bool) map[portName][]endpoint,
	members map[netip.Addr]bool,
) (again time.Duration, err error) {
	id := sdn.ID(w.lb.Spec.SharedID)
	fresh := w.look || w.known.shared.ID != id || len(w.known.shared.VIPs) == 0
	if fresh {
		w.known.shared = sdn.LoadBalancer{}
		err := w.Call(ctx, func(ctx context.Context) (err error) { w.known.shared, err = w.SDN.LoadBalancer(ctx, id); return err })
		if sdn.IsNotFound(err) { // no other gets its id
			err = unserving(fmt.Sprintf("annotation %s: there is no load balancer %s", annotationShared, id))
			w.note(err.Error())
		}
		if err != nil {
			return 0, err
		}
	}
	there := w.known.shared
	if len(there.VIPs) == 0 {
		return pendingPause, core.Waiting("the load balancer that is shared has no VIP yet")
	}
	owner, soon, err := w.admitted(ctx, there)
	if errors.As(err, new(unserving)) {
		w.note(err.Error())
	}
	if sdn.IsNotFound(err) {
		w.known.shared = sdn.LoadBalancer{}
	}
	if err != nil {
		return soon, err
	}
	of.own, of.floats, of.cluster, of.vip, of.six = true, true, nil, there.VIPs[0], there.VIPs[0].Addr.Is6()
	of.leaves = w.ground.HasWayOut[of.six]
	of.can = w.SDN.Capabilities().LoadBalancerOf(there.Backend)
	if len(w.lb.Spec.Sources) > 0 && !of.can.SourceRanges {
		err := unserving("spec.loadBalancerSourceRanges: the load balancer that is to be shared lets everybody connect")
		w.note(err.Error())
		return 0, err
	}
	if err := w.enter(ctx, owner, string(id)); err != nil {
		return 0, err
	}
	of.base = w.Base(v1.KeyKindLoadBalancer, v1.GuestKey(w.lb.Spec.ServiceUID), "", "")
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
	if err != nil {
		return again, err
	}
	return soon, w.address(ctx, owner, fresh)
}

// beside gives of a value the listeners whose ports no other has at a load balancer that is shared.
func (w *balancing) beside(ctx context.Context, spec sdn.LoadBalancerSpec) (sdn.LoadBalancerSpec, error) {
	query := sdn.LoadBalancerQuery{Match: sdn.Match{Keys: []sdn.Key{spec.Key}}}
	if spec.ID != "" {
		query.Match = sdn.Match{IDs: []sdn.ID{spec.ID}}
	}
	var there sdn.LoadBalancer
	err := w.Call(ctx, func(ctx context.Context) (err error) {
		there, _, err = sdn.First(w.SDN.FindLoadBalancers(ctx, query))
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

// sharesUsers returns an error if a user's load balancer is not one that Services of the namespace
// may share. Listeners that the Service has there already stay, unless it is another project's.
func (w *balancing) sharesUsers(ctx context.Context, there sdn.LoadBalancer) error {
	id := string(there.ID)
	if !w.usable(there.Meta, w.grants) {
		err := core.Denied(fmt.Sprintf("annotation %s: load balancer %s is of another project", annotationShared, id))
		if s := shareOf(w.lb, id); s != nil {
			_, left := w.leave(ctx, *s)
			return errors.Join(err, left)
		}
		return err
	}
	if w.grants.LoadBalancer(id) {
		return nil
	}
	what := fmt.Sprintf("annotation %s: the namespace is not granted load balancer %s (%s)",
		annotationShared, id, v1.AnnotationAllowLoadBalancers)
	if w.listensAt(there) {
		w.refuse(what + "; the Service's listeners stay")
		return nil
	}
	return core.Denied(what)
}

// listensAt reports whether the Service has listeners at another's load balancer.
func (w *balancing) listensAt(there sdn.LoadBalancer) bool {
	return slices.ContainsFunc(there.Listeners, func(l sdn.Listener) bool {
		return l.Key == w.userKey(w.lb.Spec.ServiceUID)
	})
}

// admitted returns an error if the Service may not share a load balancer. Otherwise it returns the
// KuryrLoadBalancer that the load balancer is the own VIP of: nil for a user's, and for an orphaned one.
func (w *balancing) admitted(ctx context.Context, there sdn.LoadBalancer) (
	owner *v1.KuryrLoadBalancer, again time.Duration, err error,
) {
	uid := serviceOfKey(there.Key)
	if there.Foreign || uid == "" {
		return nil, 0, w.sharesUsers(ctx, there)
	}
	var all v1.KuryrLoadBalancerList
	if err := w.Client.List(ctx, &all, client.MatchingFields{core.ByServiceUID: string(uid)}); err != nil {
		return nil, 0, err
	}
	refuse := func(format string, args ...any) (*v1.KuryrLoadBalancer, time.Duration, error) {
		return nil, 0, unserving("annotation " + annotationShared + ": " + fmt.Sprintf(format, args...))
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
			return refuse("the load balancer is of the namespace %s, and so shared only there", lb.Namespace)
		case there.Key.Name != v1.OwnLoadBalancerKey(uid, there.VIPs[0].Addr.Is6()):
			return refuse("the VIP is the ClusterIP of the Service %s, and goes with it; "+
				"only with controller.vip_placement: namespace it has one that can be shared", lb.Name)
		case !lb.DeletionTimestamp.IsZero() && !isUser(lb, string(there.ID), w.lb.Spec.ServiceUID):
			return refuse("the load balancer is being deleted, as the Service %s has been", lb.Name)
		default:
			return lb, 0, nil
		}
	}
	again, err = w.keepOrphan(ctx, there.ID, uid)
	return nil, again, err
}

// keepOrphan returns an error if the Service may not share a load balancer whose owner's
// KuryrLoadBalancer was removed by force. The listeners go that the owner and other users which were
// removed by force have left behind.
func (w *balancing) keepOrphan(ctx context.Context, id sdn.ID, uid types.UID) (again time.Duration, err error) {
	names, err := w.servicesByUID(ctx) // of all namespaces, as a UID tells none
	if err != nil {
		return 0, err
	}
	if names[uid] != "" { // or a cache is behind
		return pendingPause, core.Waiting("the KuryrLoadBalancer of the Service whose load balancer is shared is being recreated")
	}
	var there sdn.LoadBalancer
	err = w.Call(ctx, func(ctx context.Context) (err error) { there, err = w.SDN.LoadBalancer(ctx, id); return err })
	if err != nil {
		return 0, err
	}
	if !w.owns(there.Meta) || !w.listensAt(there) && !namedIn(there.Name, w.lb.Namespace) {
		return 0, unserving("annotation " + annotationShared +
			": the load balancer is of another namespace, and so shared only there")
	}
	if leaving, err := w.networkLeaves(ctx); err != nil || leaving { // which it would hold up
		if s := shareOf(w.lb, string(id)); err == nil && s != nil {
			again, err = w.leave(ctx, *s)
		}
		return again, errors.Join(err, core.Waiting("the network that the shared VIP was on is going"))
	}
	for _, key := range listenerKeys(there) {
		stale, then, err := w.isStale(ctx, there, key, names)
		if again = core.Sooner(again, then); err == nil && stale {
			then, err = w.removeListeners(ctx, string(id), key)
			delete(w.known.digests, "shared "+string(id))
		}
		if err != nil {
			return then, err
		}
	}
	return again, nil
}

// listenerKeys returns the Keys of a load balancer's listeners, each once.
func listenerKeys(there sdn.LoadBalancer) (all []sdn.Key) {
	for _, l := range there.Listeners {
		if key := cmp.Or(l.Key, there.Key); !slices.Contains(all, key) {
			all = append(all, key)
		}
	}
	return all
}

// isStale reports whether listeners of an orphaned load balancer are of the Service that has gone, or of
// one that was removed by force: again is set if that will be known soon. names are the Services that
// Kuryr is to serve.
func (w *balancing) isStale(ctx context.Context, there sdn.LoadBalancer, key sdn.Key, names map[types.UID]string) (
	stale bool, again time.Duration, err error,
) {
	if key == there.Key {
		return true, 0, nil
	}
	uid := serviceOfKey(key)
	if key != w.userKey(uid) || uid == w.lb.Spec.ServiceUID {
		return false, 0, nil
	}
	var all v1.KuryrLoadBalancerList
	err = w.Client.List(ctx, &all, client.MatchingFields{core.ByServiceUID: string(uid)}, client.Limit(1))
	if err != nil || len(all.Items) > 0 {
		return false, 0, err
	}
	if names[uid] != "" { // its KuryrLoadBalancer is being recreated, or a cache is behind
		return false, pendingPause, nil
	}
	return true, 0, nil
}

// servicesByUID returns the names of Services that Kuryr is to serve.
func (w *balancing) servicesByUID(ctx context.Context, in ...client.ListOption) (map[types.UID]string, error) {
	var all corev1.ServiceList
	err := w.Client.List(ctx, &all, in...)
	names := map[types.UID]string{}
	for i := range all.Items {
		if s := &all.Items[i]; balanced(s) {
			names[s.UID] = s.Name
		}
	}
	return names, err
}

// shareOf is what a KuryrLoadBalancer's status says of a load balancer that it shares, nil for nothing.
func shareOf(lb *v1.KuryrLoadBalancer, id string) *v1.LoadBalancerShare {
	if i := slices.IndexFunc(lb.Status.Shares, func(s v1.LoadBalancerShare) bool { return s.ID == id }); i >= 0 {
		return &lb.Status.Shares[i]
	}
	return nil
}

// enter writes, before it is so, that the Service shares a load balancer: into its own status and into
// that of the owner, if it has one.
func (w *balancing) enter(ctx context.Context, owner *v1.KuryrLoadBalancer, id string) error {
	me := v1.LoadBalancerGuest{LoadBalancer: id, ServiceUID: w.lb.Spec.ServiceUID, Name: w.lb.Name}
	known := owner == nil || isUser(owner, id, me.ServiceUID)
	if !known && !sharable(owner, id) {
		return core.Waiting("the load balancer that is to be shared is about to be deleted, or not in its owner's status yet")
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
	if known {
		return nil
	}
	delete(w.known.digests, "shared "+id) // the owner may have taken this user for lost
	owner.Status.Guests = append(owner.Status.Guests, me)
	err := w.Client.Status().Update(ctx, owner)
	failpoint.Here("raven.share.entered")
	return err
}

// address notes where the Service is reached. The status of an owner tells its floating IP. A change of
// one without an owner is seen at the next resync, as the SDN does not tell it.
func (w *balancing) address(ctx context.Context, owner *v1.KuryrLoadBalancer, fresh bool) error {
	share, vip := shareOf(w.lb, w.lb.Spec.SharedID), w.known.shared.VIPs[0]
	if owner == nil && !fresh && share.Address != "" {
		return nil
	}
	address := vip.Addr.String()
	if owner != nil {
		if a, err := netip.ParseAddr(ledFrom(owner.Status.FloatingIP)); err == nil && a.Is6() == vip.Addr.Is6() {
			address = a.String()
		}
	} else if vip.Port != "" {
		err := w.Call(ctx, func(ctx context.Context) error {
			query := sdn.FloatingIPQuery{Ports: []sdn.ID{vip.Port}}
			f, found, err := sdn.First(w.SDN.FindFloatingIPs(ctx, query))
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

// leaveAll removes the Service from all load balancers that it shares.
func (w *balancing) leaveAll(ctx context.Context) (again time.Duration, _ error) {
	var errs []error
	for _, s := range slices.Clone(w.lb.Status.Shares) {
		then, err := w.leave(ctx, s)
		again, errs = core.Sooner(again, then), append(errs, err)
	}
	return again, errors.Join(errs...)
}

// leave removes the Service's listeners from a load balancer, and the Service from its users. An orphaned
// load balancer that no other Service shares is deleted.
func (w *balancing) leave(ctx context.Context, s v1.LoadBalancerShare) (again time.Duration, err error) {
	w.known.shared = sdn.LoadBalancer{}
	delete(w.known.digests, "shared "+s.ID)
	gone, err := w.deleteOrphan(ctx, s) // whatever state it is in
	if err != nil {
		return 0, err
	}
	if !gone {
		if again, err = w.removeListeners(ctx, s.ID, w.userKey(w.lb.Spec.ServiceUID)); err != nil {
			return again, err
		}
	}
	failpoint.Here("raven.share.stripped")
	if s.Keep && !gone {
		if err := w.passKeep(ctx, s.ID); err != nil {
			return 0, err
		}
	}
	var owners v1.KuryrLoadBalancerList
	by := client.MatchingFields{core.ByGuest: string(w.lb.Spec.ServiceUID)}
	if err := w.Client.List(ctx, &owners, client.InNamespace(w.lb.Namespace), by); err != nil {
		return 0, err
	}
	for i := range owners.Items {
		owner := &owners.Items[i]
		owner.Status.Guests = slices.DeleteFunc(owner.Status.Guests, func(g v1.LoadBalancerGuest) bool {
			return g.LoadBalancer == s.ID && g.ServiceUID == w.lb.Spec.ServiceUID
		})
		if err := w.Client.Status().Update(ctx, owner); client.IgnoreNotFound(err) != nil {
			return 0, err
		}
	}
	failpoint.Here("raven.share.left")
	w.lb.Status.Shares = slices.DeleteFunc(w.lb.Status.Shares, func(o v1.LoadBalancerShare) bool { return o.ID == s.ID })
	return 0, w.tellNow(ctx)
}

// sharersOf returns the namespace's other KuryrLoadBalancers that share a load balancer.
func (w *balancing) sharersOf(ctx context.Context, id string) (all []*v1.KuryrLoadBalancer, _ error) {
	var lbs v1.KuryrLoadBalancerList
	if err := w.Client.List(ctx, &lbs, client.InNamespace(w.lb.Namespace)); err != nil {
		return nil, err
	}
	for i := range lbs.Items {
		if lb := &lbs.Items[i]; lb.UID != w.lb.UID && shareOf(lb, id) != nil {
			all = append(all, lb)
		}
	}
	return all, nil
}

// passKeep has another that shares a load balancer remember, as an older release was told, that the
// floating IP is kept: one that stays, if there is one.
func (w *balancing) passKeep(ctx context.Context, id string) error {
	all, err := w.sharersOf(ctx, id)
	if err != nil || len(all) == 0 {
		return err
	}
	to := all[0]
	for _, lb := range all {
		if shareOf(lb, id).Keep {
			return nil
		}
		if !to.DeletionTimestamp.IsZero() && lb.DeletionTimestamp.IsZero() {
			to = lb
		}
	}
	shareOf(to, id).Keep = true
	return w.Client.Status().Update(ctx, to)
}

// keptBy reports whether one that shares a load balancer remembers that its floating IP is kept.
func (w *balancing) keptBy(ctx context.Context, s v1.LoadBalancerShare) (bool, error) {
	all, err := w.sharersOf(ctx, s.ID)
	return s.Keep || slices.ContainsFunc(all, func(lb *v1.KuryrLoadBalancer) bool { return shareOf(lb, s.ID).Keep }), err
}

// removeListeners removes the listeners with this Key from a load balancer.
func (w *balancing) removeListeners(ctx context.Context, id string, key sdn.Key) (again time.Duration, err error) {
	name := "leaving " + id
	spec := sdn.LoadBalancerSpec{Base: sdn.Base{Key: key}, ID: sdn.ID(id), Shared: true}
	_, again, err = w.step(ctx, name, spec, false)
	delete(w.known.digests, name)
	if sdn.IsNotFound(err) || sdn.IsUnsupported(err) {
		return 0, nil
	}
	return again, err
}

// networkLeaves reports whether the namespace's network has gone or is being deleted.
func (w *balancing) networkLeaves(ctx context.Context) (bool, error) {
	n, err := w.AnyNetworkOf(ctx, w.lb.Namespace)
	return err == nil && (n == nil || !n.DeletionTimestamp.IsZero()), err
}

// deleteOrphan deletes a load balancer whose owner was removed by force and that no other Service
// shares. It reports whether there is nothing left of it.
func (w *balancing) deleteOrphan(ctx context.Context, s v1.LoadBalancerShare) (gone bool, err error) {
	var there sdn.LoadBalancer
	err = w.Call(ctx, func(ctx context.Context) (err error) {
		there, err = w.SDN.LoadBalancer(ctx, sdn.ID(s.ID))
		return err
	})
	if sdn.IsNotFound(err) || sdn.IsUnsupported(err) {
		return true, nil
	}
	uid := serviceOfKey(there.Key)
	ours := w.owns(there.Meta) && isOwnKey(there.Key, uid) && namedIn(there.Name, w.lb.Namespace)
	if err != nil || !ours || uid == w.lb.Spec.ServiceUID {
		return false, err
	}
	orphans, err := w.orphans(ctx, []sdn.LoadBalancer{there}, w.lb.UID)
	if err != nil || len(orphans) == 0 {
		return false, err
	}
	keep, err := w.keptBy(ctx, s)
	if err != nil {
		return false, err
	}
	if keep { // an older release was told to keep the floating IP, which leads nowhere then
		there.VIPs = nil
	}
	return true, w.dropStray(ctx, there, uid)
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

// sharersMatter reports whether something of a KuryrLoadBalancer has changed that concerns it and those
// it shares load balancers with.
func sharersMatter(e event.UpdateEvent) bool {
	was, is := e.ObjectOld.(*v1.KuryrLoadBalancer), e.ObjectNew.(*v1.KuryrLoadBalancer)
	if len(sharedWith(was))+len(sharedWith(is)) == 0 {
		return false
	}
	return was.DeletionTimestamp.IsZero() != is.DeletionTimestamp.IsZero() || !slices.Equal(was.Status.LoadBalancers, is.Status.LoadBalancers) || !slices.Equal(was.Status.Guests, is.Status.Guests) ||
		!slices.Equal(was.Status.Shares, is.Status.Shares) || ledFrom(was.Status.FloatingIP) != ledFrom(is.Status.FloatingIP)
}

// sharedWith returns the ids of load balancers that a KuryrLoadBalancer may have in common with others.
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

// sharers returns the requests for a KuryrLoadBalancer, for those that share or ask for a load balancer
// of its, and for the owners of those that it shares.
func (r *Raven) sharers(ctx context.Context, lb *v1.KuryrLoadBalancer) (all []ctrl.Request, err error) {
	all = append(all, core.Request(lb.Namespace, lb.Name))
	found := []client.ListOption{client.MatchingFields{core.ByGuest: string(lb.Spec.ServiceUID)}}
	for _, id := range sharedWith(lb) {
		found = append(found, client.MatchingFields{core.ByShared: id})
	}
	for _, by := range found {
		var some v1.KuryrLoadBalancerList
		if err := r.Client.List(ctx, &some, by); err != nil {
			return all, err
		}
		for i := range some.Items {
			all = append(all, core.Request(some.Items[i].Namespace, some.Items[i].Name))
		}
	}
	return all, nil
}

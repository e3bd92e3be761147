package raven

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kuryr/kuryr/internal/failpoint"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The owner's side of sharing: it knows the users of its own VIPs' load balancers, and is not deleted
// while there are any.

// inUse is why a load balancer is not deleted: other Services share it. The end of their use brings
// its owner back, so there is no retry.
type inUse string

func (i inUse) Error() string { return string(i) }

// Unwrap makes it an error that waits.
func (i inUse) Unwrap() error { return core.Waiting(i) }

// usedBy returns an error that names the users of an own VIP.
func usedBy(of *v1.LoadBalancerOfVIP, users []*v1.KuryrLoadBalancer) error {
	names := make([]string, 0, len(users))
	for _, user := range users {
		names = append(names, user.Name)
	}
	slices.Sort(names)
	const most = 10
	more := ""
	if len(names) > most {
		names, more = names[:most], fmt.Sprintf(" and %d more", len(names)-most)
	}
	return inUse(fmt.Sprintf("load balancer %s with VIP %s is kept while other Services share it: %s%s",
		of.ID, of.VIP, strings.Join(names, ", "), more))
}

// userKey is that of the listeners that a Service has at another's load balancer.
func (w *balancing) userKey(service types.UID) sdn.Key {
	return w.Key(v1.KeyKindLoadBalancer, v1.GuestKey(service))
}

// isUser reports whether a KuryrLoadBalancer's status names a Service as a user of a load balancer.
func isUser(lb *v1.KuryrLoadBalancer, id string, service types.UID) bool {
	return slices.ContainsFunc(lb.Status.Guests, func(g v1.LoadBalancerGuest) bool {
		return g.LoadBalancer == id && g.ServiceUID == service
	})
}

// sharable reports whether others may begin to share a load balancer of a KuryrLoadBalancer: it is
// the Service's own, and is not about to be deleted.
func sharable(lb *v1.KuryrLoadBalancer, id string) bool {
	return lb.DeletionTimestamp.IsZero() && slices.ContainsFunc(lb.Status.LoadBalancers, func(of v1.LoadBalancerOfVIP) bool {
		return of.Own && of.ID == id && !of.Leaving
	})
}

// users returns the KuryrLoadBalancers that share a load balancer of this one, and stay.
func (w *balancing) users(ctx context.Context, id string) (all []*v1.KuryrLoadBalancer, err error) {
	for _, g := range w.lb.Status.Guests {
		if g.LoadBalancer != id || g.ServiceUID == w.lb.Spec.ServiceUID {
			continue
		}
		lb, err := w.user(ctx, g)
		if err != nil {
			return nil, err
		}
		if lb != nil {
			all = append(all, lb)
		}
	}
	return all, nil
}

// user returns the KuryrLoadBalancer of a user, nil if it has left or is leaving.
func (w *balancing) user(ctx context.Context, g v1.LoadBalancerGuest) (*v1.KuryrLoadBalancer, error) {
	var lb v1.KuryrLoadBalancer
	if err := w.Client.Get(ctx, client.ObjectKey{Namespace: w.lb.Namespace, Name: g.Name}, &lb); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if lb.Spec.ServiceUID != g.ServiceUID || lb.Spec.SharedID != g.LoadBalancer || !lb.DeletionTimestamp.IsZero() {
		return nil, nil
	}
	return &lb, nil
}

// removeLostUsers removes users that have gone without having left, such as one whose finalizer was
// removed by hand, and the listeners that they have left behind.
func (w *balancing) removeLostUsers(ctx context.Context) (again time.Duration, _ error) {
	var stay []v1.LoadBalancerGuest
	var errs []error
	for _, g := range w.lb.Status.Guests {
		lost, then, err := w.lost(ctx, g)
		if lost {
			then, err = w.evict(ctx, g)
		}
		if !lost || err != nil {
			stay = append(stay, g)
		}
		again, errs = core.Sooner(again, then), append(errs, err)
	}
	w.lb.Status.Guests = stay
	return again, errors.Join(errs...)
}

// evict removes the listeners of a user that has gone from a load balancer of this one. What
// the SDN or the API server does not confirm is passed over: the load balancer is not this one's, or
// the user is a Service of another namespace.
func (w *balancing) evict(ctx context.Context, g v1.LoadBalancerGuest) (again time.Duration, err error) {
	var there sdn.LoadBalancer
	err = w.Call(ctx, func(ctx context.Context) (err error) {
		there, err = w.SDN.LoadBalancer(ctx, sdn.ID(g.LoadBalancer))
		return err
	})
	if sdn.IsNotFound(err) || sdn.IsUnsupported(err) {
		return 0, nil
	}
	if err != nil || !w.ownsVIPOf(there) {
		return 0, err
	}
	s, err := w.serviceWithUID(ctx, g.ServiceUID)
	if err != nil || s != nil && s.Namespace != w.lb.Namespace {
		return 0, err
	}
	return w.removeListeners(ctx, g.LoadBalancer, w.userKey(g.ServiceUID))
}

// lost reports whether a user will not leave by itself any more: its KuryrLoadBalancer has gone, or
// does not share the load balancer. If its Service is there, its KuryrLoadBalancer is being
// recreated, or a cache is behind.
func (w *balancing) lost(ctx context.Context, g v1.LoadBalancerGuest) (lost bool, again time.Duration, err error) {
	name := client.ObjectKey{Namespace: w.lb.Namespace, Name: g.Name}
	var lb v1.KuryrLoadBalancer
	if err = w.Client.Get(ctx, name, &lb); client.IgnoreNotFound(err) != nil {
		return false, 0, err
	}
	if err == nil && lb.Spec.ServiceUID == g.ServiceUID {
		return lb.Spec.SharedID != g.LoadBalancer && shareOf(&lb, g.LoadBalancer) == nil, 0, nil
	}
	var service corev1.Service
	if err = w.Client.Get(ctx, name, &service); client.IgnoreNotFound(err) != nil {
		return false, 0, err
	}
	if err == nil && service.UID == g.ServiceUID && balanced(&service) {
		return false, pendingPause, nil
	}
	return true, 0, nil
}

// addUsers notes the users that have listeners at a load balancer of this one and that its status does
// not name, as where the status was lost.
func (w *balancing) addUsers(ctx context.Context, there sdn.LoadBalancer) error {
	var names map[types.UID]string
	for _, l := range there.Listeners {
		uid := serviceOfKey(l.Key)
		if uid == w.lb.Spec.ServiceUID || l.Key != w.userKey(uid) || isUser(w.lb, string(there.ID), uid) {
			continue
		}
		if names == nil {
			var err error
			if names, err = w.servicesByUID(ctx, client.InNamespace(w.lb.Namespace)); err != nil {
				return err
			}
		}
		w.lb.Status.Guests = append(w.lb.Status.Guests, v1.LoadBalancerGuest{
			LoadBalancer: string(there.ID), ServiceUID: uid, Name: cmp.Or(names[uid], string(uid)),
		})
	}
	return nil
}

// findOwnVIPs finds the VIPs of the Service's own that its status, which was lost, does not name and
// that others share, and the floating IP that leads there.
func (w *balancing) findOwnVIPs(ctx context.Context) error {
	for _, six := range []bool{false, true} {
		if !w.lb.Spec.OwnVIPs || !hasFamily(w.lb.Spec.VIPs, six) || ownVIP(w.lb, six) != nil {
			continue
		}
		found, err := w.balancersWith(ctx, w.ownKey(six))
		if err != nil {
			return err
		}
		for _, there := range found {
			if err := w.findUsers(ctx, there, six); err != nil {
				return err
			}
		}
	}
	return nil
}

// findUsers writes a load balancer that others share into the status, with its users.
func (w *balancing) findUsers(ctx context.Context, there sdn.LoadBalancer, six bool) error {
	var all v1.KuryrLoadBalancerList
	by := client.MatchingFields{core.ByShared: string(there.ID)}
	if err := w.Client.List(ctx, &all, client.InNamespace(w.lb.Namespace), by); err != nil || len(all.Items) == 0 {
		return err
	}
	if err := w.findFloating(ctx, there); err != nil { // first: a VIP in the status is not searched for again
		return err
	}
	w.saw(balancerOf{spec: &w.lb.Spec, own: true, six: six}, there)
	for i := range all.Items {
		if lb := &all.Items[i]; !isUser(w.lb, string(there.ID), lb.Spec.ServiceUID) {
			w.lb.Status.Guests = append(w.lb.Status.Guests, v1.LoadBalancerGuest{
				LoadBalancer: string(there.ID), ServiceUID: lb.Spec.ServiceUID, Name: lb.Name,
			})
		}
	}
	return nil
}

// findFloating finds Kuryr's floating IP that leads to a load balancer, if the status names none.
func (w *balancing) findFloating(ctx context.Context, there sdn.LoadBalancer) error {
	if w.lb.Status.FloatingIP != nil {
		return nil
	}
	var f sdn.FloatingIP
	err := w.Call(ctx, func(ctx context.Context) (err error) {
		key := w.Key(v1.KeyKindFloatingIP, string(w.lb.Spec.ServiceUID))
		f, _, err = sdn.First(w.SDN.FindFloatingIPs(ctx, sdn.FloatingIPQuery{Match: sdn.Match{Keys: []sdn.Key{key}}}))
		return err
	})
	if sdn.IsUnsupported(err) {
		return nil
	}
	leads := func(v sdn.VIP) bool { return v.Port != "" && v.Port == f.Target.Port }
	if err != nil || !slices.ContainsFunc(there.VIPs, leads) {
		return err
	}
	wish := w.lb.Spec.FloatingIP
	w.lb.Status.FloatingIP = &v1.LoadBalancerFloatingIPStatus{
		ID: string(f.ID), Address: f.Address.String(), Owner: v1.FloatingIPOfKuryr, Keep: wish != nil && wish.Keep,
	}
	return nil
}

// keepShared keeps the VIPs of the Service's own that others share, and the floating IP that leads
// there, while the KuryrLoadBalancer is being deleted. It returns which of the Keys may be
// deleted now, and an error that names the users of the others, unless the Service gets a
// KuryrLoadBalancer again, which then has them. With the namespace's network all of them go.
func (w *balancing) keepShared(ctx context.Context, keys []sdn.Key) (again time.Duration, _ []sdn.Key, err error) {
	if err := w.findOwnVIPs(ctx); err != nil {
		return 0, nil, err
	}
	leaving, err := w.networkLeaves(ctx)
	if err != nil {
		return 0, nil, err
	}
	var errs []error
	keepFloating := false
	for _, six := range []bool{false, true} {
		of, key := ownVIP(w.lb, six), w.ownKey(six)
		if of == nil || leaving {
			continue
		}
		then, kept, err := w.keepForUsers(ctx, *of, key)
		again, errs = core.Sooner(again, then), append(errs, err)
		if !kept && err == nil {
			continue
		}
		keys = slices.DeleteFunc(keys, func(k sdn.Key) bool { return k == key })
		keepFloating = keepFloating || isFamily(addressOfFloating(w.lb.Status.FloatingIP), six)
	}
	if !keepFloating {
		errs = append(errs, w.sink(ctx))
	}
	return again, keys, errors.Join(errs...)
}

// keepForUsers removes the listeners of this one and of lost users from an own VIP that others share,
// if the SDN still has it, which each audit looks at again. If the Service is to have the VIP again, it
// is left unchanged.
func (w *balancing) keepForUsers(ctx context.Context, of v1.LoadBalancerOfVIP, key sdn.Key) (
	again time.Duration, kept bool, _ error,
) {
	users, err := w.users(ctx, of.ID)
	if err != nil {
		return 0, false, err
	}
	coming, again, err := w.comingUser(ctx, of.ID)
	if err != nil || len(users) == 0 && coming == "" {
		return 0, false, err
	}
	if gone, err := w.hasGone(ctx, of.ID); err != nil || gone {
		return 0, false, err
	}
	if back, err := w.comesBack(ctx, isFamily(of.VIP, true)); err != nil || back {
		return 0, back, err
	}
	used := usedBy(&of, users)
	if len(users) == 0 {
		used = inUse(fmt.Sprintf("load balancer %s with VIP %s is kept, as the Service %s shares it and "+
			"its KuryrLoadBalancer is being recreated", of.ID, of.VIP, coming))
	}
	then, err := w.removeLostUsers(ctx)
	soon, failed := w.removeListeners(ctx, of.ID, key)
	again = core.Sooner(core.Sooner(again, w.cfg.Audit), core.Sooner(then, soon))
	return again, true, errors.Join(err, failed, used)
}

// hasGone reports whether the SDN does not have a load balancer any more.
func (w *balancing) hasGone(ctx context.Context, id string) (bool, error) {
	err := w.Call(ctx, func(ctx context.Context) error {
		_, err := w.SDN.LoadBalancer(ctx, sdn.ID(id))
		return err
	})
	if sdn.IsUnsupported(err) {
		return false, nil
	}
	if sdn.IsNotFound(err) {
		return true, nil
	}
	return false, err
}

// comingUser returns the name of a Service that shares a load balancer of this one and whose
// KuryrLoadBalancer is being recreated, "" for none, and when to look again.
func (w *balancing) comingUser(ctx context.Context, id string) (name string, again time.Duration, _ error) {
	if !w.cfg.Services { // none is recreated
		return "", 0, nil
	}
	for _, g := range w.lb.Status.Guests {
		if g.LoadBalancer != id || g.ServiceUID == w.lb.Spec.ServiceUID {
			continue
		}
		lost, then, err := w.lost(ctx, g)
		if err != nil {
			return "", 0, err
		}
		if !lost && then > 0 {
			name, again = g.Name, core.Sooner(again, then)
		}
	}
	return name, again, nil
}

// comesBack reports whether the Service of a KuryrLoadBalancer that is being deleted is there, and gets
// one again, with a VIP of its own of the family.
func (w *balancing) comesBack(ctx context.Context, six bool) (bool, error) {
	if !w.cfg.Services {
		return false, nil
	}
	from := []client.Reader{w.Client}
	if w.Live != nil { // a cache may be behind
		from = append(from, w.Live)
	}
	var s corev1.Service
	for _, r := range from {
		s = corev1.Service{}
		err := r.Get(ctx, client.ObjectKeyFromObject(w.lb), &s)
		if err != nil || s.UID != w.lb.Spec.ServiceUID || !balanced(&s) {
			return false, client.IgnoreNotFound(err)
		}
		var ns corev1.Namespace
		err = r.Get(ctx, client.ObjectKey{Name: w.lb.Namespace}, &ns)
		if err != nil || !ns.DeletionTimestamp.IsZero() { // nothing can be created there
			return false, client.IgnoreNotFound(err)
		}
	}
	can, err := w.canBalance(ctx)
	if err != nil {
		return false, err
	}
	spec, _, err := w.specOf(ctx, &s, w.lb, can)
	return spec.OwnVIPs && hasFamily(spec.VIPs, six), err
}

// keepVIP reports whether a VIP of the Service's own stays for its users, though the Service itself
// is not reached there any more.
func (w *balancing) keepVIP(ctx context.Context, six bool) (stays bool, again time.Duration, err error) {
	of := ownVIP(w.lb, six)
	if of == nil {
		return false, 0, nil
	}
	users, err := w.users(ctx, of.ID)
	if err != nil || len(users) == 0 {
		return false, 0, err
	}
	w.note(fmt.Sprintf("the VIP %s stays for the Service %s, which shares it", of.VIP, users[0].Name))
	delete(w.known.digests, balancerOf{own: true, six: six}.name())
	again, err = w.removeListeners(ctx, of.ID, w.ownKey(six))
	return true, again, err
}

// mayRecreate returns an error if others share a VIP of the Service's own, which then is not
// recreated. Otherwise no Service can begin to share it.
func (w *balancing) mayRecreate(ctx context.Context, six bool) error {
	of := ownVIP(w.lb, six)
	if of == nil {
		return nil
	}
	users, err := w.users(ctx, of.ID)
	if err != nil {
		return err
	}
	if len(users) > 0 {
		return unserving(fmt.Sprintf(
			"the load balancer would have to be recreated, and is not while the Service %s shares it", users[0].Name))
	}
	return w.markLeaving(ctx, six)
}

// markLeaving writes into the status, before a VIP of the Service's own is deleted, that no Service may
// begin to share it. If one has since this status was read, the write conflicts, and the reconciler
// starts over.
func (w *balancing) markLeaving(ctx context.Context, six bool) error {
	of := ownVIP(w.lb, six)
	if of == nil || of.Leaving {
		return nil
	}
	of.Leaving = true
	delete(w.known.digests, balancerOf{own: true, six: six}.name()) // it may be wanted again
	err := w.tellNow(ctx)
	failpoint.Here("raven.share.withdrawn")
	return err
}

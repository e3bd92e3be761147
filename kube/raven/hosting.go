package raven

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kuryr/kuryr/internal/failpoint"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The host's side of sharing: it knows its guests, and has them keep the load balancer where it goes itself.

// guestKey is that of the listeners that a Service has at another's load balancer.
func (w *balancing) guestKey(service types.UID) sdn.Key {
	return w.key(v1.KeyKindLoadBalancer, v1.GuestKey(service))
}

// isGuest tells whether a KuryrLoadBalancer's status tells of a Service as a guest at a load balancer.
func isGuest(lb *v1.KuryrLoadBalancer, id string, service types.UID) bool {
	return slices.ContainsFunc(lb.Status.Guests, func(g v1.LoadBalancerGuest) bool { return g.LoadBalancer == id && g.ServiceUID == service })
}

// lends tells whether others may share a load balancer that a KuryrLoadBalancer has, or stands for. One that is about to have it go takes in nobody: it has seen that nobody is there.
func lends(lb *v1.KuryrLoadBalancer, id string) bool {
	has := slices.ContainsFunc(lb.Status.LoadBalancers, func(of v1.LoadBalancerOfVIP) bool { return of.Own && of.ID == id && !of.Leaving })
	return has || inherits(lb, sdn.ID(id)) && lb.Spec.SharedID == id
}

// guests are who share a load balancer of this one's and stay.
func (w *balancing) guests(ctx context.Context, id string) (all []*v1.KuryrLoadBalancer, err error) {
	for _, g := range w.lb.Status.Guests {
		if g.LoadBalancer != id || g.ServiceUID == w.lb.Spec.ServiceUID {
			continue
		}
		lb, err := w.guest(ctx, g)
		if err != nil {
			return nil, err
		}
		if lb != nil {
			all = append(all, lb)
		}
	}
	return all, nil
}

// guest is who is told of as one, nil where it is that no more.
func (w *balancing) guest(ctx context.Context, g v1.LoadBalancerGuest) (*v1.KuryrLoadBalancer, error) {
	var lb v1.KuryrLoadBalancer
	if err := w.api.Get(ctx, client.ObjectKey{Namespace: w.lb.Namespace, Name: g.Name}, &lb); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if lb.Spec.ServiceUID != g.ServiceUID || lb.Spec.SharedID != g.LoadBalancer || !lb.DeletionTimestamp.IsZero() {
		return nil, nil
	}
	return &lb, nil
}

// forgetGuests forgets those that have gone without having left, as where their KuryrLoadBalancer was torn away, with the listeners that they have left behind.
func (w *balancing) forgetGuests(ctx context.Context) (again time.Duration, _ error) {
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
		again, errs = sooner(again, then), append(errs, err)
	}
	w.lb.Status.Guests = stay
	return again, errors.Join(errs...)
}

// evict takes the listeners of a guest that has gone from a load balancer of this one's. What
// the SDN or the API server does not confirm is forgotten: the load balancer is not this one's, or
// the guest is a Service of another namespace.
func (w *balancing) evict(ctx context.Context, g v1.LoadBalancerGuest) (again time.Duration, err error) {
	var there sdn.LoadBalancer
	err = w.ask(ctx, func(ctx context.Context) (err error) {
		there, err = w.sdn.LoadBalancer(ctx, sdn.ID(g.LoadBalancer))
		return err
	})
	if sdn.IsNotFound(err) || sdn.IsUnsupported(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	hosts, err := w.hosts(ctx, there)
	if err != nil || !hosts {
		return 0, err
	}
	s, err := w.serviceWithUID(ctx, g.ServiceUID)
	if err != nil || s != nil && s.Namespace != w.lb.Namespace {
		return 0, err
	}
	return w.strip(ctx, g.LoadBalancer, w.guestKey(g.ServiceUID))
}

// lost tells whether a guest will not leave by itself any more: its KuryrLoadBalancer has gone, or knows nothing of it. Where its Service is there one is made anew, or a cache is behind.
func (w *balancing) lost(ctx context.Context, g v1.LoadBalancerGuest) (lost bool, again time.Duration, err error) {
	name := client.ObjectKey{Namespace: w.lb.Namespace, Name: g.Name}
	var lb v1.KuryrLoadBalancer
	if err = w.api.Get(ctx, name, &lb); client.IgnoreNotFound(err) != nil {
		return false, 0, err
	}
	if err == nil && lb.Spec.ServiceUID == g.ServiceUID {
		return lb.Spec.SharedID != g.LoadBalancer && shareOf(&lb, g.LoadBalancer) == nil, 0, nil
	}
	var service corev1.Service
	if err = w.api.Get(ctx, name, &service); client.IgnoreNotFound(err) != nil {
		return false, 0, err
	}
	if err == nil && service.UID == g.ServiceUID && balanced(&service) {
		return false, pendingPause, nil
	}
	return true, 0, nil
}

// adopt notes guests that have listeners at a load balancer of this one's and that its status does not tell of, as where that was lost: else nobody would know of those who have gone.
func (w *balancing) adopt(ctx context.Context, there sdn.LoadBalancer) error {
	var names map[types.UID]string
	for _, l := range there.Listeners {
		uid := serviceOfKey(l.Key)
		if uid == w.lb.Spec.ServiceUID || l.Key != w.guestKey(uid) || isGuest(w.lb, string(there.ID), uid) {
			continue
		}
		if names == nil {
			var err error
			if names, err = w.servicesByUID(ctx, client.InNamespace(w.lb.Namespace)); err != nil {
				return err
			}
		}
		w.lb.Status.Guests = append(w.lb.Status.Guests, v1.LoadBalancerGuest{LoadBalancer: string(there.ID), ServiceUID: uid, Name: cmp.Or(names[uid], string(uid))})
	}
	return nil
}

// recall finds VIPs of the Service's own that its status tells nothing of, as it was lost, and that others share, before they go; and the floating IP that leads there.
func (w *balancing) recall(ctx context.Context) error {
	for _, six := range []bool{false, true} {
		if !w.lb.Spec.OwnVIPs || !hasFamily(w.lb.Spec.VIPs, six) || ownVIP(w.lb, six) != nil {
			continue
		}
		found, err := w.balancersWith(ctx, w.ownKey(six))
		if err != nil {
			return err
		}
		for _, there := range found {
			var all v1.KuryrLoadBalancerList
			if err := w.api.List(ctx, &all, client.InNamespace(w.lb.Namespace), client.MatchingFields{byShared: string(there.ID)}); err != nil {
				return err
			}
			if len(all.Items) == 0 {
				continue
			}
			if err := w.recallFloating(ctx, there); err != nil { // before the VIP is told of, which is recalled no more then
				return err
			}
			w.saw(balancerOf{spec: &w.lb.Spec, own: true, six: six}, there)
			for i := range all.Items {
				if lb := &all.Items[i]; !isGuest(w.lb, string(there.ID), lb.Spec.ServiceUID) {
					w.lb.Status.Guests = append(w.lb.Status.Guests, v1.LoadBalancerGuest{LoadBalancer: string(there.ID), ServiceUID: lb.Spec.ServiceUID, Name: lb.Name})
				}
			}
		}
	}
	return nil
}

// recallFloating finds Kuryr's floating IP that leads to a load balancer, which the status tells nothing of.
func (w *balancing) recallFloating(ctx context.Context, there sdn.LoadBalancer) error {
	if w.lb.Status.FloatingIP != nil {
		return nil
	}
	var f sdn.FloatingIP
	err := w.ask(ctx, func(ctx context.Context) (err error) {
		key := w.key(v1.KeyKindFloatingIP, string(w.lb.Spec.ServiceUID))
		f, _, err = sdn.First(w.sdn.FindFloatingIPs(ctx, sdn.FloatingIPQuery{Match: sdn.Match{Keys: []sdn.Key{key}}}))
		return err
	})
	if sdn.IsUnsupported(err) {
		return nil
	}
	if err != nil || !slices.ContainsFunc(there.VIPs, func(v sdn.VIP) bool { return v.Port != "" && v.Port == f.Target.Port }) {
		return err
	}
	wish := w.lb.Spec.FloatingIP
	w.lb.Status.FloatingIP = &v1.LoadBalancerFloatingIPStatus{ID: string(f.ID), Address: f.Address.String(), Owner: v1.FloatingIPOfKuryr, Keep: wish != nil && wish.Keep}
	return nil
}

// bequeath has one of those who share a load balancer stand for it from now on; passed tells whether there is one.
func (w *balancing) bequeath(ctx context.Context, s v1.LoadBalancerShare) (passed bool, err error) {
	var heirs v1.KuryrLoadBalancerList
	in := client.InNamespace(w.lb.Namespace)
	if err := w.api.List(ctx, &heirs, in, client.MatchingFields{byShared: s.ID}); err != nil {
		return false, err
	}
	if slices.ContainsFunc(heirs.Items, func(lb v1.KuryrLoadBalancer) bool {
		return lb.UID != w.lb.UID && lb.DeletionTimestamp.IsZero() && inherits(&lb, sdn.ID(s.ID)) // one that goes too would take this one for the heir
	}) {
		return true, nil // before a kill
	}
	if leaving, err := w.networkLeaves(ctx); err != nil || leaving {
		return false, err // the load balancer is on it
	}
	guests, err := w.guests(ctx, s.ID)
	if err != nil || len(guests) == 0 {
		return false, err
	}
	heir := guests[0]
	share := shareOf(heir, s.ID)
	if share == nil {
		heir.Status.Shares = append(heir.Status.Shares, v1.LoadBalancerShare{ID: s.ID})
		share = &heir.Status.Shares[len(heir.Status.Shares)-1]
	}
	share.Inherited, share.Keep = s.Inherited, s.Keep
	for _, g := range w.lb.Status.Guests { // of whom the heir forgets those that have gone
		if g.LoadBalancer == s.ID && g.ServiceUID != heir.Spec.ServiceUID && !isGuest(heir, s.ID, g.ServiceUID) {
			heir.Status.Guests = append(heir.Status.Guests, g)
		}
	}
	err = w.api.Status().Update(ctx, heir)
	failpoint.Here("raven.share.bequeathed")
	return err == nil, err
}

// handOver has those who share VIPs of the Service's own keep them, with the floating IP that leads there, and lets the floating IP go else. It gives which of the Keys are to go now.
func (w *balancing) handOver(ctx context.Context, keys []sdn.Key) (again time.Duration, _ []sdn.Key, err error) {
	var errs []error
	if err := w.recall(ctx); err != nil {
		return 0, nil, err
	}
	led := false
	for _, six := range []bool{false, true} {
		of := ownVIP(w.lb, six)
		if of == nil {
			continue
		}
		f := w.lb.Status.FloatingIP
		key := w.ownKey(six)
		passed, err := w.bequeath(ctx, v1.LoadBalancerShare{ID: of.ID, Inherited: w.lb.Spec.ServiceUID, Keep: f != nil && f.Keep})
		if passed {
			var then time.Duration
			then, err = w.strip(ctx, of.ID, key)
			again = sooner(again, then)
		}
		errs = append(errs, err)
		if !passed && err == nil {
			continue
		}
		keys = slices.DeleteFunc(keys, func(k sdn.Key) bool { return k == key })
		led = led || isFamily(addressOfFloating(f), six)
	}
	if !led {
		errs = append(errs, w.sink(ctx))
	}
	return again, keys, errors.Join(errs...)
}

// lend tells whether a VIP of the Service's own stays for those who share it, though the Service itself is there no more.
func (w *balancing) lend(ctx context.Context, six bool) (stays bool, again time.Duration, err error) {
	of := ownVIP(w.lb, six)
	if of == nil {
		return false, 0, nil
	}
	guests, err := w.guests(ctx, of.ID)
	if err != nil || len(guests) == 0 {
		return false, 0, err
	}
	w.note(fmt.Sprintf("the VIP %s stays for the Service %s, which shares it", of.VIP, guests[0].Name))
	delete(w.known.digests, balancerOf{own: true, six: six}.name())
	again, err = w.strip(ctx, of.ID, w.ownKey(six))
	return true, again, err
}

// unshared is an error where others share a VIP of the Service's own, which then is not made anew; and has nobody come to share it else.
func (w *balancing) unshared(ctx context.Context, six bool) error {
	of := ownVIP(w.lb, six)
	if of == nil {
		return nil
	}
	guests, err := w.guests(ctx, of.ID)
	if err != nil {
		return err
	}
	if len(guests) > 0 {
		return unserving{waiting{fmt.Sprintf("the load balancer would have to be made anew, and is not while the Service %s shares it", guests[0].Name)}}
	}
	return w.withdraw(ctx, six)
}

// withdraw has nobody come any more to share a VIP of the Service's own, which is about to be deleted. Where somebody has come since this status was read the write conflicts, and all is looked at
// again.
func (w *balancing) withdraw(ctx context.Context, six bool) error {
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

package raven

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/kuryr/kuryr/internal/failpoint"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A Service of type LoadBalancer has one floating IP, which leads to the VIP of its family. It is Kuryr's, made with the Service's Key, or the user's, who asks for an address that is
// there: that one is led to the VIP, and let go again. What it fails at leaves the VIPs as they are.

// float has the floating IP that is wanted lead to the VIP, and no other.
func (w *balancing) float(ctx context.Context) error {
	wish := w.lb.Spec.FloatingIP
	if wish == nil {
		if w.lb.Status.FloatingIP == nil && !w.changed() {
			return nil
		}
		return w.sink(ctx)
	}
	spec := sdn.FloatingIPSpec{
		Base:    w.Base(v1.KeyKindFloatingIP, string(w.lb.Spec.ServiceUID), w.lb.Namespace+"/"+w.lb.Name, w.cfg.Project),
		Network: w.ground.Public,
	}
	if wish.Network != "" {
		spec.Network = sdn.ID(wish.Network)
	}
	spec.Subnet = sdn.ID(wish.Subnet)
	if spec.Network == "" {
		return unserving("the SDN has no public network that the Service's address could be of")
	}
	if wish.Address != "" {
		addr, err := netip.ParseAddr(wish.Address)
		if err != nil {
			return sdn.Invalid("floating IP", "spec.loadBalancerIP", "%q is no address", wish.Address)
		}
		spec.Address = addr
	}
	target, six, err := w.targetOf(spec.Address)
	if err != nil {
		return err
	}
	spec.Target = sdn.Target{Port: target}
	have := w.lb.Status.FloatingIP
	// The status is part of it: another client may have written that.
	sign := func(has v1.LoadBalancerFloatingIPStatus) string {
		return fmt.Sprintf("%s %+v %s %d %+v", spec.Network, *wish, target, w.grants.KeptFloatingIPs(), has)
	}
	if have != nil && have.ID != "" && w.known.floated == sign(*have) && !w.look {
		return nil
	}
	w.known.floated = ""
	if err := w.networkGranted(ctx, spec); err != nil {
		return err
	}
	if spec.Address.IsValid() {
		err = w.floatAt(ctx, spec)
	} else {
		err = w.floatAny(ctx, spec, six)
	}
	if has := w.lb.Status.FloatingIP; err == nil && has != nil {
		w.known.floated = sign(*has)
	}
	return err
}

// networkGranted returns an error if the external network is neither the cluster's nor granted to
// the namespace. A floating IP that the Service has there already stays.
func (w *balancing) networkGranted(ctx context.Context, spec sdn.FloatingIPSpec) error {
	if spec.Network == w.ground.Public || w.grants.Network(string(spec.Network)) {
		return nil
	}
	what := fmt.Sprintf("annotation %sfloating-network-id: the namespace is not granted network %s (%s)",
		balancerPrefix, spec.Network, v1.AnnotationAllowNetworks)
	query := sdn.FloatingIPQuery{Match: sdn.Match{Keys: []sdn.Key{spec.Key}}, Networks: []sdn.ID{spec.Network}}
	if spec.Address.IsValid() {
		query = sdn.FloatingIPQuery{Addresses: []netip.Addr{spec.Address}, Networks: []sdn.ID{spec.Network}}
	}
	var there sdn.FloatingIP
	var found bool
	err := w.Call(ctx, func(ctx context.Context) (err error) {
		there, found, err = sdn.First(w.SDN.FindFloatingIPs(ctx, query))
		return err
	})
	switch {
	case err != nil:
		return err
	case found && (w.owns(there.Meta) && there.Key == spec.Key || w.leadsHere(there)):
		w.refuse(what + "; the floating IP that the Service has there stays")
		return nil
	}
	return core.Denied(what)
}

// leadsHere reports whether a floating IP leads to one of the Service's VIPs.
func (w *balancing) leadsHere(f sdn.FloatingIP) bool {
	for _, of := range w.known.seen {
		if of.Port != "" && sdn.ID(of.Port) == f.Target.Port {
			return true
		}
	}
	return false
}

// mayHave returns an error if Services of a namespace may not have an address: it is another
// project's, another namespace keeps it, or the namespace is not granted it. There is the floating IP
// of the address, if found.
func (w *balancing) mayHave(g core.Grants, namespace string, addr netip.Addr, there sdn.FloatingIP, found bool) error {
	const field = "spec.loadBalancerIP"
	refuse := func(format string, args ...any) error {
		return core.Denied(field + ": " + fmt.Sprintf(format, args...))
	}
	named := there.Name != "" // an SDN without tags knows no names of floating IPs
	switch {
	case found && !w.usable(there.Meta, g):
		return refuse("floating IP %s is of another project", addr)
	case found && !there.Key.IsZero() && there.Foreign:
		return refuse("floating IP %s is of another installation of Kuryr", addr)
	case found && !there.Key.IsZero() && there.Key.Kind == v1.KeyKindFloatingIP && namedIn(there.Name, namespace):
		return nil // the namespace has kept it
	case found && !there.Key.IsZero() && (named || there.Key.Kind != v1.KeyKindFloatingIP):
		return refuse("floating IP %s is not one that the namespace has kept", addr)
	case g.FloatingIP(addr):
		return nil
	}
	return refuse("the namespace is not granted the floating IP %s (%s)", addr, v1.AnnotationAllowFloatingIPs)
}

// targetOf is the VIP's port that the floating IP is to lead to, and its family: the address's, or the first that there can be floating IPs of.
func (w *balancing) targetOf(wanted netip.Addr) (port sdn.ID, six bool, err error) {
	can := w.SDN.Capabilities()
	for _, text := range w.lb.Spec.VIPs {
		vip, err := netip.ParseAddr(text)
		if err != nil || vip.Is6() && !can.FloatingIPv6 || wanted.IsValid() && wanted.Is6() != vip.Is6() {
			continue
		}
		of := balancerOf{vip: sdn.VIP{Addr: vip}, six: vip.Is6(), own: w.lb.Spec.OwnVIPs}
		if port := w.known.seen[of.name()].Port; port != "" { // as the SDN has answered
			return sdn.ID(port), vip.Is6(), nil
		}
		return "", false, core.Waiting("VIP " + text + " has no port yet that a floating IP could lead to")
	}
	if wanted.IsValid() {
		return "", false, sdn.Invalid("floating IP", "spec.loadBalancerIP", "the Service has no ClusterIP of the family of %s", wanted)
	}
	return "", false, unserving("the SDN has no floating IPs for the families of the Service's ClusterIPs")
}

// floats tells whether a floating IP is to lead to a VIP of the family; the SDN may have none of one.
func (w *balancing) floats(six bool) bool {
	return w.lb.Spec.FloatingIP != nil && (!six || w.SDN.Capabilities().FloatingIPv6)
}

// floatAny has the SDN choose the address, unless the Service has one.
func (w *balancing) floatAny(ctx context.Context, spec sdn.FloatingIPSpec, six bool) error {
	if have := w.lb.Status.FloatingIP; have != nil && have.Owner == v1.FloatingIPOfUser {
		if err := w.sink(ctx); err != nil { // it was asked for by name, and is not any more
			return err
		}
	}
	if wish := w.lb.Spec.FloatingIP; spec.Subnet == "" && (wish.SubnetName != "" || wish.SubnetTags != "") {
		return w.madeOfOne(ctx, spec, six)
	}
	return w.made(ctx, spec)
}

// floatAt has the floating IP of this address lead to the VIP: one that is there and free, or a new one.
func (w *balancing) floatAt(ctx context.Context, spec sdn.FloatingIPSpec) error {
	have := w.lb.Status.FloatingIP
	mine := have != nil && have.Address == spec.Address.String()
	var there sdn.FloatingIP
	var found bool
	err := w.Call(ctx, func(ctx context.Context) (err error) {
		there, found, err = sdn.First(w.SDN.FindFloatingIPs(ctx, sdn.FloatingIPQuery{Networks: []sdn.ID{spec.Network}, Addresses: []netip.Addr{spec.Address}}))
		return err
	})
	if err != nil {
		return err
	}
	ours := found && w.owns(there.Meta) && there.Key == spec.Key
	moves := w.leadsHere(there)
	if refused := w.mayHave(w.grants, w.lb.Namespace, spec.Address, there, found); refused != nil && !ours {
		// What the Service has had since before grants counted stays, unless it is of others.
		if !moves || !there.Key.IsZero() || !w.usable(there.Meta, w.grants) {
			if mine {
				return errors.Join(refused, w.sink(ctx))
			}
			return refused
		}
		w.refuse(refused.Error() + "; it stays, as it leads to the Service already")
	}
	if !mine {
		if err := w.elder(ctx, spec.Address, there, found); err != nil {
			return err
		}
	}
	if found && !ours && there.Target.Port != "" && there.Target.Port != spec.Target.Port && !moves {
		if mine {
			have.ID = "" // nobody is sent there
		}
		return sdn.Conflict(sdn.AddressInUse, "floating IP", "spec.loadBalancerIP", "%s leads to something else already", spec.Address)
	}
	if found && !ours && !there.Foreign { // it leads nowhere while its own load balancer is made anew
		var owners v1.KuryrLoadBalancerList
		if err := w.Client.List(ctx, &owners, client.MatchingFields{core.ByServiceUID: there.Key.Name}); err != nil {
			return err
		}
		for i := range owners.Items {
			if forged, err := w.forged(ctx, &owners.Items[i]); err != nil {
				return err
			} else if forged {
				continue
			}
			return sdn.Conflict(sdn.AddressInUse, "floating IP", "spec.loadBalancerIP", "%s is another Service's", spec.Address)
		}
	}
	if !mine && !ours { // what the Service has had goes, now that there is another for it
		if err := w.sink(ctx); err != nil {
			return err
		}
	}
	if !found || ours {
		return w.made(ctx, spec)
	}
	// It is told before it is done, so that after a kill it is known whose it is.
	w.lb.Status.FloatingIP = &v1.LoadBalancerFloatingIPStatus{Address: spec.Address.String(), Owner: v1.FloatingIPOfUser, ID: string(there.ID)}
	if have == nil || *have != *w.lb.Status.FloatingIP {
		if err := w.tellNow(ctx); err != nil {
			w.lb.Status.FloatingIP = nil
			return err
		}
		failpoint.Here("raven.float.noted")
	}
	err = w.Call(ctx, func(ctx context.Context) error {
		_, err := w.SDN.UpdateFloatingIP(ctx, there.ID, sdn.FloatingIPPatch{Target: &spec.Target})
		return err
	})
	failpoint.Here("raven.float.led")
	if err != nil {
		w.lb.Status.FloatingIP.ID = "" // nobody is sent there
	}
	return err
}

// made has the SDN have Kuryr's own. One of another address, network or subnet is from an earlier wish, and goes.
func (w *balancing) made(ctx context.Context, spec sdn.FloatingIPSpec) error {
	var made sdn.FloatingIP
	ensure := func(ctx context.Context) (err error) { made, err = w.SDN.EnsureFloatingIP(ctx, spec); return err }
	err := w.Call(ctx, ensure)
	if sdn.IsConflict(err) && sdn.ReasonOf(err) == sdn.Immutable {
		if err = w.sinkAll(ctx, false); err == nil { // one that was to be kept goes too, as a Service has one
			err = w.Call(ctx, ensure)
		}
	}
	if err != nil {
		return err
	}
	failpoint.Here("raven.float.made")
	wish := w.lb.Spec.FloatingIP
	keep, err := w.keeps(ctx)
	if err != nil {
		return err
	}
	is := &v1.LoadBalancerFloatingIPStatus{
		Address: made.Address.String(), Owner: v1.FloatingIPOfKuryr, ID: string(made.ID), Keep: keep,
	}
	if wish.Address == "" && wish.Subnet == "" {
		is.SubnetName, is.SubnetTags = wish.SubnetName, wish.SubnetTags
	}
	w.lb.Status.FloatingIP = is
	return nil
}

// sink lets the floating IP go that leads to a VIP: the user's leads nowhere, Kuryr's is deleted, unless the Service has said to keep it.
func (w *balancing) sink(ctx context.Context) error {
	keep := w.lb.Status.FloatingIP != nil && w.lb.Status.FloatingIP.Keep
	if !keep {
		var err error
		if keep, err = w.keeps(ctx); err != nil {
			return err
		}
	}
	return w.sinkAll(ctx, keep)
}

func (w *balancing) sinkAll(ctx context.Context, keep bool) error {
	have := w.lb.Status.FloatingIP
	if have == nil && w.lb.Spec.FloatingIP == nil && w.lb.Generation <= 1 && !w.suspected { // it never had one
		return nil
	}
	var all []sdn.FloatingIP
	err := w.Call(ctx, func(ctx context.Context) (err error) {
		key := w.Key(v1.KeyKindFloatingIP, string(w.lb.Spec.ServiceUID))
		all, err = sdn.All(w.SDN.FindFloatingIPs(ctx, sdn.FloatingIPQuery{Match: sdn.Match{Keys: []sdn.Key{key}}}))
		if err != nil || have == nil || have.Owner != v1.FloatingIPOfUser {
			return err
		}
		addr, err := netip.ParseAddr(have.Address)
		if err != nil {
			return nil
		}
		users, err := sdn.All(w.SDN.FindFloatingIPs(ctx, sdn.FloatingIPQuery{Addresses: []netip.Addr{addr}}))
		all = append(all, users...)
		return err
	})
	if err != nil && !sdn.IsUnsupported(err) {
		return err
	}
	ports := map[sdn.ID]bool{}
	if have != nil && have.Owner == v1.FloatingIPOfUser {
		if ports, err = w.portsOfVIPs(ctx); err != nil {
			return err
		}
	}
	for _, f := range all {
		own := w.owns(f.Meta) && f.Key == w.Key(v1.KeyKindFloatingIP, string(w.lb.Spec.ServiceUID))
		err := w.Call(ctx, func(ctx context.Context) error {
			switch {
			case own && !keep:
				return w.SDN.DeleteFloatingIP(ctx, f.ID)
			case f.Target.Port == "" || !own && !ports[f.Target.Port]:
				return nil
			}
			_, err := w.SDN.UpdateFloatingIP(ctx, f.ID, sdn.FloatingIPPatch{Target: &sdn.Target{}})
			return err
		})
		failpoint.Here("raven.float.sunk")
		if err != nil && !sdn.IsNotFound(err) {
			return err
		}
	}
	w.lb.Status.FloatingIP, w.known.floated = nil, ""
	return nil
}

// portsOfVIPs returns the ports of the VIPs that the SDN has of the Service, by their Keys.
func (w *balancing) portsOfVIPs(ctx context.Context) (map[sdn.ID]bool, error) {
	ports := map[sdn.ID]bool{}
	for _, key := range w.keys() {
		found, err := w.balancersWith(ctx, key)
		if err != nil {
			return nil, err
		}
		for _, lb := range found {
			for _, v := range lb.VIPs {
				ports[v.Port] = v.Port != "" && w.owns(lb.Meta)
			}
		}
	}
	return ports, nil
}

// elder returns an error if an older Service that may have the address asks for it too.
func (w *balancing) elder(ctx context.Context, addr netip.Addr, there sdn.FloatingIP, found bool) error {
	var all corev1.ServiceList
	if err := w.Client.List(ctx, &all, client.MatchingFields{core.ByWanted: w.lb.Spec.FloatingIP.Address}); err != nil {
		return err
	}
	var me *corev1.Service
	for i := range all.Items {
		if all.Items[i].UID == w.lb.Spec.ServiceUID {
			me = &all.Items[i]
		}
	}
	if me == nil {
		return nil // the Service's change is on its way
	}
	for i := range all.Items {
		o := &all.Items[i]
		if balanced(o) && o.DeletionTimestamp.IsZero() && cameFirst(o, me) && !w.without(ctx, o) {
			g, err := w.GrantsOf(ctx, o.Namespace)
			if err != nil {
				return err
			}
			if w.mayHave(g, o.Namespace, addr, there, found) != nil {
				continue
			}
			return sdn.Conflict(sdn.AddressInUse, "floating IP", "spec.loadBalancerIP", "%s is what the Service %s/%s asks for too, which is older", wantedAddress(me), o.Namespace, o.Name)
		}
	}
	return nil
}

// without tells whether a Service that asks for an address is known to get none, as who may connect cannot be restricted.
func (w *balancing) without(ctx context.Context, s *corev1.Service) bool {
	var lb v1.KuryrLoadBalancer
	err := w.Client.Get(ctx, client.ObjectKeyFromObject(s), &lb)
	return err == nil && lb.Spec.ServiceUID == s.UID && lb.Spec.FloatingIP == nil
}

// cameFirst tells which of two Services came first.
func cameFirst(a, b *corev1.Service) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.UID < b.UID
}

// wantedAddress is what a Service asks for, as it is in the KuryrLoadBalancer; "" is none. Kubernetes takes any word, and the KuryrLoadBalancer only addresses.
func wantedAddress(s *corev1.Service) string {
	a, err := netip.ParseAddr(s.Spec.LoadBalancerIP)
	if err != nil || a.Zone() != "" || a.Is4In6() || !exposed(s) || internal(s) {
		return ""
	}
	return a.String()
}

package raven

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// wish is what a pod's annotations ask for.
type wish struct {
	addresses []netip.Addr
	mac       net.HardwareAddr
	groups    []string
	floating  string // an address, or anyFloating
}

// wishOf reads a pod's annotations. An error names the annotation.
func wishOf(annotations map[string]string) (w wish, err error) {
	for _, text := range core.SplitList(annotations[v1.AnnotationAddress]) {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" {
			return w, fmt.Errorf("%s: %q is no address", v1.AnnotationAddress, text)
		}
		if slices.ContainsFunc(w.addresses, func(o netip.Addr) bool { return o.Is4() == a.Is4() }) {
			return w, fmt.Errorf("%s: %s is a second one of its family", v1.AnnotationAddress, a)
		}
		w.addresses = append(w.addresses, a)
	}
	if text := strings.TrimSpace(annotations[v1.AnnotationMAC]); text != "" {
		w.mac, err = net.ParseMAC(text)
		if err != nil || len(w.mac) != 6 || w.mac[0]&1 == 1 {
			return w, fmt.Errorf("%s: %q is no MAC of one interface, such as fa:16:3e:00:00:01", v1.AnnotationMAC, text)
		}
	}
	w.groups = core.SplitList(annotations[v1.AnnotationSecurityGroups])
	w.floating = strings.TrimSpace(annotations[v1.AnnotationFloatingIP])
	if a, err := netip.ParseAddr(w.floating); w.floating != "" && w.floating != core.NewFloating && (err != nil || a.Zone() != "") {
		return w, fmt.Errorf("%s: want an address or %q, not %q", v1.AnnotationFloatingIP, core.NewFloating, w.floating)
	}
	return w, nil
}

// granted returns an error that names what of a request the namespace is not granted.
func (w wish) granted(g core.Grants) error {
	for _, a := range w.addresses {
		if !g.Address(a) {
			return fmt.Errorf("%s: the namespace does not grant %s (%s)", v1.AnnotationAddress, a, v1.AnnotationAllowAddresses)
		}
	}
	if w.mac != nil && !g.MAC() {
		return fmt.Errorf("%s: the namespace does not grant one (%s)", v1.AnnotationMAC, v1.AnnotationAllowMAC)
	}
	for _, id := range w.groups {
		if !g.Group(id) {
			return fmt.Errorf("%s: the namespace does not grant %s (%s)",
				v1.AnnotationSecurityGroups, id, v1.AnnotationAllowSecurityGroups)
		}
	}
	switch a, err := netip.ParseAddr(w.floating); {
	case w.floating == "", w.floating == core.NewFloating && g.MayCreateFloatingIP(), err == nil && g.FloatingIP(a):
		return nil
	}
	return fmt.Errorf("%s: the namespace does not grant %q (%s)", v1.AnnotationFloatingIP, w.floating, v1.AnnotationAllowFloatingIPs)
}

// wished is a wish as the SDN is asked for it.
type wished struct {
	pod       types.UID // "" is no wish: a port of the pool
	about     *corev1.Pod
	name      string
	addresses []sdn.Address
	mac       net.HardwareAddr
	groups    []string
	floating  string
}

// wishes are the ports that pods of the pool are to have for themselves and do not have, by their keys. What a pod may not have its owner is told, and of a wish that
// came when the pod had its port.
func (w *poolWork) wishes(ctx context.Context) (map[string]wished, error) {
	all := map[string]wished{}
	var errs []error
	for _, p := range w.pods {
		if !v1.HasWishes(p.Annotations) || !p.DeletionTimestamp.IsZero() || w.away[p.UID] ||
			slices.ContainsFunc(w.ports, func(o *v1.KuryrPort) bool { return o.Spec.Dedicated == p.UID }) {
			continue
		}
		if slices.ContainsFunc(w.ports, func(o *v1.KuryrPort) bool { return o.Status.Pod != nil && o.Status.Pod.UID == p.UID }) {
			w.Warn(p, core.EventRefused, "Port", "the pod has its port already: what its annotations wish counts for a pod that is made anew")
			continue
		}
		asked, err := w.wished(ctx, p)
		switch {
		case err == nil:
			all[w.name+podInKey+string(p.UID)] = asked
		case errors.As(err, &refusal{}):
			w.Warn(p, core.EventRefused, "Port", "%s", core.Message(err))
		default:
			errs = append(errs, err)
		}
	}
	return all, errors.Join(errs...)
}

// refusal is why a pod does not get what it wishes: it makes no sense, or its namespace does not grant it. Nothing is tried again for it.
type refusal struct{ error }

// wished is a pod's wish as the SDN is to be asked for it. An error is a refusal, or passes.
func (w *poolWork) wished(ctx context.Context, p *corev1.Pod) (wished, error) {
	asks, err := wishOf(p.Annotations)
	if err != nil {
		return wished{}, refusal{err}
	}
	var ns corev1.Namespace
	if err := w.Client.Get(ctx, types.NamespacedName{Name: p.Namespace}, &ns); err != nil {
		return wished{}, err
	}
	if err := asks.granted(ns.Annotations); err != nil {
		return wished{}, refusal{err}
	}
	out := wished{pod: p.UID, about: p, name: p.Namespace + "/" + p.Name, mac: asks.mac, groups: asks.groups, floating: asks.floating}
	if asks.addresses == nil {
		return out, nil
	}
	subnets, err := w.SubnetsOf(ctx, sdn.ID(w.pool.Spec.Network))
	if err != nil {
		return wished{}, err
	}
	left := slices.Clone(asks.addresses)
	for _, id := range w.pool.Spec.Subnets {
		a := sdn.Address{Subnet: sdn.ID(id)}
		if at := slices.IndexFunc(left, func(o netip.Addr) bool { return subnets[a.Subnet].CIDR.Contains(o) }); at >= 0 {
			a.Addr = left[at]
			left = slices.Delete(left, at, at+1)
		}
		out.addresses = append(out.addresses, a)
	}
	if len(left) > 0 {
		return wished{}, refusal{fmt.Errorf("%s: %s is in no subnet of the namespace's network", v1.AnnotationAddress, left[0])}
	}
	return out, nil
}

// complain tells a pod's owner what the SDN said to its wish.
func (r *Raven) complain(w wished, err error) {
	if w.about != nil {
		r.Warn(w.about, core.EventFailed, "Port", "%s", core.Message(err))
	}
}

func sortedKeys(m map[string]wished) []string { return slices.Sorted(maps.Keys(m)) }

package core

import (
	"context"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

// Grants are a namespace's annotations, read as what its pods and Services may ask of the
// SDN. Only cluster administrators can write them. A grant is checked before something is
// created for it. What exists stays when a grant is taken back.
type Grants map[string]string

// GrantsOf returns the grants of a namespace: none if it does not exist.
func (r *Core) GrantsOf(ctx context.Context, namespace string) (Grants, error) {
	var ns corev1.Namespace
	if err := r.Client.Get(ctx, client.ObjectKey{Name: namespace}, &ns); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return ns.Annotations, nil
}

// Address reports whether pods may ask for an address.
func (g Grants) Address(a netip.Addr) bool { return inRanges(g[v1.AnnotationAllowAddresses], a) }

// MAC reports whether pods may ask for a MAC.
func (g Grants) MAC() bool { return strings.TrimSpace(g[v1.AnnotationAllowMAC]) == "true" }

// Group reports whether pods may ask for a security group.
func (g Grants) Group(id string) bool { return inList(g[v1.AnnotationAllowSecurityGroups], id) }

// FloatingIP reports whether a floating IP may be asked for.
func (g Grants) FloatingIP(a netip.Addr) bool {
	return inRanges(g[v1.AnnotationAllowFloatingIPs], a)
}

// MayCreateFloatingIP reports whether pods may ask for a new floating IP.
func (g Grants) MayCreateFloatingIP() bool {
	return inList(g[v1.AnnotationAllowFloatingIPs], NewFloating)
}

// Network reports whether Services may use an external network.
func (g Grants) Network(id string) bool { return inList(g[v1.AnnotationAllowNetworks], id) }

// LoadBalancer reports whether Services may share a user's load balancer.
func (g Grants) LoadBalancer(id string) bool { return inList(g[v1.AnnotationAllowLoadBalancers], id) }

// Certificate reports whether Services may use a certificate.
func (g Grants) Certificate(ref string) bool {
	return inList(g[v1.AnnotationAllowCertificates], ref)
}

// Endpoint reports whether Services may have an endpoint on the nodes' network.
func (g Grants) Endpoint(a netip.Addr) bool { return inRanges(g[v1.AnnotationAllowEndpoints], a) }

// KeptFloatingIPs returns how many floating IPs the namespace may keep. A value that is
// no number grants none.
func (g Grants) KeptFloatingIPs() int {
	text, said := g[v1.AnnotationAllowKeptFloatingIPs]
	if !said {
		return v1.DefaultKeptFloatingIPs
	}
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		return 0
	}
	return n
}

// Project returns the project that the namespace's network and ports are in, "" for the
// cluster's.
func (g Grants) Project() string { return strings.TrimSpace(g[v1.AnnotationProject]) }

// inRanges reports whether one of the list's ranges or addresses contains a. An entry
// that is neither grants nothing.
func inRanges(list string, a netip.Addr) bool {
	for _, text := range SplitList(list) {
		p, err := netip.ParsePrefix(text)
		one, failed := netip.ParseAddr(text)
		if text == Any || err == nil && p.Contains(a) || failed == nil && one == a {
			return true
		}
	}
	return false
}

// inList reports whether a list names a value, or "any".
func inList(list, value string) bool {
	all := SplitList(list)
	return slices.Contains(all, value) || slices.Contains(all, Any)
}

// GrantsChanged reports whether a namespace is granted something else than before.
func GrantsChanged(e event.UpdateEvent) bool {
	was, is := e.ObjectOld.GetAnnotations(), e.ObjectNew.GetAnnotations()
	return slices.ContainsFunc(append([]string{v1.AnnotationProject}, v1.Grants...), func(name string) bool {
		return was[name] != is[name]
	})
}

// Entries of lists of grants, besides the objects themselves.
const (
	NewFloating = "new"
	Any         = "any"
)

// SplitList returns the different entries of a list with commas.
func SplitList(text string) (all []string) {
	for w := range strings.SplitSeq(text, ",") {
		if w = strings.TrimSpace(w); w != "" && !slices.Contains(all, w) {
			all = append(all, w)
		}
	}
	return all
}

// Denied is an error of what a namespace is not granted. The Service is reconciled again
// when the namespace's grants change, so there is no retry.
type Denied string

// Error returns what is not granted.
func (d Denied) Error() string { return string(d) }

// Unwrap returns a Waiting: the change of a grant brings the Service back.
func (d Denied) Unwrap() error { return Waiting(d) }

// SameSet reports whether two lists have the same members.
func SameSet(a, b []string) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(s string) bool { return !slices.Contains(b, s) })
}

package raven

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

// grants are a namespace's annotations, read as what its pods and Services may ask of the SDN.
// Only cluster administrators can write them. A grant is checked before something is created
// for it. What exists stays when a grant is taken back.
type grants map[string]string

// grantsOf returns the grants of a namespace: none if it does not exist.
func (r *Raven) grantsOf(ctx context.Context, namespace string) (grants, error) {
	var ns corev1.Namespace
	if err := r.api.Get(ctx, client.ObjectKey{Name: namespace}, &ns); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return ns.Annotations, nil
}

func (g grants) address(a netip.Addr) bool { return inRanges(g[v1.AnnotationAllowAddresses], a) }

func (g grants) mac() bool { return strings.TrimSpace(g[v1.AnnotationAllowMAC]) == "true" }

func (g grants) group(id string) bool { return inList(g[v1.AnnotationAllowSecurityGroups], id) }

func (g grants) floatingIP(a netip.Addr) bool {
	return inRanges(g[v1.AnnotationAllowFloatingIPs], a)
}

func (g grants) newFloatingIP() bool { return inList(g[v1.AnnotationAllowFloatingIPs], anyFloating) }

func (g grants) network(id string) bool { return inList(g[v1.AnnotationAllowNetworks], id) }

func (g grants) loadBalancer(id string) bool { return inList(g[v1.AnnotationAllowLoadBalancers], id) }

func (g grants) certificate(ref string) bool {
	return inList(g[v1.AnnotationAllowCertificates], ref)
}

func (g grants) endpoint(a netip.Addr) bool { return inRanges(g[v1.AnnotationAllowEndpoints], a) }

// keptFloatingIPs returns how many floating IPs the namespace may keep. A value that is no
// number grants none.
func (g grants) keptFloatingIPs() int {
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

// project returns the project that the namespace's network and ports are in, "" for the cluster's.
func (g grants) project() string { return strings.TrimSpace(g[v1.AnnotationProject]) }

// inRanges reports whether one of the list's ranges or addresses contains a. An entry that is
// neither grants nothing.
func inRanges(list string, a netip.Addr) bool {
	for _, text := range words(list) {
		p, err := netip.ParsePrefix(text)
		one, failed := netip.ParseAddr(text)
		if text == anything || err == nil && p.Contains(a) || failed == nil && one == a {
			return true
		}
	}
	return false
}

// inList reports whether a list names a value, or "any".
func inList(list, value string) bool {
	all := words(list)
	return slices.Contains(all, value) || slices.Contains(all, anything)
}

// grantsChanged reports whether a namespace is granted something else than before.
func grantsChanged(e event.UpdateEvent) bool {
	was, is := e.ObjectOld.GetAnnotations(), e.ObjectNew.GetAnnotations()
	return slices.ContainsFunc(append([]string{v1.AnnotationProject}, v1.Grants...), func(name string) bool {
		return was[name] != is[name]
	})
}

// denied is an error of what a namespace is not granted. The Service is reconciled again when
// the namespace's grants change, so there is no retry.
type denied struct{ waiting }

func (d denied) Unwrap() error { return d.waiting }

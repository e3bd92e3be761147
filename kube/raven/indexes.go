package raven

import (
	"context"
	"slices"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var indexes = []core.Index{
	{Of: &corev1.Pod{}, Name: core.ByNode, Values: func(o client.Object) []string { return core.Values(o.(*corev1.Pod).Spec.NodeName) }},
	{Of: &v1.KuryrPortPool{}, Name: core.ByNode, Values: func(o client.Object) []string { return core.Values(o.(*v1.KuryrPortPool).Spec.Node) }},
	{Of: &v1.KuryrPortPool{}, Name: core.ByNetwork, Values: func(o client.Object) []string { return core.Values(o.(*v1.KuryrPortPool).Spec.Network) }},
	{Of: &v1.KuryrPort{}, Name: core.ByPool, Values: func(o client.Object) []string { return core.Values(o.(*v1.KuryrPort).Spec.Pool) }},
	{Of: &v1.KuryrPort{}, Name: core.ByOwner, Values: func(o client.Object) []string {
		if p := o.(*v1.KuryrPort); p.Spec.ForNode {
			return core.Values(p.Spec.Node)
		}
		return nil
	}},
	{Of: &v1.KuryrPort{}, Name: core.ByPod, Values: func(o client.Object) []string {
		p := o.(*v1.KuryrPort)
		uids := core.Values(string(p.Spec.Dedicated))
		if p.Status.Pod != nil && p.Status.Pod.UID != p.Spec.Dedicated {
			uids = append(uids, string(p.Status.Pod.UID))
		}
		return uids
	}},
	{Of: &v1.KuryrNetwork{}, Name: core.ByNamespace, Values: func(o client.Object) []string { return core.Values(o.(*v1.KuryrNetwork).Spec.Namespace) }},
	{Of: &v1.KuryrPortPool{}, Name: core.ByKind, Values: func(o client.Object) []string { return core.Values(core.KindOfPool(o.(*v1.KuryrPortPool).Spec)) }},
	{Of: &v1.KuryrNetwork{}, Name: core.ByNetwork, Values: func(o client.Object) []string { return core.Values(o.(*v1.KuryrNetwork).Status.Network) }},
	{Of: &v1.KuryrNetwork{}, Name: core.ByStaying, Values: func(o client.Object) []string { return core.Values(offerOf(o.(*v1.KuryrNetwork)).network) }},
	{Of: &v1.KuryrNetwork{}, Name: core.ByLeaving, Values: func(o client.Object) []string {
		if o.GetDeletionTimestamp().IsZero() {
			return nil
		}
		return core.Values(o.(*v1.KuryrNetwork).Status.Network)
	}},
	{Of: &v1.KuryrNetwork{}, Name: core.ByPolicy, Values: func(o client.Object) []string {
		of := offerOf(o.(*v1.KuryrNetwork))
		if of.policy == "" {
			return nil
		}
		return core.Values(of.network)
	}},
	{Of: &v1.KuryrNetwork{}, Name: core.ByKind, Values: func(o client.Object) []string { return core.Values(offerOf(o.(*v1.KuryrNetwork)).kind) }},
	// Load balancers go where Services are another's, too.
	{Of: &v1.KuryrLoadBalancer{}, Name: core.ByServiceUID, Values: func(o client.Object) []string {
		return core.Values(string(o.(*v1.KuryrLoadBalancer).Spec.ServiceUID))
	}},
	{Of: &v1.KuryrLoadBalancer{}, Name: core.ByShared, Values: func(o client.Object) []string { return core.Values(o.(*v1.KuryrLoadBalancer).Spec.SharedID) }},
	{Of: &v1.KuryrLoadBalancer{}, Name: core.ByGuest, Values: func(o client.Object) (all []string) {
		for _, g := range o.(*v1.KuryrLoadBalancer).Status.Guests {
			all = append(all, string(g.ServiceUID))
		}
		return all
	}},
}

// serviceIndexes are those of what Raven looks at only where Services are the SDN's.
var serviceIndexes = []core.Index{
	{Of: &discoveryv1.EndpointSlice{}, Name: core.ByService, Values: func(o client.Object) []string {
		if name := o.GetLabels()[discoveryv1.LabelServiceName]; name != "" {
			return core.Values(o.GetNamespace() + "/" + name)
		}
		return nil
	}},
	{Of: &corev1.Service{}, Name: core.ByWanted, Values: func(o client.Object) []string { return core.Values(wantedAddress(o.(*corev1.Service))) }},
	{Of: &corev1.Service{}, Name: core.ByUID, Values: func(o client.Object) []string { return core.Values(string(o.GetUID())) }},
	{Of: &v1.KuryrLoadBalancer{}, Name: core.ByVIP, Values: func(o client.Object) []string { return o.(*v1.KuryrLoadBalancer).Spec.VIPs }},
}

// AddIndexes tells a cache of all the indexes that Raven looks up by; those of Services where it serves them.
func AddIndexes(ctx context.Context, indexer client.FieldIndexer, services bool) error {
	all := indexes
	if services {
		all = slices.Concat(indexes, serviceIndexes)
	}
	for _, i := range all {
		if err := indexer.IndexField(ctx, i.Of, i.Name, i.Values); err != nil {
			return err
		}
	}
	return nil
}

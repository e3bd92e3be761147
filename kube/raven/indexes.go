package raven

import (
	"context"
	"slices"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Names of the cache's indexes, by which everything is found without a look at all there is.
const (
	byNode      = "node"      // pods and pools
	byPool      = "pool"      // ports
	byOwner     = "owner"     // ports: the node whose own they are
	byPod       = "pod"       // ports: the UID of the pod that they are bound or dedicated to
	byNamespace = "namespace" // networks
	byNetwork   = "network"   // pools and networks: the SDN's id
	byStaying   = "staying"   // networks that are not being deleted: the SDN's id
	byLeaving   = "leaving"   // networks that are: the SDN's id
	byPolicy    = "policy"    // networks whose namespaces say how pools are to be kept: the SDN's id
	byService   = "service"   // endpoint slices: the Service's namespace and name
	byWanted    = "wanted"    // Services: the address that they ask for outside
	byUID       = "uid"       // Services
	byVIP       = "vip"       // load balancers: their VIPs
	byServed    = "served"    // load balancers: the UID of their Service
	byShared    = "shared"    // load balancers: the SDN's id of that which they ask to share
	byGuest     = "guest"     // load balancers: the UIDs of the Services that share theirs
	byKind      = "kind"      // pools, and the networks whose pods are to have ports of such: see kindOfPool
)

// index is one index of the cache.
type index struct {
	of     client.Object
	name   string
	values client.IndexerFunc
}

var indexes = []index{
	{&corev1.Pod{}, byNode, func(o client.Object) []string { return some(o.(*corev1.Pod).Spec.NodeName) }},
	{&v1.KuryrPortPool{}, byNode, func(o client.Object) []string { return some(o.(*v1.KuryrPortPool).Spec.Node) }},
	{&v1.KuryrPortPool{}, byNetwork, func(o client.Object) []string { return some(o.(*v1.KuryrPortPool).Spec.Network) }},
	{&v1.KuryrPort{}, byPool, func(o client.Object) []string { return some(o.(*v1.KuryrPort).Spec.Pool) }},
	{&v1.KuryrPort{}, byOwner, func(o client.Object) []string {
		if p := o.(*v1.KuryrPort); p.Spec.ForNode {
			return some(p.Spec.Node)
		}
		return nil
	}},
	{&v1.KuryrPort{}, byPod, func(o client.Object) []string {
		p := o.(*v1.KuryrPort)
		uids := some(string(p.Spec.Dedicated))
		if p.Status.Pod != nil && p.Status.Pod.UID != p.Spec.Dedicated {
			uids = append(uids, string(p.Status.Pod.UID))
		}
		return uids
	}},
	{&v1.KuryrNetwork{}, byNamespace, func(o client.Object) []string { return some(o.(*v1.KuryrNetwork).Spec.Namespace) }},
	{&v1.KuryrPortPool{}, byKind, func(o client.Object) []string { return some(kindOfPool(o.(*v1.KuryrPortPool).Spec)) }},
	{&v1.KuryrNetwork{}, byNetwork, func(o client.Object) []string { return some(o.(*v1.KuryrNetwork).Status.Network) }},
	{&v1.KuryrNetwork{}, byStaying, func(o client.Object) []string { return some(offerOf(o.(*v1.KuryrNetwork)).network) }},
	{&v1.KuryrNetwork{}, byLeaving, func(o client.Object) []string {
		if o.GetDeletionTimestamp().IsZero() {
			return nil
		}
		return some(o.(*v1.KuryrNetwork).Status.Network)
	}},
	{&v1.KuryrNetwork{}, byPolicy, func(o client.Object) []string {
		of := offerOf(o.(*v1.KuryrNetwork))
		if of.policy == "" {
			return nil
		}
		return some(of.network)
	}},
	{&v1.KuryrNetwork{}, byKind, func(o client.Object) []string { return some(offerOf(o.(*v1.KuryrNetwork)).kind) }},
	// Load balancers go where Services are another's, too.
	{&v1.KuryrLoadBalancer{}, byServed, func(o client.Object) []string {
		return some(string(o.(*v1.KuryrLoadBalancer).Spec.ServiceUID))
	}},
	{&v1.KuryrLoadBalancer{}, byShared, func(o client.Object) []string { return some(o.(*v1.KuryrLoadBalancer).Spec.SharedID) }},
	{&v1.KuryrLoadBalancer{}, byGuest, func(o client.Object) (all []string) {
		for _, g := range o.(*v1.KuryrLoadBalancer).Status.Guests {
			all = append(all, string(g.ServiceUID))
		}
		return all
	}},
}

// serviceIndexes are those of what Raven looks at only where Services are the SDN's.
var serviceIndexes = []index{
	{&discoveryv1.EndpointSlice{}, byService, func(o client.Object) []string {
		if name := o.GetLabels()[discoveryv1.LabelServiceName]; name != "" {
			return some(o.GetNamespace() + "/" + name)
		}
		return nil
	}},
	{&corev1.Service{}, byWanted, func(o client.Object) []string { return some(wantedAddress(o.(*corev1.Service))) }},
	{&corev1.Service{}, byUID, func(o client.Object) []string { return some(string(o.GetUID())) }},
	{&v1.KuryrLoadBalancer{}, byVIP, func(o client.Object) []string { return o.(*v1.KuryrLoadBalancer).Spec.VIPs }},
}

// kindOfPool is what pools have in common that differ in their nodes alone.
func kindOfPool(s v1.KuryrPortPoolSpec) string {
	s.Node = ""
	return v1.PoolName(s)
}

func some(value string) []string {
	if value == "" {
		return nil
	}
	return []string{value}
}

// AddIndexes tells a cache of all the indexes that Raven looks up by; those of Services where it serves them.
func AddIndexes(ctx context.Context, indexer client.FieldIndexer, services bool) error {
	all := indexes
	if services {
		all = slices.Concat(indexes, serviceIndexes)
	}
	for _, i := range all {
		if err := indexer.IndexField(ctx, i.of, i.name, i.values); err != nil {
			return err
		}
	}
	return nil
}

func (r *Raven) podsOn(ctx context.Context, node string, in ...client.ListOption) ([]corev1.Pod, error) {
	var pods corev1.PodList
	err := r.api.List(ctx, &pods, append(in, client.MatchingFields{byNode: node})...)
	return pods.Items, err
}

func (r *Raven) portsOf(ctx context.Context, pool string) ([]v1.KuryrPort, error) {
	var ports v1.KuryrPortList
	err := r.api.List(ctx, &ports, client.MatchingFields{byPool: pool})
	return ports.Items, err
}

func (r *Raven) portsOfPod(ctx context.Context, uid types.UID) ([]v1.KuryrPort, error) {
	var ports v1.KuryrPortList
	err := r.api.List(ctx, &ports, client.MatchingFields{byPod: string(uid)})
	return ports.Items, err
}

func (r *Raven) networksBy(ctx context.Context, index, value string) ([]v1.KuryrNetwork, error) {
	var networks v1.KuryrNetworkList
	err := r.api.List(ctx, &networks, client.MatchingFields{index: value})
	return networks.Items, err
}

// oneNetwork gives any one of the networks, nil for none: however many namespaces share one, the cache copies one.
func (r *Raven) oneNetwork(ctx context.Context, index, value string) (*v1.KuryrNetwork, error) {
	var networks v1.KuryrNetworkList
	if err := r.api.List(ctx, &networks, client.MatchingFields{index: value}, client.Limit(1)); err != nil || len(networks.Items) == 0 {
		return nil, err
	}
	return &networks.Items[0], nil
}

func (r *Raven) poolsWith(ctx context.Context, network string) ([]v1.KuryrPortPool, error) {
	return r.poolsBy(ctx, byNetwork, network)
}

func (r *Raven) poolsBy(ctx context.Context, index, value string) ([]v1.KuryrPortPool, error) {
	var pools v1.KuryrPortPoolList
	err := r.api.List(ctx, &pools, client.MatchingFields{index: value})
	return pools.Items, err
}

func (r *Raven) poolsOn(ctx context.Context, node string) ([]v1.KuryrPortPool, error) {
	return r.poolsBy(ctx, byNode, node)
}

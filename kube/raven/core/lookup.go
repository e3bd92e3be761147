package core

import (
	"context"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Names of the cache's indexes.
const (
	ByNode       = "node"      // pods and pools
	ByPool       = "pool"      // ports
	ByOwner      = "owner"     // ports: the node whose own they are
	ByPod        = "pod"       // ports: the UID of the pod that they are bound or dedicated to
	ByNamespace  = "namespace" // networks
	ByNetwork    = "network"   // pools and networks: the SDN's id
	ByStaying    = "staying"   // networks that are not being deleted: the SDN's id
	ByLeaving    = "leaving"   // networks that are: the SDN's id
	ByPolicy     = "policy"    // networks whose namespaces have a policy of pools: the SDN's id
	ByService    = "service"   // endpoint slices: the Service's namespace and name
	ByWanted     = "wanted"    // Services: the address that they ask for
	ByUID        = "uid"       // Services
	ByVIP        = "vip"       // load balancers: their VIPs
	ByServiceUID = "served"    // load balancers: the UID of their Service
	ByShared     = "shared"    // load balancers: the SDN's id of the one that they ask to share
	ByGuest      = "guest"     // load balancers: the UIDs of the Services that share theirs
	ByKind       = "kind"      // pools, and the networks whose pods get ports of them: KindOfPool
)

// Index is an index of the cache.
type Index struct {
	Of     client.Object
	Name   string
	Values client.IndexerFunc
}

// KindOfPool returns the same value for pools that differ only in their nodes.
func KindOfPool(s v1.KuryrPortPoolSpec) string {
	s.Node = ""
	return v1.PoolName(s)
}

// Values returns the values of an index that has at most one: none for "".
func Values(value string) []string {
	if value == "" {
		return nil
	}
	return []string{value}
}

// PodsOn returns the pods of a node.
func (r *Core) PodsOn(ctx context.Context, node string, in ...client.ListOption) ([]corev1.Pod, error) {
	var pods corev1.PodList
	err := r.Client.List(ctx, &pods, append(in, client.MatchingFields{ByNode: node})...)
	return pods.Items, err
}

// PortsOf returns the ports of a pool.
func (r *Core) PortsOf(ctx context.Context, pool string) ([]v1.KuryrPort, error) {
	var ports v1.KuryrPortList
	err := r.Client.List(ctx, &ports, client.MatchingFields{ByPool: pool})
	return ports.Items, err
}

// PortsOfPod returns the ports that are bound or dedicated to a pod.
func (r *Core) PortsOfPod(ctx context.Context, uid types.UID) ([]v1.KuryrPort, error) {
	var ports v1.KuryrPortList
	err := r.Client.List(ctx, &ports, client.MatchingFields{ByPod: string(uid)})
	return ports.Items, err
}

// NetworksBy returns the networks with a value in an index.
func (r *Core) NetworksBy(ctx context.Context, index, value string) ([]v1.KuryrNetwork, error) {
	var networks v1.KuryrNetworkList
	err := r.Client.List(ctx, &networks, client.MatchingFields{index: value})
	return networks.Items, err
}

// OneNetwork returns any one of these networks, nil for none. The cache copies one,
// however many there are.
func (r *Core) OneNetwork(ctx context.Context, index, value string) (*v1.KuryrNetwork, error) {
	var networks v1.KuryrNetworkList
	err := r.Client.List(ctx, &networks, client.MatchingFields{index: value}, client.Limit(1))
	if err != nil || len(networks.Items) == 0 {
		return nil, err
	}
	return &networks.Items[0], nil
}

// PoolsWith returns the pools on a network of the SDN.
func (r *Core) PoolsWith(ctx context.Context, network string) ([]v1.KuryrPortPool, error) {
	return r.PoolsBy(ctx, ByNetwork, network)
}

// PoolsBy returns the pools with a value in an index.
func (r *Core) PoolsBy(ctx context.Context, index, value string) ([]v1.KuryrPortPool, error) {
	var pools v1.KuryrPortPoolList
	err := r.Client.List(ctx, &pools, client.MatchingFields{index: value})
	return pools.Items, err
}

// PoolsOn returns the pools of a node.
func (r *Core) PoolsOn(ctx context.Context, node string) ([]v1.KuryrPortPool, error) {
	return r.PoolsBy(ctx, ByNode, node)
}

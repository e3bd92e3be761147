package v1

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Kinds of sdn.Keys of what Raven makes in the SDN.
const (
	KeyKindPort    = "kube-port"    // named by the pool and a number of its own: PendingPort.Key
	KeyKindNetwork = "kube-network" // named by the KuryrNetwork, as are its subnets
	KeyKindSubnet  = "kube-subnet"
	KeyKindRouter  = "kube-router"

	KeyKindSubnetPool    = "kube-subnetpool"
	KeyKindSecurityGroup = "kube-securitygroup"
	KeyKindFloatingIP    = "kube-floatingip" // named by the UID of the pod or the Service that it is for

	KeyKindLoadBalancer = "kube-loadbalancer" // named by the UID of the Service and the family of its VIP: LoadBalancerKey
)

// PoolName is the name of the pool with this key: the node's name, shortened, and a part of a digest of the whole key. It is a name of an object and the value of
// a label. The order of subnets and groups does not count. Nor does the trunk: a node has one at most, and its daemon, which finds its pools by these names, cannot ask which.
func PoolName(s KuryrPortPoolSpec) string {
	groups, subnets := slices.Clone(s.SecurityGroups), slices.Clone(s.Subnets)
	slices.Sort(groups)
	slices.Sort(subnets)
	key := []string{s.Node, "", s.ProjectID, s.Network, strings.Join(subnets, ","), strings.Join(groups, ",")}
	if s.ForNode {
		key = append(key, "node")
	}
	sum := sha256.Sum256([]byte(strings.Join(key, "\n")))
	return shortened(s.Node, 40) + "-" + hex.EncodeToString(sum[:6])
}

// NodeLabel is the value of LabelNode for a node: its name, or where that is longer than a label's value may be, its beginning and a part of a digest.
func NodeLabel(node string) string {
	if len(node) <= validation.LabelValueMaxLength {
		return node
	}
	sum := sha256.Sum256([]byte(node))
	return shortened(node, 40) + "-" + hex.EncodeToString(sum[:6])
}

// shortened is the beginning of a name, such that more letters may follow.
func shortened(name string, most int) string {
	return strings.TrimRight(name[:min(len(name), most)], "-.")
}

// PoolKey is the key of the pool that pods of the network's namespace get their ports from on a node, where they have no wishes: Raven makes the pool of the name that
// PoolName gives it, and the node's daemon looks it up by that. The network must have its status.
func PoolKey(n *KuryrNetwork, node string) KuryrPortPoolSpec {
	key := KuryrPortPoolSpec{Node: node, Network: n.Status.Network, ProjectID: n.Spec.ProjectID, SecurityGroups: n.Status.SecurityGroups}
	for _, s := range n.Status.Subnets {
		key.Subnets = append(key.Subnets, s.ID)
	}
	return key
}

// NetworkName is the name of a namespace's KuryrNetwork. It may be longer than a label's value.
func NetworkName(namespace string, uid types.UID) string {
	return namespace + "." + string(uid[:min(len(uid), 8)])
}

// LoadBalancerKey names a Service's load balancer of a family in its sdn.Key.
func LoadBalancerKey(service types.UID, six bool) string {
	if six {
		return string(service) + ".v6"
	}
	return string(service) + ".v4"
}

// OwnLoadBalancerKey is the same for the VIP of a family that is the Service's own, besides its ClusterIP.
func OwnLoadBalancerKey(service types.UID, six bool) string {
	return LoadBalancerKey(service, six) + ".own"
}

// GuestKey is that of the listeners which a Service has at another's load balancer.
func GuestKey(service types.UID) string { return string(service) + ".guest" }

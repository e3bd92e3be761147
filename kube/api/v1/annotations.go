package v1

import "strings"

// AnnotationVIF is of pods: it names the KuryrPorts of its interfaces. The claimant writes it; what stands there is never trusted.
const AnnotationVIF = "openstack.org/kuryr-vif"

// Annotations of namespaces, which cluster administrators alone may set. They choose a namespace's network when it is first needed; one that is there keeps what it was
// made with.
const (
	AnnotationProject        = "openstack.org/kuryr-project"         // id of the project that all of the namespace's is made in
	AnnotationNetwork        = "openstack.org/kuryr-network"         // id of an existing network, in place of one of its own
	AnnotationSubnets        = "openstack.org/kuryr-subnets"         // ids of that network's subnets, by commas; without it all of them
	AnnotationSecurityGroups = "openstack.org/kuryr-security-groups" // ids, by commas, that its pods' ports get; on a pod: the pod's own wish
	AnnotationPool           = "openstack.org/kuryr-pool"            // on nodes too: "minimum=2,maximum=20,batch=5,ttl=10m"; a node's goes over a namespace's
)

// Annotations of namespaces by which a cluster administrator grants pods and Services what they
// may ask of the SDN. What is not granted is refused. A list has commas between its entries.
const (
	// AnnotationAllowAddresses are the addresses that pods may ask for: ranges, or "any".
	AnnotationAllowAddresses = "openstack.org/kuryr-allow-addresses"
	// AnnotationAllowMAC lets pods ask for a MAC: "true".
	AnnotationAllowMAC = "openstack.org/kuryr-allow-mac"
	// AnnotationAllowSecurityGroups are the groups that pods may ask for: ids, or "any".
	AnnotationAllowSecurityGroups = "openstack.org/kuryr-allow-security-groups"
	// AnnotationAllowFloatingIPs are the floating IPs that pods and Services may ask for: ranges,
	// or "any". "new" lets pods have one that the SDN chooses; a Service of type LoadBalancer
	// needs no grant for that.
	AnnotationAllowFloatingIPs = "openstack.org/kuryr-allow-floating-ips"
	// AnnotationAllowKeptFloatingIPs is how many floating IPs of Services the namespace may keep
	// at a time: a number. Without it, it is DefaultKeptFloatingIPs.
	AnnotationAllowKeptFloatingIPs = "openstack.org/kuryr-allow-kept-floating-ips"
	// AnnotationAllowNetworks are the external networks, besides the cluster's, that floating IPs
	// of Services may be of: ids, or "any".
	AnnotationAllowNetworks = "openstack.org/kuryr-allow-networks"
	// AnnotationAllowLoadBalancers are the load balancers made by users that Services may share:
	// ids, or "any".
	AnnotationAllowLoadBalancers = "openstack.org/kuryr-allow-load-balancers"
	// AnnotationAllowCertificates are the certificates that Services may end TLS with:
	// references as the Service writes them, or "any".
	AnnotationAllowCertificates = "openstack.org/kuryr-allow-certificates"
	// AnnotationAllowEndpoints are the addresses of the nodes' network that hand-made endpoints
	// of Services may have where pods are kept from that network: ranges, or "any".
	AnnotationAllowEndpoints = "openstack.org/kuryr-allow-endpoints"
)

// Grants are the names of the annotations by which a namespace is granted something.
var Grants = []string{
	AnnotationAllowAddresses, AnnotationAllowMAC, AnnotationAllowSecurityGroups,
	AnnotationAllowFloatingIPs, AnnotationAllowKeptFloatingIPs, AnnotationAllowNetworks,
	AnnotationAllowLoadBalancers, AnnotationAllowCertificates, AnnotationAllowEndpoints,
}

// DefaultKeptFloatingIPs is how many floating IPs a namespace may keep without a grant.
const DefaultKeptFloatingIPs = 4

// Annotations of pods: their wishes, beside AnnotationSecurityGroups. A pod with any of them gets a port of its own: KuryrPortSpec.Dedicated.
const (
	AnnotationAddress    = "openstack.org/kuryr-address"     // one, or one of each family, by a comma
	AnnotationMAC        = "openstack.org/kuryr-mac"         // such as fa:16:3e:bf:84:ff
	AnnotationFloatingIP = "openstack.org/kuryr-floating-ip" // an address, or "new"
)

// LabelClaimant, on a node, with the value ClaimantRaven says that no daemon runs on it: Raven claims ports for its pods, and gives them back. An administrator sets it, as
// there must never be two claimants, and no watching from afar tells a dead daemon from one that cannot be reached.
const (
	LabelClaimant = "openstack.org/kuryr-claimant"
	ClaimantRaven = "raven"
)

// LabelNested, on a node, says whether it is a virtual machine of the SDN whose pods' ports are subports of its own port's trunk, whatever the configuration says of all nodes.
const (
	LabelNested = "openstack.org/kuryr-nested"
	NestedVLAN  = "vlan"
	NestedNone  = "none"
)

// HasWishes tells by a pod's annotations whether it is to have a port of its own, in place of one of the pool.
func HasWishes(annotations map[string]string) bool {
	for _, name := range []string{AnnotationAddress, AnnotationMAC, AnnotationSecurityGroups, AnnotationFloatingIP} {
		if strings.TrimSpace(annotations[name]) != "" {
			return true
		}
	}
	return false
}

// Annotations of KuryrPortPools, by which people ask something of a pool.
const (
	AnnotationDrained = "openstack.org/kuryr-drained" // "true": nothing is kept available; pods that wait get their ports one by one
	AnnotationFill    = "openstack.org/kuryr-fill"    // a number: so many are to be available once, then it is taken away
)

// AnnotationPromised is of KuryrPorts that Raven has made bound, on a node without a daemon: the UID of the pod that waits for it. It counts until the port's status says something.
const AnnotationPromised = "openstack.org/kuryr-promised"

// AnnotationFloatingAddress is of KuryrPorts: beside the pod's AnnotationFloatingIP the floating IP that the SDN has given it.
const AnnotationFloatingAddress = "openstack.org/kuryr-floating-address"

// LoadBalancerClass is Kuryr's. A Service of type LoadBalancer without a class is Kuryr's too.
const LoadBalancerClass = "openstack.org/kuryr"

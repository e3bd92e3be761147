// Package kubelab runs a small Kubernetes for a test: a real control plane, and nodes
// with kubelet, containerd and runc.
//
// A Cluster is a central host (etcd, kube-apiserver, kube-controller-manager,
// kube-scheduler) and Nodes, each a privatehost.Host, so that all of it lives in
// namespaces and temporary folders that end with the test; two clusters on one machine do
// not meet. With Options.APIOnly it is etcd and kube-apiserver alone, for tests of
// resources and controllers. What the nodes have for CNI is the caller's to say
// (Options.Booted): a node is not Ready before that, as everywhere.
//
// The programs are those of hack/kubernetes.sh, whose folder the environment variable
// KURYR_E2E_KUBERNETES names. The package owns the hosts, and one listener on the
// machine's loopback by which the test reaches the API server. It must change nothing
// else on the machine: what a kubelet sets for a whole machine it sets in files of its
// own here.
package kubelab

import "net/netip"

// Nodes is the network between the hosts: node number i (from 1) has address i there, the
// central host the one below. Nodes6 is the same in IPv6.
var (
	Nodes  = netip.MustParsePrefix("192.0.2.254/24")
	Nodes6 = netip.MustParsePrefix("2001:db8:2::fe/64")
)

// The ranges of the cluster.
const (
	ServiceRange  = "10.96.0.0/16"
	ServiceRange6 = "fd00:96::/112"
	ServiceDNS    = "10.96.0.10"
)

// Families are those of a cluster's pods, services and nodes; its API server is reached by IPv4 always.
type Families string

// The families.
const (
	IPv4      Families = "" // the zero value
	DualStack Families = "IPv4, IPv6"
	IPv6      Families = "IPv6"
)

// of gives what there is of the families, IPv4 first.
func (f Families) of(four, six string) string {
	switch f {
	case DualStack:
		return four + "," + six
	case IPv6:
		return six
	}
	return four
}

// Port is where the API server listens on the central host.
const Port = 6443

// EtcdEndpoint is etcd's URL for who is on the central host.
const EtcdEndpoint = "http://127.0.0.1:2379"

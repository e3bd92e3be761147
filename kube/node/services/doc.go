// Package services is what a node's kernel does of the cluster's Services itself: NodePorts, external addresses, addresses of load balancers, health checks of local
// endpoints, and, where the SDN balances no load, ClusterIPs too.
//
// It owns what of Services, EndpointSlices and the Node this depends on, in as few bytes as it takes, the order in which Services have an address that several claim, and
// the health checks' listeners. What a Service comes to on this node is a pure function ([Rules.realise]); [lb.Table] brings it into the kernel. It is level-triggered: an
// object that changed is compiled anew, and nothing else is.
//
// It must not write to Kubernetes, nor know how packets reach pods: routes are the SDN's and package leg's.
package services

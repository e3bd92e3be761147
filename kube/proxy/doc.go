// Package proxy programs the cluster's Services into a node's kernel: NodePorts, external addresses,
// addresses of load balancers, health checks of local endpoints and, if the SDN has no load
// balancers, ClusterIPs.
//
// It owns an index of Services, EndpointSlices and the Node, the order in which Services get an
// address that several claim, and the listeners of health checks. A pure function
// ([Rules.realise]) compiles a Service for this node, and [lb.Table] writes it to the kernel. Only
// objects that changed are compiled again.
//
// It must not write to Kubernetes, nor know how packets reach pods: routes belong to the SDN and to
// package leg.
package proxy

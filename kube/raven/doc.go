// Package raven is Kuryr's controller in Kubernetes: it watches namespaces, pods, nodes and Kuryr's own resources, and makes in the SDN the networks and ports that pods are to have.
//
// It owns the resources KuryrNetwork, KuryrPortPool and KuryrPort, and what it has made in the SDN, which has Keys of the kinds that package v1 names. It alone of the cluster
// has the SDN. It must not plug anything, and claims no port, unless a node is labelled as one without a daemon.
//
// # Shape
//
// A reconciler for each question. Package namespace: which namespaces need a network, and what is a network
// in the SDN. Package node: which nodes need a port of their own, and what leads to nodes or is kept from
// them. Here: which pools do pods need (placements.go), what ports is a pool to have (pools.go and the
// files that begin with pool), what is a Service in the SDN (service.go, balancers.go), and what of a cluster
// is not served (policies.go). What all share is in package core. All are level-triggered: each looks at what
// is there and does what is missing, so that it does not matter what was missed or how often it is asked. The
// error of one object holds up that object alone.
//
// # What no kill loses
//
// Whatever is made in the SDN is told in Kubernetes first: a port's Key in its pool's status.pending, a network's by the KuryrNetwork's name. Whatever is deleted in the SDN has its
// object kept by a finalizer until that is done. So the next Raven finds everything by its name or Key, and never lists the SDN.
package raven

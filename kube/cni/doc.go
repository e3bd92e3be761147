// Package cni has the words of CNI (the Container Network Interface) as Kuryr speaks them: what a container runtime tells by environment and standard
// input, CNI_ARGS, the network configuration, results and errors of every version of the specification, and the messages between kuryr-cni and the node's
// daemon.
//
// It owns the table of errors (codes.go) and the protocol of the daemon's socket (protocol.go). It is linked into an executable that runs for
// containers, so it must not import what is slow to start or large (net/http, Kubernetes' libraries), and it must not plug anything or ask any SDN. What runs for each container is package ferry.
package cni

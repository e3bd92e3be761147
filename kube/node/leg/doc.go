// Package leg keeps the node's own port plugged: the interface kuryr-node0 of the machine itself, by which it and the pods reach one another where the SDN gives it no other way.
//
// Raven makes the port and writes into its KuryrPort all there is to it, routes too; the package owns the interface and a record of the port that is plugged, so that one that is gone meanwhile is
// unplugged after a restart. It looks again whenever the KuryrPort changes and whenever the kernel tells that something of the interface was taken away. The interface outlives the process.
//
// It must not choose addresses or routes, nor write to Kubernetes.
package leg

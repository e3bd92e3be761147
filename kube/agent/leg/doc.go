// Package leg keeps the node's own port plugged: the interface kuryr-node0 of the machine itself,
// by which it and the pods reach one another where the SDN gives it no other way.
//
// Raven creates the port and writes into its KuryrPort all there is to it, routes too. The package
// owns the interface and its row in the daemon's table (kind "nodeport" of internal/reconcile), so
// that a port that is gone is unplugged after a restart. It looks again whenever the KuryrPort
// changes and whenever the kernel reports that something of the interface was removed. The
// interface outlives the process.
//
// It must not choose addresses or routes, nor write to Kubernetes.
package leg

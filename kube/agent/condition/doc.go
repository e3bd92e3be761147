// Package condition keeps the condition NetworkUnavailable of a Kubernetes Node, by which pods are scheduled there or not.
//
// It owns that one condition: what else changes it is set right again. The node's daemon says that the network is there as soon as container runtimes can have ports, and that it is not when
// the daemon ends. An empty pool is no reason: Raven fills pools for the pods of a node, so a node that got no pods would never get a pool. The package must not decide whether the network is
// there nor watch the Node, of which it is told, and writes nothing else of it.
package condition

// Package agent is the daemon of a node: the CNI server that kuryr-cni calls, which gets a
// container a port, plugs it, and releases it.
//
// Each attachment, that is each interface of a container, is a row of the daemon's table (kind
// "attachment" of internal/reconcile), stored before the first side effect. The table is of one
// boot of the machine. Ports come from a [Source]: a named network of the SDN, or the pools that
// Raven keeps for this node in Kubernetes.
//
// The package owns the socket's protocol (package cni has its words) and the rows. No call of the
// API server and none of the SDN is in the path of an ADD on a warm pool. It must not create ports
// for pods itself, and knows no SDN by name.
package agent

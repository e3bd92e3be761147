// Package node is the daemon of a node: the CNI server that kuryr-cni calls, which claims a port for a container, plugs it, and gives it back.
//
// It owns the socket's protocol (package cni has its words), the order of claim, plug and answer, and what it keeps in its state folder of who has which port.
// Where ports come from is a [Source]: a named network of the SDN, or the pools that Raven keeps for this node in Kubernetes.
//
// No call of the API server and none of the SDN is in the path of an ADD on a warm pool. It must not make ports for pods itself, and knows no SDN by name.
package node

// Package hostport leads ports of the host to addresses that the host reaches by a route,
// as Kubernetes' hostPort means it.
//
// It owns the table kuryr_hostport of the inet family in the network namespace that its
// caller is in, and a bound socket for each port, so that none is taken from a program
// that answers there and no program takes one that leads elsewhere. A port is an element
// of a map, never a rule. It must not know of pods, nor of how the addresses are reached:
// routes, forwarding and filters are others'.
package hostport

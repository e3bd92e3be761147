//go:build linux

// Package pod attaches pods to Kurma's networks and detaches them, whole or not at all, whatever happens to the daemon meanwhile.
//
// A pod is a UUID with a network namespace; an attachment is a pod on a network. The package owns the journal of both (a bbolt file), the pins of the pods'
// namespaces, the order in which networks are called and what is undone when one of them fails (specs: "Kurma Network Specification", The Container and The
// API). It must not know what a plugin is made of, nor where images and the configuration come from: it asks Plugins.
package pod

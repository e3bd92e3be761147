//go:build linux

// Package pod attaches pods to Kurma's networks and detaches them, whole or not at all, also if
// the daemon is killed at any point.
//
// A pod is a UUID with a network namespace. An attachment is a pod on a network. The package
// owns the kind "pod" of the daemon's intent store (internal/reconcile), the pins of the pods'
// namespaces and the order in which networks are called (specs: "Kurma Network Specification",
// The Container and The API). It must not know what a plugin is made of, nor where images and
// the configuration come from: it asks Plugins.
//
//   - add.go: a request, checked and stored as an intent
//   - target.go: what the store calls to fulfil an intent and to undo it
//   - del.go: removal by request
//   - process.go: removal because a container's first process has ended
//   - upgrade.go: the journal of earlier versions
package pod

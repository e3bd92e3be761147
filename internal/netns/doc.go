//go:build linux

// Package netns keeps network namespaces pinned under names in a folder, so that they
// outlive the process that made them.
//
// A pin is what "ip netns add" makes: a file with the namespace bind-mounted on it. The
// package owns the folder, the mounts in it and the choice of the mount namespace they
// are made in, so that every process that needs a namespace sees it and none of them goes when
// Kuryr is killed, also when Kuryr runs in a mount namespace of its own. It must not know
// what is inside a namespace, nor make links, addresses or rules.
package netns

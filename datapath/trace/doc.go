//go:build linux

// Package trace follows one packet through network namespaces: it sends a probe from a
// container's namespace, watches it on every device by packet sockets, and lets nftables
// tell which rule did what to it.
//
// It owns the probe and, while Run lasts, a table "kuryr-trace-PID" in each namespace
// concerned, whose rules switch tracing on for this one flow; the kernel forgets the mark
// when a packet goes to another namespace, so each has rules of its own. The tables
// belong to their socket (NFT_TABLE_F_OWNER) and so go with the process however it ends;
// Sweep removes those of kernels that do not know that. It knows addresses, devices and
// namespaces, no engine and no store, and must change nothing that lasts.
package trace

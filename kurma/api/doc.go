//go:build linux

// Package api is how others talk to kuryr kurma: JSON over HTTP on a Unix socket that is root's alone.
//
// It owns the paths, the bodies, what errors look like, and a client of all that. It must not know how pods are attached nor how plugins run: it asks
// what its Config has.
package api

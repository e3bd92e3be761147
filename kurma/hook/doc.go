//go:build linux

// Package hook is what OCI runtimes run for each container: it asks kuryr kurma to attach a container's network namespace, or to let it go
// (runtime-spec, config.md: POSIX-platform Hooks; runtime.md: State).
//
// It owns the annotations and the configuration that makes runtimes run it. It must not judge what a container may have, as all that a bundle says of its user may be the image's word.
// It must not attach anything itself, and
// must not import what makes a program's start long, such as package net/http: a container waits for it.
package hook

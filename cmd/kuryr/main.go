//go:build linux

// Command kuryr makes containers first-class ports of a software-defined network.
//
// Package main only wires: a file for each command, and for `kuryr up` one that starts the parts in their order and one that
// answers for them. What can be tested by itself is in packages under internal, docker, kube, sdn, bind and datapath.
//
// Built with the tag kubernetes it is kuryr-kubernetes, which has the client libraries of Kubernetes and all commands. Without the tag, the commands that need the
// libraries become that program: see handover.go.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime"
	"syscall"
)

// init keeps the first thread for the goroutine of main. Goroutines change the namespace of their
// threads, also in libraries, while /proc/PID/ns/net shows that of the first thread as the process's.
func init() { runtime.LockOSThread() }

// version is stamped by the linker: -ldflags "-X main.version=…".
var version = "development"

func main() {
	// The second signal ends the process at once.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	context.AfterFunc(ctx, stop)
	a := &app{out: os.Stdout, err: os.Stderr, environ: os.Environ()}
	os.Exit(a.run(ctx, os.Args[1:]))
}

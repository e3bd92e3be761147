//go:build linux

// Command kuryr makes containers first-class ports of a software-defined network.
//
// Package main only wires: a file for each command, and for `kuryr up` one that starts the parts in their order and one that
// answers for them. What can be tested by itself is in packages under internal, docker, sdn, bind and datapath.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// version is stamped by the linker: -ldflags "-X main.version=…".
var version = "development"

func main() {
	// The second signal ends the process at once.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	context.AfterFunc(ctx, stop)
	a := &app{out: os.Stdout, err: os.Stderr, environ: os.Environ()}
	os.Exit(a.run(ctx, os.Args[1:]))
}

//go:build linux

// Command kuryr-cni-api is the whole CNI plugin: kuryr-cni becomes it where no daemon runs, or where what is asked is not for the daemon.
//
// It only wires; the wait for a pod's port is package api's. It must not be what a runtime runs: its size would make every container's start slower.
package main

import (
	"context"
	"os"
	"os/signal"

	"github.com/kuryr/kuryr/kube/cni/api"
	"github.com/kuryr/kuryr/kube/cni/ferry"
	"github.com/kuryr/kuryr/kube/cni/plugin"
	"golang.org/x/sys/unix"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	lost := len(os.Args) > 1 && os.Args[1] == ferry.Lost
	code := plugin.Plugin{Getenv: os.Getenv, Stdin: os.Stdin, Stdout: os.Stdout, Lost: lost, API: api.Do}.Run(ctx)
	stop()
	os.Exit(code)
}

//go:build linux

// Command kuryr-cni is what container runtimes run for each container: the CNI plugin of type "kuryr". It asks the node's daemon, kuryr node.
package main

import (
	"context"
	"os"
	"os/signal"

	"github.com/kuryr/kuryr/kube/cni/plugin"
	"golang.org/x/sys/unix"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	code := plugin.Plugin{Getenv: os.Getenv, Stdin: os.Stdin, Stdout: os.Stdout, API: plugin.Second}.Run(ctx)
	stop()
	os.Exit(code)
}

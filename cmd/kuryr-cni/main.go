//go:build linux

// Command kuryr-cni is what container runtimes run for each container: the CNI plugin of type "kuryr". It asks the node's daemon, kuryr node.
package main

import (
	"context"
	"os"

	"github.com/kuryr/kuryr/kube/cni/plugin"
)

func main() {
	os.Exit(plugin.Plugin{Getenv: os.Getenv, Stdin: os.Stdin, Stdout: os.Stdout, API: plugin.Second}.Run(context.Background()))
}

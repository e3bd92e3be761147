//go:build linux

// Command kuryr-netavark is the plugin "kuryr" of netavark, which podman runs for
// networks with that driver.
//
// It only wires; the subcommands are package netavark's.
package main

import (
	"context"
	"os"
	"os/signal"

	"github.com/kuryr/kuryr/kube/cni/netavark"
	"golang.org/x/sys/unix"
)

var version = "dev" // set at build time

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	p := netavark.Plugin{Version: version, Stdin: os.Stdin, Stdout: os.Stdout}
	code := p.Run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

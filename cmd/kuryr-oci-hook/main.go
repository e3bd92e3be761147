//go:build linux

// Command kuryr-oci-hook is what OCI runtimes (crun, runc, podman) run for each container that is to be on Kurma's networks. It asks the daemon, kuryr kurma.
package main

import (
	"os"

	"github.com/kuryr/kuryr/kurma/hook"
)

func main() { os.Exit(hook.Run(os.Args[1:], os.Stdin, os.Stderr)) }

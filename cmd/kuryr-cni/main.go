//go:build linux

// Command kuryr-cni is what container runtimes run for each container: the CNI plugin of type "kuryr". It ferries the call to the node's daemon, kuryr node, and becomes kuryr-cni-api,
// which lies beside it, for all else.
package main

import (
	"syscall"

	"github.com/kuryr/kuryr/kube/cni/ferry"
)

func main() {
	syscall.Exit(ferry.Ferry{Socket: ferry.DefaultSocket, Whole: "kuryr-cni-api"}.Run())
}

//go:build linux

// Command kubelab runs a command beside a cluster: a real Kubernetes with its control plane and nodes.
//
//	kubelab [-nodes N] [-reference] [-api-only] -- COMMAND [ARGUMENT…]
//
// The command runs in the central host's network with KUBECONFIG set, and the cluster
// ends with it. KURYR_LAB_central, KURYR_LAB_node1, … are the hosts' first processes, so
// "nsenter -a -t $KURYR_LAB_node1" is a shell on node1. Without -reference the nodes have
// no CNI plugin but what the command brings. It only wires package kubelab to the command
// line.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/test/e2e/kubelab"
	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

func main() { privatehost.Main("kubelab", run) }

func run() (int, error) {
	var opts kubelab.Options
	flag.IntVar(&opts.Nodes, "nodes", 2, "nodes")
	flag.BoolVar(&opts.APIOnly, "api-only", false, "etcd and kube-apiserver alone, without nodes")
	reference := flag.Bool("reference", false, "the nodes have the CNI project's bridge plugin")
	flag.Parse()
	if flag.NArg() == 0 {
		return 0, errors.New("no command given")
	}
	if opts.APIOnly {
		opts.Nodes = 0
	}
	if *reference {
		opts.Booted = kubelab.ReferenceNetwork
	}
	ctx, cancel := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer cancel()
	signal.Ignore(unix.SIGINT) // it is for the command
	c, err := kubelab.New(ctx, opts)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	kubeconfig, err := c.Kubeconfig(nil, "administrator", "system:masters")
	if err != nil {
		return 0, err
	}
	cmd := exec.Command("nsenter", append([]string{"-t", fmt.Sprint(c.Central.Pid()), "-n", "--"}, flag.Args()...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, fmt.Sprintf("KURYR_LAB_central=%d", c.Central.Pid()))
	for _, n := range c.Nodes {
		cmd.Env = append(cmd.Env, fmt.Sprintf("KURYR_LAB_%s=%d", n.Name, n.Pid()))
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	return privatehost.Status(err)
}

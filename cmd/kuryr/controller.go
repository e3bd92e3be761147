//go:build linux

package main

import (
	"github.com/kuryr/kuryr/internal/config"
	"github.com/spf13/cobra"
)

func (a *app) controllerCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "controller", Short: "Run Kubernetes' controller (Raven)", Args: noArgs,
		Long: `Run Raven until SIGTERM or SIGINT: it makes the networks of a Kubernetes cluster's namespaces and the ports of its pods in the SDN that the
configuration names (provider). It may run in several replicas, of which one leads.

Without --config it reads kuryr.yaml and, below it, ` + config.RavenPath + `, whose options are those of kuryr-kubernetes.`,
		Example: "  kuryr controller\n  kuryr controller --kubernetes-kubeconfig /etc/kubernetes/admin.conf --provider neutron",
		RunE:    func(c *cobra.Command, _ []string) error { return a.runController(c) },
	}
	addSettings(c, settingsBut("docker.", "node.", "bind.", "kurma.")...)
	return c
}

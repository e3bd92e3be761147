//go:build linux

package main

import "github.com/spf13/cobra"

// poolSettings are those of commands that only ask the API server.
var poolSettings = []string{
	"kubernetes.kubeconfig", "kubernetes.api_server", "kubernetes.token_file", "kubernetes.ca_file", "kubernetes.cert_file", "kubernetes.key_file", "kubernetes.insecure",
}

func (a *app) poolCommand() *cobra.Command {
	c := group(&cobra.Command{
		Use: "pool", Short: "Look after Kubernetes' pools of ports: list, show, fill, drain",
		Long: `Show and change the pools of ports that Kubernetes' nodes have ready for pods. They are the resources KuryrPortPool: what these commands do,
kubectl can do too. Where the configuration does not tell how Kubernetes is reached, it is done as kubectl does it.`,
		Example: "  kuryr pool list\n  kuryr pool fill node1-0a1b2c3d4e5f 20\n  kuryr pool drain node1-0a1b2c3d4e5f",
	})
	var output, node string
	list := &cobra.Command{
		Use: "list", Short: "List the pools", Args: noArgs, Example: "  kuryr pool list\n  kuryr pool list --node node1 -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			return a.listPools(c, output, node)
		},
	}
	list.Flags().StringVar(&node, "node", "", "only those of this `node`")
	show := &cobra.Command{
		Use: "show POOL", Short: "Show a pool and its ports", Args: exactly(1, "the name of one pool"), Example: "  kuryr pool show node1-0a1b2c3d4e5f",
		RunE: func(c *cobra.Command, args []string) error { return a.showPool(c, output, args[0]) },
	}
	fill := &cobra.Command{
		Use: "fill POOL [N]", Short: "Have N ports available once; end a drain", Args: cobra.RangeArgs(1, 2),
		Long: `Have N ports of the pool available, once: those above the pool's minimum go again when no pod takes them for its TTL. Without N it only ends
what "kuryr pool drain" has begun.`,
		Example: "  kuryr pool fill node1-0a1b2c3d4e5f 20",
		RunE:    func(c *cobra.Command, args []string) error { return a.fillPool(c, args) },
	}
	drain := &cobra.Command{
		Use: "drain POOL", Short: "Give back all ports that no pod has", Args: exactly(1, "the name of one pool"),
		Long: `Have the pool give back all ports that no pod has, and keep none ready: pods that come get theirs one by one, each when it waits for it. It stays so until
"kuryr pool fill".`,
		Example: "  kuryr pool drain node1-0a1b2c3d4e5f",
		RunE:    func(c *cobra.Command, args []string) error { return a.drainPool(c, args[0]) },
	}
	addOutput(list, &output)
	addOutput(show, &output)
	for _, below := range []*cobra.Command{list, show, fill, drain} {
		addSettings(below, poolSettings...)
		c.AddCommand(below)
	}
	return c
}

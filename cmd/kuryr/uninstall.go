//go:build linux

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/kuryr/kuryr/kube/install/plugin"
	"github.com/spf13/cobra"
)

func (a *app) uninstallEngineCommand() *cobra.Command {
	c := group(&cobra.Command{
		Use: "uninstall", Short: "Take Kuryr out of a Kubernetes cluster, or what it has there off a host",
		Long: "Say how Kuryr is taken out of a Kubernetes cluster, or do it; or take the CNI plugin out of a host's folders, and what a node's daemon did out of its kernel.",
		Example: `  kuryr uninstall kubernetes
  kuryr uninstall kubernetes --apply`,
	})
	c.AddCommand(a.uninstallKubernetesCommand(), a.uninstallCNICommand(), a.uninstallNodeCommand())
	return c
}

// removalFlags are those of kuryr uninstall kubernetes.
type removalFlags struct {
	namespace, kubeconfig, context string
	apply, force                   bool
	timeout                        time.Duration
}

func (a *app) uninstallKubernetesCommand() *cobra.Command {
	var f removalFlags
	c := &cobra.Command{
		Use: "kubernetes", Short: "Print how Kuryr is taken out of a Kubernetes cluster, or do it", Args: noArgs,
		Long: `Print the steps by which Kuryr is taken out of a Kubernetes cluster, in their order, for kubectl. With --apply they are taken: container runtimes are told of
no network any more, then Kuryr's resources go while Raven still runs and takes their ports and networks from the SDN, then Raven and the nodes' daemons,
then what balanced Services in the nodes' kernels, and last accounts, policies and definitions.

It refuses, before anything is changed, where pods still have ports of Kuryr's, where Kuryr is in another namespace and where Raven does not work. With --force
it goes on: finalizers of what is left are taken away, and what that stands for, which it names, stays in the SDN.`,
		Example: `  kuryr uninstall kubernetes
  kuryr uninstall kubernetes --apply
  kuryr uninstall kubernetes --apply --force --timeout 10m`,
		RunE: func(c *cobra.Command, _ []string) error {
			if f.force && !f.apply {
				return usageError{errors.New("--force goes with --apply")}
			}
			return a.uninstallKubernetes(c, f)
		},
	}
	c.Flags().StringVar(&f.namespace, "namespace", "kuryr-system", "`namespace` of Kuryr's own pods")
	c.Flags().BoolVar(&f.apply, "apply", false, "take the steps")
	c.Flags().BoolVar(&f.force, "force", false, "with --apply: also where pods have ports, and where Raven does not work")
	c.Flags().StringVar(&f.kubeconfig, "kubeconfig", "", "`file` that tells the cluster and who you are (default KUBECONFIG, else ~/.kube/config)")
	c.Flags().StringVar(&f.context, "context", "", "`context` of the kubeconfig")
	c.Flags().DurationVar(&f.timeout, "timeout", 5*time.Minute, "how long it may take; done again it goes on")
	_ = c.MarkFlagFilename("kubeconfig")
	return c
}

func (a *app) uninstallCNICommand() *cobra.Command {
	var conflist string
	c := &cobra.Command{
		Use: "cni [DIR…]", Short: "Take the CNI plugin out of folders of plugins",
		Long: `Take from each of the folders what "kuryr install cni" has put there, and the conflist, if it is given, before that: container runtimes are then told of no
network of Kuryr's. What is not there is no error. "kuryr uninstall kubernetes" has it run on each node.`,
		Example: "  kuryr uninstall cni --conflist /etc/cni/net.d/10-kuryr.conflist /opt/cni/bin",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 && conflist == "" {
				return usageError{fmt.Errorf("%s: want at least one folder, or --conflist", c.CommandPath())}
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if conflist != "" {
				if err := os.Remove(conflist); err != nil && !errors.Is(err, fs.ErrNotExist) {
					return err
				}
			}
			return plugin.Remove(args...)
		},
	}
	c.Flags().StringVar(&conflist, "conflist", "", "the network's list for container runtimes: a `file`")
	_ = c.MarkFlagFilename("conflist")
	return c
}

func (a *app) uninstallNodeCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "node", Short: "Take what the daemon of a cluster's node did for Services out of the kernel", Args: noArgs,
		Long: `Take out of this machine's kernel what balances Services, and the node's own port; the host's firewall and forwarding switch are put back as they were. What
is not there is no error. While the node's daemon runs, which would bring it back, it refuses. "kuryr uninstall kubernetes" has it run on each node.`,
		Example: "  kuryr uninstall node",
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := a.load(c)
			if err != nil {
				return err
			}
			if nodeRuns(cfg) {
				return errors.New("the daemon of a cluster's node runs, and would bring back what balances Services: take Kuryr out of the cluster first")
			}
			done, err := a.dropNode(c, cfg)
			for _, line := range done {
				_, _ = fmt.Fprintln(a.out, line)
			}
			return err
		},
	}
	addSettings(c, "state_dir", "run_dir")
	return c
}

//go:build linux

package main

import (
	"fmt"
	"time"

	"github.com/kuryr/kuryr/kube/install/plugin"
	"github.com/spf13/cobra"
)

func (a *app) installEngineCommand() *cobra.Command {
	c := group(&cobra.Command{
		Use: "install", Short: "Install Kuryr in a Kubernetes cluster, or the CNI plugin on a host",
		Long: "Print or apply what Kuryr is in a Kubernetes cluster, or copy the CNI plugin into a host's folders.",
		Example: `  kuryr install kubernetes | kubectl apply -f -
  kuryr install cni /opt/cni/bin`,
	})
	c.AddCommand(a.installKubernetesCommand(), a.installCNICommand())
	return c
}

// kubernetesFlags are those of kuryr install kubernetes.
type kubernetesFlags struct {
	namespace, provider, image, installation, apiServer string
	values, ravenConf                                   string
	set, podCIDR, serviceCIDR                           []string

	apply, dryRun       bool
	kubeconfig, context string
	timeout             time.Duration
}

func (a *app) installKubernetesCommand() *cobra.Command {
	var f kubernetesFlags
	c := &cobra.Command{
		Use: "kubernetes", Short: "Print or apply the manifests of Kuryr in Kubernetes", Args: noArgs,
		Long: `Print the manifests that install Kuryr in a Kubernetes cluster: namespace, resource definitions, accounts and their rights, admission policies, Raven
(kuryr controller), the nodes' daemon (kuryr node) and, without Neutron, the embedded SDN (kuryr sdn). With --apply they are applied with
server-side apply, object by object; what is there already is brought to what they say, and a second time changes nothing. --dry-run has
the API server check everything and change nothing. With the embedded SDN, --apply also labels the node that is to have its store
(openstack.org/kuryr-sdn), if there is but one.

The manifests are those of the Helm chart in deploy/kubernetes, with the same values.`,
		Example: `  kuryr install kubernetes | kubectl apply -f -
  kuryr install kubernetes --apply
  kuryr install kubernetes --provider neutron --set neutron.cloud=prod --set config.log.level=debug --apply --dry-run`,
		RunE: func(c *cobra.Command, _ []string) error { return a.installKubernetes(c, f) },
	}
	c.Flags().StringVar(&f.namespace, "namespace", "kuryr-system", "`namespace` of Kuryr's own pods, which is made")
	c.Flags().StringVar(&f.provider, "provider", "embedded",
		"`SDN` behind the cluster: embedded (a cluster of one node) or neutron")
	c.Flags().StringVar(&f.image, "image", "",
		"`image` of Kuryr, with its tag or its digest (default kuryr/kuryr of this version)")
	c.Flags().StringVar(&f.installation, "installation", "", "`name` that marks what this cluster makes in the SDN (default one of the cluster's own)")
	c.Flags().StringSliceVar(&f.podCIDR, "pod-cidr", nil, "`range` that namespaces' subnets are cut from, one of a family (default as kuryr.yaml's controller.pod_ranges)")
	c.Flags().StringSliceVar(&f.serviceCIDR, "service-cidr", nil, "`range` of ClusterIPs, one of a family (default as controller.service_ranges)")
	c.Flags().StringVar(&f.apiServer, "api-server", "",
		"`host:port` of the Kubernetes API for Kuryr's own pods (default the one that the cluster has)")
	c.Flags().StringVar(&f.ravenConf, "raven-conf", "", "raven.conf or kuryr.conf of kuryr-kubernetes that Raven is to read: a `file`")
	c.Flags().StringVar(&f.values, "values", "", "values of the chart: a YAML `file`")
	c.Flags().StringArrayVar(&f.set, "set", nil, "one value of the chart, `key=value`; may be given several times and goes over the other flags")
	c.Flags().BoolVar(&f.apply, "apply", false, "apply them to the cluster")
	c.Flags().BoolVar(&f.dryRun, "dry-run", false, "have the cluster check them and say what would change")
	c.Flags().StringVar(&f.kubeconfig, "kubeconfig", "", "`file` that tells the cluster and who you are (default KUBECONFIG, else ~/.kube/config)")
	c.Flags().StringVar(&f.context, "context", "", "`context` of the kubeconfig")
	c.Flags().DurationVar(&f.timeout, "timeout", time.Minute, "how long applying may take")
	complete(c, "provider", "embedded", "neutron")
	for _, name := range []string{"values", "kubeconfig", "raven-conf"} {
		_ = c.MarkFlagFilename(name)
	}
	return c
}

func (a *app) installCNICommand() *cobra.Command {
	var from string
	c := &cobra.Command{
		Use: "cni DIR…", Short: "Copy the CNI plugin into folders of plugins",
		Long: `Copy kuryr-cni into each of the folders under the name kuryr, the plugin's type, and with it kuryr-cni-api, which it becomes where no daemon does it, if that lies
beside it. A file is replaced whole, also where a container runtime runs it at that moment, and left alone where it is the same. Kuryr's DaemonSet does so on each
node before its daemon starts.`,
		Example: "  kuryr install cni /opt/cni/bin",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError{fmt.Errorf("%s: want at least one folder", c.CommandPath())}
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error { return plugin.Copy(from, args...) },
	}
	c.Flags().StringVar(&from, "from", "/usr/libexec/kuryr/kuryr-cni", "the plugin: a `file`")
	_ = c.MarkFlagFilename("from")
	return c
}

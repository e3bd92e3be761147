//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/kuryr/kuryr/kube/install"
	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
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
the API server check everything and change nothing.

The manifests are those of the Helm chart in deploy/kubernetes, with the same values.`,
		Example: `  kuryr install kubernetes | kubectl apply -f -
  kuryr install kubernetes --apply
  kuryr install kubernetes --provider neutron --set neutron.cloud=prod --set config.log.level=debug --apply --dry-run`,
		RunE: func(c *cobra.Command, _ []string) error {
			values, err := f.chartValues(c)
			if err != nil {
				return err
			}
			manifests, err := install.Render(install.Release{Namespace: f.namespace, Version: imageTag(version), Values: values})
			if err != nil {
				return err
			}
			if !f.apply && !f.dryRun {
				_, err := fmt.Fprint(a.out, install.Text(manifests))
				return err
			}
			return a.applyManifests(c.Context(), f, manifests)
		},
	}
	c.Flags().StringVar(&f.namespace, "namespace", "kuryr-system", "`namespace` of Kuryr's own pods, which is made")
	c.Flags().StringVar(&f.provider, "provider", install.Embedded, "SDN behind the cluster: embedded (a cluster of one node) or neutron")
	c.Flags().StringVar(&f.image, "image", "", "`image` of Kuryr, with its tag (default kuryr/kuryr of this version)")
	c.Flags().StringVar(&f.installation, "installation", "", "`name` that marks what this cluster makes in the SDN (default one of the cluster's own)")
	c.Flags().StringSliceVar(&f.podCIDR, "pod-cidr", nil, "`range` that namespaces' subnets are cut from, one of a family (default as kuryr.yaml's controller.pod_ranges)")
	c.Flags().StringSliceVar(&f.serviceCIDR, "service-cidr", nil, "`range` of ClusterIPs, one of a family (default as controller.service_ranges)")
	c.Flags().StringVar(&f.apiServer, "api-server", "", "`host:port` of Kubernetes' API, where nothing serves its ClusterIP before Kuryr does")
	c.Flags().StringVar(&f.ravenConf, "raven-conf", "", "raven.conf or kuryr.conf of kuryr-kubernetes that Raven is to read: a `file`")
	c.Flags().StringVar(&f.values, "values", "", "values of the chart: a YAML `file`")
	c.Flags().StringArrayVar(&f.set, "set", nil, "one value of the chart, `key=value`; may be given several times and goes over the other flags")
	c.Flags().BoolVar(&f.apply, "apply", false, "apply them to the cluster")
	c.Flags().BoolVar(&f.dryRun, "dry-run", false, "have the cluster check them and say what would change")
	c.Flags().StringVar(&f.kubeconfig, "kubeconfig", "", "`file` that tells the cluster and who you are (default KUBECONFIG, else ~/.kube/config)")
	c.Flags().StringVar(&f.context, "context", "", "`context` of the kubeconfig")
	c.Flags().DurationVar(&f.timeout, "timeout", time.Minute, "how long applying may take")
	complete(c, "provider", install.Embedded, install.Neutron)
	for _, name := range []string{"values", "kubeconfig", "raven-conf"} {
		_ = c.MarkFlagFilename(name)
	}
	return c
}

// chartValues are the chart's with what the flags say: the file of values first, then the flags of their own, then --set.
func (f kubernetesFlags) chartValues(c *cobra.Command) (install.Values, error) {
	v, err := install.Defaults()
	if err != nil {
		return nil, err
	}
	if f.values != "" {
		file, err := os.ReadFile(f.values)
		if err != nil {
			return nil, err
		}
		if err := v.Merge(file); err != nil {
			return nil, fmt.Errorf("%s: %w", f.values, err)
		}
	}
	type setting struct{ flag, key, value string }
	all := []setting{{"", "createNamespace", "true"}}
	given := func(flag, key, value string) {
		if c.Flags().Changed(flag) {
			all = append(all, setting{"--" + flag, key, value})
		}
	}
	given("provider", "provider", f.provider)
	given("installation", "installation", f.installation)
	given("pod-cidr", "config.controller.pod_ranges", "["+strings.Join(f.podCIDR, ", ")+"]")
	given("service-cidr", "config.controller.service_ranges", "["+strings.Join(f.serviceCIDR, ", ")+"]")
	if f.image != "" {
		name, tag, ok := cutLast(f.image, ":")
		if !ok || strings.Contains(tag, "/") {
			return nil, usageError{fmt.Errorf("--image: want a name and a tag, such as kuryr/kuryr:v1, not %q", f.image)}
		}
		given("image", "image.repository", name)
		given("image", "image.tag", tag)
	}
	if f.apiServer != "" {
		host, port, err := net.SplitHostPort(f.apiServer)
		if err != nil || host == "" || port == "" {
			return nil, usageError{fmt.Errorf("--api-server: want host:port, not %q", f.apiServer)}
		}
		given("api-server", "apiServer.host", host)
		given("api-server", "apiServer.port", port)
	}
	if f.ravenConf != "" {
		text, err := os.ReadFile(f.ravenConf)
		if err != nil {
			return nil, err
		}
		given("raven-conf", "ravenConf", string(text))
	}
	for _, s := range f.set {
		key, value, ok := strings.Cut(s, "=")
		if !ok || key == "" {
			return nil, usageError{fmt.Errorf("--set: want key=value, not %q", s)}
		}
		all = append(all, setting{"--set", key, value})
	}
	for _, s := range all {
		if err := v.Set(s.key, s.value); err != nil {
			return nil, usageError{fmt.Errorf("%s: %w", s.flag, err)}
		}
	}
	return v, nil
}

func (a *app) applyManifests(ctx context.Context, f kubernetesFlags, manifests []install.Manifest) error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = f.kubeconfig
	loaded := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: f.context})
	config, err := loaded.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return errors.New("no cluster is known: give --kubeconfig, or set KUBECONFIG")
	}
	if err != nil {
		return err
	}
	config.QPS, config.Burst = -1, 0 // thirty objects, one after the other
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	api, err := client.New(config, client.Options{})
	if err != nil {
		return err
	}
	counts := map[string]int{}
	applier := install.Applier{API: api, DryRun: f.dryRun, Said: func(what, kind, name string) {
		counts[what]++
		_, _ = fmt.Fprintf(a.out, "%-10s %s %s\n", what, kind, name)
	}}
	if err := applier.Apply(ctx, manifests); err != nil {
		return err
	}
	end := ""
	if f.dryRun {
		end = "; nothing was, this was a dry run"
	}
	_, err = fmt.Fprintf(a.out, "%d created, %d changed, %d unchanged%s\n", counts[install.Created], counts[install.Changed], counts[install.Unchanged], end)
	return err
}

// imageTag is a version as an image's tag may be written; that of a build without one is the chart's.
func imageTag(version string) string {
	if version == "development" || version == "dev" {
		return ""
	}
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-", r) {
			return r
		}
		return '-'
	}, version)
}

// cutLast cuts s around the last sep.
func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

func (a *app) installCNICommand() *cobra.Command {
	var from string
	c := &cobra.Command{
		Use: "cni DIR…", Short: "Copy the CNI plugin into folders of plugins",
		Long: `Copy kuryr-cni into each of the folders under the name kuryr, the plugin's type. The file is replaced whole, also where a container runtime runs it at
that moment, and left alone where it is the same. Kuryr's DaemonSet does so on each node before its daemon starts.`,
		Example: "  kuryr install cni /opt/cni/bin",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError{fmt.Errorf("%s: want at least one folder", c.CommandPath())}
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error { return install.Plugin(from, args...) },
	}
	c.Flags().StringVar(&from, "from", "/usr/libexec/kuryr/kuryr-cni", "the plugin: a `file`")
	_ = c.MarkFlagFilename("from")
	return c
}

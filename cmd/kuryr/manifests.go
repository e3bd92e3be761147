//go:build linux && kubernetes

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/kube/install"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// installKubernetes prints the manifests, or applies them.
func (a *app) installKubernetes(c *cobra.Command, f kubernetesFlags) error {
	values, err := f.chartValues(c)
	if err != nil {
		return err
	}
	if err := values.Check(); err != nil {
		return f.valueError(err)
	}
	release := install.Release{Namespace: f.namespace, Version: imageTag(version), Values: values}
	if !f.apply && !f.dryRun {
		manifests, err := install.Render(release)
		if err != nil {
			return err
		}
		if release.Values.AutoServices() {
			_, _ = fmt.Fprintln(a.err, "services: auto means on here, as no cluster is asked; "+
				"where Kuryr is installed without Services, use --set services=false")
		}
		_, err = fmt.Fprint(a.out, install.Text(manifests))
		return err
	}
	ctx, cancel := context.WithTimeout(c.Context(), f.timeout)
	defer cancel()
	api, err := clusterClient(f.kubeconfig, f.context, nil, new(serverClock))
	if err != nil {
		return err
	}
	release.Lookup = install.LookupIn(ctx, api)
	notes := ""
	err = a.applyTo(ctx, api, f, values["provider"] == install.Embedded, func() ([]install.Manifest, error) {
		manifests, err := install.Render(release)
		if err == nil {
			notes, err = install.Notes(release)
		}
		return manifests, err
	})
	if err == nil && !f.dryRun {
		_, err = fmt.Fprint(a.out, "\n", notes)
	}
	return err
}

// valueError makes a wrong value an error of the command line, unless a file has values too.
func (f kubernetesFlags) valueError(err error) error {
	if f.values == "" {
		return usageError{err}
	}
	return err
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
	for _, of := range []struct {
		flag, key string
		ranges    []string
	}{{"pod-cidr", "controller.pod_ranges", f.podCIDR}, {"service-cidr", "controller.service_ranges", f.serviceCIDR}} {
		if err := config.Lookup(of.key).Check(of.ranges...); err != nil {
			return nil, usageError{fmt.Errorf("--%s: %w", of.flag, err)}
		}
	}
	given("pod-cidr", "config.controller.pod_ranges", "["+strings.Join(f.podCIDR, ", ")+"]")
	given("service-cidr", "config.controller.service_ranges", "["+strings.Join(f.serviceCIDR, ", ")+"]")
	if f.image != "" {
		image, digest, _ := strings.Cut(f.image, "@")
		name, tag, ok := cutLast(image, ":")
		if !ok || strings.Contains(tag, "/") {
			name, tag = image, ""
		}
		if name == "" || tag == "" && digest == "" {
			return nil, usageError{fmt.Errorf("--image: want a name and a tag or a digest, "+
				"such as kuryr/kuryr:v1 or kuryr/kuryr@sha256:…, not %q", f.image)}
		}
		given("image", "image.repository", name)
		given("image", "image.tag", tag)
		given("image", "image.digest", digest)
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

// clusterClient is the way to the cluster of these flags, as kubectl goes. The clock looks at its answers.
func clusterClient(kubeconfig, context string, scheme *runtime.Scheme, clock *serverClock) (client.WithWatch, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	loaded := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: context})
	config, err := loaded.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, errors.New("no cluster is known: give --kubeconfig, or set KUBECONFIG")
	}
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = -1, 0 // the API server shares itself out by priority and fairness
	config.UserAgent = "kuryr/" + version
	clock.watch(config)
	return client.NewWithWatch(config, client.Options{Scheme: scheme})
}

// applyTo applies what render returns. It labels the embedded SDN's node first: the templates
// read the label, and an SDN of a release without the label ends when the manifests are applied,
// and with it the only sign of where it ran.
func (a *app) applyTo(
	ctx context.Context, api client.Client, f kubernetesFlags, embedded bool,
	render func() ([]install.Manifest, error),
) error {
	counts := map[string]int{}
	applier := install.Applier{API: api, DryRun: f.dryRun, Said: func(what, kind, name string) {
		counts[what]++
		_, _ = fmt.Fprintf(a.out, "%-10s %s %s\n", what, kind, name)
	}}
	homeless := false
	if embedded {
		node, changed, err := applier.Home(ctx, f.namespace)
		if err != nil {
			return err
		}
		if changed {
			applier.Said(install.Changed, "Node", node)
		}
		homeless = node == ""
	}
	manifests, err := render()
	if err != nil {
		return err
	}
	if err := applier.Apply(ctx, manifests); err != nil {
		return err
	}
	if homeless {
		_, _ = fmt.Fprintf(a.out, "The embedded SDN waits for the node that is to have its store: kubectl label node NODE %s=\n", install.LabelSDN)
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

//go:build linux && kubernetes

package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/kube/install"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

func TestInstallKubernetes(t *testing.T) {
	t.Parallel()
	values := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(values, []byte("provider: neutron\nneutron: {cloud: of-the-file}\ninstallation: of-the-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	digest := "sha256:" + strings.Repeat("0a", 32)
	pinned := filepath.Join(t.TempDir(), "pinned.yaml")
	if err := os.WriteFile(pinned, []byte("image: {digest: '"+digest+"'}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args      string
		has, lack []string
	}{
		{"", []string{"kind: Namespace", "name: kuryr-system", "name: kuryr-sdn", "provider: sdn", `installation: "kubernetes"`, `controller.namespace: "kuryr-system"`}, []string{"clouds.yaml"}},
		{"--namespace blue --image r.example:5000/k:v2", []string{"name: blue", `image: "r.example:5000/k:v2"`, "system:serviceaccount:blue:kuryr-node"}, []string{"kuryr-system"}},
		{
			"--image r.example:5000/k@" + digest + " --set image.pullPolicy=Always",
			[]string{`image: "r.example:5000/k@` + digest + `"`}, []string{"k:v"},
		},
		{"--image k:v2 --set image.digest=" + digest, []string{`image: "k@` + digest + `"`}, []string{"k:v2"}},
		{"--image k:v3@" + digest, []string{`image: "k@` + digest + `"`}, []string{"k:v3"}},
		{"--image k:v4 --values " + pinned, []string{`image: "k:v4"`}, []string{"sha256"}},
		{"--values " + pinned, []string{`image: "kuryr/kuryr@` + digest + `"`}, nil},
		{"--api-server [fd00::1]:6443", []string{`KUBERNETES_SERVICE_HOST, value: "fd00::1"`, `KUBERNETES_SERVICE_PORT, value: "6443"`}, nil},
		{"--pod-cidr 10.32.0.0/11,fd00:1::/48 --service-cidr 10.96.0.0/12", []string{"pod_ranges:\n      - 10.32.0.0/11\n      - fd00:1::/48\n", "service_ranges:\n      - 10.96.0.0/12\n"}, nil},
		{"--values " + values, []string{"provider: neutron", `cloud: "of-the-file"`, `installation: "of-the-file"`}, []string{"kuryr-sdn"}},
		{"--installation flag --values " + values, []string{`installation: "flag"`, `cloud: "of-the-file"`}, []string{`"of-the-file"` + "\n    provider"}},
		{"--set installation=set --installation flag --set neutron.cloud=set --values " + values, []string{`installation: "set"`, `cloud: "set"`}, []string{`"flag"`, "of-the-file"}},
	} {
		code, out, complaint := kuryr(t.Context(), nil, append([]string{"install", "kubernetes"}, strings.Fields(c.args)...)...)
		if code != exitOK || !strings.HasPrefix(complaint, "services: auto means on here") ||
			strings.Count(complaint, "\n") != 1 {
			t.Errorf("%s: exit %d, %s", c.args, code, complaint)
		}
		for _, want := range c.has {
			if !strings.Contains(out, want) {
				t.Errorf("%s: does not have %s", c.args, want)
			}
		}
		for _, not := range c.lack {
			if strings.Contains(out, not) {
				t.Errorf("%s: has %s", c.args, not)
			}
		}
	}
}

// TestPrintedServicesChosen checks that manifests are printed without a notice where the values say
// whether Services are on.
func TestPrintedServicesChosen(t *testing.T) {
	t.Parallel()
	for _, set := range []string{
		"services=false", "services=true", "config.controller.services=true", "node.config.node.services=false",
	} {
		code, _, complaint := kuryr(t.Context(), nil, "install", "kubernetes", "--set", set)
		if code != exitOK || complaint != "" {
			t.Errorf("%s: exit %d, %s", set, code, complaint)
		}
	}
}

func TestInstallKubernetesRefuses(t *testing.T) {
	t.Parallel()
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("config: {log: {level: loud}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"--pod-cidr banana", exitUsage, `--pod-cidr: "banana" is not a range`},
		{"--service-cidr 10.0.0.0/33", exitUsage, `--service-cidr: "10.0.0.0/33" is not a range`},
		{"--pod-cidr 10.0.0.1/8", exitUsage, "--pod-cidr: 10.0.0.1/8 has bits set beyond its length"},
		{"--pod-cidr 10.0.0.0/16,10.1.0.0/16", exitUsage, "--pod-cidr: want at most one range of each family"},
		{
			"--pod-cidr 10.32.0.0/12 --service-cidr 10.32.0.0/12", exitUsage,
			"value config.controller.pod_ranges: 10.32.0.0/12 overlaps 10.32.0.0/12 of config.controller.service_ranges",
		},
		{
			"--set config.controller.servics=true", exitUsage,
			"value config.controller.servics: unknown key; is controller.services meant?",
		},
		{"--set config.controller.workers=0", exitUsage, "value config.controller.workers: want a number from 1"},
		{"--set node.config.node.services=perhaps", exitUsage, "value node.config.node.services: want true or false"},
		{"--set node.config.nodes=1", exitUsage, "value node.config.nodes: unknown key"},
		{
			"--set config.controller.underlay_isolation=true", exitUsage,
			"value config.controller.node_networks: is needed with controller.underlay_isolation",
		},
		{"--values " + bad, exitError, "value config.log.level"},
		{"--provider ovn", exitUsage, `value provider: want embedded or neutron, not "ovn"`},
		{"--set nodes=3", exitUsage, "--set: value nodes: unknown"},
		{"--image kuryr", exitUsage, "want a name and a tag or a digest"},
		{"--image kuryr@", exitUsage, "want a name and a tag or a digest"},
		{"--image kuryr@sha256:1", exitUsage, "value image.digest: want sha256:"},
		{"--api-server here", exitUsage, "want host:port"},
		{"--apply --kubeconfig /none.yaml", exitError, "no such file"},
	} {
		code, out, complaint := kuryr(t.Context(), nil, append([]string{"install", "kubernetes"}, strings.Fields(c.args)...)...)
		if code != c.code || out != "" || !strings.Contains(complaint, c.says) || strings.Count(complaint, "\n") != 1 {
			t.Errorf("%s: exit %d, %s%s", c.args, code, out, complaint)
		}
	}
}

// The SDN's home is looked for while its pods still tell of it: what is applied may end them.
func TestKubernetesHomeFirst(t *testing.T) {
	t.Parallel()
	node := func(name string) client.Object { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "kuryr-sdn-1", Labels: map[string]string{"app.kubernetes.io/name": "kuryr-sdn"}}, Spec: corev1.PodSpec{NodeName: "b"}}
	api := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(node("a"), node("b"), pod).WithInterceptorFuncs(interceptor.Funcs{
		Apply: func(ctx context.Context, c client.WithWatch, _ runtime.ApplyConfiguration, _ ...client.ApplyOption) error {
			return c.Delete(ctx, pod)
		},
	}).Build()
	values, err := install.Defaults()
	if err != nil {
		t.Fatal(err)
	}
	manifests, err := install.Render(install.Release{Namespace: "blue", Values: values})
	if err != nil {
		t.Fatal(err)
	}
	sdn := slices.DeleteFunc(manifests, func(m install.Manifest) bool {
		return m.Object.GetKind() != "Deployment" || m.Object.GetName() != "kuryr-sdn"
	})
	var out buffer
	err = (&app{out: &out}).applyTo(t.Context(), api, kubernetesFlags{namespace: "blue"}, true, func() ([]install.Manifest, error) {
		return sdn, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var b corev1.Node
	if err := api.Get(t.Context(), client.ObjectKey{Name: "b"}, &b); err != nil {
		t.Fatal(err)
	}
	if _, has := b.Labels[install.LabelSDN]; !has || strings.Contains(out.String(), "waits for the node") {
		t.Errorf("labels %v\n%s", b.Labels, out.String())
	}
}

func TestKubernetesImageTag(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{"development": "", "dev": "", "v1.2.3": "v1.2.3", "v1.2-3-gabc-dirty": "v1.2-3-gabc-dirty", "1.0+x": "1.0-x"} {
		if got := imageTag(version); got != want {
			t.Errorf("%s: %q, want %q", version, got, want)
		}
	}
}

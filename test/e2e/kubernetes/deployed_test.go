//go:build e2e

package kubernetes_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kuryrv1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/uninstall"
	"github.com/kuryr/kuryr/test/e2e/kubelab"
)

// image makes the image of "make images" and has a node import it.
func (r *rig) image(n *kubelab.Node, tag string) {
	r.Helper()
	c := exec.CommandContext(r.ctx, "../../../hack/images.sh", r.Central.Dir())
	c.Env = append(os.Environ(), "TAG="+tag)
	if said, err := c.CombinedOutput(); err != nil {
		r.Fatalf("%v: %s", err, said)
	}
	if said := n.Exec(r.ctx, "ctr", "-n", "k8s.io", "images", "import", filepath.Join(
		r.Central.Dir(), "kuryr.tar",
	)); !said.OK() {
		r.Fatal(said)
	}
}

// What "kuryr install kubernetes" applies runs as it is, with the image of "make images":
// a node without any network becomes ready, its pods have ports, and the daemons' pods
// come and go. And what "kuryr uninstall kubernetes" does leaves nothing of it.
func TestDeployed(t *testing.T) {
	t.Parallel()
	n := &kuryrNode{}
	booted := func(ctx context.Context, node *kubelab.Node) error {
		n.Node = node
		return node.Exec(ctx, "cp", "/usr/lib/cni/loopback", filepath.Join(kubelab.PluginFolder, "loopback")).Err()
	}
	const reason = "Kuryr runs in pods, and is uninstalled"
	r := start(t, reason, kubelab.Options{Nodes: 1, Booted: booted})
	const tag = "kuryr/kuryr:e2e"
	r.image(n.Node, tag)
	begin := time.Now()
	// The node has the machine's /usr, and nothing that serves ClusterIPs. As with helm it has no
	// label, and the templates find the API server.
	r.must(r.installHelm("image.tag=e2e", "node.specDir="))
	r.must(r.WaitReady(r.ctx))
	t.Logf("the node is ready %s after the manifests were applied", time.Since(begin).Round(10*time.Millisecond))
	parts := r.running(system, "", 3)
	r.create("default", serverPod("a", ""), serverPod("b", ""))
	pods := r.running("default", "", 2)
	r.talks(pods["a"], pods["b"])
	r.servesServices()

	r.must(r.Client.CoreV1().Pods(system).DeleteCollection(r.ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	r.talks(pods["b"], pods["a"])
	r.must(kubelab.Until(r.ctx, r.Client.CoreV1().Pods(system), metav1.ListOptions{}, func(list *corev1.PodList) error {
		n := 0
		for _, p := range list.Items {
			if _, old := parts[p.Name]; !old && ready(p) {
				n++
			}
		}
		if n != len(parts) {
			return fmt.Errorf("%d of %d pods are ready again", n, len(parts))
		}
		return nil
	}))
	r.create("default", serverPod("later", ""))
	later := r.running("default", "app=later", 1)["later"]
	r.talks(later, pods["a"])
	r.talks(pods["b"], later)
	if later.Annotations["openstack.org/kuryr-vif"] == "" {
		r.until(func(ctx context.Context) error {
			p, err := r.Client.CoreV1().Pods("default").Get(ctx, "later", metav1.GetOptions{})
			if err == nil && p.Annotations["openstack.org/kuryr-vif"] == "" {
				err = errors.New("the pod does not tell of its port")
			}
			return err
		})
	}
	r.removed(n.Node)
}

// servesServices waits until the ClusterIP of the API server is balanced, which is the default.
func (r *rig) servesServices() {
	r.Helper()
	s := runtime.NewScheme()
	r.must(kuryrv1.AddToScheme(s))
	api, err := client.New(r.Config, client.Options{Scheme: s})
	r.must(err)
	r.until(func(ctx context.Context) error {
		var served kuryrv1.KuryrLoadBalancer
		err := api.Get(ctx, client.ObjectKey{Namespace: "default", Name: "kubernetes"}, &served)
		if err == nil && !meta.IsStatusConditionTrue(served.Status.Conditions, "Ready") {
			err = fmt.Errorf("the Service kubernetes has no load balancer yet: %+v", served.Status.Conditions)
		}
		return err
	})
}

// removed takes Kuryr out of the cluster as "kuryr uninstall kubernetes --apply" does,
// which refuses while pods have its ports.
func (r *rig) removed(n *kubelab.Node) {
	r.Helper()
	s := runtime.NewScheme()
	r.must(errors.Join(scheme.AddToScheme(s), apiextensionsv1.AddToScheme(s), kuryrv1.AddToScheme(s)))
	api, err := client.NewWithWatch(r.Config, client.Options{Scheme: s})
	r.must(err)
	remover := uninstall.Remover{API: api, Namespace: system, Said: r.Logf}
	if err := remover.Remove(r.ctx); err == nil || !strings.Contains(
		err.Error(), "pods still have ports of Kuryr's, and would lose their network: default/",
	) {
		r.Fatalf("Kuryr goes under pods that run: %v", err)
	}
	r.gone("default")
	r.until(func(ctx context.Context) error { // a pod's port is free a moment after the pod has gone
		var ports kuryrv1.KuryrPortList
		err := api.List(ctx, &ports)
		for _, p := range ports.Items {
			if p.Status.Pod != nil {
				err = fmt.Errorf("%s still has the port %s", p.Status.Pod.Name, p.Name)
			}
		}
		return err
	})
	tables := func() string { return n.Exec(r.ctx, "nft", "list", "tables").Out() }
	if before := tables(); !strings.Contains(before, "kuryr_lb") {
		r.Fatalf("the node balances no Services, and nothing is to be taken away: %s", before)
	}
	begin := time.Now()
	r.must(remover.Remove(r.ctx))
	r.Logf("Kuryr is out of the cluster after %s", time.Since(begin).Round(10*time.Millisecond))
	var definitions apiextensionsv1.CustomResourceDefinitionList
	r.must(api.List(r.ctx, &definitions))
	for _, d := range definitions.Items {
		r.Errorf("the definition %s is left", d.Name)
	}
	for _, list := range []client.ObjectList{
		&rbacv1.ClusterRoleList{}, &rbacv1.ClusterRoleBindingList{},
		&admissionv1.ValidatingAdmissionPolicyList{},
		&admissionv1.ValidatingAdmissionPolicyBindingList{},
	} {
		r.must(api.List(r.ctx, list, client.MatchingLabels{"app.kubernetes.io/part-of": "kuryr"}))
		if left := meta.LenList(list); left > 0 {
			r.Errorf("%d of %T are left", left, list)
		}
	}
	if said := n.Exec(
		r.ctx, "sh", "-c",
		"ls "+kubelab.ConfigurationFolder+" "+kubelab.PluginFolder+" | grep kuryr",
	); said.OK() {
		r.Errorf("the node has %v", said)
	}
	if after := tables(); strings.Contains(after, "kuryr_") {
		r.Errorf("the node's kernel has the tables %s", after)
	}
	node, err := r.Client.CoreV1().Nodes().Get(r.ctx, n.Name, metav1.GetOptions{})
	r.must(err)
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeNetworkUnavailable {
			r.Errorf("the node still says %+v", c)
		}
	}
	r.within(time.Minute, func(ctx context.Context) error { // with all that was in it
		if _, err := r.Client.CoreV1().Namespaces().Get(ctx, system, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the namespace %s is there: %w", system, err)
		}
		return nil
	})
}

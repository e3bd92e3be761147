//go:build e2e

package kubernetes_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

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
	if said := n.Exec(r.ctx, "ctr", "-n", "k8s.io", "images", "import", filepath.Join(r.Central.Dir(), "kuryr.tar")); !said.OK() {
		r.Fatal(said)
	}
}

// What "kuryr install kubernetes" applies runs as it is, with the image of "make images": a node without any network becomes ready, its pods have ports, and the daemons'
// pods come and go.
func TestDeployed(t *testing.T) {
	t.Parallel()
	n := &kuryrNode{}
	r := start(t, kubelab.Options{Nodes: 1, Booted: func(ctx context.Context, node *kubelab.Node) error {
		n.Node = node
		return node.Exec(ctx, "cp", "/usr/lib/cni/loopback", filepath.Join(kubelab.PluginFolder, "loopback")).Err()
	}})
	const tag = "kuryr/kuryr:e2e"
	r.image(n.Node, tag)
	begin := time.Now()
	r.until(func(ctx context.Context) error { // as soon as its kubelet has made it known
		_, err := r.Client.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"openstack.org/kuryr-sdn":""}}}`), metav1.PatchOptions{})
		return err
	})
	// The node has the machine's /usr, and nothing that serves ClusterIPs.
	r.install(false, "image.tag=e2e", "node.specDir=", "apiServer.host="+kubelab.Nodes.Addr().String(), fmt.Sprint("apiServer.port=", kubelab.Port))
	r.must(r.WaitReady(r.ctx))
	t.Logf("the node is ready %s after the manifests were applied", time.Since(begin).Round(10*time.Millisecond))
	parts := r.running(system, "", 3)
	r.create("default", serverPod("a", ""), serverPod("b", ""))
	pods := r.running("default", "", 2)
	r.talks(pods["a"], pods["b"])

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
	r.gone("default")
}

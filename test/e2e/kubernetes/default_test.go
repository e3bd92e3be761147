//go:build e2e

package kubernetes_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kuryr/kuryr/test/e2e/kubelab"
)

// TestSDNStaysOnItsNode checks on a real scheduler that the embedded SDN keeps its node when others
// join, and after an upgrade; and that it is refused in a new cluster of several nodes.
func TestSDNStaysOnItsNode(t *testing.T) {
	t.Parallel()
	r := start(t, "its nodes have no kubelet", kubelab.Options{})
	node := func(name string) {
		resources := corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("4Gi"),
			corev1.ResourcePods: resource.MustParse("10"),
		}
		n := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelOSStable: "linux"}},
			Status:     corev1.NodeStatus{Capacity: resources, Allocatable: resources},
		}
		_, err := r.Client.CoreV1().Nodes().Create(r.ctx, n, metav1.CreateOptions{})
		r.must(err)
	}
	// Without a kubelet only the test ends pods: those that it has seen, and those of another image.
	seen := map[types.UID]bool{}
	stays := func(when, image string) {
		r.Helper()
		r.until(func(ctx context.Context) error {
			pods := r.Client.CoreV1().Pods(system)
			list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=kuryr-sdn"})
			if err != nil {
				return err
			}
			for _, p := range list.Items {
				switch {
				case seen[p.UID] || p.DeletionTimestamp != nil || !strings.HasSuffix(p.Spec.Containers[0].Image, image):
					now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
					if err := client.IgnoreNotFound(pods.Delete(ctx, p.Name, now)); err != nil {
						return err
					}
				case p.Spec.NodeName == "":
				case p.Spec.NodeName != "a":
					r.Fatalf("%s: the SDN is on %s", when, p.Spec.NodeName)
				default:
					seen[p.UID] = true
					return nil
				}
			}
			return fmt.Errorf("%s: no new pod of the SDN with the image %s has a node", when, image)
		})
	}

	node("a")
	r.must(r.installHelm("image.tag=first"))
	stays("installed", ":first")
	node("b")
	stays("another node has joined", ":first")
	r.must(r.installHelm("image.tag=next"))
	stays("upgraded", ":next")

	r.must(r.Client.CoreV1().ConfigMaps(system).Delete(r.ctx, "kuryr", metav1.DeleteOptions{}))
	err := r.installHelm()
	if err == nil || !strings.Contains(err.Error(), "embedded serves one node, and the cluster has 2; use neutron") {
		t.Errorf("a new cluster of two nodes: error %v", err)
	}
}

//go:build e2e

package kubernetes_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kuryr/kuryr/test/e2e/kubelab"
)

// TestDefaultInstall checks the goal of an installation with no setting but the image, on one node
// of kubeadm without kube-proxy: within two minutes the node is ready, CoreDNS answers, and so does
// a Deployment behind a Service.
func TestDefaultInstall(t *testing.T) {
	t.Parallel()
	booted := func(ctx context.Context, n *kubelab.Node) error {
		// The node has the machine's /usr, where Kuryr must write nothing.
		if err := n.Exec(ctx, "mount", "-t", "tmpfs", "tmpfs", "/usr/libexec").Err(); err != nil {
			return err
		}
		return n.Exec(ctx, "cp", "/usr/lib/cni/loopback", filepath.Join(kubelab.PluginFolder, "loopback")).Err()
	}
	r := start(t, "Kuryr is installed in it", kubelab.Options{Nodes: 1, DNS: true, Kubeadm: true, Booted: booted})
	r.image(r.Nodes[0], "kuryr/kuryr:e2e")
	r.must(r.DeployDNS(r.ctx))
	kubeconfig, err := r.Kubeconfig(nil, "administrator", "system:masters")
	r.must(err)

	begin := time.Now()
	ctx, cancel := context.WithTimeout(r.ctx, 2*time.Minute)
	defer cancel()
	r.ctx = ctx
	r.must(r.Central.Exec(
		ctx, kuryr, "install", "kubernetes", "--apply", "--image", "kuryr/kuryr:e2e", "--kubeconfig", kubeconfig,
	).Err())
	labels := map[string]string{"app": "web"}
	web := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: serverSpec()},
	}}
	_, err = r.Client.AppsV1().Deployments("default").Create(ctx, web, metav1.CreateOptions{})
	r.must(err)
	service, err := r.Client.CoreV1().Services("default").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.ServiceSpec{
			Selector: labels, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(port)}},
		},
	}, metav1.CreateOptions{})
	r.must(err)
	r.must(r.WaitReady(ctx))
	r.create("default", serverPod("client", ""))
	r.running("default", "app=client", 1)
	r.must(r.WaitDNS(ctx))
	var pod string
	for name := range r.running("default", "app=web", 1) {
		pod = name
	}
	r.within(2*time.Minute, func(ctx context.Context) error {
		page, err := r.Exec(ctx, "default", "client", "timeout", "5", "wget", "-qO-", "http://web/")
		if err == nil && page != pod {
			err = fmt.Errorf("at the name web answers %q, not %s", page, pod)
		}
		return err
	})
	r.within(2*time.Minute, func(ctx context.Context) error {
		from := r.Nodes[0].Exec(ctx, "busybox", "timeout", "5", "wget", "-qO-", "http://"+service.Spec.ClusterIP+"/")
		if err := from.Err(); err != nil {
			return err
		}
		if page := from.Out(); page != pod {
			return fmt.Errorf("at the ClusterIP answers %q to the node, not %s", page, pod)
		}
		return nil
	})
	t.Logf("everything answers %s after the installation began", time.Since(begin).Round(10*time.Millisecond))
}

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

//go:build e2e

package kubernetes_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kuryr/kuryr/test/e2e/kubelab"
	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// The cluster itself, with the reference plugins: what the other tests take for granted.
// Where this one fails, it is not Kuryr.
func TestReferenceNetwork(t *testing.T) {
	const reason = "the reference plugins run in Kuryr's place, and a node reboots"
	r := start(t, reason, kubelab.Options{Nodes: 2, Booted: kubelab.ReferenceNetwork})
	begin := time.Now()
	r.must(r.WaitReady(r.ctx))
	t.Logf("the nodes are ready %s later", time.Since(begin).Round(10*time.Millisecond))
	before := r.look()

	begin = time.Now()
	r.create("default", serverPod("a", "node1"), serverPod("b", "node2"))
	pods := r.running("default", "", 2)
	t.Logf("two pods are ready after %s", time.Since(begin).Round(10*time.Millisecond))
	a, b := pods["a"], pods["b"]
	r.talks(a, b)
	r.talks(b, a)
	r.streams(a)
	r.daemons(a, b)
	r.containerDies(b)
	r.nodeReboots(a, b)
	r.apiAway(a)
	r.gone("default")
	if left := r.left(before, privatehost.Namespaces); len(left) > 0 {
		t.Errorf("left when all pods have gone:\n%s", strings.Join(left, "\n"))
	}
}

// streams are those of a pod by the API server: its log and connections to its port.
func (r *rig) streams(p corev1.Pod) {
	r.Helper()
	log, err := r.PodLog(r.ctx, p.Namespace, p.Name)
	if err != nil || strings.TrimSpace(log) != "serves as "+p.Name {
		r.Errorf("log %q, %v", log, err)
	}
	address, stop, err := r.Forward(r.ctx, p.Namespace, p.Name, port)
	r.must(err)
	defer stop()
	answer, err := http.Get("http://" + address + "/")
	r.must(err)
	defer answer.Body.Close()
	if page, err := io.ReadAll(answer.Body); err != nil || strings.TrimSpace(string(page)) != p.Name {
		r.Errorf("forwarded: %q, %v", page, err)
	}
	if _, err := r.Exec(r.ctx, p.Namespace, p.Name, "false"); err == nil {
		r.Error("a command that fails is said to have succeeded")
	}
}

// daemons kills a node's kubelet and containerd: the pods go on, and the node runs new ones when they are back.
func (r *rig) daemons(a, b corev1.Pod) {
	r.Helper()
	n := r.Nodes[0]
	r.must(n.StopKubelet(syscall.SIGKILL))
	r.must(n.StopContainerd(syscall.SIGKILL))
	r.talks(b, a)
	r.must(n.StartContainerd(r.ctx))
	r.must(n.StartKubelet(r.ctx))
	r.create("default", serverPod("later", n.Name))
	r.talks(r.running("default", "app=later", 1)["later"], b)
	r.must(r.Client.CoreV1().Pods("default").Delete(r.ctx, "later", metav1.DeleteOptions{}))
}

// containerDies ends a pod's process: it starts again within the pod, which keeps its address.
func (r *rig) containerDies(p corev1.Pod) {
	r.Helper()
	_, err := r.Exec(r.ctx, p.Namespace, p.Name, "killall", "httpd")
	r.must(err)
	r.again(p, func(now corev1.Pod) error {
		if now.Status.PodIP != p.Status.PodIP {
			return fmt.Errorf("its address is %s, it was %s", now.Status.PodIP, p.Status.PodIP)
		}
		return nil
	})
}

// again waits until a pod's container has started once more than it had, and is ready, without complaint.
func (r *rig) again(p corev1.Pod, complaint func(corev1.Pod) error) corev1.Pod {
	r.Helper()
	var now corev1.Pod
	options := metav1.ListOptions{FieldSelector: "metadata.name=" + p.Name}
	r.must(kubelab.Until(r.ctx, r.Client.CoreV1().Pods(p.Namespace), options, func(list *corev1.PodList) error {
		if len(list.Items) != 1 || list.Items[0].UID != p.UID {
			return errors.New("the pod has gone")
		}
		now = list.Items[0]
		if !ready(now) || now.Status.ContainerStatuses[0].RestartCount <= p.Status.ContainerStatuses[0].RestartCount {
			return fmt.Errorf("pod %s did not start again: %s", p.Name, waiting(now))
		}
		return complaint(now)
	}))
	return now
}

// nodeReboots loses a node at once and boots it: its pods run again, with new sandboxes.
func (r *rig) nodeReboots(on, other corev1.Pod) {
	r.Helper()
	i := slices.IndexFunc(r.Nodes, func(n *kubelab.Node) bool { return n.Name == on.Spec.NodeName })
	begin := time.Now()
	r.must(r.Nodes[i].Reboot(r.ctx))
	now := r.again(on, func(corev1.Pod) error { return nil })
	r.Logf("the pod of a node that rebooted is ready after %s", time.Since(begin).Round(10*time.Millisecond))
	r.talks(now, other)
	r.talks(other, now)
}

// apiAway stops the API server and freezes it: a request fails in its time, and all goes on afterwards.
func (r *rig) apiAway(p corev1.Pod) {
	r.Helper()
	r.must(r.StopAPIServer(syscall.SIGTERM))
	r.refused("stopped")
	r.must(r.StartAPIServer(r.ctx))
	r.must(r.FreezeAPIServer())
	r.refused("frozen")
	r.must(r.ThawAPIServer())
	r.create(p.Namespace, serverPod("after", p.Spec.NodeName))
	r.running(p.Namespace, "app=after", 1)
}

func (r *rig) refused(how string) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.ctx, time.Second)
	defer cancel()
	if _, err := r.Client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{}); err == nil {
		r.Errorf("an API server that is %s answers", how)
	}
}

// look is what there is on each node.
func (r *rig) look() (all []privatehost.Snapshot) {
	r.Helper()
	for _, n := range r.Nodes {
		s, err := n.Snapshot(r.ctx)
		r.must(err)
		all = append(all, s)
	}
	return all
}

// left is the difference on every node since before. What the kernel and containerd give
// back a little later is waited for.
func (r *rig) left(before []privatehost.Snapshot, sections ...string) (diff []string) {
	r.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		diff = nil
		for i, now := range r.look() {
			for _, line := range before[i].Diff(now, sections...) {
				diff = append(diff, r.Nodes[i].Name+": "+line)
			}
		}
		if len(diff) == 0 || time.Now().After(deadline) {
			return diff
		}
	}
}

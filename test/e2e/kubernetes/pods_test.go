//go:build e2e

package kubernetes_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Pods of two namespaces have a port each, reach one another and their node, and are reached by
// the API server's streams. A container that dies and pods that come and go change nothing of it.
func TestPods(t *testing.T) {
	w := shareNode(t)
	begin := time.Now()
	w.namespace("blue")
	w.create("default", probed(serverPod("a", "")), serverPod("b", ""))
	w.create("blue", probed(serverPod("c", "")))
	pods, other := w.running("default", "", 2), w.running("blue", "", 1)["c"]
	t.Logf("the pods of two namespaces are ready after %s", time.Since(begin).Round(10*time.Millisecond))
	a, b := pods["a"], pods["b"]
	network := func(p corev1.Pod) string {
		return strings.Join(strings.Split(p.Status.PodIP, ".")[:2], ".")
	}
	if a.Status.PodIP == b.Status.PodIP || !strings.HasPrefix(a.Status.PodIP, "10.") || network(a) == network(other) {
		t.Errorf("%s and %s of one namespace, %s of another", a.Status.PodIP, b.Status.PodIP, other.Status.PodIP)
	}
	w.agree(3)
	w.statuses(3)
	w.talks(a, b)
	w.talks(b, a)
	w.talks(a, other)
	w.talks(other, b)
	w.reach(a)
	w.tells(3)
	w.streams(a)
	w.containerDies(b)
	w.scale(10, func(more int) { w.agree(3 + more) })

	w.gone("default")
	w.gone("blue")
	w.must(w.Client.CoreV1().Namespaces().Delete(w.ctx, "blue", metav1.DeleteOptions{}))
	w.forgotten("blue")
	w.agree(0)
}

// A NetworkPolicy is not enforced yet: an Event says so, and the pods that it selects are reached.
func TestNetworkPolicy(t *testing.T) {
	w := shareNode(t)
	policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "deny"}}
	w.must(w.api.Create(w.ctx, policy))
	t.Cleanup(func() { _ = w.api.Delete(context.WithoutCancel(w.ctx), policy) })
	w.create("default", serverPod("a", ""), serverPod("b", ""))
	pods := w.running("default", "", 2)
	w.until(func(ctx context.Context) error {
		events, err := w.Client.EventsV1().Events("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.Regarding.UID == policy.UID && strings.Contains(e.Note, "does not enforce network policies") {
				return nil
			}
		}
		return fmt.Errorf("none of %d Events says that the policy is not enforced", len(events.Items))
	})
	w.talks(pods["a"], pods["b"])
}

//go:build e2e

package kubernetes_test

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kuryrv1 "github.com/kuryr/kuryr/kube/api/v1"
)

// A pod has the address and the MAC that it wishes where its namespace is granted them,
// again and again under the same name, as a StatefulSet's; where it is not, it is told so
// and others go on.
func TestWishes(t *testing.T) {
	w := shareNode(t)
	w.must(w.api.Create(w.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: "granted", Annotations: map[string]string{
			kuryrv1.AnnotationAllowAddresses: "any", kuryrv1.AnnotationAllowMAC: "true",
			kuryrv1.AnnotationAllowFloatingIPs: "new",
		},
	}}))
	w.must(w.WaitAccount(w.ctx, "granted"))
	w.create("granted", serverPod("plain", ""))
	plain := w.running("granted", "", 1)["plain"]
	at, err := netip.ParseAddr(plain.Status.PodIP)
	w.must(err)
	four := at.As4()
	four[2], four[3] = 7, 7
	address := netip.AddrFrom4(four).String()
	const mac = "fa:16:3e:00:07:07"
	wishes := map[string]string{kuryrv1.AnnotationAddress: address, kuryrv1.AnnotationMAC: mac}

	for round := range 2 {
		fixed := serverPod("fixed", "")
		fixed.Annotations = wishes
		w.create("granted", fixed)
		is := w.running("granted", "app=fixed", 1)["fixed"]
		has, err := w.Exec(w.ctx, "granted", "fixed", "cat", "/sys/class/net/eth0/address")
		if is.Status.PodIP != address || strings.TrimSpace(has) != mac || err != nil {
			t.Errorf("round %d: address %s, MAC %s, %v; want %s, %s", round, is.Status.PodIP, has, err, address, mac)
		}
		w.talks(plain, is)
		w.talks(is, plain)
		w.agree(2)
		w.must(w.Client.CoreV1().Pods("granted").Delete(w.ctx, "fixed", metav1.DeleteOptions{}))
		w.absent("granted", "fixed")
	}

	w.floats()

	greedy := serverPod("greedy", "")
	greedy.Annotations = wishes
	w.create("default", greedy, serverPod("modest", ""))
	w.running("default", "app=modest", 1)
	w.until(func(ctx context.Context) error {
		events, err := w.Client.EventsV1().Events("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.Regarding.Name == "greedy" && strings.Contains(e.Note, kuryrv1.AnnotationAllowAddresses) {
				return nil
			}
		}
		return fmt.Errorf("no Event says what the pod is refused: %d Events", len(events.Items))
	})
	begin := time.Now()
	w.gone("default")
	if took := time.Since(begin); took > 30*time.Second { // what a runtime's call may take is twice that
		t.Errorf("a pod that waits for a port that never comes goes %s after it is deleted", took)
	}
	w.gone("granted")
	w.agree(0)
	w.until(func(ctx context.Context) error {
		var ports kuryrv1.KuryrPortList
		if err := w.api.List(ctx, &ports); err != nil {
			return err
		}
		for _, p := range ports.Items {
			if p.Spec.Dedicated != "" {
				return fmt.Errorf("the port %s made for one pod is left: %s", p.Name, p.Labels[kuryrv1.LabelPortStatus])
			}
		}
		return nil
	})
}

// floats checks that a pod with a floating IP answers there, and that the address goes with it.
func (w *whole) floats() {
	w.Helper()
	p := serverPod("floating", "")
	p.Annotations = map[string]string{kuryrv1.AnnotationFloatingIP: "new"}
	w.create("granted", p)
	is := w.running("granted", "app=floating", 1)["floating"]
	address := ""
	w.until(func(ctx context.Context) error {
		var ports kuryrv1.KuryrPortList
		if err := w.api.List(ctx, &ports); err != nil {
			return err
		}
		for _, p := range ports.Items {
			if p.Spec.Dedicated == is.UID {
				address = p.Annotations[kuryrv1.AnnotationFloatingAddress]
			}
		}
		if address == "" {
			return fmt.Errorf("the pod has no floating IP yet")
		}
		return nil
	})
	url := fmt.Sprintf("http://%s:%d/", address, port)
	w.until(func(ctx context.Context) error {
		if said := w.node.Exec(ctx, "curl", "-s", "-m", "5", url); strings.TrimSpace(said.Stdout) != is.Name {
			return fmt.Errorf("at the floating IP %s: %s", address, said)
		}
		return nil
	})
	w.must(w.Client.CoreV1().Pods("granted").Delete(w.ctx, "floating", metav1.DeleteOptions{}))
	w.absent("granted", "floating")
	w.until(func(ctx context.Context) error {
		var there struct{ FloatingIPs []struct{ ID string } }
		if err := w.node.sdn(ctx, http.MethodGet, "floatingips", nil, &there); err != nil {
			return err
		}
		if n := len(there.FloatingIPs); n > 0 {
			return fmt.Errorf("%d floating IPs are left", n)
		}
		return nil
	})
}

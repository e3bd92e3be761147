//go:build e2e

package kubernetes_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kuryr/kuryr/test/e2e/kubelab"
	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// Pods' ranges of the two families.
const (
	podRange  = "10.128.0.0/9"
	podRange6 = "fd00:10::/48"
)

// hostPod is a server pod on its node's own network.
func hostPod(name string) *corev1.Pod {
	p := serverPod(name, "")
	p.Spec.HostNetwork = true
	return p
}

// In a cluster of both families a pod has an address of each, in the order of the
// cluster's, and talks by both: with pods of its namespace and of another, with the node
// and pods on its network, in both directions, and with what is outside; the same in a
// cluster of IPv6 alone. The kubelet probes pods at their first address.
func TestFamilies(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		families kubelab.Families
		settings []string
		ranges   []string
		outside  []netip.Prefix
	}{
		"dual stack": {
			kubelab.DualStack, []string{
				"--controller-pod-ranges", podRange + "," + podRange6,
				"--controller-service-ranges", kubelab.ServiceRange + "," + kubelab.ServiceRange6,
			},
			[]string{podRange, podRange6}, []netip.Prefix{privatehost.NeighbourIPv4, privatehost.NeighbourIPv6},
		},
		"IPv6 alone": {
			kubelab.IPv6, []string{"--controller-pod-ranges", podRange6, "--controller-service-ranges", kubelab.ServiceRange6},
			[]string{podRange6}, []netip.Prefix{privatehost.NeighbourIPv6},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := startFamilies(t, "the families differ, and the node reboots", c.families, c.settings...)
			w.namespace("blue")
			w.create("default", probed(serverPod("a", "")), serverPod("b", ""), probed(hostPod("host")))
			w.create("blue", probed(serverPod("c", "")))
			pods, other := w.running("default", "", 3), w.running("blue", "", 1)["c"]
			a, b, host := pods["a"], pods["b"], pods["host"]
			for _, p := range []corev1.Pod{a, b, other} {
				ips := addresses(p)
				if len(ips) != len(c.ranges) {
					t.Fatalf("pod %s has the addresses %v, not of each of %v", p.Name, ips, c.ranges)
				}
				for i, text := range c.ranges {
					if at, err := netip.ParseAddr(ips[i]); err != nil || !netip.MustParsePrefix(text).Contains(at) {
						t.Errorf("pod %s has the address %s, not of %s: %v", p.Name, ips[i], text, err)
					}
				}
			}
			if len(addresses(host)) != len(c.ranges) {
				t.Errorf("the pod on the node's network has %v", addresses(host))
			}
			w.agree(3)
			w.talks(a, b)
			w.talks(b, a)
			w.talks(a, other)
			w.talks(other, a)
			w.hostTalks(host, a)
			w.fromNode(a)
			for _, to := range c.outside {
				if _, err := w.Exec(w.ctx, "default", "a", "ping", "-c1", "-W10", to.Addr().String()); err != nil {
					t.Errorf("outside: %v", err)
				}
			}
			if said, err := w.Exec(
				w.ctx, "default", "a", "ip", "-o", "addr", "show", "dev", "eth0",
			); err != nil || strings.Contains(said, "tentative") {
				t.Errorf("the pod's interface: %s, %v", said, err)
			}

			// A reboot of the node, which has nothing of the kernel left.
			w.must(w.node.Reboot(w.ctx))
			same := func(p corev1.Pod) error { return nil }
			a, b = w.again(a, same), w.again(b, same)
			w.talks(a, b)
			w.fromNode(b)
			w.gone("default")
			w.gone("blue")
			w.agree(0)
		})
	}
}

// hostTalks checks that a pod on the node's network and one that has a port reach each
// other; the page of the first is the node's name.
func (w *whole) hostTalks(host, p corev1.Pod) {
	w.Helper()
	w.talks(host, p)
	for _, address := range addresses(host) {
		w.until(func(ctx context.Context) error { // it may not listen yet
			page, err := w.Exec(ctx, p.Namespace, p.Name, "timeout", "5", "wget", "-qO-", pageAt(address))
			if err != nil || page != w.node.Name {
				return fmt.Errorf("%s reaches the pod on the node's network at %s: %q, %w", p.Name, address, page, err)
			}
			return nil
		})
	}
}

//go:build e2e

package kubernetes_test

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kuryr/kuryr/test/e2e/kubelab"
)

// Nodes' ranges of the two families.
const (
	nodeRange  = "10.112.0.0/16"
	nodeRange6 = "fd00:112::/64"
)

// In a cluster of both families on Neutron, and in one of IPv6 alone, pods of two nodes
// and of two namespaces have an address of each family and talk by each, nodes and
// kubelets reach them, and a node's reboot changes nothing of that.
func TestNeutronFamilies(t *testing.T) {
	for _, c := range []struct {
		name     string
		families kubelab.Families
		settings []string
		ranges   []string
	}{
		{
			"dual stack", kubelab.DualStack,
			[]string{
				"--controller-pod-ranges", podRange + "," + podRange6,
				"--controller-service-ranges", kubelab.ServiceRange + "," + kubelab.ServiceRange6,
				"--controller-node-ranges", nodeRange + "," + nodeRange6,
			},
			[]string{podRange, podRange6},
		},
		{
			"IPv6 alone", kubelab.IPv6,
			[]string{
				"--controller-pod-ranges", podRange6, "--controller-service-ranges",
				kubelab.ServiceRange6, "--controller-node-ranges", nodeRange6,
			},
			[]string{podRange6},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			const reason = "the families differ, and a node reboots"
			s := startStack(t, reason, kubelab.Options{Nodes: 2, Families: c.families}, nil, c.settings...)
			s.namespace("blue", nil)
			s.create("default", probed(serverPod("a", "node1")), serverPod("b", "node2"))
			s.create("blue", probed(serverPod("c", "node2")))
			pods, other := s.running("default", "", 2), s.running("blue", "", 1)["c"]
			a, b := pods["a"], pods["b"]
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
			s.agree(3)
			s.talks(a, b)
			s.talks(b, a)
			s.talks(a, other)
			s.talks(other, a)
			s.fromNodes(a, b, other)
			if said, err := s.Exec(
				s.ctx, "default", "a", "ip", "-o", "addr", "show", "dev", "eth0",
			); err != nil || strings.Contains(said, "tentative") {
				t.Errorf("the pod's interface: %s, %v", said, err)
			}

			s.must(s.Nodes[0].Reboot(s.ctx))
			a = s.again(a, func(corev1.Pod) error { return nil })
			s.talks(a, b)
			s.talks(other, a)
			s.fromNodes(a, b)

			s.must(s.Client.CoreV1().Namespaces().Delete(s.ctx, "blue", metav1.DeleteOptions{}))
			s.gone("default")
			s.forgotten("blue")
			s.agree(0)
		})
	}
}

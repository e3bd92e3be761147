package raven

import (
	"testing"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// says has a node say that one of its ports is a pod's, as its token lets it.
func (c *cluster) says(port *v1.KuryrPort, pod *corev1.Pod, namespace string) {
	c.t.Helper()
	port.Status.Pod = &v1.PortPod{Namespace: namespace, Name: pod.Name, UID: pod.UID, Container: "c", Interface: "eth0", Since: metav1.NewTime(c.now)}
	port.Status.PortStatus = v1.PortBound
	c.must(c.api.Status().Update(c.t.Context(), port))
}

// portWith is a port of a node: the one that the pod has, or for "" one that none has.
func (c *cluster) portWith(node, pod string) *v1.KuryrPort {
	c.t.Helper()
	for _, p := range c.ports() {
		if p.Spec.Node == node && (p.Status.Pod == nil && pod == "" || p.Status.Pod != nil && p.Status.Pod.Name == pod) {
			return &p
		}
	}
	c.t.Fatalf("%s has no port with pod %q", node, pod)
	return nil
}

// What a node says of another node's pod counts for nothing: that pod has its port.
func TestNodeClaimsAnothersPod(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.addNode("n1", nil)
	c.addNode("n2", nil)
	c.namespace("blue", map[string]string{v1.AnnotationAllowMAC: "true"})
	c.pod("blue", "any", "n1", nil)
	c.settle()
	victim := c.pod("blue", "victim", "n2", map[string]string{v1.AnnotationMAC: "fa:16:3e:00:00:01"})
	c.says(c.portWith("n1", ""), victim, "blue")
	for range 6 {
		c.round()
		c.now = c.now.Add(core.CountsInterval)
	}
	for _, p := range c.ports() {
		if p.Spec.Dedicated == victim.UID {
			return
		}
	}
	t.Errorf("no port is made for it: %q", c.events.all)
}

// A node does not choose the groups of its ports by naming another namespace that is on the same network.
func TestNodeNamesAnothersNamespace(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.addNode("n1", nil)
	shared := string(c.existing("shared", "10.9.0.0/24"))
	poor, rich := c.group("poor"), c.group("rich")
	c.namespace("poor", map[string]string{v1.AnnotationNetwork: shared, v1.AnnotationSecurityGroups: poor})
	c.namespace("rich", map[string]string{v1.AnnotationNetwork: shared, v1.AnnotationSecurityGroups: rich})
	pod := c.pod("poor", "p", "n1", nil)
	c.pod("rich", "r", "n1", nil)
	c.settle()
	c.grouped("p", poor)
	c.says(c.portWith("n1", "p"), pod, "rich")
	c.settle()
	c.grouped("p", poor)
}

// A node's address in a range of the cluster's, which any kubelet may tell, does not keep Raven from its start. It is told when Raven looks at nodes.
func TestNodeWithAnAddressOfTheCluster(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.addNode("n1", nil)
	c.must(c.api.Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "liar", UID: c.uid()},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.96.0.1"}}},
	}))
	if err := c.begin(); err != nil {
		t.Fatalf("Raven does not start: %v", err)
	}
	if err := c.raven.nodeCollides(c.node("liar")); err == nil {
		t.Error("nobody is told")
	}
	c.pod("default", "p", "n1", nil)
	c.settle()
	c.check()
	if c.bound()["p"] == "" {
		t.Error("other nodes' pods have no ports")
	}
}

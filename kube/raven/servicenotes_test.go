package raven

import (
	"slices"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
)

// manyHosts is the SDN as one of many machines.
type manyHosts struct{ sdn.Provider }

func (p manyHosts) Capabilities() sdn.Capabilities {
	can := p.Provider.Capabilities()
	can.HostReached = false
	return can
}

// What a Service's owner is told that the SDN does not do is one Event for each change of it, and none for each look.
func TestOwnersAreToldOfNearnessOnce(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	c.sdn = manyHosts{c.sdn}
	c.start()
	told := func() (n int) {
		for _, line := range c.events.all {
			if strings.HasPrefix(line, "web "+core.EventUnserved+"/LoadBalancer spec.internalTrafficPolicy: Local: ") {
				n++
			}
		}
		return n
	}
	policy := func(p corev1.ServiceInternalTrafficPolicy) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = &p }
	}
	c.service("web", policy(corev1.ServiceInternalTrafficPolicyLocal), "10.96.0.10")
	c.settle()
	c.slice("web-1", "web", 8080, "10.128.0.5")
	c.change("web", func(s *corev1.Service) { s.Labels = map[string]string{"seen": "yes"} })
	c.settle()
	if n := told(); n != 1 {
		t.Fatalf("it is told %d times: %q", n, c.events.all)
	}
	c.change("web", policy(corev1.ServiceInternalTrafficPolicyCluster))
	c.settle()
	c.change("web", policy(corev1.ServiceInternalTrafficPolicyLocal))
	c.settle()
	if n := told(); n != 2 {
		t.Errorf("changed there and back it is told %d times: %q", n, c.events.all)
	}
	if !slices.Contains(c.balancers(), "10.96.0.10: 6:80>10.128.0.5:8080") {
		t.Errorf("it is not served: %q", c.balancers())
	}
}

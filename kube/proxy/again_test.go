package proxy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// What one Service fails at has that one tried again, and none of those that came with it.
func TestOneFailsAlone(t *testing.T) {
	t.Parallel()
	c := newCluster(t, Rules{})
	c.health.listen = func(uint16) (net.Listener, error) { return nil, errors.New("address already in use") }
	for i := range 100 {
		c.index.setService(named(fmt.Sprintf("s%d", i), 0, func(s *corev1.Service) { s.Spec.Ports[0].NodePort = int32(30100 + i) }))
	}
	c.index.setService(named("bad", 0, outerLocal, func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Spec.Ports[0].NodePort, s.Spec.HealthCheckNodePort = 30999, 32000
	}))
	for i := range 3 {
		if err := c.step(t.Context()); err == nil {
			t.Fatal("a port that is taken is no failure")
		}
		if _, bad := c.index.dirty[types.NamespacedName{Namespace: "ns", Name: "bad"}]; !bad || len(c.index.dirty) != 1 {
			t.Errorf("step %d: %d Services are to be looked at again, want the one that failed", i, len(c.index.dirty))
		}
	}
}

// An external address is the oldest Service's, also where the one that had it is made again, and so is the youngest.
func TestMadeAgainLosesTheAddress(t *testing.T) {
	t.Parallel()
	claim := func(s *corev1.Service) {
		s.Spec.Ports[0].NodePort, s.Spec.ExternalIPs = 0, []string{"198.51.100.7"}
	}
	c := newCluster(t, Rules{ExternalIPs: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}})
	c.index.setService(named("a", 3, claim))
	c.index.setService(named("b", 2, claim))
	must(t, c.step(t.Context()))
	owner := func(want string) {
		t.Helper()
		for k, name := range c.index.owner {
			if name.Name != want {
				t.Errorf("%s is the Service %s's, want %s", k, name.Name, want)
			}
		}
	}
	owner("a")
	c.index.dropService(types.NamespacedName{Namespace: "ns", Name: "a"})
	again := named("a", 1, claim)
	again.UID = "another"
	c.index.setService(again)
	must(t, c.step(t.Context()))
	owner("b")
}

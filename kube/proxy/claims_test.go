package proxy

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// atIngress makes a Service of type LoadBalancer with these addresses in its status.
func atIngress(ips ...string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeLoadBalancer, 0
		for _, ip := range ips {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
		}
	}
}

// The ClusterIP of a Service is no other's, however that asks for it and however old it is.
func TestClusterIPsAreTheirServices(t *testing.T) {
	const victim = "10.96.0.53"
	own := func(s *corev1.Service) {
		s.Spec.Type, s.Spec.ClusterIP, s.Spec.ClusterIPs = corev1.ServiceTypeClusterIP, victim, []string{victim}
		s.Spec.Ports[0].NodePort = 0
	}
	for name, row := range map[string]struct {
		claim, victim func(*corev1.Service)
		rules         Rules
	}{
		"status": {claim: atIngress(victim, "203.0.113.7"), victim: own},
		"externalIPs": {
			claim: func(s *corev1.Service) {
				s.Spec.Ports[0].NodePort, s.Spec.ExternalIPs = 0, []string{victim, "203.0.113.7"}
			},
			victim: own, rules: Rules{ExternalIPs: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}},
		},
		"another proxy's": {
			claim:  atIngress(victim, "203.0.113.7"),
			victim: func(s *corev1.Service) { own(s); s.Labels = map[string]string{labelProxyName: "x"} },
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, row.rules, named("web", 9, row.claim), sliceOf("a", "10.128.0.5 n1"))
			c.run()
			both := []string{"tcp 10.96.0.53:80 -> 10.128.0.5:8080", "tcp 203.0.113.7:80 -> 10.128.0.5:8080"}
			c.becomes(both...)
			c.create(named("dns", 0, row.victim))
			c.becomes(both[1])
			c.until("it is told of", func() bool {
				const want = "Service ns/web: address 10.96.0.53: it is the ClusterIP of the Service ns/dns"
				return slices.Equal(c.Problems(), []string{want})
			})
			must(t, c.api.Delete(t.Context(), named("dns", 0)))
			c.becomes(both...)
			c.until("it is not told of any more", func() bool { return len(c.Problems()) == 0 })
			must(t, c.api.Delete(t.Context(), named("web", 9)))
			c.becomes("")
			c.until("nothing is left", func() bool {
				c.mu.Lock()
				defer c.mu.Unlock()
				return len(c.index.claims)+len(c.index.clusterIPs)+len(c.index.addresses) == 0
			})
		})
	}
}

// A Service whose ClusterIP is balanced by nodes keeps it from an older one that asks for it.
func TestClusterIPsOfNodes(t *testing.T) {
	c := newCluster(t, Rules{ClusterIPs: true}, named("old", 9, atIngress("10.96.0.10"), func(s *corev1.Service) {
		s.Spec.ClusterIP, s.Spec.ClusterIPs = "10.96.0.9", []string{"10.96.0.9"}
	}), named("web", 0, func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 0 }), sliceOf("a", "10.128.0.5 n1"))
	c.run()
	c.becomes("tcp 10.96.0.10:80 -> 10.128.0.5:8080", "tcp 10.96.0.9:80 -> reject")
}

// Where ranges are set, no load balancer's address is of another.
func TestLoadBalancerRanges(t *testing.T) {
	rules := Rules{LoadBalancerIPs: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}}
	c := newCluster(t, rules, of(atIngress("198.51.100.7", "192.0.2.1", "10.96.0.10")), sliceOf("a", "10.128.0.5 n1"))
	c.run()
	c.becomes("tcp 198.51.100.7:80 -> 10.128.0.5:8080")
	const want = "Service ns/web: load balancer address 192.0.2.1: not of the ranges that are allowed"
	c.until("it is told of", func() bool { return slices.Equal(c.Problems(), []string{want}) })
}

// One client has a share of the connections to health checks, and keeps no other client out.
func TestHealthConnectionsAreBounded(t *testing.T) {
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		return l
	}
	ofService, ofNode := listen(), listen()
	h := newHealth(nil, func(types.NamespacedName) bool { return true },
		func(uint16) (net.Listener, error) { return ofService, nil }, slog.New(slog.DiscardHandler))
	t.Cleanup(h.close)
	must(t, h.set(types.NamespacedName{Namespace: "ns", Name: "web"}, 31000, 1))
	c := newCluster(t, Rules{})
	c.HealthListen = ofNode.Addr().String()
	must(t, ofNode.Close())
	c.run()
	c.until("the node's health is served", func() bool {
		conn, err := net.Dial("tcp", c.HealthListen)
		if err == nil {
			must(t, conn.Close())
		}
		return err == nil
	})
	addresses := map[string]string{"a Service's": ofService.Addr().String(), "the node's": c.HealthListen}
	for name, address := range addresses {
		first, err := net.Dial("tcp", address)
		must(t, err)
		for range 200 {
			conn, err := net.Dial("tcp", address)
			must(t, err)
			t.Cleanup(func() { _ = conn.Close() })
		}
		must(t, first.SetReadDeadline(time.Now().Add(healthTimeout/2)))
		if _, err := first.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("%s: the first of 201 connections without a request is still there: %v", name, err)
		}
		must(t, first.Close())
	}
}

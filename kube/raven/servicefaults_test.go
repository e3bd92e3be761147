package raven

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// openBalancers are an SDN's that cannot restrict who connects, and refuse to be asked for that.
type openBalancers struct{ sdn.Provider }

func (p openBalancers) Capabilities() sdn.Capabilities {
	can := p.Provider.Capabilities()
	can.LoadBalancer.SourceRanges = false
	return can
}

func (p openBalancers) ApplyLoadBalancer(ctx context.Context, s sdn.LoadBalancerSpec) (sdn.LoadBalancer, error) {
	for _, l := range s.Listeners {
		if len(l.Sources) > 0 {
			return sdn.LoadBalancer{}, sdn.Unsupported("load balancer", "everybody may connect")
		}
	}
	return p.Provider.ApplyLoadBalancer(ctx, s)
}

// Where the SDN cannot restrict who connects, a Service with source ranges has no floating IP, and its ClusterIP all the same.
func TestSourcesThatTheSDNCannot(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	c.sdn = openBalancers{c.sdn}
	c.start()
	c.service("web", func(s *corev1.Service) {
		exposedService(s)
		s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24"}
	}, "10.96.0.10")
	c.slice("web", "web", 80, "10.128.0.5")
	c.settle()
	c.wantBalancers("10.96.0.10: 6:80>10.128.0.5:80")
	if c.ingress("web") != "" || len(c.floats()) != 0 || !c.events.has("web "+core.EventUnserved, "loadBalancerSourceRanges") {
		t.Errorf("web says %q; floating IPs %v; Events %q", c.ingress("web"), c.floats(), c.events.all)
	}
}

// slowBalancers are at work on what they are asked for, for ever.
type slowBalancers struct{ sdn.Provider }

func (p slowBalancers) ApplyLoadBalancer(ctx context.Context, s sdn.LoadBalancerSpec) (sdn.LoadBalancer, error) {
	b, err := p.Provider.ApplyLoadBalancer(ctx, s)
	b.Status = sdn.LoadBalancerStatus{RetryAfter: 300 * time.Millisecond, Message: "at work"}
	return b, err
}

// A floating IP that cannot be had does not hold up the next step of the load balancer.
func TestNextStepBesideTheFloatingIP(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	c.sdn = slowBalancers{c.sdn}
	c.start()
	c.service("web", func(s *corev1.Service) {
		exposedService(s)
		s.Spec.LoadBalancerIP = "198.51.100.200" // is no address of the public network
	}, "10.96.0.10")
	c.rounds(3)
	again, err := balancers{c.raven}.Reconcile(t.Context(), core.Request("default", "web"))
	if err != nil || again.RequeueAfter != 300*time.Millisecond {
		t.Errorf("it is looked at again after %s, %v", again.RequeueAfter, err)
	}
}

// kept is the address of a floating IP that a Service has left behind.
func (c *cluster) kept() string {
	c.t.Helper()
	c.service("tmp", func(s *corev1.Service) {
		exposedService(s)
		s.Annotations = map[string]string{balancerPrefix + "keep-floatingip": "true"}
	}, "10.96.0.200")
	c.settle()
	address := c.ingress("tmp")
	c.remove(c.serviceNow("tmp"))
	c.settle()
	if to, there := c.floats()[address]; !there || to != "" {
		c.t.Fatalf("the floating IP %s was to be kept: %v", address, c.floats())
	}
	return address
}

// A Service that keeps its floating IP and asks for another address gets that.
func TestAnotherAddressThoughOneIsKept(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	c.service("web", func(s *corev1.Service) {
		exposedService(s)
		s.Annotations = map[string]string{balancerPrefix + "keep-floatingip": "true"}
	}, "10.96.0.10")
	c.settle()
	other := c.service("other", exposedService, "10.96.0.11")
	c.settle()
	free := c.ingress("other")
	c.remove(other)
	c.settle()
	c.change("web", func(s *corev1.Service) { s.Spec.LoadBalancerIP = free })
	c.settle()
	c.wholeServices()
	if c.ingress("web") != free {
		t.Errorf("web says %q, want %s; floating IPs %v, Events %q", c.ingress("web"), free, c.floats(), c.events.all)
	}
}

// A user's floating IP that somebody leads elsewhere is not told of any more.
func TestUsersAddressLedElsewhere(t *testing.T) {
	t.Parallel()
	c := newServing(t, func(cfg *Config) { cfg.Audit = time.Hour })
	at := c.kept()
	c.service("web", func(s *corev1.Service) {
		exposedService(s)
		s.Spec.LoadBalancerIP = at
	}, "10.96.0.10")
	c.service("other", nil, "10.96.0.12")
	c.settle()
	if c.ingress("web") != at {
		t.Fatalf("web says %q, want %s", c.ingress("web"), at)
	}
	for f, err := range c.sdn.FindFloatingIPs(t.Context(), sdn.FloatingIPQuery{}) {
		if c.must(err); f.Address.String() == at {
			_, err := c.sdn.UpdateFloatingIP(t.Context(), f.ID, sdn.FloatingIPPatch{Target: &sdn.Target{Port: sdn.ID(c.klb("other").Status.LoadBalancers[0].Port)}})
			c.must(err)
		}
	}
	c.now = c.now.Add(2 * time.Hour)
	c.rounds(5)
	if c.ingress("web") != "" || c.floats()[at] != "10.96.0.12" {
		t.Errorf("web says %q; floating IPs %v", c.ingress("web"), c.floats())
	}
}

// A user's floating IP moves to the VIP in the namespace with the setting.
func TestUsersAddressMovesToTheOwnVIP(t *testing.T) {
	t.Parallel()
	c := newPlacing(t, func(cfg *Config) { cfg.NamespaceVIPs = false })
	c.addNode("n1", nil)
	c.pod("default", "web", "n1", nil)
	at := c.kept()
	web := c.service("web", func(s *corev1.Service) {
		exposedService(s)
		s.Spec.LoadBalancerIP = at
	}, "10.96.0.10")
	c.settle()
	c.cfg.NamespaceVIPs = true
	c.start()
	c.settle()
	own := c.ownVIP(web)
	if own == nil || c.floats()[at] != own.VIPs[0].Addr.String() || c.ingress("web") != at {
		t.Errorf("own VIP %+v; floating IPs %v; web says %q", own, c.floats(), c.ingress("web"))
	}
}

// A port that pods have by name and sources that are restricted go together (K8 of kuryr-kubernetes).
func TestNamedPortWithSources(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	web := c.service("web", func(s *corev1.Service) {
		exposedService(s)
		s.Spec.Ports[0].TargetPort = intstr.FromString("http")
		s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24"}
	}, "10.96.0.10")
	c.slice("web-1", "web", 8080, "10.128.0.5")
	c.slice("web-2", "web", 9090, "10.128.0.6")
	c.settle()
	c.wantBalancers("10.96.0.10: 6:80>10.128.0.5:8080,10.128.0.6:9090")
	key := c.raven.Key(v1.KeyKindLoadBalancer, v1.LoadBalancerKey(web.UID, false))
	lb, _, err := sdn.First(c.sdn.FindLoadBalancers(t.Context(), sdn.LoadBalancerQuery{Match: sdn.Match{Keys: []sdn.Key{key}}}))
	if c.must(err); !slices.Contains(lb.Listeners[0].Sources, netip.MustParsePrefix("192.0.2.0/24")) {
		t.Errorf("who may connect: %v", lb.Listeners[0].Sources)
	}
}

// An internal Service with source ranges that the SDN cannot keep, and that asks to share, has its ClusterIP all the same.
func TestInternalWithSourcesThatTheSDNCannot(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	c.sdn = openBalancers{c.sdn}
	c.start()
	c.service("web", func(s *corev1.Service) {
		sharing("0b1d4c7e-6f0a-4a3b-9c58-111111111111", 80)(s)
		s.Annotations[annotationInternal] = "true"
		s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24"}
	}, "10.96.0.10")
	c.slice("web", "web", 80, "10.128.0.5")
	c.settle()
	c.wantBalancers("10.96.0.10: 6:80>10.128.0.5:80")
}

// A Service that is made again under its name while the SDN is at work on the first one's load balancer is served when that has gone, and its owner is told what it waits for; others do not wait.
func TestNameOfAStuckLoadBalancer(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	stuck := map[string]error{}
	c.sdn = stuckLBs{c.sdn, stuck}
	c.start()
	c.service("web", nil, "10.96.0.10")
	c.settle()
	stuck["10.96.0.10"] = nil
	c.remove(c.serviceNow("web"))
	c.service("web", nil, "10.96.0.11")
	c.service("other", nil, "10.96.0.12")
	told := func() bool {
		return c.events.has("web "+core.EventUnserved, "the load balancer of the Service that had this name before has not gone yet: ")
	}
	for second := range 30 {
		c.round()
		if early := second < 8; early == told() && (early || second > 15) {
			t.Errorf("after %d seconds the owner was told: %v", second, told())
		}
		c.now = c.now.Add(time.Second)
	}
	c.wantBalancers("10.96.0.10: 6:80>", "10.96.0.12: 6:80>")
	clear(stuck)
	c.now = c.now.Add(lastRetry)
	c.settle()
	c.wantBalancers("10.96.0.11: 6:80>", "10.96.0.12: 6:80>")
	c.wholeServices()
}

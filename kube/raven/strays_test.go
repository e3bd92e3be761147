package raven

import (
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// torn has a Service go with its load balancer's object, which nobody may hold on to, while no Raven runs.
func (c *cluster) torn(name string) {
	c.t.Helper()
	lb := c.klb(name)
	lb.Finalizers = nil
	c.must(c.api.Update(c.t.Context(), lb))
	c.must(client.IgnoreNotFound(c.api.Delete(c.t.Context(), lb)))
	c.must(c.api.Delete(c.t.Context(), c.serviceNow(name)))
}

// A load balancer of this installation's that no object stands for any more goes with its floating IP; others stay, and the SDN is asked once at a start and once for an audit.
func TestStrayLoadBalancersGo(t *testing.T) {
	t.Parallel()
	c := newServing(t, func(cfg *Config) { cfg.Audit = time.Hour })
	c.settle()
	c.service("stays", exposedService, "10.96.0.10")
	c.service("torn", exposedService, "10.96.0.11")
	c.settle()
	ours, err := c.sdn.LoadBalancer(t.Context(), sdn.ID(c.klb("stays").Status.LoadBalancers[0].ID))
	c.must(err)
	theirs := sdn.LoadBalancerSpec{
		Base:      sdn.Base{Key: sdn.Key{Owner: "another", Kind: "kube-loadbalancer", Name: "u.v4"}, Name: "theirs"},
		VIPs:      []sdn.VIP{{Subnet: ours.VIPs[0].Subnet}},
		Listeners: []sdn.Listener{{Protocol: sdn.TCP, Port: 80}},
	}
	other, err := c.sdn.ApplyLoadBalancer(t.Context(), theirs)
	c.must(err)
	before := c.floats()
	c.torn("torn")
	asked := func() int { return c.faults.asked["FindLoadBalancers"] }
	c.start()
	was := asked()
	c.settle()
	c.wantBalancers("10.96.0.10: 6:80>")
	if after := c.floats(); len(before) != 2 || len(after) != 1 {
		t.Errorf("of the floating IPs %v are left %v", before, after)
	}
	if _, err := c.sdn.LoadBalancer(t.Context(), other.ID); err != nil {
		t.Errorf("another's load balancer: %v", err)
	}
	if n := asked() - was; n != 1 {
		t.Errorf("the SDN was asked for its load balancers %d times", n)
	}
	c.namespace("later", nil)
	c.settle()
	if n := asked() - was; n != 1 {
		t.Errorf("it was asked %d times, with another namespace", n)
	}

	c.service("torn", nil, "10.96.0.11")
	c.settle()
	c.torn("torn")
	c.settle()
	c.now = c.now.Add(2 * time.Hour)
	c.settle()
	c.wantBalancers("10.96.0.10: 6:80>")
	c.wholeServices()
}

// One whose Service is there has its object back, and is not made anew.
func TestServicesTornObjectComesBack(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	c.settle()
	c.service("web", func(s *corev1.Service) { exposedService(s) }, "10.96.0.10")
	c.settle()
	id := c.klb("web").Status.LoadBalancers[0].ID
	lb := c.klb("web")
	lb.Finalizers = nil
	c.must(c.api.Update(t.Context(), lb))
	c.must(client.IgnoreNotFound(c.api.Delete(t.Context(), lb)))
	c.start()
	c.settle()
	c.wholeServices()
	if now := c.klb("web").Status.LoadBalancers[0].ID; now != id {
		t.Errorf("the load balancer was %s and is %s", id, now)
	}
}

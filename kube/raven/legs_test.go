package raven

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// legged is a cluster with a Service that has a VIP of its own, and the subnets of both its VIPs.
func legged(t testing.TB) (c *cluster, subnets func() []sdn.ID) {
	t.Helper()
	c = newPlacing(t, func(cfg *Config) { cfg.Audit = time.Hour })
	c.addNode("n1", nil)
	c.pod("default", "web", "n1", nil)
	c.service("web", func(s *corev1.Service) {
		exposedService(s)
		s.Annotations = map[string]string{annotationInternal: "true"} // a leg that a floating IP needs stays
	}, "10.96.0.10")
	c.settle()
	c.served()
	return c, func() (all []sdn.ID) {
		for lb, err := range c.sdn.FindLoadBalancers(c.t.Context(), sdn.LoadBalancerQuery{}) {
			c.must(err)
			all = append(all, lb.VIPs[0].Subnet)
		}
		return all
	}
}

// led tells to how many of the subnets the router leads.
func (c *cluster) led(subnets []sdn.ID) (n int) {
	c.t.Helper()
	r, err := c.sdn.Router(c.t.Context(), c.raven.ground.Router)
	c.must(err)
	for _, leg := range r.Interfaces {
		if slices.Contains(subnets, leg.Subnet) {
			n++
		}
	}
	return n
}

// served checks that the Service has what its status says, and that the router leads there.
func (c *cluster) served() {
	c.t.Helper()
	lb := c.klb("web")
	var subnets []sdn.ID
	for _, of := range lb.Status.LoadBalancers {
		if b, err := c.sdn.LoadBalancer(c.t.Context(), sdn.ID(of.ID)); err != nil {
			c.t.Error(err)
		} else {
			subnets = append(subnets, b.VIPs[0].Subnet)
		}
	}
	if n := c.led(subnets); !core.IsReady(lb.Status.Conditions) || n != 2 || len(subnets) != 2 {
		c.t.Errorf("the router leads to %d of the subnets %v: %+v", n, subnets, lb.Status)
	}
}

// fell takes the router's legs on subnets away, as somebody may in the SDN.
func (c *cluster) fell(subnets []sdn.ID) {
	c.t.Helper()
	for _, s := range subnets {
		c.must(c.sdn.DetachSubnet(c.t.Context(), c.raven.ground.Router, s))
	}
}

// A leg of the router on a subnet of VIPs that somebody takes away is put back by the audit, which asks for the router once.
func TestLegsTakenAwayBehindRavensBack(t *testing.T) {
	t.Parallel()
	c, subnets := legged(t)
	of := subnets()
	looks, audit := func() int { return c.faults.asked["Router"] }, func() {
		c.now = c.now.Add(2 * time.Hour)
		c.settle()
	}
	if looks() != 0 {
		t.Errorf("at its start Raven asks for the router %d times", looks())
	}
	attached := c.faults.asked["AttachSubnet"]
	audit()
	c.namespace("later", nil)
	c.settle()
	if n := looks(); n != 1 || c.faults.asked["AttachSubnet"] != attached {
		t.Errorf("where nothing is wrong the router was asked for %d times, and legs %d times", n, c.faults.asked["AttachSubnet"]-attached)
	}
	for _, gone := range [][]sdn.ID{of[:1], of[1:], of} {
		c.fell(gone)
		audit()
		c.served()
	}
}

// A subnet of load balancers that has gone with its leg is made anew for who needs it; nothing is given a leg there.
func TestLegOfASubnetThatHasGone(t *testing.T) {
	t.Parallel()
	c, subnets := legged(t)
	of := subnets()
	for lb, err := range c.sdn.FindLoadBalancers(t.Context(), sdn.LoadBalancerQuery{}) {
		c.must(err)
		c.must(c.sdn.DeleteLoadBalancer(t.Context(), lb.ID))
	}
	c.fell(of)
	for _, s := range of {
		c.must(c.sdn.DeleteSubnet(t.Context(), s))
	}
	for range 2 {
		c.now = c.now.Add(2 * time.Hour)
		c.settle()
	}
	c.served()
	if slices.ContainsFunc(subnets(), func(s sdn.ID) bool { return slices.Contains(of, s) }) {
		t.Errorf("the subnets were %v and are %v", of, subnets())
	}
}

// While the legs on namespaces' subnets are put back the VIP network can be changed; those of a network that is going are not put back.
func TestLegsOfNamespacesHoldUpNothing(t *testing.T) {
	t.Parallel()
	c, _ := legged(t)
	own := slices.Collect(maps.Values(c.raven.lbSubnets.all()))
	c.fell(own)
	attached := 0
	c.faults.problem = func(method string) error {
		switch {
		case method == "AttachSubnet" && !c.raven.vips.making.TryLock():
			t.Error("nobody can change the VIP network")
		case method == "AttachSubnet":
			c.raven.vips.making.Unlock()
			attached++
		case method == "DetachSubnet" && len(c.raven.lbSubnets.all()) > 0:
			t.Error("an audit would put the leg back")
		}
		return nil
	}
	c.now = c.now.Add(2 * time.Hour)
	c.settle()
	c.served()
	if len(own) != 1 || attached != 1 {
		t.Errorf("of the subnets %v were attached %d", own, attached)
	}
	detached := c.faults.asked["DetachSubnet"]
	c.remove(c.serviceNow("web"))
	var web corev1.Pod
	c.must(c.api.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "web"}, &web))
	c.remove(&web)
	c.remove(c.networkOf("default"))
	c.settle()
	if c.faults.asked["DetachSubnet"] == detached {
		t.Error("the namespace's network has not gone")
	}
}

// Wherever Raven is killed, the legs are back in the end.
func TestKilledWhileLegsAreRestored(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		for at := 1; ; at++ {
			c, subnets := legged(t)
			c.fell(subnets())
			c.now = c.now.Add(2 * time.Hour)
			c.faults.writes, c.faults.kill, c.faults.lost = 0, at, lost
			c.settle()
			killed := c.faults.dead
			if at == 1 && !killed {
				t.Fatal("the audit writes nothing")
			}
			if killed { // else the audit alone has put them back, as a start does too
				c.start()
				c.settle()
			}
			if c.served(); t.Failed() {
				t.Fatalf("killed at write %d, lost %v", at, lost)
			}
			if !killed {
				break
			}
		}
	}
}

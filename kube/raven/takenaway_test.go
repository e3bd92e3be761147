package raven

import (
	"cmp"
	"context"
	"sync"
	"testing"

	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
)

// flavored has load balancers with flavors, which cannot be changed, and a flavor of its own for those of which none is said.
type flavored struct {
	sdn.Provider
	usual string
	mu    sync.Mutex
	of    map[sdn.ID]string
}

func (p *flavored) Capabilities() sdn.Capabilities {
	can := p.Provider.Capabilities()
	can.LoadBalancer.Zones = true
	return can
}

func (p *flavored) ApplyLoadBalancer(ctx context.Context, spec sdn.LoadBalancerSpec) (sdn.LoadBalancer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	flavor := spec.Flavor
	spec.Flavor = ""
	b, err := p.Provider.ApplyLoadBalancer(ctx, spec)
	if err != nil {
		return b, err
	}
	if _, there := p.of[b.ID]; !there {
		p.of[b.ID] = cmp.Or(flavor, p.usual)
	}
	if b.Flavor = p.of[b.ID]; flavor != "" && flavor != b.Flavor {
		return b, sdn.Conflict(sdn.Immutable, "load balancer", "flavor", "is %q", b.Flavor)
	}
	return b, nil
}

// An annotation that is taken away again leaves nothing behind: the SDN is asked once for what a Service without it has, and what cannot be changed is made anew, be it that Raven was
// away or that the SDN has a flavor of its own.
func TestAnnotationsTakenAway(t *testing.T) {
	for name, usual := range map[string]string{"without flavors": "", "with a flavor of its own": "usual"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			annotationsTakenAway(t, usual)
		})
	}
}

func annotationsTakenAway(t *testing.T, own string) {
	c := newServing(t, nil)
	flavors := &flavored{Provider: c.sdn, usual: own, of: map[sdn.ID]string{}}
	c.sdn = flavors
	c.start()
	is := func() (sdn.ID, sdn.Algorithm) {
		all, err := sdn.All(c.sdn.FindLoadBalancers(t.Context(), sdn.LoadBalancerQuery{Match: sdn.Match{Owner: c.sdn.Installation()}}))
		c.must(err)
		if len(all) != 1 {
			t.Fatalf("the SDN has %+v", all)
		}
		return all[0].ID, all[0].Listeners[0].Pool.Algorithm
	}
	c.service("web", annotated(), "10.96.0.10")
	c.settle()
	first, usual := is()
	for _, step := range []struct {
		annotations []string
		algorithm   sdn.Algorithm
		flavor      string
		asks        int
		anew        bool
	}{
		{[]string{"lb-method=SOURCE_IP"}, sdn.SourceIP, own, 1, false},
		{nil, usual, own, 1, false},
		{[]string{"flavor-id=large"}, usual, "large", 2, true},
		{[]string{"flavor-id=large", "lb-method=SOURCE_IP"}, sdn.SourceIP, "large", 1, false},
		{[]string{"flavor-id=large"}, usual, "large", 1, false},
		{nil, usual, own, 1, true},
		{[]string{"flavor-id=small"}, usual, "small", 2, true},
	} {
		before := c.faults.asked["ApplyLoadBalancer"]
		c.change("web", annotated(step.annotations...))
		c.settle()
		id, algorithm := is()
		if asks := c.faults.asked["ApplyLoadBalancer"] - before; algorithm != step.algorithm || flavors.of[id] != step.flavor || asks != step.asks || (id != first) != step.anew {
			t.Errorf("%q: algorithm %q, flavor %q, made anew %t, asked %d times", step.annotations, algorithm, flavors.of[id], id != first, asks)
		}
		first = id
		c.wholeServices()
	}
	for range 2 { // another process looks at all of it once more
		c.start()
		c.settle()
		c.change("web", annotated())
		c.settle()
	}
	all := len(flavors.of)
	if id, _ := is(); id == first || flavors.of[id] != own {
		t.Errorf("that it had a flavor is forgotten: %q", flavors.of[id])
	}
	c.start()
	c.settle()
	if len(flavors.of) != all {
		t.Error("what the SDN has chosen itself is made anew")
	}
}

// What cannot be taken from a load balancer stays as long as others share it, and all else that its Service asks for comes to be; it is made anew when they have gone.
func TestTakenAwayWhileShared(t *testing.T) {
	t.Parallel()
	for name, wish := range map[string][]string{"none": nil, "another": {"flavor-id=small"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newPlacing(t, nil)
			flavors := &flavored{Provider: c.sdn, of: map[sdn.ID]string{}}
			c.sdn = flavors
			c.start()
			c.addNode("n1", nil)
			c.pod("default", "web", "n1", nil)
			c.settle()
			asks := func(annotations ...string) func(*corev1.Service) {
				return func(s *corev1.Service) {
					annotated(annotations...)(s)
					exposedService(s)
				}
			}
			s := c.service("web", asks("flavor-id=large"), "10.96.0.10")
			c.slice("web", "web", 80, "10.128.0.5")
			c.settle()
			web := c.ownVIP(s)
			c.service("app", sharing(web.ID, 81), "10.96.0.11")
			c.settle()
			c.change("web", asks(wish...))
			c.slice("web", "web", 80, "10.128.0.9")
			c.settle()
			c.slice("web", "web", 80, "10.128.0.8")
			c.settle()
			c.wantOutside("80>10.128.0.8:80 81>")
			if lb := c.klb("web"); core.IsReady(lb.Status.Conditions) || ownVIP(lb, false).Flavor != "large" || flavors.of[web.ID] != "large" {
				t.Errorf("web has %+v, flavors %v", lb.Status, flavors.of)
			}
			c.remove(c.serviceNow("app"))
			c.settle()
			c.wantOutside("80>10.128.0.8:80")
			c.wholeServices()
			if now := c.ownVIP(s); now == nil || now.ID == web.ID {
				t.Errorf("it is not made anew: %+v", now)
			}
		})
	}
}

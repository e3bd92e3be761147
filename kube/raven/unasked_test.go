package raven

import (
	"context"
	"iter"
	"testing"
	"time"

	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
)

// unasked is an SDN that knows nothing of its load balancers until it was asked for one, as Neutron, whose Octavia may be away, or not there at all.
type unasked struct {
	sdn.Provider
	answers error // to who asks
	knows   bool
}

func (p *unasked) Capabilities() sdn.Capabilities {
	can := p.Provider.Capabilities()
	if !p.knows {
		can.LoadBalancer = sdn.LoadBalancerCapabilities{}
	}
	return can
}

func (p *unasked) FindLoadBalancers(ctx context.Context, q sdn.LoadBalancerQuery) iter.Seq2[sdn.LoadBalancer, error] {
	if p.answers != nil {
		return func(yield func(sdn.LoadBalancer, error) bool) { yield(sdn.LoadBalancer{}, p.answers) }
	}
	p.knows = true
	return p.Provider.FindLoadBalancers(ctx, q)
}

// Services are balanced by an SDN that tells what it can do only when it is asked, also where it was away when Raven began; one without load balancers is asked at each audit alone.
func TestLoadBalancersOfWhichNothingIsKnown(t *testing.T) {
	t.Parallel()
	for name, answers := range map[string]error{
		"there": nil, "away": sdn.Unavailable(nil, "Octavia", "it does not answer"), "none": sdn.Unsupported("load balancer", "there is no Octavia"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newServing(t, func(cfg *Config) { cfg.Audit = time.Hour })
			p := &unasked{Provider: c.sdn, answers: answers}
			c.sdn = p
			c.start()
			if p.knows != (answers == nil) {
				t.Errorf("Raven began, and it is known: %v", p.knows)
			}
			c.service("web", func(s *corev1.Service) { s.Annotations = map[string]string{balancerPrefix + "lb-method": "SOURCE_IP"} }, "10.96.0.10")
			for range 10 {
				c.round()
				c.now = c.now.Add(lastRetry)
			}
			n := c.faults.asked["FindLoadBalancers"]
			if sdn.IsUnsupported(answers) {
				if lb := c.klb("web"); n > 12 || core.IsReady(lb.Status.Conditions) || balancerReason(errNoBalancers) != lb.Status.Conditions[0].Reason {
					t.Errorf("it was asked %d times, and the status is %+v", n, lb.Status)
				}
			}
			p.answers = nil
			c.now = c.now.Add(c.cfg.Audit)
			c.settle()
			c.wantBalancers("10.96.0.10: 6:80>")
			c.wholeServices()
			if lb := c.klb("web"); lb.Spec.Options.Method != "SOURCE_IP" || !sdn.IsUnsupported(answers) && c.events.has("web", core.EventUnserved) {
				t.Errorf("judged by what was not known: %+v, %q", lb.Spec.Options, c.events.all)
			}
		})
	}
}

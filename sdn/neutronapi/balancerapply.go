package neutronapi

import (
	"net/http"

	"github.com/kuryr/kuryr/sdn"
)

// Octavia changes a load balancer part by part, each by a request and behind looks at what there is. Kuryr's own front ends have the value that the whole is to be, so here it can be said at once.

// ApplyBalancers is the alias of the extension that says so.
const ApplyBalancers = "kuryr-apply-load-balancer"

// applyPath is where; no load balancer has such an id.
const applyPath = "/loadbalancers/kuryr:apply"

// appliedBalancer is a load balancer with all that is below it.
type appliedBalancer struct {
	LoadBalancer
	Whole []Listener  `json:"kuryr:listeners"`
	Pools []wholePool `json:"kuryr:pools"`
}

// wholePool is a pool with its members and its health monitor.
type wholePool struct {
	Pool
	Whole   []PoolMember   `json:"kuryr:members"`
	Monitor *HealthMonitor `json:"kuryr:healthmonitor"`
}

// applyBalancer has the load balancer with the Key that the description is be what the body says, which is that of a POST. It is made where there is none, and the same twice is as once.
func (s *server) applyBalancer(w http.ResponseWriter, c *call) error {
	n := s.loadBalancers()
	document, err := c.document()
	if err != nil {
		return err
	}
	values, many, err := n.resource().bodies(document)
	if err != nil {
		return err
	}
	if many {
		return badRequest("One load balancer is applied at once")
	}
	b := &body{call: c, noun: n.Member, values: values[0], post: true}
	spec := n.spec(c, b)
	if b.key.IsZero() {
		b.invalid("description", "must be the Key of the load balancer")
	}
	if err := b.done(); err != nil {
		return err
	}
	if err := s.mayApply(c, spec); err != nil {
		return err
	}
	l, err := s.p.ApplyLoadBalancer(c.ctx(), spec)
	placed, err := s.placed(c.ctx(), l, err, nil)
	if err != nil {
		return err
	}
	c.made = append(c.made, string(l.ID))
	writeJSON(w, http.StatusOK, map[string]any{n.Member: encodeApplied(placed)})
	return nil
}

// mayApply refuses VIPs of other families than the load balancer has: clients are told by
// this API's capabilities that those stay.
func (s *server) mayApply(c *call, spec sdn.LoadBalancerSpec) error {
	there, ok, err := sdn.First(s.p.FindLoadBalancers(c.ctx(), sdn.LoadBalancerQuery{Match: identity(spec.Base)}))
	switch {
	case err != nil || !ok:
		return err
	case len(there.VIPs) != len(spec.VIPs):
		return sdn.Conflict(sdn.Immutable, "load balancer", "additional_vips", "%d addresses cannot become %d", len(there.VIPs), len(spec.VIPs))
	}
	return nil
}

func encodeApplied(b balancer) appliedBalancer {
	out := appliedBalancer{LoadBalancer: encodeLoadBalancer(b), Whole: []Listener{}, Pools: []wholePool{}}
	for _, l := range listenersOf(b.LoadBalancer) {
		out.Whole = append(out.Whole, encodeListener(l))
	}
	for _, p := range poolParts(b.LoadBalancer) {
		whole := wholePool{Pool: encodePool(p), Whole: []PoolMember{}}
		for _, m := range p.value.Members {
			whole.Whole = append(whole.Whole, encodeMember(part[sdn.Member]{m, p.of}))
		}
		if h := p.value.Health; h != nil {
			monitor := encodeHealthMonitor(part[monitored]{monitored{*h, p.value.ID}, p.of})
			whole.Monitor = &monitor
		}
		out.Pools = append(out.Pools, whole)
	}
	return out
}

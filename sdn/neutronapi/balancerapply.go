package neutronapi

import (
	"encoding/json"
	"net/http"
	"slices"

	"github.com/kuryr/kuryr/sdn"
)

// Octavia changes a load balancer part by part, each by a request. Kuryr's own front ends have the
// whole value, so here they can apply it by one request.

// ApplyBalancers is the alias of the extension for this.
const ApplyBalancers = "kuryr-apply-load-balancer"

// applyPath is its path. No load balancer has such an id.
const applyPath = "/loadbalancers/kuryr:apply"

// appliedPools are the attributes of a pool with its members and its health monitor.
var appliedPools = slices.Concat(poolAttributes, []field{
	{name: "kuryr:members", show: via(func(p *part[sdn.Pool]) any { return showAll(memberAttributes, membersOf(p)) })},
	{name: "kuryr:healthmonitor", show: via(func(p *part[sdn.Pool]) any {
		for _, h := range monitorOf(p) {
			return json.RawMessage(appendObject(nil, monitorAttributes, &h, view{admin: true}))
		}
		return nil
	})},
})

// appliedFields are the attributes of what is below a load balancer.
var appliedFields = []field{
	{name: "kuryr:listeners", show: via(func(b *balancer) any { return showAll(listenerAttributes, listenersOf(b.LoadBalancer)) })},
	{name: "kuryr:pools", show: via(func(b *balancer) any { return showAll(appliedPools, poolsOf(b.LoadBalancer)) })},
}

// showAll shows parts with these attributes.
func showAll[V any](attributes []field, parts []part[V]) json.RawMessage {
	out := json.RawMessage{'['}
	for i := range parts {
		if i > 0 {
			out = append(out, ',')
		}
		out = appendObject(out, attributes, &parts[i], view{admin: true})
	}
	return append(out, ']')
}

// applyBalancer applies the body, that of a POST, to the load balancer whose Key is the description.
// It is created if there is none. Applying the same body again changes nothing.
func (s *server) applyBalancer(w http.ResponseWriter, c *call) error {
	r := s.loadBalancers().resource().prepare()
	document, err := c.document()
	if err != nil {
		return err
	}
	values, many, err := r.bodies(document)
	if err != nil {
		return err
	}
	if many {
		return badRequest("One load balancer is applied at once")
	}
	b := &body{call: c, noun: r.member, values: values[0], post: true}
	spec := *r.readSpec(b).(*sdn.LoadBalancerSpec)
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
	shown := appendObject(nil, slices.Concat(r.all, appliedFields), &placed, view{admin: true})
	writeJSON(w, http.StatusOK, map[string]any{r.member: json.RawMessage(shown)})
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

package neutron

import (
	"context"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// Kuryr's own API takes a load balancer as one value, and answers with all of it. An Octavia is led there step by step instead, each behind looks at what there is, which here would be six
// requests for a new load balancer and more for a change.

// applyAlias is the extension that says so, and applyPath where.
const (
	applyAlias = "kuryr-apply-load-balancer"
	applyPath  = "/loadbalancers/kuryr:apply"
)

// appliedWire is the answer: a load balancer with all that is below it.
type appliedWire struct {
	balancerWire
	Listeners []*listenerWire `json:"kuryr:listeners"`
	Pools     []*struct {
		poolWire
		Members []*memberWire `json:"kuryr:members"`
		Health  *monitorWire  `json:"kuryr:healthmonitor"`
	} `json:"kuryr:pools"`
}

func (w *appliedWire) tree() *tree {
	t := &tree{listeners: w.Listeners}
	for _, p := range w.Pools {
		p.members, p.health = p.Members, p.Health
		t.pools = append(t.pools, &p.poolWire)
	}
	return t
}

// appliesWhole tells whether who serves takes this value at once: it is found by its Key, and says all that a new one needs.
func (p *Provider) appliesWhole(spec sdn.LoadBalancerSpec) bool {
	return p.extensions.has(applyAlias) && spec.ID == "" && !spec.Key.IsZero() && len(spec.VIPs) > 0 && !spec.Shared && spec.IfRevision == 0
}

// applyWhole has Kuryr's own API have the load balancer be this value, by one request, which is repeated where its answer is lost.
func (p *Provider) applyWhole(ctx context.Context, spec sdn.LoadBalancerSpec) (sdn.LoadBalancer, error) {
	backend, err := p.octavia.backend(spec.Backend)
	if err != nil {
		return sdn.LoadBalancer{}, err
	}
	can := p.octavia.capabilities(backend)
	if err := lacking(backend, can, spec); err != nil {
		return sdn.LoadBalancer{}, err
	}
	base := spec.Base
	base.Tags = nil // as in the request that makes one
	body := balancerMaker{can: can, spec: spec, owner: spec.Key, subnet: spec.VIPs[0].Subnet}.balancer(p.body(base), backend, true, true)
	if spec.Tags != nil && len(spec.Tags) == 0 {
		body["tags"] = []string{}
	}
	if spec.Groups != nil {
		body["vip_sg_ids"] = spec.Groups
	}
	var answer struct {
		Applied appliedWire `json:"loadbalancer"`
	}
	if err := p.octavia.client.put(ctx, applyPath, 0, map[string]any{balancers.item: body}, &answer); err != nil {
		return sdn.LoadBalancer{}, err
	}
	w := &answer.Applied
	since, _ := p.octavia.memory.see(&w.balancerWire)
	b := p.balancer(&w.balancerWire, w.tree())
	if b.Status.Ready = !strings.HasPrefix(w.Provisioning, pendingPrefix); !b.Status.Ready {
		b.Status = p.busy(&w.balancerWire, since).Status
	}
	return b, nil
}

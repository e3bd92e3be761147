package raven

import (
	"context"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// stuckLBs is an SDN that refuses the load balancers of some VIPs, or with nil never ends its work on them; then none can be deleted.
type stuckLBs struct {
	sdn.Provider
	of map[string]error
}

func (p stuckLBs) ApplyLoadBalancer(ctx context.Context, spec sdn.LoadBalancerSpec) (sdn.LoadBalancer, error) {
	if err, stuck := p.of[spec.VIPs[0].Addr.String()]; err != nil {
		return sdn.LoadBalancer{}, err
	} else if stuck {
		return sdn.LoadBalancer{VIPs: spec.VIPs, Status: sdn.LoadBalancerStatus{RetryAfter: 5 * time.Second, Message: "PENDING_CREATE"}}, nil
	}
	return p.Provider.ApplyLoadBalancer(ctx, spec)
}

// DeleteLoadBalancer finds the SDN at work on any, as long as it is with one.
func (p stuckLBs) DeleteLoadBalancer(ctx context.Context, id sdn.ID) error {
	if len(p.of) > 0 {
		return &sdn.Error{Kind: sdn.KindPending, Noun: "load balancer", ID: string(id), Detail: "PENDING_UPDATE", RetryAfter: 5 * time.Second}
	}
	return p.Provider.DeleteLoadBalancer(ctx, id)
}

package raven

import (
	"context"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// stuckLBs is an SDN that refuses the load balancers of some VIPs, or with nil never ends its work on them.
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

package raven

import (
	"context"
	"sync"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// subnetCache remembers networks' subnets, of which nodes are told with every port: a change of them reaches new ports after subnetAge.
type subnetCache struct {
	mu    sync.Mutex
	known map[sdn.ID]knownSubnets // by network
}

type knownSubnets struct {
	at   time.Time
	byID map[sdn.ID]sdn.Subnet
}

const subnetAge = 5 * time.Minute

// subnetsOf gives the subnets of a network, by id.
func (r *Raven) subnetsOf(ctx context.Context, network sdn.ID) (map[sdn.ID]sdn.Subnet, error) {
	r.subnets.mu.Lock()
	k, ok := r.subnets.known[network]
	r.subnets.mu.Unlock()
	if ok && r.now().Sub(k.at) < subnetAge {
		return k.byID, nil
	}
	k = knownSubnets{at: r.now(), byID: map[sdn.ID]sdn.Subnet{}}
	err := r.ask(ctx, func(ctx context.Context) error {
		for s, err := range r.sdn.FindSubnets(ctx, sdn.SubnetQuery{Networks: []sdn.ID{network}}) {
			if err != nil {
				return err
			}
			k.byID[s.ID] = s
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	r.subnets.mu.Lock()
	defer r.subnets.mu.Unlock()
	if r.subnets.known == nil {
		r.subnets.known = map[sdn.ID]knownSubnets{}
	}
	r.subnets.known[network] = k
	return k.byID, nil
}

// forgetSubnets drops what is known of a network.
func (r *Raven) forgetSubnets(network sdn.ID) {
	r.subnets.mu.Lock()
	defer r.subnets.mu.Unlock()
	delete(r.subnets.known, network)
}

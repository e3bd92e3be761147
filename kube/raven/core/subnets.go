package core

import (
	"context"
	"sync"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// subnetCache has the subnets of networks, which are part of every port. A change of them
// reaches new ports after SubnetAge.
type subnetCache struct {
	mu    sync.Mutex
	known map[sdn.ID]knownSubnets // by network
}

type knownSubnets struct {
	at   time.Time
	byID map[sdn.ID]sdn.Subnet
}

// SubnetAge is how long subnets are cached.
const SubnetAge = 5 * time.Minute

// SubnetsOf returns the subnets of a network, by id.
func (r *Core) SubnetsOf(ctx context.Context, network sdn.ID) (map[sdn.ID]sdn.Subnet, error) {
	r.subnets.mu.Lock()
	k, ok := r.subnets.known[network]
	r.subnets.mu.Unlock()
	if ok && r.Now().Sub(k.at) < SubnetAge {
		return k.byID, nil
	}
	k = knownSubnets{at: r.Now(), byID: map[sdn.ID]sdn.Subnet{}}
	err := r.Call(ctx, func(ctx context.Context) error {
		for s, err := range r.SDN.FindSubnets(ctx, sdn.SubnetQuery{Networks: []sdn.ID{network}}) {
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

// ForgetSubnets drops the cached subnets of a network.
func (r *Core) ForgetSubnets(network sdn.ID) {
	r.subnets.mu.Lock()
	defer r.subnets.mu.Unlock()
	delete(r.subnets.known, network)
}

package docker

import (
	"maps"
	"sync"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// whereabouts remember by which ids things were found, so that they are asked for by those. All that is read from here is asked of the
// SDN before it is believed.
type whereabouts struct {
	mu       *sync.Mutex
	cut      map[sdn.ID]sdn.ID    // the subnet of a pool
	networks map[string]sdn.ID    // the network of an engine's
	links    map[string]sdn.ID    // the link of an engine's network, where that is an existing one
	released map[sdn.ID]sdn.ID    // by subnet, its pool that this process has marked as released and that is there still
	gone     map[sdn.ID]time.Time // pools of existing subnets that this process has deleted, and when, until the engine's network goes
}

func newWhereabouts() whereabouts {
	return whereabouts{&sync.Mutex{}, map[sdn.ID]sdn.ID{}, map[string]sdn.ID{}, map[string]sdn.ID{}, map[sdn.ID]sdn.ID{}, map[sdn.ID]time.Time{}}
}

func (w whereabouts) subnet(pool sdn.ID) sdn.ID {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cut[pool]
}

func (w whereabouts) noteSubnet(pool, subnet sdn.ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if subnet == "" {
		delete(w.cut, pool)
	} else {
		w.cut[pool] = subnet
	}
}

// network is where an engine's network and its link were found last.
func (w whereabouts) network(id string) (network, link sdn.ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.networks[id], w.links[id]
}

func (w whereabouts) noteNetwork(id string, network, link sdn.ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.networks, id)
	delete(w.links, id)
	if network != "" {
		w.networks[id] = network
	}
	if link != "" {
		w.links[id] = link
	}
}

func (w whereabouts) noteReleased(pool sdn.ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if subnet, ok := w.cut[pool]; ok {
		w.released[subnet] = pool
	}
}

func (w whereabouts) forgetPool(pool sdn.ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.released, w.cut[pool])
	delete(w.cut, pool)
}

// releasedOf are the pools of the subnets, if they are all known here to be released.
func (w whereabouts) releasedOf(subnets []sdn.ID) ([]sdn.ID, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var pools []sdn.ID
	for _, s := range subnets {
		pool, ok := w.released[s]
		if !ok {
			return nil, false
		}
		pools = append(pools, pool)
	}
	return pools, len(pools) > 0
}

func (w whereabouts) noteGone(pool sdn.ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	// One that no network is ever made of, as one for another driver's, is nowhere else forgotten. Engines delete a network right after its pools.
	maps.DeleteFunc(w.gone, func(_ sdn.ID, at time.Time) bool { return time.Since(at) > creation })
	w.gone[pool] = time.Now()
}

// allGone tells whether this process has deleted all of the pools, and forgets it.
func (w whereabouts) allGone(pools []sdn.ID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := true
	for _, id := range pools {
		_, gone := w.gone[id]
		all = all && gone
		delete(w.gone, id)
	}
	return all
}

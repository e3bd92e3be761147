package docker

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/sdn"
)

// creation is how long the engine may take from RequestPool to CreateNetwork before its range may be asked for again.
const creation = time.Minute

// handedPool is a pool that this process has answered a RequestPool with.
type handedPool struct {
	enginePool // as this process has left it
	at         time.Time
	// tried tells that a network was tried to be made of it: a repeat must look at what there is.
	tried bool
}

func (d *Driver) hand(p enginePool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	// A pool that no network is ever made of, as one for another driver's, is nowhere else forgotten.
	maps.DeleteFunc(d.handed, func(_ sdn.ID, h handedPool) bool { return time.Since(h.at) > creation })
	d.handed[p.ID] = handedPool{enginePool: p, at: time.Now()}
}

// handedLately tells whether this process gave the pool to the engine so lately that it may be making a network of it.
func (d *Driver) handedLately(id sdn.ID) bool {
	_, ok := d.handedPool(id)
	return ok
}

func (d *Driver) handedPool(id sdn.ID) (handedPool, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	h, ok := d.handed[id]
	if ok && time.Since(h.at) > creation {
		delete(d.handed, id)
		return handedPool{}, false
	}
	return h, ok
}

// frugal tells that tags cost calls of their own: then the gateway of a new pool is not written down if it is the one that every pool has
// by default, and what an engine has done with a pool is not known to a later process, which therefore never gives a pool away again.
// Driver.Forgotten finds those that no engine has.
func (d *Driver) frugal() bool { return d.scope == Local && !d.sdn.Capabilities().TagsAtCreate }

// gatewayOf is the gateway that the engine took of a pool, as far as is known.
func (d *Driver) gatewayOf(p enginePool) netip.Addr {
	if gateway := p.gateway(); gateway.IsValid() || !d.frugal() {
		return gateway
	}
	return identity.FirstHost(p.CIDR)
}

// beingUsed tells whether a pool like the one asked for was handed out lately, so that CreateNetwork, which is not told the ids of its
// pools, could not tell the two apart.
func (d *Driver) beingUsed(asked identity.PoolName) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, h := range d.handed {
		if h.CIDR == asked.CIDR && h.Space == asked.Space && h.OfSubnet == asked.OfSubnet && time.Since(h.at) <= creation {
			return true
		}
	}
	return false
}

// bareHere tells that no subnet is cut from a pool, without asking the SDN: this process has made it, and none was since. Where other
// hosts may make one, nothing is known.
func (d *Driver) bareHere(id sdn.ID) bool {
	h, ok := d.handedPool(id)
	return ok && d.scope == Local && h.subnet() == "" && h.OfPool == "" && !h.tried
}

// handedUntil is when a pool that was given to the engine lately may be taken for lost, zero for any other.
func (d *Driver) handedUntil(id sdn.ID) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	if h, ok := d.handed[id]; ok {
		return h.at.Add(creation)
	}
	return time.Time{}
}

// handedChanged keeps what is known of a pool that was handed out up to date.
func (d *Driver) handedChanged(p sdn.SubnetPool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if h, ok := d.handed[p.ID]; ok {
		h.SubnetPool = p
		d.handed[p.ID] = h
	}
}

// handedFor are the pools of a network's ranges where this process has handed all of them out, with the gateways and auxiliary addresses
// that the network is to have, and nothing was tried with them since: then there is no such network yet. From here on they count as tried. standing
// are the existing subnets that are to stand for ranges, nil where none is to.
func (d *Driver) handedFor(r *api.CreateNetworkRequest, standing map[*api.IPAMData]sdn.Subnet) (map[*api.IPAMData]enginePool, bool) {
	if d.scope != Local || !localID.MatchString(r.NetworkID) {
		return nil, false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	pools := map[*api.IPAMData]enginePool{}
	for _, data := range r.Ranges {
		if data.AddressSpace != api.LocalSpace {
			return nil, false
		}
		stands, exists := standing[data]
		for _, h := range d.handed {
			taken := slices.ContainsFunc(r.Ranges, func(o *api.IPAMData) bool { return pools[o].ID == h.ID })
			of := h.subnet() == "" || exists && h.subnet() == stands.ID
			if h.CIDR == data.Pool && h.Space == data.AddressSpace && of && h.OfPool == "" && !h.tried && !taken &&
				time.Since(h.at) <= creation && (exists || d.gatewayOf(h.enginePool) == data.Gateway) && h.reserves(data) {
				pools[data] = h.enginePool
				if !exists || h.subnet() != "" { // else one that was asked for with the subnet goes before
					break
				}
			}
		}
		if _, ok := pools[data]; !ok {
			return nil, false
		}
	}
	for _, p := range pools {
		h := d.handed[p.ID]
		h.tried = true
		d.handed[p.ID] = h
	}
	return pools, len(pools) > 0
}

// claim says that a network was made of the pools. They are the network's when the engine was told.
func (d *Driver) claim(ctx context.Context, pools map[*api.IPAMData]enginePool) {
	for _, p := range pools {
		d.claimed(p.ID)
	}
	whenAnswered(ctx, func(told bool) {
		for _, p := range pools {
			if told {
				d.begun.strike(identity.KindPool, p.Key.Name)
			}
		}
	})
}

func (d *Driver) claimed(pool sdn.ID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.handed, pool)
}

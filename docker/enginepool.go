package docker

import (
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/sdn"
)

// cutFrom is the pool that the subnet is cut from.
func (p enginePool) cutFrom() sdn.ID {
	if p.OfPool != "" {
		return p.OfPool
	}
	return p.ID
}

// enginePool is a pool of an engine with what its Key and tags tell.
type enginePool struct {
	sdn.SubnetPool
	identity.PoolName
}

// enginePool reads a pool; false for one that is not an engine's.
func (d *Driver) enginePool(p sdn.SubnetPool) (enginePool, bool) {
	if !d.names.Ours(p.Meta, identity.KindPool) {
		return enginePool{}, false
	}
	name, ok := identity.ParsePoolName(p.Key.Name)
	return enginePool{p, name}, ok
}

// subnet is the existing subnet that stands for the pool's range, "" where none does. A pool of a range that turned out to be an
// existing network's only when that was made says so by a tag, as kuryr-libnetwork's do.
func (p enginePool) subnet() sdn.ID {
	if p.OfSubnet != "" {
		return p.OfSubnet
	}
	for _, id := range identity.IDs(p.Tags) {
		return id
	}
	return ""
}

// newPoolName returns the name with the host and a nonce.
func (d *Driver) newPoolName(n identity.PoolName) identity.PoolName {
	n.Host, n.Nonce = d.names.Host, d.names.Nonce()
	return n
}

func (p enginePool) released() bool { return slices.Contains(p.Tags, identity.TagReleased) }

// gateway is the address that the engine took for its gateway, invalid if it took none.
func (p enginePool) gateway() netip.Addr {
	for _, v := range identity.Values(p.Tags, identity.TagGateway) {
		if a, err := netip.ParseAddr(v); err == nil {
			return a
		}
	}
	return netip.Addr{}
}

// aux are the auxiliary addresses that the engine took.
func (p enginePool) aux() []netip.Addr {
	var list []netip.Addr
	for _, v := range identity.Values(p.Tags, identity.TagAux) {
		if a, err := netip.ParseAddr(v); err == nil {
			list = append(list, a)
		}
	}
	return list
}

// untouched tells that the engine has done nothing with the pool that was seen here.
func (p enginePool) untouched() bool { return !p.gateway().IsValid() && len(p.aux()) == 0 }

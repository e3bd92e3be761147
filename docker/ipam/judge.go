package ipam

import (
	"slices"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/engine"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// The engine does not tell which pools its networks have, so pools are judged by their ranges, and
// addresses by its endpoints. The global address space is a swarm's, of which an engine does not
// know all.

// poolListed reports whether the engine has a network of a pool.
func (s *Service) poolListed(p poolRow, content any) bool {
	return p.Spec.Space == api.GlobalSpace || len(s.users(p, content.(*engine.Content))) > 0
}

// hiddenListed reports whether the engine has a network of a hidden network's pool.
func (s *Service) hiddenListed(h hiddenRow, content any) bool {
	p, ok := s.pools.Get(h.Key)
	return ok && s.poolListed(p, content)
}

// addressListed reports whether an endpoint has an address of a port.
func (s *Service) addressListed(a addressRow, content any) bool {
	listed, _ := s.endpointListed(a, content.(*engine.Content))
	return listed
}

// endpointListed reports whether an endpoint has an address of a port, or can have it. Otherwise
// the networks are those whose endpoints the list does not have all of.
func (s *Service) endpointListed(a addressRow, c *engine.Content) (listed bool, unknown []string) {
	for _, q := range a.Spec.Asked {
		p, ok := s.pools.Get(q.Pool)
		if !ok || p.Spec.Space == api.GlobalSpace {
			return true, nil
		}
		for _, network := range s.users(p, c) {
			if c.IsShared(network) {
				return true, nil // for an endpoint on another node
			}
			if slices.ContainsFunc(a.Last.Port.Addresses, func(on sdn.Address) bool {
				return c.HasAddress(network, on.Addr)
			}) {
				return true, nil
			}
			if !c.All(network) {
				unknown = append(unknown, network)
			}
		}
	}
	return len(unknown) > 0, unknown
}

// Unlisted returns the networks on which a list lacks the endpoint of an address. It is for
// engine.Lister.Attach.
func (s *Service) Unlisted(c *engine.Content) (networks []string) {
	for a := range s.addresses.Rows() {
		if a.Phase == reconcile.Wanted {
			_, unknown := s.endpointListed(a, c)
			networks = append(networks, unknown...)
		}
	}
	return networks
}

// users returns the engine's networks that a pool is for: the one that was made of it, or those of
// other network drivers that have its range.
func (s *Service) users(p poolRow, c *engine.Content) (ids []string) {
	if id, _ := s.networks.Of(p.Key); id != "" {
		if _, ok := c.Network(id); ok || c.IsShared(id) {
			ids = append(ids, id)
		}
		return ids
	}
	ids = c.InRange(p.Spec.CIDR)
	if len(ids) == 0 {
		return nil
	}
	made := map[string]bool{}
	for other := range s.ofRange(p.Spec.CIDR) {
		id, _ := s.networks.Of(other.Key)
		made[id] = true
	}
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return made[id] })
}

package endpoint

import (
	"context"

	"github.com/kuryr/kuryr/docker/engine"
	"github.com/kuryr/kuryr/internal/reconcile"
)

// isListed reports whether the engine has an endpoint, or can have it.
func (s *Service) isListed(id string, content any) bool {
	c, ok := content.(*engine.Content)
	if !ok {
		return true
	}
	if row, known := s.endpoints.Get(id); known && row.Spec.Network != "" {
		return c.HasEndpoint(row.Spec.Network, id)
	}
	// The rows were made without the network. Of what has an interface a container runs.
	return c.Runs(id)
}

// Unlisted returns the networks on which a list lacks an endpoint. It is for engine.Lister.Attach.
func (s *Service) Unlisted(c *engine.Content) (networks []string) {
	for r := range s.endpoints.Rows() {
		if r.Phase == reconcile.Wanted && !c.IsRunning(r.Spec.Network, r.Key) {
			networks = append(networks, r.Spec.Network)
		}
	}
	return networks
}

// isPartUsed reports whether the endpoint of a plug, a publication or a floating IP is being started,
// or a container has its interface.
func (s *Service) isPartUsed(id string) bool {
	if row, known := s.endpoints.Get(id); known && s.isUsed(row) {
		return true
	}
	plug, known := s.plugs.Get(id)
	if !known || plug.Spec.Port.ID == "" {
		return false
	}
	connected, err := s.connected(context.Background(), plug.Spec.Port)
	return connected || err != nil
}

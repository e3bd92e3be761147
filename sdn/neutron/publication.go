package neutron

import (
	"context"

	"github.com/kuryr/kuryr/sdn"
)

// errPublications refuses what Neutron does not have: it has no floating IP that stands for an
// address of the host.
var errPublications = sdn.Unsupported("publication",
	"Neutron has no floating IPs that are the host's own addresses")

// Publish is unsupported.
func (p *Provider) Publish(context.Context, sdn.PublicationSpec) (sdn.Publication, error) {
	return sdn.Publication{}, errPublications
}

// Publication is unsupported.
func (p *Provider) Publication(context.Context, sdn.Key) (sdn.Publication, error) {
	return sdn.Publication{}, errPublications
}

// Unpublish is unsupported.
func (p *Provider) Unpublish(context.Context, sdn.Key) error { return errPublications }

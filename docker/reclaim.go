package docker

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/publish"
	"github.com/kuryr/kuryr/sdn"
)

// program publishes the endpoint's ports. Where one cannot be, because an endpoint without a container has it, it is taken from that one: an
// engine that restarts while Kuryr is away forgets its endpoints without telling, and starts their containers anew with the same ports.
func (d *Driver) program(ctx context.Context, r *api.ProgramRequest) (any, error) {
	answer, err := d.programExternal(ctx, r)
	if refused := (*api.Refusal)(nil); !errors.As(err, &refused) {
		return answer, err // done, or nobody's port is in the way
	}
	drop := d.dropForgottenPublications
	if !d.sdn.Capabilities().HostAddresses {
		drop = d.dropForgottenProxied
	}
	dropped, failed := drop(ctx, r)
	if failed != nil {
		d.log.WarnContext(ctx, "who has the published ports is not known", "endpoint", r.EndpointID, "err", failed)
	}
	if !dropped {
		return nil, err
	}
	return d.programExternal(ctx, r)
}

// dropForgottenPublications takes the host ports that the request names from endpoints that no container has. It tells whether there were any.
func (d *Driver) dropForgottenPublications(ctx context.Context, r *api.ProgramRequest) (dropped bool, err error) {
	wanted := toPublish(r.Options.PortMap)
	endpoints, err := d.published(ctx, func(a netip.Addr) bool {
		return slices.ContainsFunc(wanted, func(p publish.Port) bool { return p.Meets(a) })
	})
	if err != nil {
		return false, err
	}
	for _, endpoint := range endpoints {
		if endpoint == r.EndpointID {
			continue
		}
		there, err := d.atHost().Published(ctx, d.toBePublished(endpoint, sdn.Port{}))
		if err != nil {
			return dropped, err
		}
		inTheWay := slices.ContainsFunc(there, func(f sdn.PublishedPort) bool {
			return slices.ContainsFunc(wanted, func(p publish.Port) bool { return p.Wants(f.Host, f.Protocol, f.External) })
		})
		if !inTheWay {
			continue
		}
		one, err := d.dropForgottenPublication(ctx, endpoint)
		if err != nil {
			return dropped, err
		}
		dropped = dropped || one
	}
	return dropped, nil
}

// dropForgottenPublication takes back what an endpoint has published, unless a container has it. An engine publishes ports when the interface is
// in its container, and takes them back before it takes that away.
func (d *Driver) dropForgottenPublication(ctx context.Context, endpoint string) (bool, error) {
	unlock, err := d.locks.lock(ctx, "endpoint/"+endpoint)
	if err != nil {
		return false, err
	}
	defer unlock()
	port, found, err := d.portOf(ctx, endpoint)
	if err != nil || found && port.Host != d.host {
		return false, err
	}
	if found {
		connected, err := d.binder.Connected(ctx, port)
		if err != nil {
			return false, &plugError{err}
		}
		if connected {
			return false, nil
		}
	}
	d.log.WarnContext(ctx, "the published ports of an endpoint that no container has are taken back: another asks for them", "endpoint", endpoint)
	return true, d.unpublish(ctx, endpoint)
}

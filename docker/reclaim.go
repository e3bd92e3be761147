package docker

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// program publishes the endpoint's ports. Where one cannot be, because an endpoint without a container has it, it is taken from that one: an
// engine that restarts while Kuryr is away forgets its endpoints without telling, and starts their containers anew with the same ports.
func (d *Driver) program(ctx context.Context, r *programRequest) (any, error) {
	answer, err := d.programExternal(ctx, r)
	if refused := (*refusal)(nil); !errors.As(err, &refused) {
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
func (d *Driver) dropForgottenPublications(ctx context.Context, r *programRequest) (dropped bool, err error) {
	match := sdn.Match{Owner: d.sdn.Installation(), Kind: kindPublish}
	floating, err := sdn.All(d.sdn.FindFloatingIPs(ctx, sdn.FloatingIPQuery{Match: match}))
	if err != nil {
		return false, err
	}
	var inTheWay []string
	for _, f := range floating {
		endpoint, _, _ := strings.Cut(f.Key.Name, "/")
		asked := slices.DeleteFunc(slices.Clone(r.endpoint.published), func(m portMap) bool { return !m.meets(f.Address) })
		if endpoint == r.EndpointID || len(asked) == 0 {
			continue
		}
		for forward, err := range d.sdn.FindForwards(ctx, sdn.ForwardQuery{FloatingIPs: []sdn.ID{f.ID}}) {
			if err != nil {
				return false, err
			}
			if slices.ContainsFunc(asked, func(m portMap) bool { return m.wants(forward) }) {
				inTheWay = append(inTheWay, endpoint)
			}
		}
	}
	slices.Sort(inTheWay)
	for _, endpoint := range slices.Compact(inTheWay) {
		one, err := d.dropForgottenPublication(ctx, endpoint)
		if err != nil {
			return dropped, err
		}
		dropped = dropped || one
	}
	return dropped, nil
}

// meets tells whether what is published on an address of the host, or on all of a family, can be in the way.
func (m portMap) meets(a netip.Addr) bool {
	host, err := netip.ParseAddr(m.HostIP)
	return err != nil || host == a || host.Is6() == a.Is6() && (host.IsUnspecified() || a.IsUnspecified())
}

// wants tells whether a forwarding has a host port that is asked for.
func (m portMap) wants(f sdn.Forward) bool {
	return m.HostPort != 0 && m.Proto == f.Protocol && f.External.First <= max(m.HostPort, m.HostPortEnd) && f.External.Last >= m.HostPort
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

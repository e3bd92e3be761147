package docker

import (
	"context"
	"os"
	"slices"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/publish"
	"github.com/kuryr/kuryr/internal/hostports"
	"github.com/kuryr/kuryr/internal/ipproto"
	"github.com/kuryr/kuryr/internal/portproxy"
	"github.com/kuryr/kuryr/sdn"
)

// On an SDN whose floating IPs cannot stand for the host's own addresses, ports are published on the host by a proxy in this process, which
// dials from the container's namespace. The container sees its own address as the client's.

// publishProxied publishes ports, or none of them. It writes down what it publishes.
func (d *Driver) publishProxied(ctx context.Context, endpoint string, known plugged, ports []publish.Port) error {
	if known.Sandbox == "" {
		return refuse("endpoint %s has no container whose ports could be published", endpoint)
	}
	p := &publish.Proxy{Proxy: d.proxy, Users: d.atHost().Users}
	if err := p.Publish(ctx, d.toBePublished(endpoint, known.Port), known.Sandbox, known.Proxied, ports); err != nil {
		d.stopProxied(ctx, endpoint)
		return err
	}
	known.Proxied = d.proxy.Forwards(endpoint)
	d.plugged.put(ctx, endpoint, known)
	return nil
}

// stopProxied ends what the proxy publishes of an endpoint. The caller holds the endpoint's lock.
func (d *Driver) stopProxied(ctx context.Context, endpoint string) {
	d.proxy.StopAll(endpoint)
	if r, known := d.plugged.get(endpoint); known && len(r.Proxied) > 0 {
		r.Proxied = nil
		d.plugged.put(ctx, endpoint, r)
	}
}

// restoreProxied publishes again what an earlier process published of the containers that are there.
func (d *Driver) restoreProxied(ctx context.Context) {
	for _, endpoint := range d.plugged.endpoints() {
		r, _ := d.plugged.get(endpoint)
		if len(r.Proxied) == 0 {
			continue
		}
		if _, err := os.Stat(r.Sandbox); err != nil { // the container is gone, and its engine will tell
			d.stopProxied(ctx, endpoint)
			continue
		}
		for _, f := range r.Proxied {
			if err := d.proxy.Start(endpoint, f); err != nil {
				d.log.WarnContext(ctx, "a published port could not be published again", "endpoint", endpoint, "listen", f.Listen, "protocol", ipproto.Name(f.Protocol),
					"err", err, "used_by", d.atHost().Users(hostports.Port{Protocol: f.Protocol, Address: f.Listen}))
			}
		}
	}
}

// dropForgottenProxied takes the host ports that the request names from endpoints that no container has. It tells whether there were any.
func (d *Driver) dropForgottenProxied(ctx context.Context, r *api.ProgramRequest) (dropped bool, err error) {
	wanted := toPublish(r.Options.PortMap)
	for _, endpoint := range d.plugged.endpoints() {
		other, _ := d.plugged.get(endpoint)
		inTheWay := slices.ContainsFunc(other.Proxied, func(f portproxy.Forward) bool {
			host := sdn.PortRange{First: f.Listen.Port(), Last: f.Listen.Port()}
			return slices.ContainsFunc(wanted, func(p publish.Port) bool {
				return p.Wants(f.Listen.Addr(), f.Protocol, host)
			})
		})
		if endpoint == r.EndpointID || !inTheWay {
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

package docker

import (
	"context"
	"net/netip"

	"github.com/kuryr/kuryr/docker/api"
	endpoints "github.com/kuryr/kuryr/docker/endpoint"
	"github.com/kuryr/kuryr/docker/engine"
	"github.com/kuryr/kuryr/docker/ipam"
	networks "github.com/kuryr/kuryr/docker/network"
	"github.com/kuryr/kuryr/docker/swarm"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// newServices registers the kinds of rows: pools, networks, endpoints, addresses. The owners of rows
// are imported first. source is Docker itself; nil: no row is compared with it.
func (d *Driver) newServices(source engine.Source) {
	var lister *engine.Lister
	var list reconcile.Engine
	if source != nil {
		lister = engine.NewLister(source)
		list = lister
	}
	d.ipam = ipam.New(d.database, ipam.Config{
		Provider: d.sdn, Namer: d.names, Host: d.host, Global: d.scope == Global,
		Pools4: d.pools4, Pools6: d.pools6, HostRoutes: d.hostRoutes, Timeout: d.timeout,
		Logger: d.log, Engine: list,
	})
	d.networks = networks.New(networks.Config{
		Provider: d.sdn, Store: d.database, Namer: d.names, Pools: d.ipam, Routed: d.routed,
		DeleteEmpty: d.deleteEmpty, Logger: d.log, Engine: list,
		HasEndpoints: func(id string) bool { return d.endpoints.Has(id) },
		InUse:        func(id string) bool { return d.endpoints.InUse(id) },
	})
	c := endpoints.Config{
		SDN: d.sdn, Names: d.names, Host: d.host, Binder: d.binder,
		Networks: d.networks, Addresses: localAddresses{d.ipam},
		HostPorts: d.hostPorts, Proxy: d.proxy, WaitActive: d.waitActive, ExposedGroups: d.external,
		Refused: d.ipam.Refused, Timeout: d.timeout, Records: d.records, Log: d.log, Engine: list,
	}
	if d.scope == Global {
		d.swarm = swarm.New(swarm.Config{
			SDN: d.sdn, Names: d.names, Host: d.host, Store: d.database,
			Timeout: d.timeout, Log: d.log, Binder: d.binder, Networks: d.networks, IPAM: d.ipam,
			DeleteEndpoint: func(ctx context.Context, id string) error { return d.endpoints.Delete(ctx, id) },
		})
		c.Networks, c.Addresses = d, d.swarm
		c.YieldMAC = d.swarm.YieldMAC
	}
	d.endpoints = endpoints.New(d.database, c)
	d.ipam.Attach(d.networks, d.endpoints)
	if lister != nil {
		lister.Attach(d.ipam.Unlisted)
		lister.Attach(d.endpoints.Unlisted)
	}
	d.routes = d.newRoutes()
}

// isSwarms reports whether a network is a swarm's.
func (d *Driver) isSwarms(network string) bool { return d.swarm != nil && swarm.IsSwarm(network) }

// Find implements endpoint.Networks.
func (d *Driver) Find(ctx context.Context, network string) (networks.View, error) {
	if d.isSwarms(network) {
		return d.swarm.Find(ctx, network)
	}
	return d.networks.Find(ctx, network)
}

// localAddresses are the addresses of networks of one engine.
type localAddresses struct{ *ipam.Service }

// At implements endpoint.Addresses.
func (a localAddresses) At(
	ctx context.Context, n networks.View, addresses []netip.Prefix,
) ([]ipam.Held, error) {
	return a.Service.At(ctx, n.Subnets, addresses)
}

// activate answers the handshake, which each engine process sends once.
func (d *Driver) activate() any {
	d.endpoints.EngineStarted(context.Background())
	return api.ActivateResponse{Implements: []string{"NetworkDriver", "IpamDriver"}}
}

func (d *Driver) gwAllocCheck(_ context.Context, r *api.GwAllocCheckRequest) (any, error) {
	return d.networks.GwAllocCheck(r), nil
}

// allocateNetwork answers a swarm's manager. In the local scope the options that it has are those
// of the nodes.
func (d *Driver) allocateNetwork(ctx context.Context, r *api.AllocateNetworkRequest) (any, error) {
	if d.swarm == nil {
		return api.AllocateNetworkResponse{Options: r.UserOptions}, nil
	}
	return d.swarm.AllocateNetwork(ctx, r)
}

func (d *Driver) freeNetwork(ctx context.Context, r *api.NetworkRequest) (any, error) {
	if d.swarm == nil {
		return api.Empty{}, nil
	}
	return api.Empty{}, d.swarm.FreeNetwork(ctx, r)
}

func (d *Driver) createNetwork(ctx context.Context, r *api.CreateNetworkRequest) (any, error) {
	switch {
	case d.isSwarms(r.NetworkID):
		return api.Empty{}, d.swarm.CreateNetwork(ctx, r)
	case d.swarm != nil && r.Options.Existing.Given():
		return nil, api.Refuse("a swarm's networks cannot be made of existing ones: " +
			"leave out the options that name them")
	}
	ifUnheard(ctx, func() { d.networks.NoteUnheard(r.NetworkID) })
	return api.Empty{}, d.networks.Create(ctx, r)
}

func (d *Driver) deleteNetwork(ctx context.Context, r *api.NetworkRequest) (any, error) {
	if d.isSwarms(r.NetworkID) {
		return api.Empty{}, d.swarm.DeleteNetwork(ctx, r.NetworkID)
	}
	return api.Empty{}, d.networks.Delete(ctx, r.NetworkID)
}

// discover ignores the nodes of a swarm: the SDN has its own.
func discover(context.Context, *api.DiscoverRequest) (any, error) {
	return api.Empty{}, nil
}

func (d *Driver) requestPool(ctx context.Context, r *api.RequestPoolRequest) (any, error) {
	if d.swarm != nil {
		if answer, ours, err := d.swarm.RequestPool(ctx, r); ours || err != nil {
			return answer, err
		}
	}
	answer, err := d.ipam.RequestPool(ctx, r)
	ifUnheard(ctx, func() { d.ipam.NoteUnheard(sdn.ID(answer.PoolID)) })
	return answer, err
}

func (d *Driver) releasePool(ctx context.Context, r *api.ReleasePoolRequest) (any, error) {
	if d.swarm != nil {
		if ours, err := d.swarm.ReleasePool(ctx, r); ours || err != nil {
			return api.Empty{}, err
		}
	}
	return d.ipam.ReleasePool(ctx, r)
}

func (d *Driver) requestAddress(ctx context.Context, r *api.RequestAddressRequest) (any, error) {
	if d.swarm != nil {
		if answer, ours, err := d.swarm.RequestAddress(ctx, r); ours || err != nil {
			return answer, err
		}
	}
	return d.ipam.RequestAddress(ctx, r)
}

func (d *Driver) releaseAddress(ctx context.Context, r *api.ReleaseAddressRequest) (any, error) {
	if d.swarm != nil {
		if ours, err := d.swarm.ReleaseAddress(ctx, r); ours || err != nil {
			return api.Empty{}, err
		}
	}
	return d.ipam.ReleaseAddress(ctx, r)
}

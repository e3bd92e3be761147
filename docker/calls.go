package docker

import (
	"context"

	"github.com/kuryr/kuryr/docker/api"
	endpoints "github.com/kuryr/kuryr/docker/endpoint"
	"github.com/kuryr/kuryr/docker/engine"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/docker/ipam"
	networks "github.com/kuryr/kuryr/docker/network"
	"github.com/kuryr/kuryr/docker/swarm"
	"github.com/kuryr/kuryr/sdn"
)

// newServices registers the kinds of rows: pools, networks, endpoints, addresses. The owners of rows
// are imported first.
func (d *Driver) newServices() {
	c := d.config
	d.daemon = identity.Daemon{
		SDN: c.Provider, Names: identity.NewNamer(c.Provider.Installation(), c.Host, d.database.ID(), true),
		Host: c.Host, Store: d.database, Timeout: c.CallTimeout, Log: d.log,
	}
	var lister *engine.Lister
	if c.Engine != nil {
		lister = engine.NewLister(c.Engine)
		d.daemon.Engine = lister
	}
	d.ipam = ipam.New(ipam.Config{
		Daemon: d.daemon, Global: c.Scope == Global, Pools4: c.Pools4, Pools6: c.Pools6, HostRoutes: c.HostRoutes,
	})
	d.networks = networks.New(networks.Config{
		Daemon: d.daemon, Pools: d.ipam, Routed: c.Routed, DeleteEmpty: c.DeleteEmptySubnets,
		HasEndpoints: func(id string) bool { return d.endpoints.Has(id) },
		InUse:        func(id string) bool { return d.endpoints.InUse(id) },
	})
	e := endpoints.Config{
		Daemon: d.daemon, Binder: c.Binder, Networks: d.networks, Addresses: d.ipam,
		HostPorts: c.HostPorts, Proxy: d.proxy, WaitActive: c.WaitActive,
		ExposedGroups: c.ProcessExternalConnectivity, Refused: d.ipam.Refused,
		Records: folderIn(c.RunDir, endpointsFolder),
	}
	if c.Scope == Global {
		d.swarm = swarm.New(swarm.Config{
			Daemon: d.daemon, Binder: c.Binder, Networks: d.networks, IPAM: d.ipam,
			DeleteEndpoint: func(ctx context.Context, id string) error { return d.endpoints.Delete(ctx, id) },
		})
		e.Networks, e.Addresses, e.YieldMAC = d.swarm, d.swarm, d.swarm.YieldMAC
	}
	d.endpoints = endpoints.New(e)
	d.ipam.Attach(d.networks, d.endpoints)
	if lister != nil {
		lister.Attach(d.ipam.Unlisted)
		lister.Attach(d.endpoints.Unlisted)
	}
	d.newRecovery()
	d.earlier = &upgrade{
		Daemon: d.daemon, stateDir: c.StateDir, runDir: c.RunDir,
		endpoints: d.endpoints, addresses: d.ipam, networks: d.networks, swarm: d.swarm,
	}
	d.routes = d.newRoutes()
}

// activate answers the handshake, which each engine process sends once.
func (d *Driver) activate() any {
	d.endpoints.EngineStarted(context.Background())
	return api.ActivateResponse{Implements: []string{"NetworkDriver", "IpamDriver"}}
}

func (d *Driver) createNetwork(ctx context.Context, r *api.CreateNetworkRequest) (api.Empty, error) {
	create := d.networks.Create
	if d.swarm != nil {
		create = d.swarm.CreateNetwork
	}
	ifUnheard(ctx, func() { d.networks.NoteUnheard(r.NetworkID) })
	return api.Empty{}, create(ctx, r)
}

func (d *Driver) deleteNetwork(ctx context.Context, r *api.NetworkRequest) (api.Empty, error) {
	if d.swarm != nil {
		return api.Empty{}, d.swarm.DeleteNetwork(ctx, r.NetworkID)
	}
	return api.Empty{}, d.networks.Delete(ctx, r.NetworkID)
}

// allocateNetwork answers a swarm's manager. In the local scope the options that it has are those
// of the nodes.
func (d *Driver) allocateNetwork(
	ctx context.Context, r *api.AllocateNetworkRequest,
) (api.AllocateNetworkResponse, error) {
	if d.swarm == nil {
		return api.AllocateNetworkResponse{Options: r.UserOptions}, nil
	}
	return d.swarm.AllocateNetwork(ctx, r)
}

func (d *Driver) freeNetwork(ctx context.Context, r *api.NetworkRequest) (api.Empty, error) {
	if d.swarm == nil {
		return api.Empty{}, nil
	}
	return api.Empty{}, d.swarm.FreeNetwork(ctx, r)
}

// discover ignores the nodes of a swarm: the SDN has its own.
func discover(context.Context, *api.DiscoverRequest) (api.Empty, error) { return api.Empty{}, nil }

// rangeServer serves the ranges and addresses of an engine.
type rangeServer interface {
	RequestPool(ctx context.Context, r *api.RequestPoolRequest) (api.RequestPoolResponse, error)
	ReleasePool(ctx context.Context, r *api.ReleasePoolRequest) (api.Empty, error)
	RequestAddress(ctx context.Context, r *api.RequestAddressRequest) (api.RequestAddressResponse, error)
	ReleaseAddress(ctx context.Context, r *api.ReleaseAddressRequest) (api.Empty, error)
}

// ranges returns the service that is asked first.
func (d *Driver) ranges() rangeServer {
	if d.swarm != nil {
		return d.swarm
	}
	return d.ipam
}

func (d *Driver) requestPool(ctx context.Context, r *api.RequestPoolRequest) (api.RequestPoolResponse, error) {
	answer, err := d.ranges().RequestPool(ctx, r)
	ifUnheard(ctx, func() { d.ipam.NoteUnheard(sdn.ID(answer.PoolID)) })
	return answer, err
}

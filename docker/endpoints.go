package docker

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/docker/api"
	endpoints "github.com/kuryr/kuryr/docker/endpoint"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/docker/ipam"
	networks "github.com/kuryr/kuryr/docker/network"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// newEndpoints registers the kinds of endpoints.
func (d *Driver) newEndpoints(store *reconcile.Store) *endpoints.Service {
	return endpoints.New(store, endpoints.Config{
		SDN: d.sdn, Names: d.names, Host: d.host, Binder: d.binder,
		Networks: endpointNetworks{d}, Addresses: endpointAddresses{d},
		HostPorts: d.hostPorts, Proxy: d.proxy, WaitActive: d.waitActive, ExposedGroups: d.external,
		Timeout: d.timeout, YieldMAC: d.yieldMAC, Gone: d.endpointGone, Records: d.records, Log: d.log,
	})
}

// activate answers the handshake, which each engine process sends once.
func activate(d *Driver) any {
	d.endpoints.EngineStarted(context.Background())
	return api.ActivateResponse{Implements: []string{"NetworkDriver", "IpamDriver"}}
}

func (d *Driver) createEndpoint(ctx context.Context, r *api.CreateEndpointRequest) (any, error) {
	answer, err := d.endpoints.Create(ctx, r)
	used := (*endpoints.InUseError)(nil)
	if errors.As(err, &used) && used.Port.Key.Kind != identity.KindEndpoint {
		d.refused(used.Port, r.Addresses)
	}
	if err != nil {
		return nil, err
	}
	port := d.endpoints.Port(r.EndpointID)
	d.forgetMade(port.ID)
	return answer, d.keepLate(port)
}

func (d *Driver) endpointOperInfo(ctx context.Context, r *api.EndpointRequest) (any, error) {
	return d.endpoints.OperInfo(ctx, r.EndpointID), nil
}

func (d *Driver) join(ctx context.Context, r *api.JoinRequest) (any, error) {
	return d.endpoints.Join(ctx, r)
}

func (d *Driver) program(ctx context.Context, r *api.ProgramRequest) (any, error) {
	err := d.endpoints.Program(ctx, r)
	if failed := d.endpoints.WriteRecord(r.EndpointID); failed != nil {
		d.log.WarnContext(ctx, "record for the previous version not written", "endpoint", r.EndpointID, "err", failed)
	}
	return api.Empty{}, err
}

func (d *Driver) revokeExternal(ctx context.Context, r *api.EndpointRequest) (any, error) {
	return api.Empty{}, d.endpoints.Revoke(ctx, r.EndpointID)
}

func (d *Driver) leave(ctx context.Context, r *api.EndpointRequest) (any, error) {
	return api.Empty{}, d.endpoints.Leave(ctx, r.EndpointID)
}

func (d *Driver) deleteEndpoint(ctx context.Context, r *api.EndpointRequest) (any, error) {
	if err := d.endpoints.Delete(ctx, r.EndpointID); err != nil {
		return nil, err
	}
	d.tidyGone(ctx)
	return api.Empty{}, nil
}

// dropEndpoint deletes an endpoint and its port, unless a swarm's manager holds that.
func (d *Driver) dropEndpoint(ctx context.Context, port sdn.Port) error {
	if err := d.endpoints.Drop(ctx, identity.EndpointOf(port)); err != nil {
		return err
	}
	return d.dropPort(ctx, port)
}

// dropUnused is dropEndpoint unless a container has the interface of the port. It reports whether
// one has.
func (d *Driver) dropUnused(ctx context.Context, port sdn.Port, why string) (connected bool, err error) {
	connected, err = d.endpoints.DropUnused(ctx, identity.EndpointOf(port), port, why)
	if err != nil || connected {
		return connected, err
	}
	return false, d.dropPort(ctx, port)
}

// dropPort deletes the port of an endpoint that is gone.
func (d *Driver) dropPort(ctx context.Context, port sdn.Port) error {
	if !d.ownPort(port) || port.Key.Kind == identity.KindEndpoint || len(held(port)) > 0 {
		return nil
	}
	return d.deletePorts(ctx, port.ID)
}

// endpointGone keeps what follows from the end of an endpoint: the engine releases the addresses of
// an existing port in vain, and subnets may have become empty.
func (d *Driver) endpointGone(_ string, e endpoints.Spec, port sdn.Port) {
	d.forgetMade(port.ID)
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range port.Addresses {
		taken := slices.ContainsFunc(e.Addresses, func(p netip.Prefix) bool { return p.Addr() == a.Addr })
		if e.Existing && taken {
			d.returned[a] = true
		}
	}
	if d.deleteEmpty {
		d.freed = append(d.freed, port.Addresses...)
		kick(d.owed.more) // Run deletes the subnets if no call does
	}
}

// tidyGone deletes subnets that the ends of endpoints have made empty.
func (d *Driver) tidyGone(ctx context.Context) {
	d.mu.Lock()
	freed := d.freed
	d.freed = nil
	d.mu.Unlock()
	d.tidySubnets(ctx, freed...)
}

// finishEndpoints completes pending deletions of endpoints that have what a call asks for. Only an
// endpoint with the same id must be gone: another may be on another network, and the SDN refuses an
// address or a MAC that is in use.
func (d *Driver) finishEndpoints(ctx context.Context, a api.Subject) error {
	return d.endpoints.Finish(ctx, func(id string, port sdn.Port) (matches, required bool) {
		required = id == a.EndpointID
		return required || a.MAC != "" && port.MAC.String() == a.MAC ||
			shareAddress(addrs(port), a.Addresses), required
	})
}

func addrs(port sdn.Port) []netip.Addr {
	var list []netip.Addr
	for _, a := range port.Addresses {
		list = append(list, a.Addr)
	}
	return list
}

// wasReturned reports whether an address was an existing port's whose endpoint is gone, and has not
// been requested since. It forgets that.
func (d *Driver) wasReturned(a sdn.Address) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	was := d.returned[a]
	delete(d.returned, a)
	return was
}

// endpointNetworks tells endpoints of the networks that have no rows.
type endpointNetworks struct{ *Driver }

// Find implements endpoint.Networks.
func (d endpointNetworks) Find(ctx context.Context, id string) (networks.View, error) {
	n, err := d.network(ctx, id)
	if err != nil {
		return networks.View{}, err
	}
	if err := d.noteUse(ctx, n); err != nil {
		return networks.View{}, err
	}
	v := networks.View{
		ID: n.ID, Project: n.Project, MTU: n.MTU, NoPortSecurity: n.NoPortSecurity, Swarm: ofSwarm(n),
		Options: api.NetworkOptions{
			Internal:  slices.Contains(n.Tags, identity.TagInternal),
			NoGateway: slices.Contains(n.Tags, identity.TagNoGateway),
			Groups:    identity.Values(n.Tags, identity.TagGroup),
			Publish:   strings.Join(identity.Values(n.Tags, identity.TagPublish), ""),
		},
	}
	v.Options.HostBinding, _ = netip.ParseAddr(strings.Join(identity.Values(n.Tags, identity.TagBinding), ""))
	v.Subnets, err = d.subnetsOf(ctx, n)
	return v, err
}

// network returns the SDN's network of an engine's.
func (d *Driver) network(ctx context.Context, id string) (sdn.Network, error) {
	n, found, err := d.findNetwork(ctx, id)
	if err == nil && !found {
		err = refuse("there is no network %s", id)
	}
	return n, err
}

// subnetsOf returns the subnets of a network.
func (d *Driver) subnetsOf(ctx context.Context, n sdn.Network) ([]sdn.Subnet, error) {
	if len(n.Subnets) == 0 {
		return nil, nil
	}
	query := sdn.SubnetQuery{Match: sdn.Match{IDs: n.Subnets}}
	return sdn.All(d.sdn.FindSubnets(ctx, query))
}

// endpointAddresses finds ports that have no rows.
type endpointAddresses struct{ *Driver }

// At implements endpoint.Addresses.
func (d endpointAddresses) At(
	ctx context.Context, n networks.View, addresses []netip.Prefix, _ net.HardwareAddr,
) ([]ipam.Held, error) {
	var ports []ipam.Held
	for _, a := range addresses {
		for _, s := range n.Subnets {
			has := func(h ipam.Held) bool { return hasAddress(h.Port, a.Addr()) }
			if !s.CIDR.Contains(a.Addr()) || slices.ContainsFunc(ports, has) {
				continue
			}
			// One address of one subnet at a time is what an SDN may know the port of.
			query := sdn.PortQuery{Subnets: []sdn.ID{s.ID}, Addresses: []netip.Addr{a.Addr()}}
			port, found, err := sdn.First(d.sdn.FindPorts(ctx, query))
			if err != nil {
				return nil, err
			}
			if found {
				ports = append(ports, ipam.Held{Port: port, Existing: !d.ownPort(port)})
			}
		}
	}
	byID := func(a, b ipam.Held) int { return strings.Compare(string(a.Port.ID), string(b.Port.ID)) }
	slices.SortFunc(ports, byID)
	return slices.CompactFunc(ports, func(a, b ipam.Held) bool { return a.Port.ID == b.Port.ID }), nil
}

// Merge implements endpoint.Addresses. The others are deleted first, since an address has one port.
func (d endpointAddresses) Merge(ctx context.Context, ports []ipam.Held) (ipam.Held, error) {
	kept := ports[0]
	addresses, tags := slices.Clone(kept.Port.Addresses), slices.Clone(kept.Port.Tags)
	var others []sdn.ID
	for _, h := range ports[1:] {
		others = append(others, h.Port.ID)
		addresses = append(addresses, h.Port.Addresses...)
		tags = append(tags, held(h.Port)...)
	}
	if err := d.deletePorts(ctx, others...); err != nil {
		return kept, err
	}
	patch := sdn.PortPatch{Patch: sdn.Patch{IfRevision: kept.Port.Revision}, Addresses: &addresses}
	if len(tags) > len(kept.Port.Tags) {
		patch.Tags = &tags
	}
	port, err := d.sdn.UpdatePort(ctx, kept.Port.ID, patch)
	if sdn.ReasonOf(err) == sdn.Stale {
		err = refuseFor(err, "address %s was taken by another endpoint", identity.Addresses(kept.Port))
	}
	return ipam.Held{Port: port}, err
}

// Deleting implements endpoint.Addresses.
func (endpointAddresses) Deleting(string) bool { return false }

// port returns the port of an endpoint, as the SDN has it.
func (d *Driver) port(ctx context.Context, endpoint string) (sdn.Port, bool, error) {
	return d.endpoints.LookUp(ctx, endpoint)
}

// ownPort reports whether a port is ours, or kuryr-libnetwork's on this host or on none.
func (d *Driver) ownPort(p sdn.Port) bool {
	return d.names.Ours(p.Meta, identity.KindPort, identity.KindEndpoint) ||
		identity.PeersPort(p) && !identity.Elsewhere(p, d.host)
}

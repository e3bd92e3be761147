package docker

import (
	"bytes"
	"context"
	"net/netip"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

// endpointInterface holds only what the engine did not give: what it gave must come back empty.
type endpointInterface struct {
	Address     string `json:",omitempty"`
	AddressIPv6 string `json:",omitempty"`
	MacAddress  string `json:",omitempty"`
}

type createEndpointResponse struct{ Interface endpointInterface }

// createEndpoint binds the port that has the addresses to the endpoint and this host. Where another IPAM driver chose the
// addresses there is none, and it is made.
func (d *Driver) createEndpoint(ctx context.Context, r *createEndpointRequest) (any, error) {
	answer, forgotten, err := d.bindEndpoint(ctx, r)
	if len(forgotten) == 0 {
		return answer, err
	}
	for _, p := range forgotten {
		if err := d.dropForgotten(ctx, p); err != nil {
			return nil, err
		}
	}
	answer, _, err = d.bindEndpoint(ctx, r)
	return answer, err
}

// bindEndpoint is createEndpoint up to ports of ours that have the addresses for other endpoints, and may be forgotten.
func (d *Driver) bindEndpoint(ctx context.Context, r *createEndpointRequest) (answer any, forgotten []sdn.Port, err error) {
	unlock, err := d.locks.lock(ctx, "endpoint/"+r.EndpointID)
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	network, err := d.network(ctx, r.NetworkID)
	if err != nil {
		return nil, nil, err
	}
	ports, err := d.portsAt(ctx, network, r.addresses)
	if err != nil {
		return nil, nil, err
	}
	for _, p := range ports {
		switch {
		case !d.ours(p.Meta, kindPort, kindEndpoint):
			return nil, nil, refuse("address %s is in use by a port that is not Kuryr's", p.Addresses[0].Addr)
		case p.DeviceID == "" || p.DeviceID == r.EndpointID:
		case p.Key.Kind == kindEndpoint && p.Host == d.host:
			forgotten = append(forgotten, p)
		default:
			d.refused(p, r.addresses)
			return nil, nil, inUseByAnother(p)
		}
	}
	if len(forgotten) > 0 {
		return nil, forgotten, inUseByAnother(forgotten[0])
	}
	var port sdn.Port
	switch len(ports) {
	case 0:
		port, err = d.makePort(ctx, network, r)
	case 1:
		port, err = d.bindPort(ctx, ports[0], r, nil)
	default:
		port, err = d.joinPorts(ctx, ports, r)
	}
	if err != nil {
		return nil, nil, err
	}
	failpoint.Here("docker.createendpoint.bound")
	return createEndpointResponse{ungiven(port, r)}, nil, nil
}

func inUseByAnother(port sdn.Port) error {
	return refuse("address %s is in use by another endpoint", port.Addresses[0].Addr)
}

// dropForgotten takes away an endpoint whose addresses another IPAM driver has handed out anew. The engine never deletes an
// endpoint whose CreateEndpoint was killed before it answered, nor again one whose DeleteEndpoint failed, and of that driver's
// releases Kuryr does not hear. An endpoint that a container has stays, whatever the IPAM driver says.
func (d *Driver) dropForgotten(ctx context.Context, port sdn.Port) error {
	unlock, err := d.locks.lock(ctx, "endpoint/"+port.DeviceID)
	if err != nil {
		return err
	}
	defer unlock()
	now, err := d.sdn.Port(ctx, port.ID)
	if sdn.IsNotFound(err) || err == nil && now.DeviceID != port.DeviceID {
		return nil
	}
	if err != nil {
		return err
	}
	connected, err := d.binder.Connected(ctx, now)
	if err != nil {
		return &plugError{err}
	}
	if connected {
		return inUseByAnother(now)
	}
	d.log.WarnContext(ctx, "an endpoint that the engine has forgotten is taken away: its address was given to another",
		"endpoint", now.DeviceID, "address", now.Addresses[0].Addr)
	return d.dropEndpoint(ctx, now)
}

// network is the SDN's network of an engine's.
func (d *Driver) network(ctx context.Context, id string) (sdn.Network, error) {
	keys := []sdn.Key{d.key(kindNetwork, id)}
	n, found, err := sdn.First(d.sdn.FindNetworks(ctx, sdn.NetworkQuery{Match: sdn.Match{Keys: keys}}))
	if err == nil && !found {
		err = refuse("there is no network %s", id)
	}
	return n, err
}

// portsAt are the ports of the network that have the addresses.
func (d *Driver) portsAt(ctx context.Context, network sdn.Network, addresses []netip.Prefix) ([]sdn.Port, error) {
	if len(addresses) == 0 || len(network.Subnets) == 0 {
		return nil, nil
	}
	query := sdn.PortQuery{Subnets: network.Subnets}
	for _, a := range addresses {
		query.Addresses = append(query.Addresses, a.Addr())
	}
	ports, err := sdn.All(d.sdn.FindPorts(ctx, query))
	slices.SortFunc(ports, func(a, b sdn.Port) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return slices.CompactFunc(ports, func(a, b sdn.Port) bool { return a.ID == b.ID }), err
}

func portName(endpoint string) string { return endpoint + "-port" }

func boundTags(endpoint string) []string { return append(idTags(endpoint), tagPort) }

// makePort makes the port of an endpoint whose addresses another IPAM driver chose, or nobody.
func (d *Driver) makePort(ctx context.Context, network sdn.Network, r *createEndpointRequest) (sdn.Port, error) {
	spec := sdn.PortSpec{
		Base:        sdn.Base{Key: d.key(kindEndpoint, r.EndpointID), Name: portName(r.EndpointID), Tags: boundTags(r.EndpointID)},
		Network:     network.ID,
		MAC:         r.mac,
		DeviceID:    r.EndpointID,
		DeviceOwner: sdn.OwnerContainer,
		Host:        d.host,
	}
	for _, a := range r.addresses {
		spec.Addresses = append(spec.Addresses, sdn.Address{Addr: a.Addr()})
	}
	spec.WithoutAddresses = len(network.Subnets) == 0
	if spec.WithoutAddresses && len(r.addresses) > 0 {
		return sdn.Port{}, refuse("network %s has no range that %s is in", r.NetworkID, r.addresses[0].Addr())
	}
	ports, err := d.sdn.EnsurePorts(ctx, []sdn.PortSpec{spec})
	if err != nil {
		return sdn.Port{}, err
	}
	return ports[0], nil
}

// bindPort gives a port to the endpoint. addresses are the port's new ones, nil leaves them.
func (d *Driver) bindPort(ctx context.Context, port sdn.Port, r *createEndpointRequest, addresses []sdn.Address) (sdn.Port, error) {
	same := r.mac == nil || bytes.Equal(r.mac, port.MAC)
	if port.DeviceID == r.EndpointID && port.Host == d.host && same && addresses == nil {
		return port, nil
	}
	name, owner, tags := portName(r.EndpointID), sdn.OwnerContainer, boundTags(r.EndpointID)
	patch := sdn.PortPatch{
		Patch:    sdn.Patch{IfRevision: port.Revision, Name: &name, Tags: &tags},
		DeviceID: &r.EndpointID, DeviceOwner: &owner, Host: &d.host,
	}
	if !same {
		patch.MAC = r.mac
	}
	if addresses != nil {
		patch.Addresses = &addresses
	}
	bound, err := d.sdn.UpdatePort(ctx, port.ID, patch)
	if sdn.ReasonOf(err) == sdn.Stale {
		return bound, refuseFor(err, "address %s was taken by another endpoint", port.Addresses[0].Addr)
	}
	return bound, err
}

// joinPorts makes one port of those that the addresses of a dual-stack endpoint were taken with, which an engine that sends
// no MAC causes. The others are deleted first, since an address has but one port: a killed call leaves the engine without an
// answer, and it gives the addresses back.
func (d *Driver) joinPorts(ctx context.Context, ports []sdn.Port, r *createEndpointRequest) (sdn.Port, error) {
	port, others := ports[0], ports[1:]
	for i, p := range ports {
		if p.DeviceID == r.EndpointID {
			port, others = p, slices.Delete(slices.Clone(ports), i, i+1)
		}
	}
	addresses := slices.Clone(port.Addresses)
	var ids []sdn.ID
	for _, p := range others {
		addresses = append(addresses, p.Addresses...)
		ids = append(ids, p.ID)
	}
	if err := d.sdn.DeletePorts(ctx, ids); err != nil {
		return sdn.Port{}, err
	}
	failpoint.Here("docker.createendpoint.joining")
	return d.bindPort(ctx, port, r, addresses)
}

// ungiven is what the engine did not say of the interface.
func ungiven(port sdn.Port, r *createEndpointRequest) endpointInterface {
	var i endpointInterface
	if !r.macGiven {
		i.MacAddress = port.MAC.String()
	}
	return i
}

// port is the port of an endpoint, and whether there is one.
func (d *Driver) port(ctx context.Context, endpoint string) (sdn.Port, bool, error) {
	for p, err := range d.sdn.FindPorts(ctx, sdn.PortQuery{Devices: []string{endpoint}}) {
		if err != nil {
			return sdn.Port{}, false, err
		}
		if d.ours(p.Meta, kindPort, kindEndpoint) {
			return p, true, nil
		}
	}
	return sdn.Port{}, false, nil
}

type operInfoResponse struct{ Value map[string]any }

// endpointOperInfo tells facts about the port. It never fails: older engines do not start a container without it.
func (d *Driver) endpointOperInfo(ctx context.Context, r *endpointRequest) (any, error) {
	value := map[string]any{}
	port, found, err := d.port(ctx, r.EndpointID)
	if err != nil {
		d.log.WarnContext(ctx, "no facts about an endpoint", "endpoint", r.EndpointID, "err", err)
	}
	if found {
		value["kuryr.port.id"] = string(port.ID)
		value["kuryr.port.mac"] = port.MAC.String()
		value["kuryr.port.status"] = string(port.Status)
		value["kuryr.network.id"] = string(port.Network)
	}
	return operInfoResponse{value}, nil
}

// deleteEndpoint unbinds the port. It stays until its addresses are released, unless it was made by CreateEndpoint or they
// have been released already.
func (d *Driver) deleteEndpoint(ctx context.Context, r *endpointRequest) (any, error) {
	unlock, err := d.locks.lock(ctx, "endpoint/"+r.EndpointID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := d.unpublish(ctx, r.EndpointID); err != nil {
		return nil, err
	}
	failpoint.Here("docker.deleteendpoint.unpublished")
	port, found, err := d.port(ctx, r.EndpointID)
	if err != nil || !found {
		return nothing{}, err
	}
	if err := d.unplug(ctx, port); err != nil {
		return nil, err
	}
	failpoint.Here("docker.deleteendpoint.unplugged")
	return nothing{}, retryStale(func(again bool) error {
		if again {
			if port, found, err = d.port(ctx, r.EndpointID); err != nil || !found {
				return err
			}
		}
		return d.park(ctx, port)
	})
}

// park takes the endpoint from its port, or deletes what no ReleaseAddress will come for.
func (d *Driver) park(ctx context.Context, port sdn.Port) error {
	left := unfreed(port)
	if port.Key.Kind == kindEndpoint || len(left) == 0 {
		return d.sdn.DeletePorts(ctx, []sdn.ID{port.ID})
	}
	none, name, tags := "", unboundName, []string{tagPort}
	patch := sdn.PortPatch{
		Patch:    sdn.Patch{IfRevision: port.Revision, Name: &name, Tags: &tags},
		DeviceID: &none, Host: &none,
	}
	if len(left) < len(port.Addresses) {
		patch.Addresses = &left
	}
	_, err := d.sdn.UpdatePort(ctx, port.ID, patch)
	return err
}

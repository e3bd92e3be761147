package docker

import (
	"context"
	"fmt"
	"slices"

	"github.com/kuryr/kuryr/docker/api"
	endpoints "github.com/kuryr/kuryr/docker/endpoint"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/sdn"
)

// stayed says that something is not to be forgotten after all.
type stayed struct{ why string }

func (s stayed) Error() string { return "it stays: " + s.why }

// Forget removes what a comparison found, by the ways in which the engine's own calls do it, and looks once more at what could have
// changed since. What a container has stays, whoever asks.
func (d *Driver) Forget(ctx context.Context, f Forgotten) error {
	switch f.Noun {
	case NounPublication:
		return d.forgetPublication(ctx, f)
	case NounEndpoint:
		return d.forgetEndpoint(ctx, f)
	case NounAddress:
		err := d.sdn.DeletePort(ctx, f.ID, f.revision)
		if sdn.ReasonOf(err) == sdn.Stale {
			return stayed{"it has been taken again"}
		}
		if err == nil {
			d.forgetPorts(f.ID)
		}
		return ignoreAbsent(err)
	case NounNetwork:
		return d.forgetNetwork(ctx, f)
	case NounPool:
		return d.forgetPool(ctx, f.ID)
	}
	return fmt.Errorf("docker: nobody forgets a %s", f.Noun)
}

func ignoreAbsent(err error) error {
	if sdn.IsNotFound(err) {
		return nil
	}
	return err
}

func (d *Driver) forgetPublication(ctx context.Context, f Forgotten) error {
	_, found, err := d.port(ctx, f.Name)
	if err != nil {
		return err
	}
	if found {
		return stayed{"the endpoint is there"}
	}
	connected, err := d.endpoints.DropUnused(ctx, f.Name, sdn.Port{}, f.Why)
	if connected { // it keeps its interface
		return d.endpoints.Unpublish(ctx, f.Name)
	}
	return err
}

func (d *Driver) forgetEndpoint(ctx context.Context, f Forgotten) error {
	port, err := d.sdn.Port(ctx, f.ID)
	if err != nil {
		return ignoreAbsent(err)
	}
	if identity.EndpointOf(port) != f.Name || port.Host != d.host {
		return stayed{"its port is another endpoint's now"}
	}
	connected, err := d.dropUnused(ctx, port, f.Why)
	if connected {
		return isConnected(f.Name)
	}
	return err
}

func isConnected(endpoint string) error {
	return stayed{fmt.Sprintf("a container has the interface of endpoint %s", endpoint)}
}

// unconnected fails for a port whose interface a container has.
func (d *Driver) unconnected(ctx context.Context, port sdn.Port) error {
	connected, err := d.binder.Connected(ctx, port)
	if err != nil {
		return &endpoints.PlugError{Err: err}
	}
	if connected {
		return isConnected(identity.EndpointOf(port))
	}
	return nil
}

// forgetNetwork removes a network and its pools. Killed between the two it leaves pools that no network has the range of.
func (d *Driver) forgetNetwork(ctx context.Context, f Forgotten) error {
	drop := d.dropUnconnected
	switch {
	case f.hidden:
		return ignoreAbsent(d.deleteHidden(ctx, f.ID))
	case f.linked:
		drop = d.dropLinked
	}
	pools, err := drop(ctx, f)
	if err != nil {
		return err
	}
	for _, id := range pools {
		if err := d.forgetPool(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// lockForgotten takes the lock of a network, which stays if the engine has asked for it again since it was found.
func (d *Driver) lockForgotten(ctx context.Context, f Forgotten) (unlock func(), err error) {
	if unlock, err = d.locks.lock(ctx, "network/"+f.Name); err != nil {
		return nil, err
	}
	if f.untold && !d.begun.isLeft(identity.KindNetwork, f.Name) {
		unlock()
		return nil, stayed{"Docker has asked for it again"}
	}
	return unlock, nil
}

// dropUnconnected removes a network that no container has an interface on, and tells the pools it was cut from.
func (d *Driver) dropUnconnected(ctx context.Context, f Forgotten) ([]sdn.ID, error) {
	unlock, err := d.lockForgotten(ctx, f)
	if err != nil {
		return nil, err
	}
	defer unlock()
	for port, err := range d.sdn.FindPorts(ctx, sdn.PortQuery{Networks: []sdn.ID{f.ID}}) {
		if err != nil {
			return nil, err
		}
		if !d.names.Ours(port.Meta, identity.KindPort, identity.KindEndpoint) || port.DeviceID == "" {
			continue
		}
		if port.Host != d.host {
			return nil, stayed{"it has an endpoint on host " + port.Host}
		}
		if err := d.unconnected(ctx, port); err != nil {
			return nil, err
		}
	}
	subnets, err := sdn.All(d.sdn.FindSubnets(ctx, sdn.SubnetQuery{Networks: []sdn.ID{f.ID}}))
	if err != nil {
		return nil, err
	}
	network, err := d.sdn.Network(ctx, f.ID)
	if err != nil {
		return nil, ignoreAbsent(err)
	}
	if f.untouched {
		if err := d.markUntouched(ctx, f, network); err != nil {
			return nil, err
		}
	}
	return poolsOfNetwork(network, subnets), d.removeNetwork(ctx, f.Name)
}

// dropLinked is dropUnconnected of an existing network. Others of the engine's may be the same one: then who has its interfaces cannot be
// told, and their endpoints were removed before.
func (d *Driver) dropLinked(ctx context.Context, f Forgotten) ([]sdn.ID, error) {
	unlock, err := d.lockForgotten(ctx, f)
	if err != nil {
		return nil, err
	}
	defer unlock()
	links, err := d.allLinks(ctx)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(links, func(l link) bool { return l.id == f.Name })
	if at < 0 {
		return nil, nil
	}
	l := links[at]
	if !slices.ContainsFunc(links, func(o link) bool { return o.network == l.network && o.id != l.id }) {
		for port, err := range d.sdn.FindPorts(ctx, sdn.PortQuery{Networks: []sdn.ID{l.network}, Hosts: []string{d.host}}) {
			if err != nil {
				return nil, err
			}
			if !d.names.Ours(port.Meta, identity.KindPort, identity.KindEndpoint) || port.DeviceID == "" {
				continue
			}
			if err := d.unconnected(ctx, port); err != nil {
				return nil, err
			}
		}
	}
	return l.pools, d.removeNetwork(ctx, f.Name)
}

// forgetPool removes a pool that no network is cut from, with the hidden network that holds its addresses.
func (d *Driver) forgetPool(ctx context.Context, id sdn.ID) error {
	found, err := d.sdn.SubnetPool(ctx, id)
	if err != nil {
		return ignoreAbsent(err)
	}
	pool, ok := d.enginePool(found)
	if !ok || pool.Host != d.names.Host {
		return nil
	}
	// Who makes a network of it, or hands it out again, holds one of these.
	unlock, err := d.locks.lock(ctx, "automatic", "range/"+pool.Space+"/"+pool.CIDR.String(), "range//"+pool.CIDR.String())
	if err != nil {
		return err
	}
	defer unlock()
	if d.handedLately(id) {
		return stayed{"it was just given to the engine"}
	}
	subnet, used, err := d.subnetOf(ctx, id)
	if err != nil {
		return err
	}
	if used && !d.names.Ours(subnet.Meta, identity.KindHiddenSubnet) && pool.subnet() == "" {
		return stayed{"a network is cut from it"}
	}
	if pool.subnet() != "" {
		links, err := d.allLinks(ctx)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(links, func(l link) bool { return slices.Contains(l.pools, id) }) {
			return stayed{"it is of an existing network that is used"}
		}
	}
	_, err = d.letGo(ctx, api.PoolID{Pool: id})
	return err
}

// Seen remembers that an engine has a network: only what an engine was seen to have can be forgotten by it. A network that is not
// there is none of ours. The SDN is told that nobody waits.
func (d *Driver) Seen(ctx context.Context, engine, network string) error {
	ctx = sdn.Unawaited(ctx)
	n, found, err := d.findNetwork(ctx, network)
	if err != nil || !found {
		return err
	}
	return d.remember(ctx, identity.EngineName(engine), n)
}

func (d *Driver) remember(ctx context.Context, engine string, n sdn.Network) error {
	return ignoreAbsent(d.changeNetwork(ctx, n, func(tags []string) []string {
		tags, _ = withEngine(tags, engine)
		return tags
	}))
}

// withEngine puts the engine into the place of the one that the tags name.
func withEngine(tags []string, engine string) ([]string, bool) {
	if engineOf(tags) == engine {
		return tags, false
	}
	var others []string
	for _, t := range tags {
		if len(identity.Values([]string{t}, identity.TagEngine)) == 0 {
			others = append(others, t)
		}
	}
	return append(others, identity.TagEngine+engine), true
}

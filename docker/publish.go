package docker

import (
	"context"
	"errors"
	"net/netip"
	"strings"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/docker/publish"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

// programExternal lets in what the endpoint's container exposes, and publishes its ports: at the
// host's own addresses where the SDN can do that, by a floating IP where that was asked for, or by
// a proxy.
func (d *Driver) programExternal(ctx context.Context, r *api.ProgramRequest) (any, error) {
	can := d.sdn.Capabilities()
	if len(r.Options.PortMap) == 0 && (len(r.Options.Exposed) == 0 || !d.external || !can.SecurityGroups) {
		return api.Empty{}, nil
	}
	without := map[bool]bool{}
	if can.HostAddresses && len(r.Options.PortMap) > 0 {
		var err error
		if without, err = d.divideFamilies(ctx, r.EndpointID); err != nil {
			return nil, err
		}
	}
	unlock, err := d.locks.lock(ctx, "endpoint/"+r.EndpointID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	known, err := d.plugOf(ctx, r.EndpointID, r.NetworkID)
	if err != nil {
		return nil, err
	}
	if err = d.expose(ctx, r.EndpointID, &known, r.Options.Exposed); err == nil && len(r.Options.PortMap) > 0 {
		ports := toPublish(r.Options.PortMap)
		switch {
		case can.HostAddresses:
			err = d.publishAtHost(ctx, r.EndpointID, known, ports, without)
		case forwards(known.Port):
			err = d.publishForwarded(ctx, r.EndpointID, known, ports)
		default:
			err = d.publishProxied(ctx, r.EndpointID, known, ports)
		}
		if refused := (*publish.Refusal)(nil); errors.As(err, &refused) {
			err = &api.Refusal{Text: refused.Text, Cause: refused.Cause}
		}
	}
	if err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollback)
		defer cancel()
		if left := d.unpublish(undo, r.EndpointID); left != nil {
			d.log.ErrorContext(ctx, "published ports were left behind", "endpoint", r.EndpointID, "err", left)
		}
		return nil, err
	}
	return api.Empty{}, nil
}

// toPublish converts the engine's port mappings.
func toPublish(maps []api.PortMapping) []publish.Port {
	var ports []publish.Port
	for _, m := range maps {
		ports = append(ports, publish.Port{
			Protocol: m.Proto, Port: m.Port, Host: m.HostIP,
			First: m.HostPorts.First, Last: m.HostPorts.Last,
		})
	}
	return ports
}

// atHost publishes at the host's own addresses.
func (d *Driver) atHost() *publish.Host {
	return &publish.Host{SDN: d.sdn, Ports: d.hostPorts, Log: d.log}
}

// toBePublished is an endpoint as it is published.
func (d *Driver) toBePublished(endpoint string, port sdn.Port) publish.Endpoint {
	return publish.Endpoint{ID: endpoint, Key: d.names.GlobalKey(identity.KindPublish, endpoint),
		Port: port, Binding: binding(port)}
}

// binding is the address of the host that the port's network was told to publish on, where a
// published port names none; invalid: everywhere.
func binding(port sdn.Port) netip.Addr {
	for _, text := range identity.Values(port.Tags, identity.TagBinding) {
		if a, err := netip.ParseAddr(text); err == nil {
			return a
		}
	}
	return netip.Addr{}
}

func (d *Driver) publishAtHost(
	ctx context.Context, endpoint string, known plugged, ports []publish.Port, without map[bool]bool,
) error {
	if can := d.sdn.Capabilities(); !can.Forwards || can.ExternalNetwork == "" {
		return refuse("this SDN cannot publish ports on the host")
	}
	if known.Unpublished {
		known.Unpublished = false
		d.plugged.put(ctx, endpoint, known)
	}
	return d.atHost().Publish(ctx, d.toBePublished(endpoint, known.Port), ports, without)
}

// divideFamilies divides the families among the endpoints of one container. An engine may choose
// an endpoint of one family as the gateway of that family, and one of both for the other. It asks
// both to publish all ports, and tells the second nothing of the first. So an endpoint of both
// families leaves a family to the endpoint of that family alone. divideFamilies withdraws the
// family from other endpoints, and returns the families that this one leaves to others, by
// whether IPv6. The caller does not hold the endpoint's lock.
func (d *Driver) divideFamilies(ctx context.Context, endpoint string) (map[bool]bool, error) {
	without := map[bool]bool{}
	own, known := d.plugged.get(endpoint)
	if !known || own.Sandbox == "" {
		return without, nil
	}
	can := d.sdn.Capabilities()
	four, six := d.toBePublished(endpoint, own.Port).Families(can)
	for _, other := range d.plugged.endpoints() {
		record, known := d.plugged.get(other)
		if other == endpoint || !known || record.Sandbox != own.Sandbox {
			continue
		}
		e := d.toBePublished(other, record.Port)
		otherFour, otherSix := e.Families(can)
		switch {
		case four && six && otherFour != otherSix:
			there, err := d.atHost().Published(ctx, e)
			if err != nil {
				return nil, err
			}
			without[otherSix] = without[otherSix] || len(there) > 0
		case four != six && otherFour && otherSix:
			if err := d.yieldFamily(ctx, e, six); err != nil {
				return nil, err
			}
		}
	}
	return without, nil
}

// yieldFamily withdraws what an endpoint publishes of a family.
func (d *Driver) yieldFamily(ctx context.Context, e publish.Endpoint, six bool) error {
	unlock, err := d.locks.lock(ctx, "endpoint/"+e.ID)
	if err != nil {
		return err
	}
	defer unlock()
	return d.atHost().Yield(ctx, e, six)
}

// revokeExternal takes back what was published.
func (d *Driver) revokeExternal(ctx context.Context, r *api.EndpointRequest) (any, error) {
	unlock, err := d.locks.lock(ctx, "endpoint/"+r.EndpointID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return api.Empty{}, d.unpublish(ctx, r.EndpointID)
}

// unpublish ends what an endpoint publishes and deletes its security group. If its record says
// that nothing was made of it in the SDN, the SDN is not asked.
func (d *Driver) unpublish(ctx context.Context, endpoint string) error {
	d.stopProxied(ctx, endpoint)
	if err := d.unexpose(ctx, endpoint); err != nil {
		return err
	}
	can := d.sdn.Capabilities()
	r, known := d.plugged.get(endpoint)
	if !can.Forwards || known && (can.HostAddresses && r.Unpublished || !can.HostAddresses && !r.Floating) {
		return nil
	}
	withdraw := func() error { return d.atHost().Withdraw(ctx, d.toBePublished(endpoint, r.Port)) }
	if !can.HostAddresses {
		withdraw = func() error { return d.dropForwarded(ctx, endpoint) }
	}
	if err := withdraw(); err != nil {
		return err
	}
	failpoint.Here("docker.unpublish.done")
	if known {
		r.Unpublished, r.Floating, r.Forwarder = can.HostAddresses, false, ""
		d.plugged.put(ctx, endpoint, r)
	}
	return nil
}

// restorePorts reserves the host ports of all publications again, after a restart.
func (d *Driver) restorePorts(ctx context.Context) error {
	// An SDN in another process tells its capabilities with its first answer.
	if err := d.sdn.Ping(ctx); err != nil {
		return err
	}
	if can := d.sdn.Capabilities(); !can.Forwards || !can.HostAddresses {
		return nil
	}
	endpoints, err := d.published(ctx, nil)
	var errs []error
	for _, endpoint := range endpoints {
		errs = append(errs, d.restoreEndpoint(ctx, endpoint))
	}
	return errors.Join(append(errs, err)...)
}

func (d *Driver) restoreEndpoint(ctx context.Context, endpoint string) error {
	unlock, err := d.locks.lock(ctx, "endpoint/"+endpoint)
	if err != nil {
		return err
	}
	defer unlock()
	return d.atHost().Restore(ctx, d.toBePublished(endpoint, sdn.Port{}))
}

// published lists the endpoints that publish at an address of the host that the filter lets pass;
// nil lets all pass.
func (d *Driver) published(ctx context.Context, passes func(netip.Addr) bool) ([]string, error) {
	match := sdn.Match{Owner: d.sdn.Installation(), Kind: identity.KindPublish}
	var endpoints []string
	seen := map[string]bool{}
	for f, err := range d.sdn.FindFloatingIPs(ctx, sdn.FloatingIPQuery{Match: match}) {
		if err != nil {
			return endpoints, err
		}
		endpoint, _, _ := strings.Cut(f.Key.Name, "/")
		if !seen[endpoint] && (passes == nil || passes(f.Address)) {
			seen[endpoint] = true
			endpoints = append(endpoints, endpoint)
		}
	}
	return endpoints, nil
}

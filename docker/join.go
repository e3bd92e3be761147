package docker

import (
	"context"
	"net/netip"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

// join plugs the endpoint's port and tells the engine which interface to move into the container and what to route by it.
func (d *Driver) join(ctx context.Context, r *api.JoinRequest) (any, error) {
	unlock, err := d.locks.lock(ctx, "endpoint/"+r.EndpointID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	known, err := d.plugOf(ctx, r.EndpointID, r.NetworkID)
	if err != nil {
		return nil, err
	}
	port, subnets := known.Port, known.Subnets
	if port, err = d.rememberExposed(ctx, port, r); err != nil {
		return nil, err
	}
	if len(port.Addresses) > 0 && subnets == nil {
		if subnets, err = d.subnets(ctx, port); err != nil {
			return nil, err
		}
	}
	if known.Internal {
		for i := range subnets {
			subnets[i].Gateway = netip.Addr{} // a swarm's has one, since its manager does not know, and an existing one's may
		}
	}
	if balancerSandbox(r.SandboxKey) {
		if port, err = d.allowVIPs(ctx, port, subnets); err != nil {
			return nil, err
		}
	}
	plugged, err := d.binder.Plug(ctx, bind.Interface{Port: port, MTU: known.MTU, Subnets: subnets})
	if err != nil {
		return nil, &plugError{err}
	}
	failpoint.Here("docker.join.plugged")
	known.Port, known.Subnets, known.Sandbox = port, subnets, r.SandboxKey
	d.plugged.put(ctx, r.EndpointID, known)
	if err := d.awaitActive(ctx, port); err != nil {
		return nil, err
	}
	if err := d.float(ctx, port); err != nil {
		return nil, err
	}
	return joinAnswer(port, subnets, plugged.Name), nil
}

// rememberExposed writes down the exposed ports that Join alone tells of. Most containers expose none, or those that CreateEndpoint told.
func (d *Driver) rememberExposed(ctx context.Context, port sdn.Port, r *api.JoinRequest) (sdn.Port, error) {
	err := retryStale(func(again bool) (err error) {
		if again {
			if port, err = d.sdn.Port(ctx, port.ID); err != nil {
				return err
			}
		}
		tags, changed := exposes(port, r.Options.Exposed)
		if !changed {
			return nil
		}
		patched, err := d.sdn.UpdatePort(ctx, port.ID, sdn.PortPatch{Patch: sdn.Patch{IfRevision: port.Revision, Tags: &tags}})
		if err == nil {
			port = patched
			failpoint.Here("docker.join.exposed")
		}
		return err
	})
	return port, err
}

// subnets are those that the port has addresses of.
func (d *Driver) subnets(ctx context.Context, port sdn.Port) ([]sdn.Subnet, error) {
	var ids []sdn.ID
	for _, a := range port.Addresses {
		ids = append(ids, a.Subnet)
	}
	return sdn.All(d.sdn.FindSubnets(ctx, sdn.SubnetQuery{Match: sdn.Match{IDs: ids}}))
}

// joinAnswer gives the gateways and routes of the subnets that the port has addresses of, and no others. Without a gateway
// the engine would put a bridge of its own into the container for the way out, which DisableGatewayService forbids.
func joinAnswer(port sdn.Port, subnets []sdn.Subnet, name string) api.JoinResponse {
	j := api.JoinResponse{InterfaceName: api.InterfaceName{SrcName: name, DstPrefix: "eth", DstName: ifname(port)}}
	byID, own := map[sdn.ID]sdn.Subnet{}, map[netip.Addr]bool{}
	for _, s := range subnets {
		byID[s.ID] = s
	}
	told := map[sdn.HostRoute]bool{}
	for _, a := range port.Addresses {
		own[a.Addr] = true
	}
	for _, a := range port.Addresses {
		s, ok := byID[a.Subnet]
		if !ok {
			continue
		}
		setGateway(&j, s.Gateway)
		for _, route := range s.HostRoutes {
			if told[route] || own[route.NextHop] {
				continue // a container that is itself the next hop needs no route, and no engine can make one
			}
			told[route] = true
			j.StaticRoutes = append(j.StaticRoutes, api.NewStaticRoute(route))
		}
	}
	j.DisableGatewayService = j.Gateway == ""
	return j
}

// setGateway takes the first gateway of each family.
func setGateway(j *api.JoinResponse, gateway netip.Addr) {
	switch {
	case gateway.Is4() && j.Gateway == "":
		j.Gateway = gateway.String()
	case gateway.Is6() && j.GatewayIPv6 == "":
		j.GatewayIPv6 = gateway.String()
	}
}

// ifname returns the name of a port's interface in the container, "" for any.
func ifname(port sdn.Port) string {
	for _, name := range identity.Values(port.Tags, identity.TagIfname) {
		if api.ValidIfname(name) {
			return name
		}
	}
	return ""
}

// leave unplugs the endpoint's port, and takes back what was published: engines do not always revoke it.
func (d *Driver) leave(ctx context.Context, r *api.EndpointRequest) (any, error) {
	unlock, err := d.locks.lock(ctx, "endpoint/"+r.EndpointID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	known, err := d.unplugKnown(ctx, r.EndpointID)
	if err != nil {
		return nil, err
	}
	if err := d.unpublish(ctx, r.EndpointID); err != nil {
		return nil, err
	}
	failpoint.Here("docker.leave.unpublished")
	port, found, err := d.portOf(ctx, r.EndpointID)
	if err != nil || !found || identity.Elsewhere(port, d.host) {
		return api.Empty{}, err
	}
	if err := d.letFloat(ctx, port); err != nil {
		return nil, err
	}
	if !known {
		if err := d.unplug(ctx, port); err != nil {
			return nil, err
		}
	}
	failpoint.Here("docker.leave.unplugged")
	if d.names.Attached(port, d.host) {
		return api.Empty{}, nil // what it may send as is its user's to say
	}
	return api.Empty{}, d.forbidVIPs(ctx, port)
}

// unplug takes a port's interface from this host; a port that is bound elsewhere or nowhere has none here.
func (d *Driver) unplug(ctx context.Context, port sdn.Port) error {
	if port.Host != d.host {
		return nil
	}
	if err := d.binder.Unplug(ctx, port); err != nil {
		return &plugError{err}
	}
	return nil
}

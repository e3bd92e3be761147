package docker

import (
	"context"
	"net/netip"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

type joinResponse struct {
	InterfaceName         interfaceName
	Gateway               string        `json:",omitempty"`
	GatewayIPv6           string        `json:",omitempty"`
	StaticRoutes          []staticRoute `json:",omitempty"`
	DisableGatewayService bool          `json:",omitempty"`
}

type interfaceName struct{ SrcName, DstPrefix string }

// staticRoute is a route by its next hop (RouteType 0).
type staticRoute struct {
	Destination string
	RouteType   int
	NextHop     string
}

// join plugs the endpoint's port and tells the engine which interface to move into the container and what to route by it.
func (d *Driver) join(ctx context.Context, r *joinRequest) (any, error) {
	unlock, err := d.locks.lock(ctx, "endpoint/"+r.EndpointID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	port, found, err := d.port(ctx, r.EndpointID)
	if err == nil && !found {
		err = refuse("there is no endpoint %s", r.EndpointID)
	}
	if err != nil {
		return nil, err
	}
	network, err := d.sdn.Network(ctx, port.Network)
	if err != nil {
		return nil, err
	}
	if network.Key != d.key(kindNetwork, r.NetworkID) {
		return nil, refuse("endpoint %s is not of network %s", r.EndpointID, r.NetworkID)
	}
	var subnets []sdn.Subnet
	if len(port.Addresses) > 0 {
		if subnets, err = d.subnets(ctx, port); err != nil {
			return nil, err
		}
	}
	plugged, err := d.binder.Plug(ctx, bind.Interface{Port: port, MTU: network.MTU, Subnets: subnets})
	if err != nil {
		return nil, &plugError{err}
	}
	failpoint.Here("docker.join.plugged")
	return joinAnswer(port, subnets, plugged.Name), nil
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
func joinAnswer(port sdn.Port, subnets []sdn.Subnet, name string) joinResponse {
	j := joinResponse{InterfaceName: interfaceName{SrcName: name, DstPrefix: "eth"}}
	byID := map[sdn.ID]sdn.Subnet{}
	for _, s := range subnets {
		byID[s.ID] = s
	}
	told := map[sdn.HostRoute]bool{}
	for _, a := range port.Addresses {
		s, ok := byID[a.Subnet]
		if !ok {
			continue
		}
		j.setGateway(s.Gateway)
		for _, route := range s.HostRoutes {
			if told[route] {
				continue
			}
			told[route] = true
			j.StaticRoutes = append(j.StaticRoutes, staticRoute{Destination: route.Destination.String(), NextHop: route.NextHop.String()})
		}
	}
	j.DisableGatewayService = j.Gateway == ""
	return j
}

// setGateway takes the first gateway of each family.
func (j *joinResponse) setGateway(gateway netip.Addr) {
	switch {
	case gateway.Is4() && j.Gateway == "":
		j.Gateway = gateway.String()
	case gateway.Is6() && j.GatewayIPv6 == "":
		j.GatewayIPv6 = gateway.String()
	}
}

// leave unplugs the endpoint's port, and takes back what was published: engines do not always revoke it.
func (d *Driver) leave(ctx context.Context, r *endpointRequest) (any, error) {
	unlock, err := d.locks.lock(ctx, "endpoint/"+r.EndpointID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := d.unpublish(ctx, r.EndpointID); err != nil {
		return nil, err
	}
	failpoint.Here("docker.leave.unpublished")
	port, found, err := d.port(ctx, r.EndpointID)
	if err != nil || !found {
		return nothing{}, err
	}
	return nothing{}, d.unplug(ctx, port)
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

package neutronapi

import (
	"errors"
	"net/http"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/sdn"
)

// legInfo is the answer to who has changed a router's legs.
type legInfo struct {
	ID        string   `json:"id"`
	ProjectID string   `json:"project_id"`
	TenantID  string   `json:"tenant_id"`
	PortID    string   `json:"port_id"`
	NetworkID string   `json:"network_id"`
	SubnetID  string   `json:"subnet_id"` // the first of SubnetIDs
	SubnetIDs []string `json:"subnet_ids"`
}

// legAsked is which leg a request is about: the one on a subnet, or the one that is a port, or both.
type legAsked struct {
	subnet, port sdn.ID
}

// serveLegs adds the paths of a router's legs.
func (s *server) serveLegs() {
	legs := func(change func(*call, sdn.Router, legAsked) (legInfo, error)) action[sdn.Router] {
		return action[sdn.Router]{locked: true, read: func(b *body) acting[sdn.Router] {
			asked := legAsked{subnet: or(b.id("subnet_id")), port: or(b.id("port_id"))}
			if asked == (legAsked{}) && b.err == nil && len(b.values) == 0 {
				b.fail(badOf("router", "Either subnet_id or port_id must be specified"))
			}
			return func(c *call, r sdn.Router, _ int64) (any, error) {
				info, err := change(c, r, asked)
				info.ID, info.ProjectID, info.TenantID = string(r.ID), r.Project, r.Project
				return info, err
			}
		}}
	}
	s.routers().act(s, "add_router_interface", legs(s.addLeg))
	s.routers().act(s, "remove_router_interface", legs(s.removeLeg))
}

func legsOf(r sdn.Router, selects func(sdn.RouterInterface) bool) []sdn.RouterInterface {
	return slices.DeleteFunc(slices.Clone(r.Interfaces), func(leg sdn.RouterInterface) bool { return !selects(leg) })
}

func describeLegs(network sdn.ID, legs []sdn.RouterInterface) legInfo {
	out := legInfo{NetworkID: string(network)}
	for _, leg := range legs {
		out.PortID = string(leg.Port)
		out.SubnetIDs = append(out.SubnetIDs, string(leg.Subnet))
	}
	out.SubnetID = out.SubnetIDs[0]
	return out
}

func (s *server) addLeg(c *call, r sdn.Router, asked legAsked) (info legInfo, err error) {
	var network sdn.ID
	var subnets []sdn.ID
	switch {
	case asked.subnet != "" && asked.port != "":
		return info, badOf("router", "Cannot specify both subnet-id and port-id")
	case asked.port != "":
		network, subnets, err = s.addPortLeg(c, r, asked.port)
	default:
		network, err = s.addSubnetLeg(c, r, asked.subnet)
		subnets = []sdn.ID{asked.subnet}
	}
	if err != nil {
		return info, err
	}
	now, err := s.p.Router(c.ctx(), r.ID)
	if err != nil {
		return info, err
	}
	legs := legsOf(now, func(leg sdn.RouterInterface) bool { return slices.Contains(subnets, leg.Subnet) })
	if len(legs) == 0 {
		return info, sdn.Unavailable(nil, "router", "the leg is gone as soon as it was made")
	}
	return describeLegs(network, legs), nil
}

func (s *server) addSubnetLeg(c *call, r sdn.Router, id sdn.ID) (sdn.ID, error) {
	subnet, err := s.subnets().need(c, id)
	switch {
	case err != nil:
		return "", err
	case !subnet.Gateway.IsValid():
		return "", badOf("router", "Subnet for router interface must have a gateway IP")
	case !c.owns(subnet.Meta):
		return "", badOf("router", "Cannot add interface to router because subnet %s is not owned by project making the request", id)
	}
	if err := notOn(r, id); err != nil {
		return "", err
	}
	return subnet.Network, overlapping(s.p.AttachSubnet(c.ctx(), r.ID, id, netip.Addr{}))
}

func (s *server) addPortLeg(c *call, r sdn.Router, id sdn.ID) (network sdn.ID, subnets []sdn.ID, err error) {
	port, err := s.ports().own(c, id)
	switch {
	case err != nil:
		return "", nil, err
	case port.DeviceID != "":
		return "", nil, refuse(http.StatusConflict, "PortInUse", "Unable to complete operation on port %s for network %s. Port already has an attached device %s.", id, port.Network, port.DeviceID)
	case len(port.Addresses) == 0:
		return "", nil, badOf("router", "Router port must have at least one fixed IP")
	}
	for _, a := range port.Addresses {
		if err := notOn(r, a.Subnet); err != nil {
			return "", nil, err
		}
		subnets = append(subnets, a.Subnet)
	}
	n, err := c.network(port.Network)
	switch {
	case err != nil:
		return "", nil, err
	case !c.owns(n.Meta) && !s.p.Capabilities().SharedNetwork: // it would be on that router alone, and its owner's own could not have it
		return "", nil, badOf("router", "Cannot add interface to router because network %s is not owned by project making the request, and can be on one router only", n.ID)
	}
	legs, ok := s.p.(sdn.PortLegs)
	if !ok {
		return "", nil, sdn.Unsupported("router", "this SDN makes no port a router's leg: name the subnet")
	}
	return port.Network, subnets, overlapping(legs.AttachPort(c.ctx(), r.ID, id))
}

func notOn(r sdn.Router, subnet sdn.ID) error {
	if slices.ContainsFunc(r.Interfaces, func(leg sdn.RouterInterface) bool { return leg.Subnet == subnet }) {
		return badOf("router", "Router already has a port on subnet %s", subnet)
	}
	return nil
}

// overlapping says of ranges that overlap what Neutron says.
func overlapping(err error) error {
	var e *sdn.Error
	if errors.As(err, &e) && e.Reason == sdn.Exists && e.Field == "subnet" {
		return badOf("router", "Cidr of the subnet cannot be on this router: %s", e.Detail)
	}
	return err
}

func (s *server) removeLeg(c *call, r sdn.Router, asked legAsked) (info legInfo, err error) {
	var legs []sdn.RouterInterface
	if asked.port != "" {
		legs = legsOf(r, func(leg sdn.RouterInterface) bool { return leg.Port == asked.port })
		switch {
		case len(legs) == 0:
			return info, refuse(http.StatusNotFound, "RouterInterfaceNotFound", "Router %s does not have an interface with id %s", r.ID, asked.port)
		case asked.subnet != "" && !slices.ContainsFunc(legs, func(leg sdn.RouterInterface) bool { return leg.Subnet == asked.subnet }):
			return info, refuse(http.StatusBadRequest, "SubnetMismatchForPort", "Subnet on port %s does not match the requested subnet %s.", asked.port, asked.subnet)
		}
	} else {
		legs = legsOf(r, func(leg sdn.RouterInterface) bool { return leg.Subnet == asked.subnet })
		if len(legs) == 0 {
			if _, err := s.subnets().need(c, asked.subnet); err != nil {
				return info, err
			}
			return info, refuse(http.StatusNotFound, "RouterInterfaceNotFoundForSubnet", "Router %s has no interface on subnet %s", r.ID, asked.subnet)
		}
	}
	subnet, err := s.p.Subnet(c.ctx(), legs[0].Subnet)
	if err != nil {
		return info, err
	}
	if len(legs) == 1 {
		err = s.p.DetachSubnet(c.ctx(), r.ID, legs[0].Subnet)
	} else if ports, ok := s.p.(sdn.PortLegs); ok {
		err = ports.DetachPort(c.ctx(), r.ID, asked.port)
	} else {
		err = sdn.Unsupported("router", "this SDN takes no leg away that is on several subnets: name the subnets, one after another")
	}
	if err != nil {
		return info, s.legInUse(c, r, legs, err)
	}
	return describeLegs(subnet.Network, legs), nil
}

// legInUse says by what one of the legs is held: by a floating IP that leads to its subnet, else by a route whose next hop is there.
func (s *server) legInUse(c *call, r sdn.Router, legs []sdn.RouterInterface, err error) error {
	if sdn.ReasonOf(err) != sdn.InUse {
		return err
	}
	for _, leg := range legs {
		subnet, errRead := s.p.Subnet(c.ctx(), leg.Subnet)
		switch {
		case errRead != nil:
			return err
		case s.leadsTo(c, r, subnet):
			return refuse(http.StatusConflict, "RouterInterfaceInUseByFloatingIP",
				"Router interface for subnet %s on router %s cannot be deleted, as it is required by one or more floating IPs.", leg.Subnet, r.ID)
		case slices.ContainsFunc(r.Routes, func(route sdn.HostRoute) bool { return subnet.CIDR.Contains(route.NextHop) }):
			return refuse(http.StatusConflict, "RouterInterfaceInUseByRoute",
				"Router interface for subnet %s on router %s cannot be deleted, as it is required by one or more routes.", leg.Subnet, r.ID)
		}
	}
	return err
}

// leadsTo tells whether a floating IP, or a forwarding of one, leads by the router to the subnet.
func (s *server) leadsTo(c *call, r sdn.Router, subnet sdn.Subnet) bool {
	for f, err := range s.p.FindFloatingIPs(c.ctx(), sdn.FloatingIPQuery{Routers: []sdn.ID{r.ID}}) {
		if err != nil || subnet.CIDR.Contains(f.Target.Addr) {
			return err == nil
		}
		for forward, err := range s.p.FindForwards(c.ctx(), sdn.ForwardQuery{FloatingIPs: []sdn.ID{f.ID}}) {
			if err == nil && subnet.CIDR.Contains(forward.Target.Addr) {
				return true
			}
		}
	}
	return false
}

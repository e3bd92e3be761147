// Package portspec reads what a KuryrPort's spec tells of its port, as what a binder plugs.
//
// It owns that translation, for the node's daemon and for kuryr-cni-api alike, which is a small program and has no Kubernetes libraries: so this package must not import them.
// Package v1 owns the form of the object.
package portspec

import (
	"net"
	"net/netip"

	"github.com/kuryr/kuryr/sdn"
)

// Spec is what is read of v1.KuryrPortSpec. Its JSON is that one's.
type Spec struct {
	ID             string   `json:"id"`
	Address        string   `json:"address"`
	Network        Network  `json:"network"`
	Node           string   `json:"node"`
	ProjectID      string   `json:"projectID"`
	SecurityGroups []string `json:"securityGroups"`
	VIF            VIF      `json:"vif"`
}

// Network is v1.PortNetwork.
type Network struct {
	ID      string   `json:"id"`
	MTU     int      `json:"mtu"`
	Subnets []Subnet `json:"subnets"`
}

// Subnet is v1.PortSubnet.
type Subnet struct {
	ID      string   `json:"id"`
	CIDR    string   `json:"cidr"`
	Gateway string   `json:"gateway"`
	IPs     []string `json:"ips"`
	DNS     []string `json:"dns"`
	Routes  []Route  `json:"routes"`
}

// Route is v1.PortRoute.
type Route struct {
	Destination string `json:"destination"`
	NextHop     string `json:"nextHop"`
}

// VIF is v1.PortVIF.
type VIF struct {
	Type     string            `json:"type"`
	Details  map[string]string `json:"details"`
	VNICType string            `json:"vnicType"`
}

// Port is the port, with the subnets that it has addresses on. An error IsInvalid and names the field.
func (s *Spec) Port() (sdn.Port, []sdn.Subnet, error) {
	mac, err := net.ParseMAC(s.Address)
	if err != nil {
		return sdn.Port{}, nil, sdn.Invalid("port", "spec.address", "%v", err)
	}
	port := sdn.Port{
		Meta:     sdn.Meta{ID: sdn.ID(s.ID), Base: sdn.Base{Project: s.ProjectID}},
		Network:  sdn.ID(s.Network.ID),
		MAC:      mac,
		Host:     s.Node,
		VNICType: sdn.VNICType(s.VIF.VNICType),
		Groups:   make([]sdn.ID, 0, len(s.SecurityGroups)),
		VIF:      sdn.VIF{Type: s.VIF.Type, Details: s.VIF.Details},
	}
	for _, g := range s.SecurityGroups {
		port.Groups = append(port.Groups, sdn.ID(g))
	}
	var subnets []sdn.Subnet
	for _, on := range s.Network.Subnets {
		subnet, err := on.subnet()
		if err != nil {
			return sdn.Port{}, nil, err
		}
		subnet.Network = port.Network
		subnets = append(subnets, subnet)
		for _, ip := range on.IPs {
			addr, err := netip.ParseAddr(ip)
			if err != nil {
				return sdn.Port{}, nil, sdn.Invalid("port", "spec.network.subnets.ips", "%v", err)
			}
			port.Addresses = append(port.Addresses, sdn.Address{Subnet: subnet.ID, Addr: addr})
		}
	}
	return port, subnets, nil
}

func (s Subnet) subnet() (sdn.Subnet, error) {
	bad := func(field string, err error) (sdn.Subnet, error) {
		return sdn.Subnet{}, sdn.Invalid("port", "spec.network.subnets."+field, "%v", err)
	}
	subnet := sdn.Subnet{Meta: sdn.Meta{ID: sdn.ID(s.ID)}}
	var err error
	if subnet.CIDR, err = netip.ParsePrefix(s.CIDR); err != nil {
		return bad("cidr", err)
	}
	if s.Gateway != "" {
		if subnet.Gateway, err = netip.ParseAddr(s.Gateway); err != nil {
			return bad("gateway", err)
		}
	}
	for _, d := range s.DNS {
		addr, err := netip.ParseAddr(d)
		if err != nil {
			return bad("dns", err)
		}
		subnet.Nameservers = append(subnet.Nameservers, addr)
	}
	for _, r := range s.Routes {
		to, err := netip.ParsePrefix(r.Destination)
		if err != nil {
			return bad("routes.destination", err)
		}
		via, err := netip.ParseAddr(r.NextHop)
		if err != nil {
			return bad("routes.nextHop", err)
		}
		subnet.HostRoutes = append(subnet.HostRoutes, sdn.HostRoute{Destination: to, NextHop: via})
	}
	return subnet, nil
}

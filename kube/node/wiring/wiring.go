// Package wiring reads a KuryrPort's spec as what a binder plugs.
//
// It owns that translation, which all of the node's daemon goes by, and nothing else: it must not ask the API, nor plug.
package wiring

import (
	"net"
	"net/netip"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/node"
	"github.com/kuryr/kuryr/sdn"
)

// Of is what a KuryrPort's spec tells of how to plug it. An error IsInvalid and names the field.
func Of(s *v1.KuryrPortSpec) (node.Wiring, error) {
	mac, err := net.ParseMAC(s.Address)
	if err != nil {
		return node.Wiring{}, sdn.Invalid("port", "spec.address", "%v", err)
	}
	w := node.Wiring{MTU: s.Network.MTU, Port: sdn.Port{
		Meta:     sdn.Meta{ID: sdn.ID(s.ID), Base: sdn.Base{Project: s.ProjectID}},
		Network:  sdn.ID(s.Network.ID),
		MAC:      mac,
		Host:     s.Node,
		VNICType: sdn.VNICType(s.VIF.VNICType),
		Groups:   make([]sdn.ID, 0, len(s.SecurityGroups)),
		VIF:      sdn.VIF{Type: s.VIF.Type, Details: s.VIF.Details},
	}}
	for _, g := range s.SecurityGroups {
		w.Port.Groups = append(w.Port.Groups, sdn.ID(g))
	}
	for _, ps := range s.Network.Subnets {
		subnet, err := subnetOf(ps)
		if err != nil {
			return node.Wiring{}, err
		}
		subnet.Network = w.Port.Network
		w.Subnets = append(w.Subnets, subnet)
		for _, ip := range ps.IPs {
			addr, err := netip.ParseAddr(ip)
			if err != nil {
				return node.Wiring{}, sdn.Invalid("port", "spec.network.subnets.ips", "%v", err)
			}
			w.Port.Addresses = append(w.Port.Addresses, sdn.Address{Subnet: subnet.ID, Addr: addr})
		}
	}
	return w, nil
}

func subnetOf(s v1.PortSubnet) (sdn.Subnet, error) {
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

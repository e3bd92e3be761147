// Package wiring gives the node's daemon a KuryrPort's spec as what a binder plugs.
//
// It owns the way from package v1's types to package portspec's, which reads them, and nothing else: it must not ask the API, nor plug.
package wiring

import (
	"github.com/kuryr/kuryr/kube/agent"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/portspec"
)

// Of is what a KuryrPort's spec tells of how to plug it. An error IsInvalid and names the field.
func Of(s *v1.KuryrPortSpec) (agent.Wiring, error) {
	port, subnets, err := specOf(s).Port()
	if err != nil {
		return agent.Wiring{}, err
	}
	return agent.Wiring{Port: port, MTU: s.Network.MTU, Subnets: subnets}, nil
}

func specOf(s *v1.KuryrPortSpec) *portspec.Spec {
	spec := &portspec.Spec{
		ID: s.ID, Address: s.Address, Node: s.Node, ProjectID: s.ProjectID, SecurityGroups: s.SecurityGroups,
		Network: portspec.Network{ID: s.Network.ID, MTU: s.Network.MTU},
		VIF:     portspec.VIF(s.VIF),
	}
	for _, on := range s.Network.Subnets {
		subnet := portspec.Subnet{ID: on.ID, CIDR: on.CIDR, Gateway: on.Gateway, IPs: on.IPs, DNS: on.DNS}
		for _, r := range on.Routes {
			subnet.Routes = append(subnet.Routes, portspec.Route(r))
		}
		spec.Network.Subnets = append(spec.Network.Subnets, subnet)
	}
	return spec
}

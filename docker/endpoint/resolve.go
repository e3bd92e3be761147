package endpoint

import (
	"context"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/network"
	"github.com/kuryr/kuryr/sdn"
)

// resolve returns the spec of a request, with the objects of the SDN that its options name. The
// security groups and the way to publish are those of the network if the request has none.
func (s *Service) resolve(ctx context.Context, n network.View, r *api.CreateEndpointRequest) (Spec, error) {
	o := r.Options
	e := Spec{
		Network: r.NetworkID, SDNNetwork: n.ID, Addresses: r.Addresses,
		Subnets: lasting(n.Subnets), MTU: n.MTU, Internal: !n.Options.Routed(),
		Ifname: o.Ifname, Allowed: o.Allowed, Floating: o.FloatingIP, Publish: o.Publish,
		Exposed: o.Exposed, Binding: n.Options.HostBinding,
	}
	if len(e.Exposed) == 0 {
		e.Exposed = nil
	}
	if r.MAC != nil {
		e.MAC = r.MAC.String()
	}
	if e.Publish == "" {
		e.Publish = n.Options.Publish
	}
	unguarded := n.NoPortSecurity
	if o.NoPortSecurity != nil {
		unguarded = *o.NoPortSecurity
		guarded := !unguarded
		e.Guarded = &guarded
		e.NoGroups = unguarded && s.SDN.Capabilities().SecurityGroups
	}
	names, option := o.Groups, "option "+api.OptGroups
	if names == nil && o.Port == "" && !unguarded {
		names, option = n.Options.Groups, "option "+api.OptGroups+" of the network"
	}
	var err error
	if e.Groups, err = network.Groups(ctx, s.SDN, names, n.Project, option); err != nil {
		return e, err
	}
	if o.QoSPolicy != "" {
		e.Policy, err = network.Policy(ctx, s.SDN, o.QoSPolicy, n.Project, "option "+api.OptQoSPolicy)
	}
	return e, err
}

// lasting returns subnets without what changes while they are used.
func lasting(subnets []sdn.Subnet) []sdn.Subnet {
	var list []sdn.Subnet
	for _, s := range subnets {
		s.Meta = sdn.Meta{ID: s.ID}
		list = append(list, s)
	}
	return list
}

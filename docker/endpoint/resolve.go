package endpoint

import (
	"context"
	"slices"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/docker/network"
	"github.com/kuryr/kuryr/internal/reconcile"
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
		Exposed: o.Exposed, Binding: n.Options.HostBinding, MAC: r.MAC.String(), Started: startTime(),
	}
	if had, ok := s.endpoints.Get(r.EndpointID); ok && had.Phase == reconcile.Wanted {
		e.Started = had.Spec.Started
	}
	if len(e.Exposed) == 0 {
		e.Exposed = nil
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
	if err := s.check(n, e); err != nil {
		return e, err
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

// check refuses addresses without the prefix lengths of their subnets: a container would take strangers
// for neighbours, or neighbours for strangers. It refuses options that are kept in tags, on an SDN
// without tags. The default way to publish needs none.
func (s *Service) check(n network.View, e Spec) error {
	for _, a := range e.Addresses {
		at := slices.IndexFunc(n.Subnets, func(s sdn.Subnet) bool { return s.CIDR.Contains(a.Addr()) })
		if at < 0 || n.Subnets[at].CIDR.Bits() == a.Bits() {
			continue
		}
		field := "Interface.Address"
		if a.Addr().Is6() {
			field = "Interface.AddressIPv6"
		}
		return api.Refuse("%s: %s must have the prefix length of its subnet %s", field, a, n.Subnets[at].CIDR)
	}
	if s.SDN.Capabilities().HasTags() {
		return nil
	}
	o := e.options()
	if o.Publish == api.PublishProxy {
		o.Publish = ""
	}
	return identity.CheckStored(identity.EndpointOptionTags(o), nil)
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

package local

import (
	"github.com/kuryr/kuryr/datapath/router"
	"github.com/kuryr/kuryr/datapath/securitygroup"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/engine"
)

// The definitions that filter and limit ports are parts of the domains that have such ports. A domain is
// found by the networks of the plugged ports in an index, of which it takes one entry each: so a change
// costs by the domains it reaches, however many ports there are.

func projectGroup(r *engine.SecurityGroupRow) securitygroup.Group {
	g := securitygroup.Group{ID: string(r.ID), Revision: r.Defined}
	for _, rule := range r.Rules {
		g.Rules = append(g.Rules, securitygroup.Rule{
			ID: string(rule.ID), Direction: securitygroup.Direction(rule.Direction == sdn.Egress), IPv6: rule.IPv6,
			Protocol: uint8(rule.Protocol), First: rule.Ports.First, Last: rule.Ports.Last,
			ICMPType: rule.ICMPType, ICMPCode: rule.ICMPCode,
			Remote: rule.RemotePrefix.Masked(), RemoteGroup: string(rule.RemoteGroup), RemoteSet: string(rule.RemoteSet),
		})
	}
	return g
}

func projectSet(r *engine.AddressGroupRow) securitygroup.Set {
	return securitygroup.Set{ID: string(r.ID), Revision: r.Defined, Prefixes: r.Prefixes}
}

// projectLimits gives the limits of a QoS policy; none for "".
func projectLimits(b engine.Tx, id sdn.ID) (securitygroup.Limits, error) {
	if id == "" {
		return securitygroup.Limits{}, nil
	}
	r, err := engine.QoSPolicies.Need(b, id)
	if err != nil {
		return securitygroup.Limits{}, err
	}
	return securitygroup.Limits(r.Limits), nil
}

// projectFilters gives the definitions of all groups that plugged ports have, and of the address groups these name.
func projectFilters(b engine.Tx, s *router.State) error {
	named := map[sdn.ID]bool{}
	err := engine.SecurityGroups.Each(b, func(r *engine.SecurityGroupRow) error {
		if !engine.AnyPlugged(b, "group", r.ID) {
			return nil
		}
		s.Groups = append(s.Groups, projectGroup(r))
		for _, rule := range r.Rules {
			named[rule.RemoteSet] = true
		}
		return nil
	})
	if err != nil {
		return err
	}
	return engine.AddressGroups.Each(b, func(r *engine.AddressGroupRow) error {
		if named[r.ID] {
			s.Sets = append(s.Sets, projectSet(r))
		}
		return nil
	})
}

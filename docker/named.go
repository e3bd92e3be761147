package docker

import (
	"context"
	"iter"
	"slices"

	"github.com/google/uuid"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/sdn"
)

// resolve finds what an endpoint's options name in the SDN: its security groups, which are its network's if it was given none, and its QoS policy.
func (d *Driver) resolve(ctx context.Context, network sdn.Network, r *endpointRequest) error {
	can, asked := d.sdn.Capabilities(), r.Options
	names, of := asked.Groups, "option "+api.OptGroups
	unguarded := network.NoPortSecurity
	if off := asked.NoPortSecurity; off != nil {
		unguarded = *off
	}
	if names == nil && asked.Port == "" && !unguarded {
		names, of = identity.Values(network.Tags, identity.TagGroup), "option "+api.OptGroups+" of the network"
	}
	if asked.NoPortSecurity != nil && unguarded && can.SecurityGroups {
		r.groups = []sdn.ID{} // an unguarded port can have none
	}
	if len(names) > 0 {
		groups, err := d.groupsNamed(ctx, names, network.Project, of)
		if err != nil {
			return err
		}
		r.groups = groups
	}
	if asked.QoSPolicy == "" {
		return nil
	}
	of = "option " + api.OptQoSPolicy
	if !can.QoS {
		return refuse("%s: this SDN has no QoS policies", of)
	}
	id, err := named(asked.QoSPolicy, network.Project, func(m sdn.Match) iter.Seq2[sdn.QoSPolicy, error] {
		return d.sdn.FindQoSPolicies(ctx, sdn.QoSPolicyQuery{Match: m})
	}, func(p sdn.QoSPolicy) sdn.Meta { return p.Meta }, of, "QoS policy")
	r.policy = id
	return err
}

// groupsNamed finds the security groups that an option names, for a network of the project.
func (d *Driver) groupsNamed(
	ctx context.Context, names []string, project, option string,
) ([]sdn.ID, error) {
	if len(names) > 0 && !d.sdn.Capabilities().SecurityGroups {
		return nil, refuse("%s: this SDN has no security groups", option)
	}
	find := func(m sdn.Match) iter.Seq2[sdn.SecurityGroup, error] {
		return d.sdn.FindSecurityGroups(ctx, sdn.SecurityGroupQuery{Match: m})
	}
	meta := func(g sdn.SecurityGroup) sdn.Meta { return g.Meta }
	var groups []sdn.ID
	for _, name := range names {
		id, err := named(name, project, find, meta, option, "security group")
		if err != nil {
			return nil, err
		}
		if !slices.Contains(groups, id) {
			groups = append(groups, id)
		}
	}
	return groups, nil
}

// lookUpGroups checks, before a network of the pools is made, that its endpoints will find the
// security groups of its options. The network will be of the project of its pools. Without
// pools the project is unknown, and several groups with one name are left to CreateEndpoint.
func (d *Driver) lookUpGroups(
	ctx context.Context, n api.NetworkOptions, pools map[*api.IPAMData]enginePool,
) error {
	option := "option " + api.OptGroups
	for _, pool := range pools {
		_, err := d.groupsNamed(ctx, n.Groups, pool.Project, option)
		return err
	}
	if len(n.Groups) > 0 && !d.sdn.Capabilities().SecurityGroups {
		return refuse("%s: this SDN has no security groups", option)
	}
	for _, name := range n.Groups {
		query := sdn.SecurityGroupQuery{Match: nameOrID(name)}
		_, found, err := sdn.First(d.sdn.FindSecurityGroups(ctx, query))
		if err != nil {
			return err
		}
		if !found {
			return refuse("%s: there is no security group %q", option, api.Clip(name, 100))
		}
	}
	return nil
}

// nameOrID matches what an option names.
func nameOrID(name string) sdn.Match {
	if uuid.Validate(name) == nil {
		return sdn.Match{IDs: []sdn.ID{sdn.ID(name)}}
	}
	return sdn.Match{Names: []string{name}}
}

// named finds the one thing that a name or an id means. Of several by a name, that of the network's project is meant, as who sees all projects
// sees a "default" in each.
func named[T any](name, project string, find func(sdn.Match) iter.Seq2[T, error], meta func(T) sdn.Meta, option, noun string) (sdn.ID, error) {
	found, err := sdn.All(find(nameOrID(name)))
	if err != nil {
		return "", err
	}
	if len(found) > 1 {
		found = slices.DeleteFunc(found, func(v T) bool { return meta(v).Project != project })
		if len(found) != 1 {
			return "", refuse("%s: there is more than one %s %q: give an id", option, noun, api.Clip(name, 100))
		}
	}
	if len(found) == 0 {
		return "", refuse("%s: there is no %s %q", option, noun, api.Clip(name, 100))
	}
	return meta(found[0]).ID, nil
}

// portsAsked are the ports that an endpoint is to have: the one that an option names, or those that have its addresses.
func (d *Driver) portsAsked(
	ctx context.Context, network sdn.Network, subnets []sdn.Subnet, r *endpointRequest,
) ([]sdn.Port, error) {
	asked := r.Options
	if asked.Port == "" {
		return d.portsAt(ctx, subnets, r.Addresses)
	}
	port, err := d.sdn.Port(ctx, asked.Port)
	switch {
	case sdn.IsNotFound(err):
		return nil, refuse("option %s: there is no port %s", asked.PortOption, api.Clip(string(asked.Port), 60))
	case err != nil:
		return nil, err
	case port.Network != network.ID:
		return nil, refuse("option %s: port %s is not of network %s", asked.PortOption, port.ID, r.NetworkID)
	}
	for _, a := range r.Addresses {
		if !hasAddress(port, a.Addr()) {
			return nil, refuse("option %s: port %s has %s, not %s: give the container its addresses by --ip and --ip6", asked.PortOption, port.ID, identity.Addresses(port), a.Addr())
		}
	}
	return []sdn.Port{port}, nil
}

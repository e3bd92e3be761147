package docker

import (
	"cmp"
	"context"
	"slices"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

// What a container exposes is let in by a security group of its own (kuryr-libnetwork's idea and name), where the SDN has such: from
// ProgramExternalConnectivity, which an engine calls for the endpoint that is the container's way out, to RevokeExternalConnectivity or whatever
// takes the endpoint away. It has no rules for what leaves, which is the other groups' to say.

// exposedGroupSuffix follows the port's id in the name of its group.
const exposedGroupSuffix = "-exposed_ports"

// exposedRules let in what is exposed, of both families: neighbours as one rule.
func exposedRules(ports []api.ExposedPort) []sdn.Rule {
	ports = slices.Clone(ports)
	slices.SortFunc(ports, func(a, b api.ExposedPort) int {
		return cmp.Or(cmp.Compare(a.Proto, b.Proto), cmp.Compare(a.Port, b.Port))
	})
	var rules []sdn.Rule
	for i := 0; i < len(ports); {
		first, last := ports[i], ports[i].Port
		for i++; i < len(ports) && ports[i].Proto == first.Proto && ports[i].Port-last <= 1; i++ {
			last = ports[i].Port
		}
		for _, v6 := range []bool{false, true} {
			rules = append(rules, sdn.Rule{Direction: sdn.Ingress, IPv6: v6, Protocol: first.Proto, Ports: sdn.PortRange{First: first.Port, Last: last}})
		}
	}
	return rules
}

// expose lets in what a container exposes. A port that its user made is filtered as he said, and one without port security is not filtered. The
// caller holds the endpoint's lock.
func (d *Driver) expose(ctx context.Context, endpoint string, known *plugged, ports []api.ExposedPort) error {
	can := d.sdn.Capabilities()
	if !d.external || !can.SecurityGroups || len(ports) == 0 || known.Port.NoPortSecurity || !d.ownPort(known.Port) {
		return nil
	}
	if can.GrouplessOpen && len(known.Port.Groups) == 0 {
		return nil // everything is let in, and its first group would close all the rest
	}
	known.Exposed = true
	d.plugged.put(ctx, endpoint, *known)
	group, err := d.sdn.ApplySecurityGroup(ctx, sdn.SecurityGroupSpec{
		Base:  sdn.Base{Key: d.names.GlobalKey(identity.KindExposed, endpoint), Name: string(known.Port.ID) + exposedGroupSuffix},
		Rules: exposedRules(ports),
	})
	if err != nil {
		return err
	}
	failpoint.Here("docker.expose.group")
	return d.sdn.AddGroups(ctx, known.Port.ID, []sdn.ID{group.ID})
}

// unexpose takes the endpoint's group away. Where a record says that there is none, the SDN is not asked. Where there is no record it is, also while
// exposed ports are not let in: that may have been switched off since.
func (d *Driver) unexpose(ctx context.Context, endpoint string) error {
	r, known := d.plugged.get(endpoint)
	if !d.sdn.Capabilities().SecurityGroups || known && !r.Exposed {
		return nil
	}
	match := sdn.Match{Keys: []sdn.Key{d.names.GlobalKey(identity.KindExposed, endpoint)}}
	groups, err := sdn.All(d.sdn.FindSecurityGroups(ctx, sdn.SecurityGroupQuery{Match: match}))
	if err != nil {
		return err
	}
	for _, g := range groups {
		if err := d.dropGroup(ctx, g.ID); err != nil {
			return err
		}
	}
	if known {
		r.Exposed = false
		d.plugged.put(ctx, endpoint, r)
	}
	return nil
}

// dropGroup takes a security group from the ports that have it, and then away.
func (d *Driver) dropGroup(ctx context.Context, group sdn.ID) error {
	for port, err := range d.sdn.FindPorts(ctx, sdn.PortQuery{Groups: []sdn.ID{group}}) {
		if err != nil {
			return err
		}
		if err := d.sdn.RemoveGroups(ctx, port.ID, []sdn.ID{group}); ignoreAbsent(err) != nil {
			return err
		}
	}
	failpoint.Here("docker.unexpose.taken")
	return ignoreAbsent(d.sdn.DeleteSecurityGroup(ctx, group))
}

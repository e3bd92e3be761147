package endpoint

import (
	"context"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// exposedGroupSuffix follows the port's id in the name of its security group, as kuryr-libnetwork
// names it.
const exposedGroupSuffix = "-exposed_ports"

// exposedRules let in what is exposed, of both families. What leaves is for the other groups.
func exposedRules(ports []api.ExposedPort) []sdn.Rule {
	var rules []sdn.Rule
	for _, r := range exposedRanges(ports) {
		for _, v6 := range []bool{false, true} {
			rules = append(rules, sdn.Rule{
				Direction: sdn.Ingress, IPv6: v6, Protocol: r.first.Proto,
				Ports: sdn.PortRange{First: r.first.Port, Last: r.last},
			})
		}
	}
	return rules
}

// openExposed gives the port a security group that lets in what its container exposes.
func (t publicationTarget) openExposed(
	ctx context.Context, o reconcile.Object, p PublicationSpec,
) (sdn.ID, error) {
	group, err := t.SDN.ApplySecurityGroup(ctx, sdn.SecurityGroupSpec{
		Base: sdn.Base{
			Key: t.Names.Key(identity.KindExposed, o.Key, o), Name: string(p.Port) + exposedGroupSuffix,
		},
		Rules: exposedRules(p.Exposed),
	})
	if err != nil {
		return "", err
	}
	return group.ID, t.SDN.AddGroups(ctx, p.Port, []sdn.ID{group.ID})
}

// closeExposed deletes the security group, which is found by its Key if its id is unknown. It
// returns reconcile.ErrAbsent if it is not found. The setting may have been switched off since.
func (t publicationTarget) closeExposed(ctx context.Context, o reconcile.Object, group sdn.ID) error {
	if group == "" {
		match := sdn.Match{Keys: []sdn.Key{t.Names.Key(identity.KindExposed, o.Key, o)}}
		found, ok, err := sdn.First(t.SDN.FindSecurityGroups(ctx, sdn.SecurityGroupQuery{Match: match}))
		if err != nil {
			return err
		}
		if !ok {
			return reconcile.ErrAbsent
		}
		group = found.ID
	}
	ports, err := sdn.All(t.SDN.FindPorts(ctx, sdn.PortQuery{Groups: []sdn.ID{group}}))
	if err != nil {
		return err
	}
	for _, port := range ports {
		if err := t.SDN.RemoveGroups(ctx, port.ID, []sdn.ID{group}); identity.IgnoreAbsent(err) != nil {
			return err
		}
	}
	return identity.IgnoreAbsent(t.SDN.DeleteSecurityGroup(ctx, group))
}

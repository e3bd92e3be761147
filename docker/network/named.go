package network

import (
	"context"
	"iter"
	"slices"

	"github.com/google/uuid"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/sdn"
)

// Groups returns the security groups that an option names, for a network of the project.
func Groups(ctx context.Context, p sdn.Provider, names []string, project, option string) ([]sdn.ID, error) {
	if len(names) > 0 && !p.Capabilities().SecurityGroups {
		return nil, api.Refuse("%s: this SDN has no security groups", option)
	}
	find := func(m sdn.Match) iter.Seq2[sdn.SecurityGroup, error] {
		return p.FindSecurityGroups(ctx, sdn.SecurityGroupQuery{Match: m})
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

// Policy returns the QoS policy that an option names, for a network of the project.
func Policy(ctx context.Context, p sdn.Provider, name, project, option string) (sdn.ID, error) {
	if !p.Capabilities().QoS {
		return "", api.Refuse("%s: this SDN has no QoS policies", option)
	}
	find := func(m sdn.Match) iter.Seq2[sdn.QoSPolicy, error] {
		return p.FindQoSPolicies(ctx, sdn.QoSPolicyQuery{Match: m})
	}
	meta := func(p sdn.QoSPolicy) sdn.Meta { return p.Meta }
	return named(name, project, find, meta, option, "QoS policy")
}

// NameOrID matches what an option names.
func NameOrID(name string) sdn.Match {
	if uuid.Validate(name) == nil {
		return sdn.Match{IDs: []sdn.ID{sdn.ID(name)}}
	}
	return sdn.Match{Names: []string{name}}
}

// named finds the object that a name or an id means. Of several with the name, that of the
// network's project is meant: an administrator sees a "default" in each project.
func named[T any](
	name, project string, find func(sdn.Match) iter.Seq2[T, error], meta func(T) sdn.Meta, option, noun string,
) (sdn.ID, error) {
	found, err := sdn.All(find(NameOrID(name)))
	if err != nil {
		return "", err
	}
	if len(found) > 1 {
		found = slices.DeleteFunc(found, func(v T) bool { return meta(v).Project != project })
		if len(found) != 1 {
			return "", api.Refuse("%s: there is more than one %s %q: give an id", option, noun, api.Clip(name, 100))
		}
	}
	if len(found) == 0 {
		return "", api.Refuse("%s: there is no %s %q", option, noun, api.Clip(name, 100))
	}
	return meta(found[0]).ID, nil
}

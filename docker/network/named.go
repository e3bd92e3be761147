package network

import (
	"context"
	"iter"
	"slices"

	"github.com/google/uuid"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
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

// named finds the object that a name or an id means. Of several with the name, that of
// the network's project is meant: an administrator sees a "default" in each project.
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

// Routing finds the router and the external network that options name.
func (s *Service) Routing(ctx context.Context, o api.NetworkOptions) (r Routing, err error) {
	if !s.SDN.Capabilities().Routers {
		if o.AsksRouter() {
			err = api.Refuse("this SDN has no routers: leave out %s and %s", api.OptRouter, api.OptExternal)
		}
		return r, err
	}
	r.Routed, r.Router = o.Routed() && (s.Routed || o.AsksRouter()), o.Router
	if r.External, err = s.externalNetwork(ctx, o.External); err == nil && r.Router != "" {
		r.RouterID, err = s.namedRouter(ctx, o.Router)
	}
	return r, err
}

// externalNetwork returns the external network with a name or an id.
func (s *Service) externalNetwork(ctx context.Context, name string) (sdn.ID, error) {
	if name == "" {
		return "", nil
	}
	if uuid.Validate(name) == nil {
		n, err := s.SDN.Network(ctx, sdn.ID(name))
		if err == nil && n.External {
			return n.ID, nil
		}
		if identity.IgnoreAbsent(err) != nil {
			return "", err
		}
	}
	external := true
	query := sdn.NetworkQuery{Match: sdn.Match{Names: []string{name}}, External: &external}
	found, err := sdn.All(s.SDN.FindNetworks(ctx, query))
	if err != nil {
		return "", err
	}
	n, err := api.Only(found, api.Reference{Option: api.OptExternal, Name: name}, "external network")
	return n.ID, err
}

// namedRouter returns the router of others with a name or an id. A name means a router of
// Kuryr's project only: any project can have one of that name. Without one, or if Kuryr
// has made the router already, it returns "".
func (s *Service) namedRouter(ctx context.Context, name string) (sdn.ID, error) {
	if uuid.Validate(name) == nil {
		r, err := s.SDN.Router(ctx, sdn.ID(name))
		if sdn.IsNotFound(err) {
			err = api.Refuse("option %s: there is no router %s", api.OptRouter, name)
		}
		return r.ID, err
	}
	found, err := sdn.All(s.SDN.FindRouters(ctx, sdn.RouterQuery{Match: sdn.Match{Names: []string{name}}}))
	if err != nil || len(found) == 0 {
		return "", err
	}
	keys := []sdn.Key{s.Names.GlobalKey(identity.KindSharedRouter, name)}
	_, made, err := sdn.First(s.SDN.FindRouters(ctx, sdn.RouterQuery{Match: sdn.Match{Keys: keys}}))
	if err != nil || made {
		return "", err
	}
	project, err := s.Pools.Project(ctx)
	if err != nil {
		return "", err
	}
	found = slices.DeleteFunc(found, func(r sdn.Router) bool { return r.Project != project })
	if len(found) == 0 {
		s.Log.WarnContext(ctx, "router of another project not used: its id is needed", "router", name)
		return "", nil
	}
	r, err := api.Only(found, api.Reference{Option: api.OptRouter, Name: name}, "router")
	return r.ID, err
}

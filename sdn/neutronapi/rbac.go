package neutronapi

import (
	"context"
	"errors"
	"iter"
	"net/http"

	"github.com/kuryr/kuryr/sdn"
)

// A caller sees objects of another project if they are shared, or if an RBAC policy gives its project access. The
// latter are shown to it as shared, as by Neutron.

// grant is how a project has access to an object.
type grant struct{ shared, external bool }

// grantsOf returns the objects of a noun that a project was given access to, without those that are shared with
// all by the object itself.
func (s *server) grantsOf(ctx context.Context, noun sdn.Noun, project string) (map[sdn.ID]grant, error) {
	policies, ok := s.p.(sdn.AccessPolicies)
	if !ok || project == "" {
		return nil, nil
	}
	q := sdn.AccessQuery{Nouns: []sdn.Noun{noun}, Targets: []string{project}}
	if noun == sdn.NounSecurityGroup || noun == sdn.NounAddressGroup {
		q.Targets = append(q.Targets, sdn.Everyone)
	}
	granted := map[sdn.ID]grant{}
	for a, err := range policies.FindAccesses(ctx, q) {
		if err != nil {
			return nil, err
		}
		g := granted[a.Object]
		g.external, g.shared = g.external || a.External, g.shared || !a.External
		granted[a.Object] = g
	}
	return granted, nil
}

// grants returns what the caller's project was given access to, which is read once in a call.
func (c *call) grants(noun sdn.Noun) (map[sdn.ID]grant, error) {
	if granted, read := c.granted[noun]; read {
		return granted, nil
	}
	granted, err := c.server.grantsOf(c.ctx(), noun, c.caller.Project)
	if err != nil {
		return nil, err
	}
	if c.granted == nil {
		c.granted = map[sdn.Noun]map[sdn.ID]grant{}
	}
	c.granted[noun] = granted
	return granted, nil
}

// sharing reports whether an object is shared with the caller's project, and shows it so.
func (c *call) sharing(noun sdn.Noun, m sdn.Meta, shared *bool) (bool, error) {
	if *shared || c.owns(m) {
		return *shared, nil
	}
	granted, err := c.grants(noun)
	*shared = granted[m.ID].shared
	return *shared, err
}

// seesNetwork reports whether a network is shared with the caller's project or external for it.
func (c *call) seesNetwork(n *sdn.Network) (bool, error) {
	shared, err := c.sharing(sdn.NounNetwork, n.Meta, &n.Shared)
	if err != nil || shared || n.External && !n.Restricted || c.owns(n.Meta) {
		return shared || n.External && !n.Restricted, err
	}
	granted, err := c.grants(sdn.NounNetwork)
	return granted[n.ID].external, err
}

// The actions of RBAC policies.
const (
	asShared   = "access_as_shared"
	asExternal = "access_as_external"
)

// rbacTypes are the words for nouns in RBAC policies.
var rbacTypes = map[string]sdn.Noun{
	"network": sdn.NounNetwork, "subnetpool": sdn.NounSubnetPool, "security_group": sdn.NounSecurityGroup,
	"address_group": sdn.NounAddressGroup, "qos_policy": sdn.NounQoSPolicy, "address_scope": sdn.NounAddressScope,
}

// accessPatch is a change of an access.
type accessPatch struct {
	sdn.Patch
	target *string
}

func (s *server) rbacPolicies(policies sdn.AccessPolicies) tableOf[sdn.Access] {
	type N = sdn.Access
	type S = sdn.AccessSpec
	type P = accessPatch
	words := make([]string, 0, len(rbacTypes))
	for _, noun := range sdn.SharedNouns {
		words = append(words, string(noun))
	}
	t := &table{
		member: "rbac_policy", collection: "rbac_policies", path: "rbac-policies", title: "RBAC policy",
		meta: via(func(n *N) sdn.Meta { return n.Meta }), shows: idAndProject,
		fields: []field{
			{name: "object_type", is: isWord(words...), access: required, show: via(func(n *N) any { return string(n.Noun) }),
				post: store(func(x *S, v any) { x.Noun = rbacTypes[v.(string)] })},
			{name: "object_id", is: isNamedID, access: required, show: via(func(n *N) any { return string(n.Object) }),
				post: set(func(x *S) *sdn.ID { return &x.Object })},
			{name: "action", is: isWord(asShared, asExternal), access: required, show: via(showAction),
				post: store(func(x *S, v any) { x.External = v.(string) == asExternal })},
			{name: "target_tenant", is: isText, access: required, show: via(func(n *N) any { return n.Target }),
				post: set(func(x *S) *string { return &x.Target }),
				put:  change(func(p *P) **string { return &p.target })},
		},
		get: got(policies.Access),
		find: sought(func(ctx context.Context, f *filter) iter.Seq2[N, error] {
			q := sdn.AccessQuery{Match: f.match(), Objects: f.ids("object_id"), Targets: f.texts("target_tenant")}
			for _, word := range f.texts("object_type") {
				q.Nouns = append(q.Nouns, sdn.Noun(word))
			}
			return policies.FindAccesses(ctx, q)
		}),
		beforePost: hook(func(_ *call, b *body, x *S) { x.Project = b.project() }),
		checkPost:  hook(s.checkAccess),
		checkPut: hookOn(func(c *call, b *body, _ *N, p *P) {
			p.IfRevision = b.ifRevision
			if p.target != nil {
				checkTarget(c, b, "update", *p.target)
			}
		}),
		create: creates(func(ctx context.Context, x S) (N, error) {
			a, err := policies.CreateAccess(ctx, x)
			return a, rbacError(err)
		}),
		update: updates(func(ctx context.Context, id sdn.ID, p P) (N, error) {
			if p.target == nil {
				return policies.Access(ctx, id)
			}
			a, err := policies.UpdateAccess(ctx, id, *p.target, p.IfRevision)
			return a, rbacError(err)
		}),
		remove: func(ctx context.Context, id sdn.ID) error { return rbacError(policies.DeleteAccess(ctx, id, 0)) },
		removeIf: func(ctx context.Context, id sdn.ID, revision int64) error {
			return rbacError(policies.DeleteAccess(ctx, id, revision))
		},
	}
	return tableOf[N]{t}
}

// idAndProject are the attributes of objects that have neither name nor description.
var idAndProject = []metaField{
	{"id", func(m sdn.Meta) any { return string(m.ID) }},
	{"project_id", func(m sdn.Meta) any { return m.Project }},
	{"tenant_id", func(m sdn.Meta) any { return m.Project }},
}

func showAction(a *sdn.Access) any {
	if a.External {
		return asExternal
	}
	return asShared
}

// checkAccess refuses to share another project's object. Only administrators share with all, or
// as external.
func (s *server) checkAccess(c *call, b *body, x *sdn.AccessSpec) {
	if b.err != nil {
		return
	}
	checkTarget(c, b, "create", x.Target)
	if x.External {
		b.fail(c.adminsOnly("create_rbac_policy:access_as_external"))
	}
	var err error
	switch x.Noun {
	case sdn.NounNetwork:
		_, err = s.networks().own(c, x.Object)
	case sdn.NounSubnetPool:
		_, err = s.subnetPools().own(c, x.Object)
	case sdn.NounSecurityGroup:
		_, err = s.securityGroups().own(c, x.Object)
	case sdn.NounAddressGroup:
		_, err = s.addressGroups().own(c, x.Object)
	case sdn.NounQoSPolicy:
		_, err = s.qosPolicies().own(c, x.Object)
	case sdn.NounAddressScope:
		err = s.ownScope(c, x.Object)
	}
	if err != nil {
		b.fail(err)
	}
}

func checkTarget(c *call, b *body, verb, target string) {
	if target == sdn.Everyone {
		b.fail(c.adminsOnly(verb + "_rbac_policy:target_tenant"))
	}
}

// rbacError gives a conflict Neutron's type.
func rbacError(err error) error {
	var e *sdn.Error
	if !errors.As(err, &e) || e.Kind != sdn.KindConflict {
		return err
	}
	switch e.Reason {
	case sdn.InUse:
		return refuse(http.StatusConflict, "RbacPolicyInUse", "RBAC policy cannot be removed: %s", e.Detail)
	case sdn.Exists:
		return refuse(http.StatusConflict, "DuplicateRbacPolicy", "An RBAC policy already exists with those values: %s",
			e.Detail)
	}
	return err
}

// serveAccess adds the paths of RBAC policies, where the provider has them.
func (s *server) serveAccess() {
	if policies, ok := s.p.(sdn.AccessPolicies); ok {
		s.serve(s.rbacPolicies(policies).resource())
	}
}

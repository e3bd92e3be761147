package neutronapi

import (
	"context"
	"iter"

	"github.com/kuryr/kuryr/sdn"
)

func (s *server) addressScopes(p sdn.AddressScopes) tableOf[sdn.AddressScope] {
	type N = sdn.AddressScope
	type S = sdn.AddressScopeSpec
	type P = sdn.AddressScopePatch
	t := &table{
		member: "address_scope", collection: "address_scopes", path: "address-scopes", title: "address scope",
		noun: sdn.NounAddressScope,
		meta: via(func(n *N) sdn.Meta { return n.Meta }), shows: neutronMeta, tags: true,
		base: via(func(x *S) *sdn.Base { return &x.Base }), patch: via(func(p *P) *sdn.Patch { return &p.Patch }),
		fields: []field{
			{name: "ip_version", is: kindOf((*body).version), access: required, show: via(func(n *N) any {
				if n.IPv6 {
					return 6
				}
				return 4
			}), post: store(func(x *S, v any) { x.IPv6 = v.(int) == 6 })},
			{name: "shared", is: isBool, access: adminSet, show: via(func(n *N) any { return n.Shared }),
				post: set(func(x *S) *bool { return &x.Shared }), put: change(func(p *P) **bool { return &p.Shared })},
		},
		get: got(p.AddressScope),
		find: sought(func(ctx context.Context, f *filter) iter.Seq2[N, error] {
			return s.findAddressScopes(ctx, p, sdn.AddressScopeQuery{Match: f.match()})
		}),
		shared: judged(func(c *call, n *N) (bool, error) {
			return c.sharing(sdn.NounAddressScope, n.Meta, &n.Shared)
		}),
		create: creates(p.EnsureAddressScope), update: updates(p.UpdateAddressScope),
		remove: p.DeleteAddressScope,
	}
	return tableOf[N]{t}
}

// version takes the version of IP.
func (b *body) version(name string) *int {
	v := b.integer(name, 4, 6)
	if v != nil && *v == 5 {
		b.invalid(name, "5 is neither 4 nor 6")
	}
	return v
}

// scope takes the address scope of a subnet pool, one that the caller sees.
func (b *body) scope(name string) *sdn.ID {
	id := b.id(name)
	if id == nil || *id == "" {
		return id
	}
	p, ok := b.server.p.(sdn.AddressScopes)
	if !ok {
		b.unsupported(name, "this SDN has no address scopes")
		return nil
	}
	_, _ = refer(b, *id, b.server.addressScopes(p).need)
	return id
}

// ownScope returns nil if an address scope is the caller's.
func (s *server) ownScope(c *call, id sdn.ID) error {
	p, ok := s.p.(sdn.AddressScopes)
	if !ok {
		return sdn.NotFound("address scope", id)
	}
	_, err := s.addressScopes(p).own(c, id)
	return err
}

// findAddressScopes lists address scopes: of the own project, shared ones, and those that it was given
// access to.
func (s *server) findAddressScopes(
	ctx context.Context, p sdn.AddressScopes, q sdn.AddressScopeQuery,
) iter.Seq2[sdn.AddressScope, error] {
	match := func(q *sdn.AddressScopeQuery) *sdn.Match { return &q.Match }
	id := func(a sdn.AddressScope) sdn.ID { return a.ID }
	return seen(ctx, s, q, match, p.FindAddressScopes, id, func(project string) ([]sdn.AddressScopeQuery, error) {
		is, shared := true, q
		shared.Shared = &is
		return alsoGranted(ctx, s, sdn.NounAddressScope, project, q, match, []sdn.AddressScopeQuery{shared})
	})
}

// serveAddressScopes adds the paths of address scopes, where the provider has them.
func (s *server) serveAddressScopes() {
	if p, ok := s.p.(sdn.AddressScopes); ok {
		s.serve(s.addressScopes(p).resource())
	}
}

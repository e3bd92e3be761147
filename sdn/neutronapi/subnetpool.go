package neutronapi

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/internal/ipprefix"
	"github.com/kuryr/kuryr/sdn"
)

func (s *server) subnetPools() tableOf[sdn.SubnetPool] {
	type N = sdn.SubnetPool
	type S = sdn.SubnetPoolSpec
	type P = sdn.SubnetPoolPatch
	isLength, isPrefixes := nullInPost(isInt(0, 128)), kindOf((*body).poolPrefixes)
	t := &table{
		member: "subnetpool", collection: "subnetpools", title: "subnet pool", noun: sdn.NounSubnetPool,
		meta: via(func(n *N) sdn.Meta { return n.Meta }), shows: neutronMeta, tags: true,
		base: via(func(x *S) *sdn.Base { return &x.Base }), patch: via(func(p *P) *sdn.Patch { return &p.Patch }),
		fields: []field{
			{name: "prefixes", is: isPrefixes, access: required, show: via(func(n *N) any { return poolTexts(n) }),
				post: set(func(x *S) *[]netip.Prefix { return &x.Prefixes }),
				put:  change(func(p *P) **[]netip.Prefix { return &p.Prefixes })},
			{name: "ip_version", show: via(func(n *N) any { return poolFamily(n) })},
			{name: "default_prefixlen", is: isLength, show: via(func(n *N) any { return n.DefaultLen }),
				post: set(func(x *S) *int { return &x.DefaultLen }), put: change(func(p *P) **int { return &p.DefaultLen })},
			{name: "min_prefixlen", is: isLength, show: via(func(n *N) any { return n.MinLen }),
				post: set(func(x *S) *int { return &x.MinLen }), put: change(func(p *P) **int { return &p.MinLen })},
			{name: "max_prefixlen", is: isLength, show: via(func(n *N) any { return n.MaxLen }),
				post: set(func(x *S) *int { return &x.MaxLen }), put: change(func(p *P) **int { return &p.MaxLen })},
			{name: "shared", is: isBool, access: adminPost, show: via(func(n *N) any { return n.Shared }),
				post: set(func(x *S) *bool { return &x.Shared })},
			{name: "is_default", is: isBool, access: adminSet, show: via(func(n *N) any { return n.Default }),
				post: set(func(x *S) *bool { return &x.Default }), put: change(func(p *P) **bool { return &p.Default })},
			{name: "default_quota", is: nullIs(int64(0), isNumber(0, most32)),
				show: via(func(n *N) any { return some(n.DefaultQuota) }),
				post: set(func(x *S) *int64 { return &x.DefaultQuota }),
				put:  change(func(p *P) **int64 { return &p.DefaultQuota })},
			{name: "address_scope_id", is: kindOf((*body).scope), show: via(func(n *N) any { return some(string(n.Scope)) }),
				post: set(func(x *S) *sdn.ID { return &x.Scope }), put: change(func(p *P) **sdn.ID { return &p.Scope })},
		},
		get: getCall{made[N], func(ctx context.Context, id sdn.ID) (any, error) { return pointer(s.p.SubnetPool(ctx, id)) }},
		find: func(ctx context.Context, f *filter) iter.Seq2[any, error] {
			return pointers(s.findSubnetPools(ctx, sdn.SubnetPoolQuery{Match: f.match()}))
		},
		shared: judged(func(c *call, n *N) (bool, error) {
			return c.sharing(sdn.NounSubnetPool, n.Meta, &n.Shared)
		}),
		beforePost: hook(func(_ *call, b *body, _ *S) { b.required("name") }),
		checkPut: hookOn(func(_ *call, b *body, n *N, p *P) {
			if p.Prefixes == nil {
				return
			}
			grown := growth(n.Prefixes, *p.Prefixes)
			if len(grown) > maxItems {
				b.invalid("prefixes", "what is added to those there are would be %d prefixes, and at most %d are taken", len(grown), maxItems)
			}
			p.Prefixes = &grown
		}),
		create: createCall{made[S], func(ctx context.Context, x any) (any, error) { return pointer(s.p.EnsureSubnetPool(ctx, *x.(*S))) }},
		update: updateCall{made[P], func(ctx context.Context, id sdn.ID, p any) (any, error) {
			return pointer(s.p.UpdateSubnetPool(ctx, id, *p.(*P)))
		}},
		remove: s.p.DeleteSubnetPool,
	}
	if atomic, ok := s.p.(sdn.AtomicNetworks); ok {
		t.createAll = bulk(atomic.EnsureAllSubnetPools)
	}
	return tableOf[N]{t}
}

// defaultSubnetPool returns the default subnet pool of a family that the caller sees.
func (s *server) defaultSubnetPool(c *call, version int) (sdn.ID, error) {
	yes := true
	for pool, err := range s.findSubnetPools(c.ctx(), sdn.SubnetPoolQuery{Default: &yes}) {
		if err != nil {
			return "", err
		}
		if poolFamily(&pool) != version {
			continue
		}
		shared, err := c.sharing(sdn.NounSubnetPool, pool.Meta, &pool.Shared)
		if err != nil {
			return "", err
		}
		if shared || c.owns(pool.Meta) {
			return pool.ID, nil
		}
	}
	return "", badOf("subnets", "No default subnetpool found for IPv%d", version)
}

// poolTexts shows a pool's prefixes, neighbours as one.
func poolTexts(pool *sdn.SubnetPool) []string {
	return prefixTexts(prefixSet(pool.Prefixes).Prefixes())
}

func poolFamily(pool *sdn.SubnetPool) int {
	if len(pool.Prefixes) == 0 {
		return 4
	}
	return family(pool.Prefixes[0].Addr())
}

// servePrefixes adds the paths that change a pool's prefixes one by one: {"prefixes": […]}.
func (s *server) servePrefixes() {
	remover, ok := s.p.(sdn.PrefixRemoval)
	if !ok {
		return
	}
	type change func(*call, sdn.SubnetPool, []netip.Prefix, int64) (sdn.SubnetPool, error)
	prefixes := func(by change) action[sdn.SubnetPool] {
		return action[sdn.SubnetPool]{read: func(b *body) acting[sdn.SubnetPool] {
			asked := or(b.prefixes("prefixes"))
			return func(c *call, pool sdn.SubnetPool, revision int64) (_ any, err error) {
				if len(asked) > 0 {
					// At this revision: the prefixes to be are made of those that were seen.
					pool, err = by(c, pool, asked, cmp.Or(revision, pool.Revision))
				}
				return map[string]any{"prefixes": poolTexts(&pool)}, err
			}
		}}
	}
	add := func(c *call, pool sdn.SubnetPool, asked []netip.Prefix, revision int64) (sdn.SubnetPool, error) {
		prefixes := growth(pool.Prefixes, append(slices.Clone(pool.Prefixes), asked...))
		if len(prefixes) > maxItems {
			return pool, badRequest(fmt.Sprintf("%d prefixes are too many, at most %d fit", len(prefixes), maxItems))
		}
		patch := sdn.SubnetPoolPatch{Patch: sdn.Patch{IfRevision: revision}, Prefixes: &prefixes}
		return s.p.UpdateSubnetPool(c.ctx(), pool.ID, patch)
	}
	remove := func(c *call, pool sdn.SubnetPool, asked []netip.Prefix, revision int64) (sdn.SubnetPool, error) {
		// A pool that an older Kuryr let grow beyond the limit can still shrink.
		limit := max(maxItems, len(pool.Prefixes))
		left := 0
		for _, have := range pool.Prefixes {
			if left += len(ipprefix.Without(have, asked)); left > limit {
				return pool, badRequest(fmt.Sprintf("More than %d prefixes would be left, which are too many", limit))
			}
		}
		return remover.RemovePrefixes(c.ctx(), pool.ID, asked, revision)
	}
	s.subnetPools().act(s, "add_prefixes", prefixes(add))
	s.subnetPools().act(s, "remove_prefixes", prefixes(remove))
}

// poolPrefixes takes the prefixes of a subnet pool, neighbours as one.
func (b *body) poolPrefixes(name string) *[]netip.Prefix {
	prefixes := b.prefixes(name)
	if prefixes == nil || b.err != nil {
		return prefixes
	}
	if len(*prefixes) == 0 {
		b.fail(refuse(http.StatusBadRequest, "EmptySubnetPoolPrefixList", "Empty subnet pool prefix list."))
		return nil
	}
	for _, p := range *prefixes {
		if family(p.Addr()) != family((*prefixes)[0].Addr()) {
			b.fail(refuse(http.StatusBadRequest, "PrefixVersionMismatch", "Cannot mix IPv4 and IPv6 prefixes in a subnet pool."))
			return nil
		}
	}
	out := prefixSet(*prefixes).Prefixes()
	return &out
}

// growth returns the list that holds what is wanted: the prefixes that exist, and the parts that
// are new. A prefix that is no longer wanted is not in it.
func growth(have, want []netip.Prefix) []netip.Prefix {
	out, wanted := []netip.Prefix{}, prefixSet(want)
	for _, p := range have {
		if wanted.ContainsPrefix(p) {
			out = append(out, p)
		}
	}
	for _, p := range want {
		out = append(out, ipprefix.Without(p, have)...)
	}
	return out
}

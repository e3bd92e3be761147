package neutronapi

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// addPrefixes puts prefixes into a group's. As with Neutron one that is there already refuses all; one that is named twice is one.
func addPrefixes(group sdn.ID, have, added []netip.Prefix) ([]netip.Prefix, error) {
	if there, _ := splitPrefixes(have, added); len(there) > 0 {
		return nil, refuse(http.StatusBadRequest, "AddressesAlreadyExist", "Addresses %s already exist in the address group %s.", there, group)
	}
	out := slices.Clone(have)
	for _, p := range added {
		if !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	if len(out) > maxItems {
		return nil, badRequest(fmt.Sprintf("The address group %s would have %d addresses, and at most %d fit",
			group, len(out), maxItems))
	}
	return out, nil
}

// removePrefixes takes prefixes out of a group's. One that is not there refuses all.
func removePrefixes(group sdn.ID, have, removed []netip.Prefix) ([]netip.Prefix, error) {
	if _, absent := splitPrefixes(have, removed); len(absent) > 0 {
		return nil, refuse(http.StatusNotFound, "AddressesNotFound", "Addresses %s not found in the address group %s.", absent, group)
	}
	out := []netip.Prefix{}
	for _, p := range have {
		if !slices.Contains(removed, p) {
			out = append(out, p)
		}
	}
	return out, nil
}

// prefixList is shown as Neutron shows one.
type prefixList []netip.Prefix

func (l prefixList) String() string {
	quoted := make([]string, len(l))
	for i, p := range l {
		quoted[i] = "'" + p.String() + "'"
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

func splitPrefixes(have, asked []netip.Prefix) (there, absent prefixList) {
	for _, p := range asked {
		if slices.Contains(have, p) {
			there = append(there, p)
		} else {
			absent = append(absent, p)
		}
	}
	return there, absent
}

type (
	addressGroupChange = valueChange[sdn.AddressGroupSpec]
	addressGroupPatch  = valuePatch[sdn.AddressGroupSpec]
)

func (s *server) addressGroups() tableOf[sdn.AddressGroup] {
	type N = sdn.AddressGroup
	type S = sdn.AddressGroupSpec
	type P = addressGroupPatch
	base := func(x *S) *sdn.Base { return &x.Base }
	t := &table{
		member: "address_group", collection: "address_groups", path: "address-groups", title: "address group", noun: sdn.NounAddressGroup,
		meta: via(func(n *N) sdn.Meta { return n.Meta }), shows: neutronMeta, tags: true,
		base: via(base), patch: via(func(p *P) *sdn.Patch { return &p.Patch }),
		fields: []field{
			{name: "addresses", is: isPrefixes, show: via(func(n *N) any { return prefixTexts(n.Prefixes) }),
				post: set(func(x *S) *[]netip.Prefix { return &x.Prefixes })},
			{name: "shared", show: via(func(n *N) any { return n.Shared })},
		},
		get: getCall{made[N], func(ctx context.Context, id sdn.ID) (any, error) { return pointer(s.p.AddressGroup(ctx, id)) }},
		find: func(ctx context.Context, f *filter) iter.Seq2[any, error] {
			return pointers(s.findAddressGroups(ctx, sdn.AddressGroupQuery{Match: f.match()}))
		},
		shared: judged(func(c *call, n *N) (bool, error) {
			return c.sharing(sdn.NounAddressGroup, n.Meta, &n.Shared)
		}),
		checkPut: hookOn(func(_ *call, b *body, n *N, p *P) { p.clearing = b.clearing("address group", n.Meta, p.Patch) }),
		create: createCall{made[S], func(ctx context.Context, asked any) (any, error) {
			x := *asked.(*S)
			find := func(m sdn.Match) iter.Seq2[N, error] {
				return s.p.FindAddressGroups(ctx, sdn.AddressGroupQuery{Match: m})
			}
			return pointer(unlessThere(ctx, s, "address group", x.Base, find, func() (N, error) { return s.p.ApplyAddressGroup(ctx, x) }))
		}},
		update: updateCall{made[P], func(ctx context.Context, id sdn.ID, p any) (any, error) {
			return pointer(s.updateAddressGroup(ctx, id, p.(*P).of(base)))
		}},
		remove: s.p.DeleteAddressGroup,
	}
	return tableOf[N]{t}
}

// updateAddressGroup applies a change to a group as it is.
func (s *server) updateAddressGroup(ctx context.Context, id sdn.ID, by addressGroupChange) (sdn.AddressGroup, error) {
	return changeValue(ctx, s, sdn.NounAddressGroup, id, by, s.p.AddressGroup, func(g sdn.AddressGroup) (sdn.AddressGroupSpec, sdn.Meta) {
		return sdn.AddressGroupSpec{ID: g.ID, IfRevision: g.Revision, Prefixes: g.Prefixes}, g.Meta
	}, s.p.ApplyAddressGroup)
}

// serveAddresses adds the paths that change a group's addresses: {"addresses": […]}.
func (s *server) serveAddresses() {
	t := s.addressGroups()
	addresses := func(of func(sdn.ID, []netip.Prefix, []netip.Prefix) ([]netip.Prefix, error)) action[sdn.AddressGroup] {
		return action[sdn.AddressGroup]{read: func(b *body) acting[sdn.AddressGroup] {
			asked := or(b.prefixes("addresses"))
			return func(c *call, g sdn.AddressGroup, revision int64) (any, error) {
				by := addressGroupChange{ifRevision: revision, change: func(spec *sdn.AddressGroupSpec) (err error) {
					spec.Prefixes, err = of(spec.ID, spec.Prefixes, asked)
					return err
				}}
				g, err := s.updateAddressGroup(c.ctx(), g.ID, by)
				return t.answer(c, &g), err
			}
		}}
	}
	t.act(s, "add_addresses", addresses(addPrefixes))
	t.act(s, "remove_addresses", addresses(removePrefixes))
}

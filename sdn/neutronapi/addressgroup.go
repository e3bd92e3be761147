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

// AddressGroups are served below /v2.0/address-groups.
var AddressGroups = Resource[AddressGroup]{"address_group", "address_groups"}

// AddressGroup is an address group in Neutron's JSON.
type AddressGroup struct {
	Common
	Addresses []string `json:"addresses"`
	Shared    bool     `json:"shared"` // never: no group is given to other projects
}

// EncodeAddressGroup translates an address group.
func EncodeAddressGroup(g sdn.AddressGroup) AddressGroup {
	out := AddressGroup{Common: encodeMeta(g.Meta), Addresses: make([]string, len(g.Prefixes))}
	for i, p := range g.Prefixes {
		out.Addresses[i] = p.String()
	}
	return out
}

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

type addressGroupChange = valueChange[sdn.AddressGroupSpec]

func (s *server) addressGroups() *definition[sdn.AddressGroup, AddressGroup, sdn.AddressGroupSpec, addressGroupChange] {
	return &definition[sdn.AddressGroup, AddressGroup, sdn.AddressGroupSpec, addressGroupChange]{
		Resource: AddressGroups, path: "address-groups", title: "address group", kind: sdn.NounAddressGroup,
		meta: func(g sdn.AddressGroup) sdn.Meta { return g.Meta }, get: s.p.AddressGroup,
		find: func(ctx context.Context, f *filter) iter.Seq2[sdn.AddressGroup, error] {
			return s.p.FindAddressGroups(ctx, sdn.AddressGroupQuery{Match: f.match()})
		},
		encode: EncodeAddressGroup,
		spec: func(_ *call, b *body) sdn.AddressGroupSpec {
			b.readOnly("shared")
			return sdn.AddressGroupSpec{Base: b.base(), Prefixes: or(b.prefixes("addresses"))}
		},
		patch: func(_ *call, b *body, g sdn.AddressGroup) addressGroupChange {
			p := b.changes(g.Meta)
			b.readOnly("addresses", "shared")
			clearing := b.clearing("address group", g.Meta, p)
			return addressGroupChange{ifRevision: p.IfRevision, patch: clearing, change: func(spec *sdn.AddressGroupSpec) error {
				rebase(&spec.Base, p)
				return nil
			}}
		},
		create: func(ctx context.Context, spec sdn.AddressGroupSpec) (sdn.AddressGroup, error) {
			find := func(m sdn.Match) iter.Seq2[sdn.AddressGroup, error] {
				return s.p.FindAddressGroups(ctx, sdn.AddressGroupQuery{Match: m})
			}
			return unlessThere(ctx, s, "address group", spec.Base, find, func() (sdn.AddressGroup, error) {
				return s.p.ApplyAddressGroup(ctx, spec)
			})
		},
		update: s.updateAddressGroup, remove: s.p.DeleteAddressGroup,
		setTags: func(ctx context.Context, id sdn.ID, p sdn.Patch) error {
			_, err := s.updateAddressGroup(ctx, id, retagged(p, func(g *sdn.AddressGroupSpec) *sdn.Base { return &g.Base }))
			return err
		},
	}
}

// updateAddressGroup applies a change to a group as it is.
func (s *server) updateAddressGroup(ctx context.Context, id sdn.ID, by addressGroupChange) (sdn.AddressGroup, error) {
	return changeValue(ctx, s, sdn.NounAddressGroup, id, by, s.p.AddressGroup, func(g sdn.AddressGroup) (sdn.AddressGroupSpec, sdn.Meta) {
		return sdn.AddressGroupSpec{ID: g.ID, IfRevision: g.Revision, Prefixes: g.Prefixes}, g.Meta
	}, s.p.ApplyAddressGroup)
}

// serveAddresses adds the paths that change a group's addresses: {"addresses": […]}.
func (s *server) serveAddresses() {
	for action, of := range map[string]func(sdn.ID, []netip.Prefix, []netip.Prefix) ([]netip.Prefix, error){"add_addresses": addPrefixes, "remove_addresses": removePrefixes} {
		s.handle("/v2.0/address-groups/{id}/"+action, map[string]handler{http.MethodPut: func(w http.ResponseWriter, c *call) error {
			document, err := c.document()
			if err != nil {
				return err
			}
			n := s.addressGroups()
			g, err := n.own(c, c.target())
			if err != nil {
				return err
			}
			b := &body{call: c, noun: n.Member, values: document}
			asked := or(b.prefixes("addresses"))
			if err := b.done(); err != nil {
				return err
			}
			revision, err := c.condition(n.title, g.Meta)
			if err != nil {
				return err
			}
			g, err = s.updateAddressGroup(c.ctx(), g.ID, addressGroupChange{ifRevision: revision, change: func(spec *sdn.AddressGroupSpec) (err error) {
				spec.Prefixes, err = of(spec.ID, spec.Prefixes, asked)
				return err
			}})
			if err == nil {
				writeJSON(w, http.StatusOK, map[string]any{n.Member: EncodeAddressGroup(g)})
			}
			return err
		}})
	}
}

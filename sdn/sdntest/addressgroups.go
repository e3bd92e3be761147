package sdntest

import (
	"context"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/sdn"
)

func (s *suite) addressSet(spec sdn.AddressGroupSpec) sdn.AddressGroup {
	s.Helper()
	g := must(s.p.ApplyAddressGroup(s.ctx, spec))(s)
	s.cleanup("address group", func(ctx context.Context) error { return s.p.DeleteAddressGroup(ctx, g.ID) })
	return g
}

// hasPrefixes wants an address group to have these prefixes and no others.
func (s *suite) hasPrefixes(g sdn.AddressGroup, want ...string) {
	s.Helper()
	var got []string
	for _, p := range g.Prefixes {
		got = append(got, p.String())
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		s.Errorf("the prefixes are %v, want %v", got, want)
	}
}

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range list {
		out = append(out, prefix(p))
	}
	return out
}

var addressGroupTests = []test{
	{"apply twice is once", func(s *suite) {
		spec := sdn.AddressGroupSpec{Base: s.base("set"), Prefixes: prefixes("10.0.0.0/8", "192.0.2.7/32", "fd00::/8")}
		a, b := s.addressSet(spec), s.addressSet(spec)
		equal(s, "id", b.ID, a.ID)
		equal(s, "key", b.Key, spec.Key)
		equal(s, "name", b.Name, spec.Name)
		equal(s, "foreign", b.Foreign, false)
		equal(s, "revision of what did not change", b.Revision, a.Revision)
		s.hasPrefixes(must(s.p.AddressGroup(s.ctx, a.ID))(s), "10.0.0.0/8", "192.0.2.7/32", "fd00::/8")
		for range 2 {
			s.ok(s.p.DeleteAddressGroup(s.ctx, a.ID))
		}
		_, err := s.p.AddressGroup(s.ctx, a.ID)
		s.notFound(err)
	}},
	{"get and change of the absent", func(s *suite) {
		_, err := s.p.AddressGroup(s.ctx, absent)
		s.notFound(err)
		_, err = s.p.ApplyAddressGroup(s.ctx, sdn.AddressGroupSpec{ID: absent})
		s.notFound(err)
		s.ok(s.p.DeleteAddressGroup(s.ctx, absent))
	}},
	{"a changed value", func(s *suite) {
		spec := sdn.AddressGroupSpec{Base: s.base("set"), Prefixes: prefixes("10.0.0.0/8", "192.0.2.0/24")}
		a := s.addressSet(spec)
		spec.Prefixes = prefixes("192.0.2.0/24", "198.51.100.0/24", "fd00::/8")
		b := s.addressSet(spec)
		equal(s, "id", b.ID, a.ID)
		s.hasPrefixes(b, "192.0.2.0/24", "198.51.100.0/24", "fd00::/8")
		spec.Prefixes = prefixes("192.0.2.9/24", "192.0.2.0/24") // in another form, and twice
		s.hasPrefixes(s.addressSet(spec), "192.0.2.0/24")
		spec.Prefixes = nil
		s.hasPrefixes(s.addressSet(spec))
		s.hasPrefixes(must(s.p.AddressGroup(s.ctx, a.ID))(s))
		byID := s.addressSet(sdn.AddressGroupSpec{ID: a.ID, Prefixes: prefixes("10.0.0.0/8")})
		equal(s, "key", byID.Key, a.Key)
		equal(s, "name", byID.Name, a.Name)
		s.hasPrefixes(byID, "10.0.0.0/8")
	}},
	{"invalid", func(s *suite) {
		spec := sdn.AddressGroupSpec{Base: s.base("set"), Prefixes: []netip.Prefix{prefix("10.0.0.0/8"), {}}}
		_, err := s.p.ApplyAddressGroup(s.ctx, spec)
		s.invalid(err, "prefixes[1]")
		_, found, err := sdn.First(s.p.FindAddressGroups(s.ctx, sdn.AddressGroupQuery{Match: sdn.Match{Keys: []sdn.Key{spec.Key}}}))
		s.ok(err)
		equal(s, "one was made", found, false)
	}},
	{"stale revision", func(s *suite) {
		spec := sdn.AddressGroupSpec{Base: s.base("set"), Prefixes: prefixes("10.0.0.0/8")}
		a := s.addressSet(spec)
		if a.Revision == 0 {
			s.Skip("this SDN tells no revision of them")
		}
		b := s.addressSet(sdn.AddressGroupSpec{ID: a.ID, Base: sdn.Base{Name: "b " + s.run}, Prefixes: prefixes("10.0.0.0/8")})
		equal(s, "name", b.Name, "b "+s.run)
		_, err := s.p.ApplyAddressGroup(s.ctx, sdn.AddressGroupSpec{ID: a.ID, IfRevision: a.Revision, Prefixes: prefixes("192.0.2.0/24")})
		s.conflict(err, sdn.Stale)
		s.hasPrefixes(must(s.p.AddressGroup(s.ctx, a.ID))(s), "10.0.0.0/8")
	}},
	{"what rules refer to", func(s *suite) {
		a := s.addressSet(sdn.AddressGroupSpec{Base: s.base("set"), Prefixes: prefixes("10.0.0.0/8")})
		rule := sdn.Rule{Direction: sdn.Ingress, Protocol: sdn.TCP, Ports: sdn.PortRange{First: 80}, RemoteSet: a.ID}
		g := s.group(rule)
		s.hasRules(g, rule)
		s.conflict(s.p.DeleteAddressGroup(s.ctx, a.ID), sdn.InUse)
		s.hasPrefixes(s.addressSet(sdn.AddressGroupSpec{ID: a.ID, Prefixes: prefixes("192.0.2.0/24")}), "192.0.2.0/24")
		s.hasRules(must(s.p.SecurityGroup(s.ctx, g.ID))(s), rule)
		must(s.p.ApplySecurityGroup(s.ctx, sdn.SecurityGroupSpec{ID: g.ID}))(s)
		s.ok(s.p.DeleteAddressGroup(s.ctx, a.ID))
		spec := sdn.SecurityGroupSpec{Base: s.base("group"), Rules: []sdn.Rule{{Direction: sdn.Ingress, RemoteSet: absent}}}
		_, err := s.tryGroup(spec)
		s.notFound(err)
		s.noneOf(spec.Key)
	}},
	{"find", func(s *suite) {
		a, b := s.addressSet(sdn.AddressGroupSpec{Base: s.base("set")}), s.addressSet(sdn.AddressGroupSpec{Base: s.base("set"), Prefixes: prefixes("10.0.0.0/8")})
		for what, q := range map[string]sdn.Match{
			"ids":   {IDs: []sdn.ID{a.ID, b.ID, absent}},
			"keys":  {Keys: []sdn.Key{a.Key, b.Key}},
			"names": {Names: []string{a.Name, b.Name}},
		} {
			found := must(sdn.All(s.p.FindAddressGroups(s.ctx, sdn.AddressGroupQuery{Match: q})))(s)
			equal(s, "number found by "+what, len(found), 2)
		}
	}},
	{"one key at once is one group", func(s *suite) {
		spec := sdn.AddressGroupSpec{Base: s.base("set"), Prefixes: prefixes("10.0.0.0/8", "192.0.2.0/24")}
		groups, errs := together(6, func(int) (sdn.AddressGroup, error) { return s.p.ApplyAddressGroup(s.ctx, spec) })
		for i, g := range groups {
			s.ok(errs[i])
			equal(s, "id", g.ID, groups[0].ID)
			s.cleanup("address group", func(ctx context.Context) error { return s.p.DeleteAddressGroup(ctx, g.ID) })
		}
		s.hasPrefixes(must(s.p.AddressGroup(s.ctx, groups[0].ID))(s), "10.0.0.0/8", "192.0.2.0/24")
	}},
}

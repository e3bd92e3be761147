package sdntest

import (
	"slices"

	"github.com/kuryr/kuryr/sdn"
)

// hasGroups wants a port to have these security groups and no others.
func (s *suite) hasGroups(p sdn.Port, want ...sdn.ID) {
	s.Helper()
	got := slices.Clone(p.Groups)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		s.Errorf("the port has the groups %v, want %v", got, want)
	}
}

// inProject makes a port in a project of its own, with the default group that this brings, or skips the test where that is not allowed.
func (s *suite) inProject(spec sdn.PortSpec) (sdn.Port, sdn.SecurityGroup) {
	s.Helper()
	spec.Base = s.base("port")
	spec.Project = "project-" + s.run
	p, err := s.tryPort(spec)
	if sdn.IsDenied(err) {
		s.Skip("these credentials are for one project")
	}
	s.ok(err)
	q := sdn.SecurityGroupQuery{Match: sdn.Match{Names: []string{"default"}, Projects: []string{spec.Project}}}
	found := must(sdn.All(s.p.FindSecurityGroups(s.ctx, q)))(s)
	if len(found) != 1 {
		s.Fatalf("the project has %d default groups", len(found))
	}
	return p, found[0]
}

var portGroupTests = []test{
	{"at creation and after", func(s *suite) {
		n := s.network("10.15.0.0/24")
		a, b := s.group().ID, s.group().ID
		spec := sdn.PortSpec{Base: s.base("port"), Network: n.ID, Groups: []sdn.ID{a, b, a}}
		p := s.port(spec)
		s.hasGroups(p, a, b)
		again := s.port(spec)
		s.hasGroups(again, a, b)
		equal(s, "revision of what did not change", again.Revision, p.Revision)
		s.hasGroups(must(s.p.UpdatePort(s.ctx, p.ID, sdn.PortPatch{Groups: &[]sdn.ID{b}}))(s), b)
		s.hasGroups(must(s.p.UpdatePort(s.ctx, p.ID, sdn.PortPatch{DeviceID: ptr("d")}))(s), b)
		spec.Groups = []sdn.ID{a}
		s.hasGroups(s.port(spec), a)
		spec.Groups = nil
		s.hasGroups(s.port(spec), a) // not said: as it is
		s.hasGroups(must(s.p.Port(s.ctx, p.ID))(s), a)
		for _, c := range []struct {
			groups []sdn.ID
			found  int
		}{{[]sdn.ID{a}, 1}, {[]sdn.ID{b}, 0}, {[]sdn.ID{a, b}, 1}} {
			found := must(sdn.All(s.p.FindPorts(s.ctx, sdn.PortQuery{Groups: c.groups})))(s)
			equal(s, "number of ports found by group", len(found), c.found)
		}
		s.hasGroups(must(s.p.UpdatePort(s.ctx, p.ID, sdn.PortPatch{Groups: &[]sdn.ID{}}))(s))
		spec.WithoutGroups = true
		s.hasGroups(s.port(spec))
		s.ok(s.p.DeleteSecurityGroup(s.ctx, a))
	}},
	{"that are absent", func(s *suite) {
		n := s.network("10.15.0.0/24")
		g := s.group().ID
		_, err := s.tryPort(sdn.PortSpec{Base: s.base("port"), Network: n.ID, Groups: []sdn.ID{g, absent}})
		s.notFound(err)
		equal(s, "used addresses", must(s.p.SubnetUsage(s.ctx, n.Subnets[0]))(s).Used, 0)
		p := s.port(sdn.PortSpec{Network: n.ID, Groups: []sdn.ID{g}})
		_, err = s.p.UpdatePort(s.ctx, p.ID, sdn.PortPatch{Groups: &[]sdn.ID{absent}})
		s.notFound(err)
		s.hasGroups(must(s.p.Port(s.ctx, p.ID))(s), g)
	}},
	{"need port security", func(s *suite) {
		n := s.network("10.15.0.0/24")
		g := s.group().ID
		off := true
		_, err := s.tryPort(sdn.PortSpec{Network: n.ID, NoPortSecurity: &off, Groups: []sdn.ID{g}})
		s.conflict(err, sdn.InUse)
		p := s.port(sdn.PortSpec{Network: n.ID, Groups: []sdn.ID{g}})
		s.hasGroups(must(s.p.UpdatePort(s.ctx, p.ID, sdn.PortPatch{NoPortSecurity: &off}))(s))
		equal(s, "no port security", must(s.p.Port(s.ctx, p.ID))(s).NoPortSecurity, true)
		if err := s.p.AddGroups(s.ctx, p.ID, []sdn.ID{g}); !sdn.IsConflict(err) {
			s.Errorf("a group without port security: got error %v, want a conflict", err)
		}
	}},
	{"the default group of a project", func(s *suite) {
		n := s.network("10.15.0.0/24")
		p, g := s.inProject(sdn.PortSpec{Network: n.ID})
		s.hasGroups(p, g.ID)
		want := []sdn.Rule{{Direction: sdn.Egress}, {Direction: sdn.Egress, IPv6: true}}
		if s.can.RemoteGroups {
			want = append(want, sdn.Rule{Direction: sdn.Ingress, RemoteGroup: g.ID}, sdn.Rule{Direction: sdn.Ingress, IPv6: true, RemoteGroup: g.ID})
		}
		s.hasRules(g, want...)
		other, same := s.inProject(sdn.PortSpec{Network: n.ID})
		equal(s, "id of the default group", same.ID, g.ID)
		s.hasGroups(other, g.ID)
		without, _ := s.inProject(sdn.PortSpec{Network: n.ID, WithoutGroups: true})
		s.hasGroups(without)
		off := true
		unguarded, _ := s.inProject(sdn.PortSpec{Network: n.ID, NoPortSecurity: &off})
		s.hasGroups(unguarded)
		s.conflict(s.p.DeleteSecurityGroup(s.ctx, g.ID), sdn.InUse)
		s.dropAll([]sdn.Port{p, other, without, unguarded})
		s.conflict(s.p.DeleteSecurityGroup(s.ctx, g.ID), sdn.InUse)
	}},
}

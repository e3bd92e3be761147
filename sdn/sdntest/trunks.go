package sdntest

import (
	"context"
	"slices"

	"github.com/kuryr/kuryr/sdn"
)

// trunk makes a trunk on a new port of a network.
func (s *suite) trunk(network sdn.ID) sdn.Trunk {
	s.Helper()
	parent := s.port(sdn.PortSpec{Network: network})
	t := must(s.p.EnsureTrunk(s.ctx, sdn.TrunkSpec{Base: s.base("trunk"), Parent: parent.ID}))(s)
	s.cleanup("trunk", func(ctx context.Context) error { return s.p.DeleteTrunk(ctx, t.ID) })
	return t
}

// join attaches subports, and sees to it that the trunk lets go of them before they are deleted.
func (s *suite) join(trunk sdn.ID, subports []sdn.Subport) []sdn.Subport {
	s.Helper()
	got := must(s.p.AttachSubports(s.ctx, trunk, subports))(s)
	s.cleanup("subports", func(ctx context.Context) error {
		var ids []sdn.ID
		for _, sub := range subports {
			ids = append(ids, sub.Port)
		}
		return s.p.DetachSubports(ctx, trunk, ids)
	})
	return got
}

// attached gives a trunk's subports in the order of their VLANs.
func (s *suite) attached(trunk sdn.ID) []sdn.Subport {
	s.Helper()
	subports := slices.Clone(must(s.p.Trunk(s.ctx, trunk))(s).Subports)
	slices.SortFunc(subports, func(a, b sdn.Subport) int { return a.VLAN - b.VLAN })
	return subports
}

var trunkTests = []test{
	{"ensure twice is once", func(s *suite) {
		n := s.network()
		parent := s.port(sdn.PortSpec{Network: n.ID, DeviceID: "vm-" + s.run})
		spec := sdn.TrunkSpec{Base: s.base("trunk"), Parent: parent.ID}
		a := must(s.p.EnsureTrunk(s.ctx, spec))(s)
		s.cleanup("trunk", func(ctx context.Context) error { return s.p.DeleteTrunk(ctx, a.ID) })
		spec.Name = "renamed-" + s.run
		b := must(s.p.EnsureTrunk(s.ctx, spec))(s)
		equal(s, "id", b.ID, a.ID)
		equal(s, "name", b.Name, spec.Name)
		equal(s, "parent", b.Parent, parent.ID)
		equal(s, "foreign", b.Foreign, false)
		for name, q := range map[string]sdn.TrunkQuery{
			"key":    {Match: sdn.Match{Keys: []sdn.Key{spec.Key}}},
			"id":     {Match: sdn.Match{IDs: []sdn.ID{a.ID, absent}}},
			"parent": {Parents: []sdn.ID{parent.ID}},
		} {
			found := must(sdn.All(s.p.FindTrunks(s.ctx, q)))(s)
			if len(found) != 1 || found[0].ID != a.ID {
				s.Errorf("by %s found %d trunks, want the one", name, len(found))
			}
		}
		other := s.port(sdn.PortSpec{Network: n.ID})
		spec.Parent = other.ID
		_, err := s.p.EnsureTrunk(s.ctx, spec)
		s.immutable(err, "parent")
	}},
	{"one trunk on a port", func(s *suite) {
		n := s.network()
		t, p := s.trunk(n.ID), s.port(sdn.PortSpec{Network: n.ID})
		_, err := s.p.EnsureTrunk(s.ctx, sdn.TrunkSpec{Base: s.base("other"), Parent: t.Parent})
		s.conflict(err, sdn.Exists)
		s.join(t.ID, []sdn.Subport{{Port: p.ID}})
		_, err = s.p.EnsureTrunk(s.ctx, sdn.TrunkSpec{Base: s.base("other"), Parent: p.ID})
		s.conflict(err, sdn.Exists)
	}},
	{"attach and detach", func(s *suite) {
		n := s.network("10.13.0.0/24")
		t := s.trunk(n.ID)
		a, b, c := s.port(sdn.PortSpec{Network: n.ID}), s.port(sdn.PortSpec{Network: n.ID}), s.port(sdn.PortSpec{Network: n.ID})
		first := s.join(t.ID, []sdn.Subport{{Port: a.ID, VLAN: 7}, {Port: b.ID}})
		equal(s, "number of answers", len(first), 2)
		equal(s, "the VLAN asked for", first[0], sdn.Subport{Port: a.ID, VLAN: 7})
		equal(s, "port of the second answer", first[1].Port, b.ID)
		if v := first[1].VLAN; v < 1 || v > 4094 || v == 7 {
			s.Errorf("the chosen VLAN is %d", v)
		}
		again := s.join(t.ID, []sdn.Subport{{Port: c.ID}, {Port: b.ID}, {Port: a.ID, VLAN: 8}})
		equal(s, "the VLAN of one that is attached stays", again[1], first[1])
		equal(s, "also if another is asked for", again[2], first[0])
		equal(s, "number of subports", len(s.attached(t.ID)), 3)
		for range 2 {
			s.ok(s.p.DetachSubports(s.ctx, t.ID, []sdn.ID{b.ID, a.ID, absent}))
		}
		equal(s, "what is left", slices.Equal(s.attached(t.ID), again[:1]), true)
		s.join(t.ID, []sdn.Subport{{Port: b.ID, VLAN: 7}}) // it is free again
		equal(s, "number of answers for none", len(must(s.p.AttachSubports(s.ctx, t.ID, nil))(s)), 0)
		s.ok(s.p.DetachSubports(s.ctx, t.ID, nil))
	}},
	{"a subport keeps its identity", func(s *suite) {
		n := s.network("10.13.0.0/24")
		t := s.trunk(n.ID)
		p := s.port(sdn.PortSpec{Network: n.ID})
		for _, attach := range []bool{true, false} {
			if attach {
				s.join(t.ID, []sdn.Subport{{Port: p.ID}})
			} else {
				s.ok(s.p.DetachSubports(s.ctx, t.ID, []sdn.ID{p.ID}))
			}
			found := must(sdn.All(s.p.FindPorts(s.ctx, sdn.PortQuery{Match: sdn.Match{Keys: []sdn.Key{p.Key}}})))(s)
			if len(found) != 1 || found[0].ID != p.ID || found[0].Foreign || !slices.Equal(found[0].Addresses, p.Addresses) {
				s.Errorf("by its key found %+v, want %+v", found, p)
			}
		}
	}},
	{"nothing is attached on an error", func(s *suite) {
		n := s.network()
		t, other := s.trunk(n.ID), s.trunk(n.ID)
		a, b, c := s.port(sdn.PortSpec{Network: n.ID}), s.port(sdn.PortSpec{Network: n.ID}), s.port(sdn.PortSpec{Network: n.ID})
		s.join(t.ID, []sdn.Subport{{Port: a.ID, VLAN: 7}})
		s.join(other.ID, []sdn.Subport{{Port: c.ID, VLAN: 7}}) // a VLAN is of its trunk
		_, err := s.p.AttachSubports(s.ctx, t.ID, []sdn.Subport{{Port: other.Parent, VLAN: 6}, {Port: b.ID, VLAN: 7}})
		if !sdn.IsConflict(err) {
			s.Errorf("got error %v, want a conflict", err)
		}
		_, err = s.p.AttachSubports(s.ctx, t.ID, []sdn.Subport{{Port: b.ID, VLAN: 7}})
		s.conflict(err, sdn.Exists)
		_, err = s.p.AttachSubports(s.ctx, t.ID, []sdn.Subport{{Port: b.ID}, {Port: c.ID}})
		if !sdn.IsConflict(err) {
			s.Errorf("attaching another trunk's subport: got error %v, want a conflict", err)
		}
		_, err = s.p.AttachSubports(s.ctx, t.ID, []sdn.Subport{{Port: b.ID}, {Port: absent}})
		s.notFound(err)
		for _, bad := range []int{-1, 4095} {
			_, err = s.p.AttachSubports(s.ctx, t.ID, []sdn.Subport{{Port: b.ID}, {Port: absent, VLAN: bad}})
			s.invalid(err, "subports[1].vlan")
		}
		_, err = s.p.AttachSubports(s.ctx, t.ID, []sdn.Subport{{Port: b.ID, VLAN: 9}, {Port: absent, VLAN: 9}})
		s.invalid(err, "subports[1].vlan")
		equal(s, "what is attached", slices.Equal(s.attached(t.ID), []sdn.Subport{{Port: a.ID, VLAN: 7}}), true)
	}},
	{"what is in a trunk is not deleted", func(s *suite) {
		n := s.network()
		t := s.trunk(n.ID)
		p, free := s.port(sdn.PortSpec{Network: n.ID}), s.port(sdn.PortSpec{Network: n.ID})
		s.join(t.ID, []sdn.Subport{{Port: p.ID}})
		err := s.p.DeletePorts(s.ctx, []sdn.ID{t.Parent, free.ID, p.ID})
		s.conflict(err, sdn.InUse)
		if errs := bulkErrors(err); len(errs) != 3 || errs[1] != nil {
			s.Errorf("the errors are %v, want one for the parent and one for the subport", errs)
		} else {
			s.conflict(errs[0], sdn.InUse)
			s.conflict(errs[2], sdn.InUse)
		}
		_, err = s.p.Port(s.ctx, free.ID)
		s.notFound(err)
	}},
	{"delete frees", func(s *suite) {
		n := s.network()
		t, other := s.trunk(n.ID), s.trunk(n.ID)
		p := s.port(sdn.PortSpec{Network: n.ID})
		s.join(t.ID, []sdn.Subport{{Port: p.ID}})
		for range 2 {
			s.ok(s.p.DeleteTrunk(s.ctx, t.ID))
		}
		_, err := s.p.Trunk(s.ctx, t.ID)
		s.notFound(err)
		s.join(other.ID, []sdn.Subport{{Port: p.ID}})
		s.ok(s.p.DeletePorts(s.ctx, []sdn.ID{t.Parent}))
	}},
	{"disabled", func(s *suite) {
		n := s.network()
		t := s.trunk(n.ID)
		off, err := s.p.UpdateTrunk(s.ctx, t.ID, sdn.TrunkPatch{Disabled: ptr(true)})
		s.says("a trunk Disabled", s.can.AdminState, err)
		if err != nil {
			return
		}
		equal(s, "disabled", off.Disabled, true)
		p, q := s.port(sdn.PortSpec{Network: n.ID}), s.port(sdn.PortSpec{Network: n.ID})
		if _, err := s.p.AttachSubports(s.ctx, t.ID, []sdn.Subport{{Port: p.ID}}); !sdn.IsConflict(err) {
			s.Errorf("got error %v, want a conflict", err)
		}
		on := must(s.p.UpdateTrunk(s.ctx, t.ID, sdn.TrunkPatch{Disabled: ptr(false)}))(s)
		equal(s, "disabled", on.Disabled, false)
		s.join(t.ID, []sdn.Subport{{Port: p.ID}})
		must(s.p.UpdateTrunk(s.ctx, t.ID, sdn.TrunkPatch{Disabled: ptr(true)}))(s)
		s.ok(s.p.DetachSubports(s.ctx, t.ID, []sdn.ID{q.ID})) // which is not there
		s.ok(s.p.DeleteTrunk(s.ctx, t.ID))
	}},
	{"update", func(s *suite) {
		t := s.trunk(s.network().ID)
		other := must(s.p.UpdateTrunk(s.ctx, t.ID, sdn.TrunkPatch{Patch: sdn.Patch{Name: ptr("b " + s.run), Tags: &[]string{"t"}}}))(s)
		equal(s, "name", other.Name, "b "+s.run)
		equal(s, "number of tags", len(must(s.p.Trunk(s.ctx, t.ID))(s).Tags), 1)
		_, err := s.p.UpdateTrunk(s.ctx, t.ID, sdn.TrunkPatch{Patch: sdn.Patch{IfRevision: t.Revision, Name: ptr("c")}})
		s.conflict(err, sdn.Stale)
		equal(s, "key", must(s.p.Trunk(s.ctx, t.ID))(s).Key, t.Key)
	}},
	{"of the absent", func(s *suite) {
		_, err := s.p.Trunk(s.ctx, absent)
		s.notFound(err)
		_, err = s.p.EnsureTrunk(s.ctx, sdn.TrunkSpec{Base: s.base("trunk"), Parent: absent})
		s.notFound(err)
		_, err = s.p.UpdateTrunk(s.ctx, absent, sdn.TrunkPatch{Disabled: ptr(false)})
		s.notFound(err)
		p := s.port(sdn.PortSpec{Network: s.network().ID})
		_, err = s.p.AttachSubports(s.ctx, absent, []sdn.Subport{{Port: p.ID}})
		s.notFound(err)
		s.ok(s.p.DetachSubports(s.ctx, absent, []sdn.ID{p.ID}))
		s.ok(s.p.DeleteTrunk(s.ctx, absent))
	}},
	{"VLANs at once", func(s *suite) {
		n := s.network()
		t := s.trunk(n.ID)
		specs := make([]sdn.PortSpec, 6)
		for i := range specs {
			specs[i] = sdn.PortSpec{Base: s.base("port"), Network: n.ID}
		}
		ports := must(s.p.EnsurePorts(s.ctx, specs))(s)
		s.cleanup("subports", func(ctx context.Context) error { return s.p.DeletePorts(ctx, portIDs(ports)) })
		_, errs := together(len(ports), func(i int) ([]sdn.Subport, error) {
			return s.p.AttachSubports(s.ctx, t.ID, []sdn.Subport{{Port: ports[i].ID}})
		})
		for _, err := range errs {
			s.ok(err)
		}
		equal(s, "number of subports", len(s.attached(t.ID)), len(ports))
		s.ok(s.p.DetachSubports(s.ctx, t.ID, portIDs(ports)))
	}},
}

func portIDs(ports []sdn.Port) []sdn.ID {
	ids := make([]sdn.ID, len(ports))
	for i, p := range ports {
		ids[i] = p.ID
	}
	return ids
}

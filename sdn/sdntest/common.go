package sdntest

import (
	"context"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

var commonTests = []test{
	{"installation", func(s *suite) {
		s.ok(sdn.Key{Owner: s.p.Installation(), Kind: "k", Name: "n"}.Validate())
	}},
	{"ping", func(s *suite) { s.ok(s.p.Ping(s.ctx)) }},
	{"get of the absent", func(s *suite) {
		_, err := s.p.Network(s.ctx, absent)
		s.notFound(err)
		_, err = s.p.Subnet(s.ctx, absent)
		s.notFound(err)
		_, err = s.p.SubnetUsage(s.ctx, absent)
		s.notFound(err)
		_, err = s.p.Port(s.ctx, absent)
		s.notFound(err)
		_, err = s.p.Network(s.ctx, "")
		s.notFound(err)
		if s.can.Routers {
			_, err = s.p.Router(s.ctx, absent)
			s.notFound(err)
		}
		if s.can.FloatingIPs {
			_, err = s.p.FloatingIP(s.ctx, absent)
			s.notFound(err)
		}
		if s.can.SubnetPools {
			_, err = s.p.SubnetPool(s.ctx, absent)
			s.notFound(err)
		}
	}},
	{"delete of the absent", func(s *suite) {
		s.ok(s.p.DeleteNetwork(s.ctx, absent))
		s.ok(s.p.DeleteSubnet(s.ctx, absent))
		s.ok(s.p.DeletePorts(s.ctx, []sdn.ID{absent, "", absent}))
		s.ok(s.p.DeletePorts(s.ctx, nil))
		s.ok(s.p.DeletePort(s.ctx, absent, 7))
		if s.can.Routers {
			s.ok(s.p.DeleteRouter(s.ctx, absent))
			s.ok(s.p.DetachSubnet(s.ctx, absent, absent))
		}
		if s.can.FloatingIPs {
			s.ok(s.p.DeleteFloatingIP(s.ctx, absent))
			s.ok(s.p.DeleteForwards(s.ctx, absent, []sdn.ID{absent}))
		}
		if s.can.SubnetPools {
			s.ok(s.p.DeleteSubnetPool(s.ctx, absent))
		}
	}},
	{"update of the absent", func(s *suite) {
		_, err := s.p.UpdateNetwork(s.ctx, absent, sdn.NetworkPatch{})
		s.notFound(err)
		_, err = s.p.UpdateSubnet(s.ctx, absent, sdn.SubnetPatch{})
		s.notFound(err)
		_, err = s.p.UpdatePort(s.ctx, absent, sdn.PortPatch{})
		s.notFound(err)
		s.notFound(s.p.WaitPorts(s.ctx, []sdn.ID{absent}, sdn.PortActive))
	}},
	{"find nothing", func(s *suite) {
		none := sdn.Match{Keys: []sdn.Key{s.base("none").Key}}
		networks, err := sdn.All(s.p.FindNetworks(s.ctx, sdn.NetworkQuery{Match: none}))
		s.ok(err)
		ports, err := sdn.All(s.p.FindPorts(s.ctx, sdn.PortQuery{Match: none}))
		s.ok(err)
		byID, err := sdn.All(s.p.FindPorts(s.ctx, sdn.PortQuery{Match: sdn.Match{IDs: []sdn.ID{absent}}}))
		s.ok(err)
		equal(s, "number of objects found", len(networks)+len(ports)+len(byID), 0)
	}},
	{"key limits", func(s *suite) {
		for field, change := range map[string]func(*sdn.Key){
			"key.name":  func(k *sdn.Key) { k.Name = strings.Repeat("n", sdn.MaxKeyLen) },
			"key.kind":  func(k *sdn.Key) { k.Kind = "A/b" },
			"key.owner": func(k *sdn.Key) { k.Owner = "" },
		} {
			b := s.base("x")
			change(&b.Key)
			_, err := s.p.EnsureNetwork(s.ctx, sdn.NetworkSpec{Base: b})
			s.invalid(err, field)
			_, err = s.p.EnsurePorts(s.ctx, []sdn.PortSpec{{Base: b, Network: absent}})
			s.invalid(err, field)
		}
		b := s.base("longest")
		b.Key.Name += strings.Repeat("x", sdn.MaxKeyLen-len(b.Key.String()))
		b.Name = "longest"
		n := must(s.p.EnsureNetwork(s.ctx, sdn.NetworkSpec{Base: b}))(s)
		s.cleanup("network", func(ctx context.Context) error { return s.p.DeleteNetwork(ctx, n.ID) })
		equal(s, "key", must(s.p.Network(s.ctx, n.ID))(s).Key, b.Key)
	}},
	{"text limits", func(s *suite) {
		b := s.base("x")
		b.Name = strings.Repeat("n", 256)
		_, err := s.p.EnsureNetwork(s.ctx, sdn.NetworkSpec{Base: b})
		s.invalid(err, "name")
		b = s.base("x")
		b.Description = "with a key there is no room"
		_, err = s.p.EnsureNetwork(s.ctx, sdn.NetworkSpec{Base: b})
		s.invalid(err, "description")
		_, err = s.p.EnsureNetwork(s.ctx, sdn.NetworkSpec{Base: sdn.Base{Description: strings.Repeat("d", 256)}})
		s.invalid(err, "description")
	}},
	{"stale revision", func(s *suite) {
		n := s.network()
		other := must(s.p.UpdateNetwork(s.ctx, n.ID, sdn.NetworkPatch{Patch: sdn.Patch{Name: ptr("other " + s.run)}}))(s)
		if other.Revision == n.Revision {
			s.Error("a change did not change the revision")
		}
		_, err := s.p.UpdateNetwork(s.ctx, n.ID, sdn.NetworkPatch{Patch: sdn.Patch{IfRevision: n.Revision, Name: ptr("third")}})
		s.conflict(err, sdn.Stale)
		equal(s, "name", must(s.p.Network(s.ctx, n.ID))(s).Name, other.Name)
		_, err = s.p.UpdateNetwork(s.ctx, n.ID, sdn.NetworkPatch{Patch: sdn.Patch{IfRevision: other.Revision, Name: ptr("third " + s.run)}})
		s.ok(err)
	}},
	{"description", func(s *suite) {
		plain := must(s.p.EnsureNetwork(s.ctx, sdn.NetworkSpec{Base: sdn.Base{Name: "plain-" + s.run}}))(s)
		s.cleanup("network", func(ctx context.Context) error { return s.p.DeleteNetwork(ctx, plain.ID) })
		got := must(s.p.UpdateNetwork(s.ctx, plain.ID, sdn.NetworkPatch{Patch: sdn.Patch{Description: ptr("words")}}))(s)
		equal(s, "description", got.Description, "words")
		ours := s.network()
		_, err := s.p.UpdateNetwork(s.ctx, ours.ID, sdn.NetworkPatch{Patch: sdn.Patch{Description: ptr("words")}})
		s.invalid(err, "description")
		_, err = s.p.UpdateNetwork(s.ctx, plain.ID, sdn.NetworkPatch{Patch: sdn.Patch{Description: ptr(strings.Repeat("d", 256))}})
		s.invalid(err, "description")
	}},
	{"take over", func(s *suite) {
		ours := s.network()
		plain := must(s.p.EnsureNetwork(s.ctx, sdn.NetworkSpec{Base: sdn.Base{Name: "plain-" + s.run, Description: "words"}}))(s)
		s.cleanup("network", func(ctx context.Context) error { return s.p.DeleteNetwork(ctx, plain.ID) })
		b := s.base("taken")
		_, err := s.p.UpdateNetwork(s.ctx, plain.ID, sdn.NetworkPatch{Patch: sdn.Patch{Key: &b.Key}})
		s.invalid(err, "description")
		_, err = s.p.UpdateNetwork(s.ctx, plain.ID, sdn.NetworkPatch{Patch: sdn.Patch{Key: &ours.Key, Description: ptr("")}})
		s.conflict(err, sdn.Exists)
		equal(s, "description after a refusal", must(s.p.Network(s.ctx, plain.ID))(s).Description, "words")
		got := must(s.p.UpdateNetwork(s.ctx, plain.ID, sdn.NetworkPatch{Patch: sdn.Patch{Key: &b.Key, Description: ptr("")}}))(s)
		equal(s, "key", got.Key, b.Key)
		equal(s, "foreign", got.Foreign, false)
		equal(s, "id of the Ensure that follows", must(s.p.EnsureNetwork(s.ctx, sdn.NetworkSpec{Base: sdn.Base{Key: b.Key}}))(s).ID, plain.ID)
		must(s.p.UpdateNetwork(s.ctx, plain.ID, sdn.NetworkPatch{Patch: sdn.Patch{Key: &b.Key}}))(s) // twice is once
		other := s.base("other")
		_, err = s.p.UpdateNetwork(s.ctx, plain.ID, sdn.NetworkPatch{Patch: sdn.Patch{Key: &other.Key}})
		s.immutable(err, "key")
	}},
	{"foreign", func(s *suite) {
		plain := must(s.p.EnsureNetwork(s.ctx, sdn.NetworkSpec{Base: sdn.Base{Name: "plain-" + s.run, Description: "an operator's words"}}))(s)
		s.cleanup("network", func(ctx context.Context) error { return s.p.DeleteNetwork(ctx, plain.ID) })
		ours := s.network()
		got := must(s.p.Network(s.ctx, plain.ID))(s)
		equal(s, "foreign, without a key", got.Foreign, true)
		equal(s, "description", got.Description, "an operator's words")
		equal(s, "foreign, with our key", must(s.p.Network(s.ctx, ours.ID))(s).Foreign, false)
		b := s.base("theirs")
		b.Key.Owner = "someone-else"
		theirs := must(s.p.EnsureNetwork(s.ctx, sdn.NetworkSpec{Base: b}))(s)
		s.cleanup("network", func(ctx context.Context) error { return s.p.DeleteNetwork(ctx, theirs.ID) })
		equal(s, "foreign, with another's key", theirs.Foreign, true)
	}},
	{"a key is of one project", func(s *suite) {
		b := s.base("of-two")
		b.Project = "project-" + s.run
		theirs, err := s.p.EnsureNetwork(s.ctx, sdn.NetworkSpec{Base: b})
		if sdn.IsDenied(err) || sdn.IsInvalid(err) {
			s.Skip("objects are made in one project alone")
		}
		s.ok(err)
		s.cleanup("network", func(ctx context.Context) error { return s.p.DeleteNetwork(ctx, theirs.ID) })
		ours := must(s.p.EnsureNetwork(s.ctx, sdn.NetworkSpec{Base: sdn.Base{Key: b.Key}}))(s)
		s.cleanup("network", func(ctx context.Context) error { return s.p.DeleteNetwork(ctx, ours.ID) })
		if ours.ID == theirs.ID || ours.Project == theirs.Project {
			s.Errorf("the network of the provider's own project is %s in %q, that of another %s in %q",
				ours.ID, ours.Project, theirs.ID, theirs.Project)
		}
		for _, want := range []sdn.Network{ours, theirs} {
			equal(s, "foreign", want.Foreign, false)
			again := must(s.p.EnsureNetwork(s.ctx, sdn.NetworkSpec{Base: sdn.Base{Key: b.Key, Project: want.Project}}))(s)
			equal(s, "id once more", again.ID, want.ID)
			q := sdn.NetworkQuery{Match: sdn.Match{Keys: []sdn.Key{b.Key}, Projects: []string{want.Project}}}
			found := must(sdn.All(s.p.FindNetworks(s.ctx, q)))(s)
			if len(found) != 1 || found[0].ID != want.ID {
				s.Errorf("by the key in %q: %d networks", want.Project, len(found))
			}
		}
	}},
	{"without a key each is new", func(s *suite) {
		spec := sdn.NetworkSpec{Base: sdn.Base{Name: "twin-" + s.run}}
		a, b := must(s.p.EnsureNetwork(s.ctx, spec))(s), must(s.p.EnsureNetwork(s.ctx, spec))(s)
		for _, id := range []sdn.ID{a.ID, b.ID} {
			s.cleanup("network", func(ctx context.Context) error { return s.p.DeleteNetwork(ctx, id) })
		}
		if a.ID == b.ID {
			s.Error("two plain creations made one object")
		}
		found := must(sdn.All(s.p.FindNetworks(s.ctx, sdn.NetworkQuery{Match: sdn.Match{Names: []string{"twin-" + s.run}}})))(s)
		equal(s, "number found by name", len(found), 2)
	}},
	{"tags", func(s *suite) {
		b := s.base("tagged")
		b.Tags = []string{"b-" + s.run, "a", "a"}
		n := must(s.p.EnsureNetwork(s.ctx, sdn.NetworkSpec{Base: b}))(s)
		s.cleanup("network", func(ctx context.Context) error { return s.p.DeleteNetwork(ctx, n.ID) })
		equal(s, "number of tags", len(must(s.p.Network(s.ctx, n.ID))(s).Tags), 2)
		found := must(sdn.All(s.p.FindNetworks(s.ctx, sdn.NetworkQuery{Match: sdn.Match{Tags: []string{"a", "b-" + s.run}}})))(s)
		equal(s, "number found by tags", len(found), 1)
		b.Tags = nil
		again := must(s.p.EnsureNetwork(s.ctx, sdn.NetworkSpec{Base: b}))(s)
		equal(s, "number of tags after an Ensure without any", len(again.Tags), 2)
		cleared := must(s.p.UpdateNetwork(s.ctx, n.ID, sdn.NetworkPatch{Patch: sdn.Patch{Tags: &[]string{}}}))(s)
		equal(s, "number of tags after a patch to none", len(cleared.Tags), 0)
		_, err := s.p.UpdateNetwork(s.ctx, n.ID, sdn.NetworkPatch{Patch: sdn.Patch{Tags: &[]string{"a,b"}}})
		s.invalid(err, "tags")
	}},
	{"ended context", func(s *suite) {
		ctx, cancel := context.WithCancel(s.ctx)
		cancel()
		b := s.base("late")
		if _, err := s.p.EnsureNetwork(ctx, sdn.NetworkSpec{Base: b}); err == nil {
			s.Error("a call with an ended context succeeded")
		}
		if _, err := sdn.All(s.p.FindNetworks(ctx, sdn.NetworkQuery{})); err == nil {
			s.Error("a search with an ended context succeeded")
		}
	}},
	{"find while changing", func(s *suite) {
		n := s.network("10.9.0.0/24")
		for range 5 {
			s.port(sdn.PortSpec{Network: n.ID})
		}
		removed := 0
		for p, err := range s.p.FindPorts(s.ctx, sdn.PortQuery{Networks: []sdn.ID{n.ID}}) {
			s.ok(err)
			s.ok(s.p.DeletePorts(s.ctx, []sdn.ID{p.ID}))
			removed++
		}
		equal(s, "ports deleted in the loop that found them", removed, 5)
	}},
	{"find and stop", func(s *suite) {
		n := s.network("10.9.0.0/24")
		s.port(sdn.PortSpec{Network: n.ID})
		s.port(sdn.PortSpec{Network: n.ID})
		_, found, err := sdn.First(s.p.FindPorts(s.ctx, sdn.PortQuery{Networks: []sdn.ID{n.ID}}))
		s.ok(err)
		equal(s, "found", found, true)
	}},
	{"find from an id on", func(s *suite) {
		var q sdn.NetworkQuery
		for range 4 {
			q.Names = append(q.Names, s.network().Name)
		}
		whole := must(sdn.All(s.p.FindNetworks(s.ctx, q)))(s)
		equal(s, "number found", len(whole), 4)
		byID := func(a, b sdn.Network) int { return strings.Compare(string(a.ID), string(b.ID)) }
		if s.can.Ordered && !slices.IsSortedFunc(whole, byID) {
			s.Error("what is found is not in the order of ids")
		}
		slices.SortFunc(whole, byID)
		for i, n := range whole {
			q.After = n.ID
			behind := must(sdn.All(s.p.FindNetworks(s.ctx, q)))(s)
			slices.SortFunc(behind, byID)
			if !slices.EqualFunc(behind, whole[i+1:], func(a, b sdn.Network) bool { return a.ID == b.ID }) {
				s.Errorf("behind number %d of %d there are %d", i, len(whole), len(behind))
			}
		}
	}},
	{"external network", func(s *suite) {
		if s.can.ExternalNetwork == "" {
			s.Skip("this SDN has none")
		}
		n := must(s.p.Network(s.ctx, s.can.ExternalNetwork))(s)
		equal(s, "external", n.External, true)
		found := must(sdn.All(s.p.FindNetworks(s.ctx, sdn.NetworkQuery{External: ptr(true)})))(s)
		seen := false
		for _, f := range found {
			equal(s, "external of what was found so", f.External, true)
			seen = seen || f.ID == n.ID
		}
		equal(s, "the external network was found", seen, true)
	}},
}

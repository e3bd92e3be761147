package sdntest

import (
	"context"
	"fmt"
	"slices"

	"github.com/kuryr/kuryr/sdn"
)

// group makes a security group with these rules.
func (s *suite) group(rules ...sdn.Rule) sdn.SecurityGroup {
	s.Helper()
	g := must(s.tryGroup(sdn.SecurityGroupSpec{Base: s.base("group"), Rules: rules}))(s)
	return g
}

func (s *suite) tryGroup(spec sdn.SecurityGroupSpec) (sdn.SecurityGroup, error) {
	g, err := s.p.ApplySecurityGroup(s.ctx, spec)
	if err == nil {
		s.cleanup("security group", func(ctx context.Context) error { return s.p.DeleteSecurityGroup(ctx, g.ID) })
	}
	return g, err
}

// tcp allows a port in from a prefix, or from anywhere.
func tcp(port uint16, from string) sdn.Rule {
	r := sdn.Rule{Direction: sdn.Ingress, Protocol: sdn.TCP, Ports: sdn.PortRange{First: port, Last: port}}
	if from != "" {
		r.RemotePrefix = prefix(from)
		r.IPv6 = r.RemotePrefix.Addr().Is6()
	}
	return r
}

// ruleText is a rule without its id and words, to be compared: its full form, whichever way it was written.
func ruleText(r sdn.Rule) string {
	if r.Ports.Last == 0 {
		r.Ports.Last = r.Ports.First
	}
	number := func(n *uint8) string {
		if n == nil {
			return "any"
		}
		return fmt.Sprint(*n)
	}
	remote := "anyone"
	if r.RemotePrefix.IsValid() {
		remote = r.RemotePrefix.Masked().String()
	}
	return fmt.Sprintf("%s ipv6=%v protocol=%d ports=%d-%d icmp=%s/%s remote=%s group=%s set=%s", r.Direction, r.IPv6, r.Protocol,
		r.Ports.First, r.Ports.Last, number(r.ICMPType), number(r.ICMPCode), remote, r.RemoteGroup, r.RemoteSet)
}

// hasRules wants a group to have these rules and no others.
func (s *suite) hasRules(g sdn.SecurityGroup, want ...sdn.Rule) {
	s.Helper()
	text := func(rules []sdn.Rule) []string {
		var out []string
		for _, r := range rules {
			out = append(out, ruleText(r))
		}
		slices.Sort(out)
		return out
	}
	if a, b := text(g.Rules), text(want); !slices.Equal(a, b) {
		s.Errorf("the rules are\n  %q\nwant\n  %q", a, b)
	}
}

// ruleIDs gives the ids of a group's rules by what they say.
func ruleIDs(g sdn.SecurityGroup) map[string]sdn.ID {
	ids := map[string]sdn.ID{}
	for _, r := range g.Rules {
		ids[ruleText(r)] = r.ID
	}
	return ids
}

func groupIDs(groups []sdn.SecurityGroup) []sdn.ID {
	var ids []sdn.ID
	for _, g := range groups {
		ids = append(ids, g.ID)
	}
	return ids
}

var securityGroupTests = []test{
	{"apply twice is once", func(s *suite) {
		spec := sdn.SecurityGroupSpec{Base: s.base("group"), Rules: []sdn.Rule{tcp(80, ""), tcp(443, "10.0.0.0/8"), tcp(443, "fd00::/8")}}
		a, b := must(s.tryGroup(spec))(s), must(s.tryGroup(spec))(s)
		equal(s, "id", b.ID, a.ID)
		equal(s, "revision of what did not change", b.Revision, a.Revision)
		equal(s, "key", b.Key, spec.Key)
		equal(s, "name", b.Name, spec.Name)
		equal(s, "foreign", b.Foreign, false)
		s.hasRules(a, spec.Rules...)
		s.hasRules(b, spec.Rules...)
		s.hasRules(must(s.p.SecurityGroup(s.ctx, a.ID))(s), spec.Rules...)
		for text, id := range ruleIDs(a) {
			equal(s, "id of the rule "+text, ruleIDs(b)[text], id)
		}
		for range 2 {
			s.ok(s.p.DeleteSecurityGroup(s.ctx, a.ID))
		}
		_, err := s.p.SecurityGroup(s.ctx, a.ID)
		s.notFound(err)
	}},
	{"get and change of the absent", func(s *suite) {
		_, err := s.p.SecurityGroup(s.ctx, absent)
		s.notFound(err)
		_, err = s.p.ApplySecurityGroup(s.ctx, sdn.SecurityGroupSpec{ID: absent})
		s.notFound(err)
		s.ok(s.p.DeleteSecurityGroup(s.ctx, absent))
	}},
	{"a group of no rules", func(s *suite) {
		spec := sdn.SecurityGroupSpec{Base: s.base("group")}
		g := must(s.tryGroup(spec))(s)
		s.hasRules(g) // the SDN's own are gone
		spec.Rules = []sdn.Rule{tcp(80, "")}
		s.hasRules(must(s.tryGroup(spec))(s), spec.Rules...)
		spec.Rules = []sdn.Rule{}
		s.hasRules(must(s.tryGroup(spec))(s))
	}},
	{"a changed value", func(s *suite) {
		spec := sdn.SecurityGroupSpec{Base: s.base("group"), Rules: []sdn.Rule{tcp(80, ""), tcp(443, ""), {Direction: sdn.Egress}}}
		a := must(s.tryGroup(spec))(s)
		spec.Rules = []sdn.Rule{tcp(443, ""), tcp(8443, ""), {Direction: sdn.Egress}}
		spec.Name = ""
		b := must(s.tryGroup(spec))(s)
		equal(s, "id", b.ID, a.ID)
		equal(s, "name, which was not given", b.Name, a.Name)
		s.hasRules(b, spec.Rules...)
		s.hasRules(must(s.p.SecurityGroup(s.ctx, a.ID))(s), spec.Rules...)
		for _, r := range []sdn.Rule{tcp(443, ""), {Direction: sdn.Egress}} {
			equal(s, "id of a rule that stays", ruleIDs(b)[ruleText(r)], ruleIDs(a)[ruleText(r)])
		}
		spec.Name = "renamed " + s.run
		equal(s, "name", must(s.tryGroup(spec))(s).Name, spec.Name)
	}},
	{"by its id", func(s *suite) {
		a := s.group(tcp(80, ""))
		b := must(s.p.ApplySecurityGroup(s.ctx, sdn.SecurityGroupSpec{ID: a.ID, Rules: []sdn.Rule{tcp(81, "")}}))(s)
		equal(s, "id", b.ID, a.ID)
		equal(s, "key", b.Key, a.Key)
		equal(s, "name", b.Name, a.Name)
		s.hasRules(b, tcp(81, ""))
		plain := must(s.tryGroup(sdn.SecurityGroupSpec{Base: sdn.Base{Name: "plain " + s.run, Description: "words"}}))(s)
		equal(s, "foreign", plain.Foreign, true)
		again := must(s.tryGroup(sdn.SecurityGroupSpec{ID: plain.ID, Rules: []sdn.Rule{tcp(81, "")}}))(s)
		equal(s, "description", again.Description, "words")
		s.hasRules(again, tcp(81, ""))
	}},
	{"every field of a rule", func(s *suite) {
		rules := []sdn.Rule{
			{Direction: sdn.Ingress},
			{Direction: sdn.Egress, IPv6: true},
			{Direction: sdn.Ingress, Protocol: sdn.UDP, Ports: sdn.PortRange{First: 5000, Last: 5999}},
			{Direction: sdn.Ingress, Protocol: sdn.SCTP, Ports: sdn.PortRange{First: 7}},
			{Direction: sdn.Ingress, Protocol: sdn.TCP},
			{Direction: sdn.Ingress, Protocol: 47},
			{Direction: sdn.Ingress, Protocol: 1},
			{Direction: sdn.Ingress, Protocol: 1, ICMPType: ptr(uint8(8))},
			{Direction: sdn.Ingress, Protocol: 1, ICMPType: ptr(uint8(3)), ICMPCode: ptr(uint8(0))},
			{Direction: sdn.Ingress, Protocol: 58, IPv6: true, ICMPType: ptr(uint8(0))},
			{Direction: sdn.Egress, RemotePrefix: prefix("192.0.2.7/32")},
			{Direction: sdn.Egress, IPv6: true, RemotePrefix: prefix("2001:db8::/32")},
		}
		if s.can.RemoteGroups {
			other := s.group()
			rules = append(rules, sdn.Rule{Direction: sdn.Ingress, RemoteGroup: other.ID},
				sdn.Rule{Direction: sdn.Ingress, IPv6: true, Protocol: sdn.TCP, Ports: sdn.PortRange{First: 22}, RemoteGroup: other.ID})
		}
		g := s.group(rules...)
		s.hasRules(g, rules...)
		for _, r := range must(s.p.SecurityGroup(s.ctx, g.ID))(s).Rules {
			if id := ruleIDs(g)[ruleText(r)]; id != r.ID {
				s.Errorf("the rule %s has the id %s, its creation said %s", ruleText(r), r.ID, id)
			}
		}
	}},
	{"one rule in several forms", func(s *suite) {
		spec := sdn.SecurityGroupSpec{Base: s.base("group"), Rules: []sdn.Rule{
			{Direction: sdn.Ingress, Protocol: sdn.TCP, Ports: sdn.PortRange{First: 80}, RemotePrefix: prefix("10.0.0.0/8"), Description: "a"},
			{Direction: sdn.Ingress, Protocol: sdn.TCP, Ports: sdn.PortRange{First: 80, Last: 80}, RemotePrefix: prefix("10.1.2.3/8"), Description: "b"},
		}}
		g := must(s.tryGroup(spec))(s)
		s.hasRules(g, spec.Rules[0])
		spec.Rules = spec.Rules[1:]
		again := must(s.tryGroup(spec))(s)
		s.hasRules(again, spec.Rules[0])
		equal(s, "id of the rule", again.Rules[0].ID, g.Rules[0].ID)
		equal(s, "revision of what did not change", again.Revision, g.Revision)
	}},
	{"many rules", func(s *suite) {
		spec := sdn.SecurityGroupSpec{Base: s.base("group")}
		for i := range 60 { // a project's quota may not be much more
			spec.Rules = append(spec.Rules, tcp(uint16(1000+2*i), ""))
		}
		g := must(s.tryGroup(spec))(s)
		s.hasRules(g, spec.Rules...)
		s.hasRules(must(s.p.SecurityGroup(s.ctx, g.ID))(s), spec.Rules...)
	}},
	{"invalid", func(s *suite) {
		bad := map[string]sdn.Rule{
			"rules[1].direction":   {},
			"rules[1].protocol":    {Direction: sdn.Ingress, Protocol: 58},
			"rules[1].ports":       {Direction: sdn.Ingress, Ports: sdn.PortRange{First: 80}},
			"rules[1].icmp_type":   {Direction: sdn.Ingress, Protocol: sdn.TCP, ICMPType: ptr(uint8(8))},
			"rules[1].icmp_code":   {Direction: sdn.Ingress, Protocol: 1, ICMPCode: ptr(uint8(0))},
			"rules[1].remote_p":    {Direction: sdn.Ingress, RemotePrefix: prefix("fd00::/8")},
			"rules[1].remote":      {Direction: sdn.Ingress, RemotePrefix: prefix("10.0.0.0/8"), RemoteGroup: absent},
			"rules[1].ports.last":  {Direction: sdn.Ingress, Protocol: sdn.UDP, Ports: sdn.PortRange{First: 9, Last: 8}},
			"rules[1].ports.first": {Direction: sdn.Ingress, Protocol: sdn.UDP, Ports: sdn.PortRange{Last: 8}},
		}
		for field, rule := range bad {
			spec := sdn.SecurityGroupSpec{Base: s.base("group"), Rules: []sdn.Rule{tcp(80, ""), rule}}
			_, err := s.tryGroup(spec)
			s.invalid(err, field)
			s.noneOf(spec.Key)
		}
		spec := sdn.SecurityGroupSpec{Base: s.base("group")}
		spec.Description = "words"
		_, err := s.tryGroup(spec)
		s.invalid(err, "description")
	}},
	{"a remote group that is absent", func(s *suite) {
		if !s.can.RemoteGroups {
			s.Skip("this SDN has none")
		}
		spec := sdn.SecurityGroupSpec{Base: s.base("group"), Rules: []sdn.Rule{tcp(80, ""), {Direction: sdn.Ingress, RemoteGroup: absent}}}
		_, err := s.tryGroup(spec)
		s.notFound(err)
		s.noneOf(spec.Key)
		g := s.group(tcp(22, ""))
		_, err = s.p.ApplySecurityGroup(s.ctx, sdn.SecurityGroupSpec{ID: g.ID, Rules: spec.Rules})
		s.notFound(err)
		s.hasRules(must(s.p.SecurityGroup(s.ctx, g.ID))(s), tcp(22, ""))
	}},
	{"a group that refers to itself", func(s *suite) {
		if !s.can.RemoteGroups {
			s.Skip("this SDN has none")
		}
		g := s.group()
		own := sdn.Rule{Direction: sdn.Ingress, RemoteGroup: g.ID}
		s.hasRules(must(s.p.ApplySecurityGroup(s.ctx, sdn.SecurityGroupSpec{ID: g.ID, Rules: []sdn.Rule{own}}))(s), own)
		s.ok(s.p.DeleteSecurityGroup(s.ctx, g.ID))
		_, err := s.p.SecurityGroup(s.ctx, g.ID)
		s.notFound(err)
	}},
	{"what others refer to", func(s *suite) {
		g := s.group()
		n := s.network("10.13.0.0/24")
		p := s.port(sdn.PortSpec{Network: n.ID, Groups: []sdn.ID{g.ID}})
		s.conflict(s.p.DeleteSecurityGroup(s.ctx, g.ID), sdn.InUse)
		s.ok(s.p.RemoveGroups(s.ctx, p.ID, []sdn.ID{g.ID}))
		if s.can.RemoteGroups {
			other := s.group(tcp(80, ""), sdn.Rule{Direction: sdn.Ingress, RemoteGroup: g.ID})
			must(s.p.ApplySecurityGroup(s.ctx, sdn.SecurityGroupSpec{
				ID: g.ID, Rules: []sdn.Rule{{Direction: sdn.Ingress, RemoteGroup: other.ID}},
			}))(s)
			s.ok(s.p.DeleteSecurityGroup(s.ctx, g.ID))
			s.hasRules(must(s.p.SecurityGroup(s.ctx, other.ID))(s), tcp(80, ""))
			s.ok(s.p.DeleteSecurityGroup(s.ctx, other.ID))
			return
		}
		s.ok(s.p.DeleteSecurityGroup(s.ctx, g.ID))
	}},
	{"the default group", func(s *suite) {
		project := s.group().Project
		found := must(sdn.All(s.p.FindSecurityGroups(s.ctx, sdn.SecurityGroupQuery{Match: sdn.Match{Names: []string{"default"}, Projects: []string{project}}})))(s)
		if len(found) == 0 {
			s.Skip("this SDN has none")
		}
		equal(s, "number of them", len(found), 1)
		equal(s, "foreign", found[0].Foreign, true)
		s.conflict(s.p.DeleteSecurityGroup(s.ctx, found[0].ID), sdn.InUse)
		_, err := s.tryGroup(sdn.SecurityGroupSpec{Base: sdn.Base{Name: "default"}})
		s.conflict(err, sdn.Exists)
	}},
	{"stateless", func(s *suite) {
		spec := sdn.SecurityGroupSpec{Base: s.base("group"), Stateless: true, Rules: []sdn.Rule{tcp(80, "")}}
		g, err := s.tryGroup(spec)
		s.says("a stateless group", s.can.Stateless, err)
		if err != nil {
			s.noneOf(spec.Key)
			return
		}
		equal(s, "stateless", must(s.p.SecurityGroup(s.ctx, g.ID))(s).Stateless, true)
		n := s.network("10.13.0.0/24")
		p := s.port(sdn.PortSpec{Network: n.ID, Groups: []sdn.ID{g.ID}})
		spec.Stateless = false
		spec.Rules = []sdn.Rule{tcp(81, "")}
		_, err = s.p.ApplySecurityGroup(s.ctx, spec)
		s.conflict(err, sdn.InUse)
		s.hasRules(must(s.p.SecurityGroup(s.ctx, g.ID))(s), tcp(80, ""))
		s.ok(s.p.DeletePorts(s.ctx, []sdn.ID{p.ID}))
		equal(s, "stateless", must(s.tryGroup(spec))(s).Stateless, false)
	}},
	{"stale revision", func(s *suite) {
		a := s.group(tcp(80, ""))
		b := must(s.p.ApplySecurityGroup(s.ctx, sdn.SecurityGroupSpec{ID: a.ID, Rules: []sdn.Rule{tcp(81, "")}}))(s)
		if b.Revision == a.Revision {
			s.Error("another rule did not change the revision")
		}
		_, err := s.p.ApplySecurityGroup(s.ctx, sdn.SecurityGroupSpec{ID: a.ID, IfRevision: a.Revision, Rules: []sdn.Rule{tcp(82, "")}})
		s.conflict(err, sdn.Stale)
		s.hasRules(must(s.p.SecurityGroup(s.ctx, a.ID))(s), tcp(81, ""))
		c := must(s.p.ApplySecurityGroup(s.ctx, sdn.SecurityGroupSpec{ID: a.ID, IfRevision: b.Revision, Rules: []sdn.Rule{tcp(82, "")}}))(s)
		s.hasRules(c, tcp(82, ""))
	}},
	{"tags", func(s *suite) {
		b := s.base("group")
		b.Tags = []string{"t-" + s.run}
		g := must(s.tryGroup(sdn.SecurityGroupSpec{Base: b}))(s)
		equal(s, "number of tags", len(must(s.p.SecurityGroup(s.ctx, g.ID))(s).Tags), 1)
		found := must(sdn.All(s.p.FindSecurityGroups(s.ctx, sdn.SecurityGroupQuery{Match: sdn.Match{Tags: b.Tags}})))(s)
		equal(s, "number found by tag", len(found), 1)
		b.Tags = nil
		equal(s, "number of tags after none were given", len(must(s.tryGroup(sdn.SecurityGroupSpec{Base: b}))(s).Tags), 1)
	}},
	{"find", func(s *suite) {
		a, b := s.group(tcp(80, "")), s.group(tcp(80, ""), tcp(81, ""))
		for what, q := range map[string]sdn.SecurityGroupQuery{
			"ids":   {Match: sdn.Match{IDs: []sdn.ID{a.ID, b.ID, absent}}},
			"keys":  {Match: sdn.Match{Keys: []sdn.Key{a.Key, b.Key}}},
			"names": {Match: sdn.Match{Names: []string{a.Name, b.Name}}},
			"rules": {Rules: []sdn.ID{a.Rules[0].ID, b.Rules[0].ID, b.Rules[1].ID, absent}},
		} {
			found := groupIDs(must(sdn.All(s.p.FindSecurityGroups(s.ctx, q)))(s))
			if len(found) != 2 || !slices.Contains(found, a.ID) || !slices.Contains(found, b.ID) {
				s.Errorf("by %s: found %v, want %s and %s", what, found, a.ID, b.ID)
			}
		}
		for g, err := range s.p.FindSecurityGroups(s.ctx, sdn.SecurityGroupQuery{Match: sdn.Match{IDs: []sdn.ID{b.ID}}}) {
			s.ok(err)
			s.hasRules(g, b.Rules...)
		}
		ours := groupIDs(must(sdn.All(s.p.FindSecurityGroups(s.ctx, sdn.SecurityGroupQuery{Match: sdn.Match{Owner: s.p.Installation(), Kind: "sdntest"}})))(s))
		equal(s, "found by the owner of the key", slices.Contains(ours, a.ID) && slices.Contains(ours, b.ID), true)
		s.ok(s.p.DeleteSecurityGroup(s.ctx, a.ID))
		_, found, err := sdn.First(s.p.FindSecurityGroups(s.ctx, sdn.SecurityGroupQuery{Match: sdn.Match{Keys: []sdn.Key{a.Key}}}))
		s.ok(err)
		equal(s, "found what was deleted", found, false)
	}},
	{"groups of a port from two sides", func(s *suite) {
		n := s.network("10.13.0.0/24")
		p := s.port(sdn.PortSpec{Network: n.ID, WithoutGroups: true})
		groups := []sdn.ID{s.group().ID, s.group().ID, s.group().ID, s.group().ID}
		_, errs := together(len(groups), func(i int) (int, error) { return 0, s.p.AddGroups(s.ctx, p.ID, groups[i:i+1]) })
		for _, err := range errs {
			s.ok(err)
		}
		equal(s, "number of groups", len(must(s.p.Port(s.ctx, p.ID))(s).Groups), len(groups))
		found := must(sdn.All(s.p.FindPorts(s.ctx, sdn.PortQuery{Groups: groups[:1]})))(s)
		equal(s, "number of ports found by group", len(found), 1)
		s.ok(s.p.AddGroups(s.ctx, p.ID, groups))
		_, errs = together(len(groups), func(i int) (int, error) { return 0, s.p.RemoveGroups(s.ctx, p.ID, groups[i:i+1]) })
		for _, err := range errs {
			s.ok(err)
		}
		equal(s, "number of groups", len(must(s.p.Port(s.ctx, p.ID))(s).Groups), 0)
		s.ok(s.p.RemoveGroups(s.ctx, p.ID, groups))
		s.notFound(s.p.AddGroups(s.ctx, absent, groups))
		s.notFound(s.p.AddGroups(s.ctx, p.ID, []sdn.ID{absent}))
	}},
	{"one key at once is one group", func(s *suite) {
		spec := sdn.SecurityGroupSpec{Base: s.base("group"), Rules: []sdn.Rule{tcp(80, ""), tcp(81, "")}}
		groups, errs := together(6, func(int) (sdn.SecurityGroup, error) { return s.tryGroup(spec) })
		for i := range groups {
			s.ok(errs[i])
			equal(s, "id", groups[i].ID, groups[0].ID)
		}
		found := must(sdn.All(s.p.FindSecurityGroups(s.ctx, sdn.SecurityGroupQuery{Match: sdn.Match{Keys: []sdn.Key{spec.Key}}})))(s)
		equal(s, "number found", len(found), 1)
		s.hasRules(found[0], spec.Rules...)
	}},
	{"a lost answer", func(s *suite) {
		if s.fixture.DropReply == nil {
			s.Skip("answers cannot be lost here")
		}
		spec := sdn.SecurityGroupSpec{Base: s.base("group"), Rules: []sdn.Rule{tcp(80, "")}}
		s.fixture.DropReply(s.T)
		if _, err := s.tryGroup(spec); err != nil && !sdn.IsUnavailable(err) {
			s.Errorf("got error %v, want unavailable", err)
		}
		s.hasRules(must(s.tryGroup(spec))(s), spec.Rules...)
		found := must(sdn.All(s.p.FindSecurityGroups(s.ctx, sdn.SecurityGroupQuery{Match: sdn.Match{Keys: []sdn.Key{spec.Key}}})))(s)
		equal(s, "number found", len(found), 1)
	}},
}

// noneOf wants no security group of this key.
func (s *suite) noneOf(key sdn.Key) {
	s.Helper()
	found := must(sdn.All(s.p.FindSecurityGroups(s.ctx, sdn.SecurityGroupQuery{Match: sdn.Match{Keys: []sdn.Key{key}}})))(s)
	equal(s, "number of groups made", len(found), 0)
}

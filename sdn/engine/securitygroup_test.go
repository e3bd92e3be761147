package engine

import (
	"slices"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// Ports that do not say get their project's default group, where Neutron's would too.
func TestWhoGetsTheDefaultGroup(t *testing.T) {
	t.Parallel()
	p := open(t, Options{Quotas: map[sdn.Noun]int64{sdn.NounSecurityGroup: 0, sdn.NounRule: 0}})
	n, err := p.EnsureNetwork(t.Context(), sdn.NetworkSpec{Subnets: []sdn.SubnetSpec{{CIDR: prefix("10.0.0.0/24")}}})
	ok(t, err)
	mine := sdn.Base{Project: "mine"}
	made, err := p.EnsurePorts(t.Context(), []sdn.PortSpec{
		{Base: mine, Network: n.ID},
		{Base: mine, Network: n.ID},
		{Base: mine, Network: n.ID, WithoutGroups: true},
		{Base: mine, Network: n.ID, Groups: []sdn.ID{}},
		{Base: mine, Network: n.ID, NoPortSecurity: new(true)},
		{Base: mine, Network: n.ID, DeviceOwner: "network:dhcp"},
		{Network: n.ID},
	})
	ok(t, err)
	found, err := sdn.All(p.FindSecurityGroups(t.Context(), sdn.SecurityGroupQuery{}))
	ok(t, err)
	if len(found) != 1 || found[0].Name != "default" || found[0].Project != "mine" || !found[0].Foreign {
		t.Fatalf("the groups are %+v", found)
	}
	g := found[0]
	for i, port := range made {
		if got := slices.Contains(port.Groups, g.ID); got != (i < 2) || len(port.Groups) > 1 {
			t.Errorf("port %d has the groups %v", i, port.Groups)
		}
	}
	var rules []ruleKey
	for _, r := range g.Rules {
		rules = append(rules, keyOfRule(r))
	}
	for _, ipv6 := range []bool{false, true} {
		for _, want := range []sdn.Rule{{Direction: sdn.Egress, IPv6: ipv6}, {Direction: sdn.Ingress, IPv6: ipv6, RemoteGroup: g.ID}} {
			if len(rules) != 4 || !slices.Contains(rules, keyOfRule(want)) {
				t.Errorf("the rules are %+v, want %+v among them", g.Rules, want)
			}
		}
	}
	// Its rules are the project's to change, its name and being are not.
	if _, err := p.ApplySecurityGroup(t.Context(), sdn.SecurityGroupSpec{ID: g.ID, Base: sdn.Base{Name: "other"}}); sdn.ReasonOf(err) != sdn.InUse {
		t.Errorf("renamed: %v", err)
	}
	changed, err := p.ApplySecurityGroup(t.Context(), sdn.SecurityGroupSpec{ID: g.ID, Rules: g.Rules[:2]})
	if err != nil || len(changed.Rules) != 2 || changed.Rules[0].ID != g.Rules[0].ID {
		t.Errorf("changed to %+v, %v", changed, err)
	}
	ok(t, p.SetQuota(t.Context(), "mine", map[sdn.Noun]int64{sdn.NounPort: -1}))
	if u, err := p.Usage(t.Context(), "mine"); err != nil || u[sdn.NounSecurityGroup] != (sdn.Usage{Used: 1, Default: true}) || u[sdn.NounRule] != (sdn.Usage{Used: 2, Default: true}) {
		t.Errorf("usage %+v, %v", u, err)
	}
	for _, port := range made {
		ok(t, p.DeletePort(t.Context(), port.ID, 0))
	}
	if err := p.DeleteSecurityGroup(t.Context(), g.ID); sdn.ReasonOf(err) != sdn.InUse {
		t.Errorf("deleted: %v", err)
	}
	other, err := sdn.All(p.FindSecurityGroups(t.Context(), sdn.SecurityGroupQuery{Match: sdn.Match{Projects: []string{"other"}}}))
	if err != nil || len(other) != 1 || other[0].Name != "default" {
		t.Errorf("a project that looks for its groups finds %v, %v", other, err)
	}
}

// A port has security groups only with port security.
func TestUnguardedPortsHaveNoGroups(t *testing.T) {
	t.Parallel()
	p := open(t, Options{})
	g, err := p.ApplySecurityGroup(t.Context(), sdn.SecurityGroupSpec{})
	ok(t, err)
	n, err := p.EnsureNetwork(t.Context(), sdn.NetworkSpec{NoPortSecurity: true})
	ok(t, err)
	refused := func(err error) {
		t.Helper()
		if sdn.ReasonOf(err) != sdn.InUse || sdn.FieldOf(err) != "groups" {
			t.Errorf("got error %v, want a conflict of groups in use", err)
		}
	}
	_, err = p.EnsurePorts(t.Context(), []sdn.PortSpec{{Network: n.ID, Groups: []sdn.ID{g.ID}}})
	refused(err)
	made, err := p.EnsurePorts(t.Context(), []sdn.PortSpec{{Network: n.ID, NoPortSecurity: new(false), Groups: []sdn.ID{g.ID}}})
	ok(t, err)
	id := made[0].ID
	_, err = p.UpdatePort(t.Context(), id, sdn.PortPatch{NoPortSecurity: new(true), Groups: &[]sdn.ID{g.ID}})
	refused(err)
	if port, err := p.Port(t.Context(), id); err != nil || len(port.Groups) != 1 || port.NoPortSecurity {
		t.Errorf("after what was refused the port is %+v, %v", port, err)
	}
	_, err = p.UpdatePort(t.Context(), id, sdn.PortPatch{NoPortSecurity: new(true)}) // takes them away
	ok(t, err)
	refused(p.AddGroups(t.Context(), id, []sdn.ID{g.ID}))
	if port, err := p.Port(t.Context(), id); err != nil || len(port.Groups) != 0 || !port.NoPortSecurity {
		t.Errorf("the port is %+v, %v", port, err)
	}
}

// A rule is counted as the rest is; a value that does not fit leaves the group as it was.
func TestQuotaOfRules(t *testing.T) {
	t.Parallel()
	p := open(t, Options{})
	ok(t, p.SetQuota(t.Context(), "", map[sdn.Noun]int64{sdn.NounSecurityGroup: 1, sdn.NounRule: 3}))
	g, err := p.ApplySecurityGroup(t.Context(), sdn.SecurityGroupSpec{Rules: []sdn.Rule{egress(1), egress(2)}})
	ok(t, err)
	_, err = p.ApplySecurityGroup(t.Context(), sdn.SecurityGroupSpec{ID: g.ID, Rules: []sdn.Rule{egress(1), egress(2), egress(3), egress(4)}})
	if sdn.ReasonOf(err) != sdn.NoQuota {
		t.Errorf("four rules: %v", err)
	}
	if _, err := p.ApplySecurityGroup(t.Context(), sdn.SecurityGroupSpec{}); sdn.ReasonOf(err) != sdn.NoQuota {
		t.Errorf("two groups: %v", err)
	}
	want := sdn.Usage{Used: 2, Limit: 3}
	if u, err := p.Usage(t.Context(), ""); err != nil || u[sdn.NounRule] != want {
		t.Errorf("usage %+v, %v; want %+v", u, err, want)
	}
	// Some go while others come: what counts is the difference.
	_, err = p.ApplySecurityGroup(t.Context(), sdn.SecurityGroupSpec{ID: g.ID, Rules: []sdn.Rule{egress(3), egress(4), egress(5)}})
	ok(t, err)
	ok(t, p.ResetQuota(t.Context(), ""))
	if u, err := p.Usage(t.Context(), ""); err != nil || u[sdn.NounRule] != (sdn.Usage{Used: 3, Limit: -1}) {
		t.Errorf("usage after the quota was reset %+v, %v", u, err)
	}
	ok(t, p.DeleteSecurityGroup(t.Context(), g.ID))
	objects, _, err := p.Count(t.Context())
	if err != nil || objects[sdn.NounRule] != 0 || objects[sdn.NounSecurityGroup] != 0 {
		t.Errorf("the figures are %+v, %v", objects, err)
	}
}

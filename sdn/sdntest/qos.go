package sdntest

import (
	"context"

	"github.com/kuryr/kuryr/sdn"
)

// policy makes a QoS policy, or skips the test where only administrators may.
func (s *suite) policy(spec sdn.QoSPolicySpec) sdn.QoSPolicy {
	s.Helper()
	p, err := s.p.ApplyQoSPolicy(s.ctx, spec)
	if sdn.IsDenied(err) {
		s.Skip("this SDN leaves it to its administrators")
	}
	s.ok(err)
	s.cleanup("QoS policy", func(ctx context.Context) error { return s.p.DeleteQoSPolicy(ctx, p.ID) })
	return p
}

var qosTests = []test{
	{"apply twice is once", func(s *suite) {
		spec := sdn.QoSPolicySpec{Base: s.base("policy"), Limits: sdn.Limits{IngressKbps: 10000, IngressBurst: 8000, EgressKbps: 2000, EgressBurst: 1600, DSCP: 26}}
		a, b := s.policy(spec), s.policy(spec)
		equal(s, "id", b.ID, a.ID)
		equal(s, "key", b.Key, spec.Key)
		equal(s, "name", b.Name, spec.Name)
		equal(s, "foreign", b.Foreign, false)
		equal(s, "revision of what did not change", b.Revision, a.Revision)
		equal(s, "limits", a.Limits, spec.Limits)
		equal(s, "limits", must(s.p.QoSPolicy(s.ctx, a.ID))(s).Limits, spec.Limits)
		for range 2 {
			s.ok(s.p.DeleteQoSPolicy(s.ctx, a.ID))
		}
		_, err := s.p.QoSPolicy(s.ctx, a.ID)
		s.notFound(err)
	}},
	{"get and delete of the absent", func(s *suite) {
		_, err := s.p.QoSPolicy(s.ctx, absent)
		s.notFound(err)
		s.ok(s.p.DeleteQoSPolicy(s.ctx, absent))
	}},
	{"change of the absent", func(s *suite) {
		s.policy(sdn.QoSPolicySpec{Base: s.base("policy")}) // this one may
		_, err := s.p.ApplyQoSPolicy(s.ctx, sdn.QoSPolicySpec{ID: absent})
		s.notFound(err)
	}},
	{"a changed value", func(s *suite) {
		spec := sdn.QoSPolicySpec{Base: s.base("policy"), Limits: sdn.Limits{IngressKbps: 10000, DSCP: 10}}
		a := s.policy(spec)
		for _, limits := range []sdn.Limits{
			{IngressKbps: 20000, DSCP: 10},
			{EgressKbps: 5000, DSCP: 12},
			{IngressKbps: 3000, EgressKbps: 5000},
			{},
			{DSCP: 46},
		} {
			spec.Limits = limits
			got := s.policy(spec)
			equal(s, "id", got.ID, a.ID)
			equal(s, "limits", got.Limits, limits)
			equal(s, "limits when read again", must(s.p.QoSPolicy(s.ctx, a.ID))(s).Limits, limits)
		}
		byID := s.policy(sdn.QoSPolicySpec{ID: a.ID, Limits: sdn.Limits{EgressKbps: 1000}})
		equal(s, "key", byID.Key, a.Key)
		equal(s, "name", byID.Name, a.Name)
		equal(s, "limits", byID.Limits, sdn.Limits{EgressKbps: 1000})
	}},
	{"invalid", func(s *suite) {
		s.policy(sdn.QoSPolicySpec{Base: s.base("policy")}) // this one may
		for field, limits := range map[string]sdn.Limits{
			"limits.ingress_kbps":  {IngressKbps: -1},
			"limits.egress_kbps":   {EgressKbps: -1},
			"limits.ingress_burst": {IngressBurst: 100},
			"limits.egress_burst":  {EgressKbps: 100, EgressBurst: -1},
			"limits.dscp":          {DSCP: 64},
		} {
			spec := sdn.QoSPolicySpec{Base: s.base("policy"), Limits: limits}
			_, err := s.p.ApplyQoSPolicy(s.ctx, spec)
			s.invalid(err, field)
			_, found, err := sdn.First(s.p.FindQoSPolicies(s.ctx, sdn.QoSPolicyQuery{Match: sdn.Match{Keys: []sdn.Key{spec.Key}}}))
			s.ok(err)
			equal(s, "one was made", found, false)
		}
	}},
	{"stale revision", func(s *suite) {
		a := s.policy(sdn.QoSPolicySpec{Base: s.base("policy"), Limits: sdn.Limits{EgressKbps: 1000}})
		b := s.policy(sdn.QoSPolicySpec{ID: a.ID, Base: sdn.Base{Name: "b " + s.run}, Limits: sdn.Limits{EgressKbps: 1000}})
		equal(s, "name", b.Name, "b "+s.run)
		_, err := s.p.ApplyQoSPolicy(s.ctx, sdn.QoSPolicySpec{ID: a.ID, IfRevision: a.Revision, Limits: sdn.Limits{EgressKbps: 2000}})
		s.conflict(err, sdn.Stale)
		equal(s, "limits", must(s.p.QoSPolicy(s.ctx, a.ID))(s).Limits, sdn.Limits{EgressKbps: 1000})
	}},
	{"shared changes", func(s *suite) {
		spec := sdn.QoSPolicySpec{Base: s.base("policy"), Shared: true}
		a := s.policy(spec)
		equal(s, "shared", a.Shared, true)
		spec.Shared = false
		equal(s, "shared", s.policy(spec).Shared, false)
	}},
	{"swapped names are kept or refused", func(s *suite) {
		spec := sdn.QoSPolicySpec{Base: s.base("policy"), Limits: sdn.Limits{EgressKbps: 1000}}
		a := s.policy(spec)
		spec.Swapped = true
		got, err := s.p.ApplyQoSPolicy(s.ctx, spec)
		if sdn.IsUnsupported(err) {
			got = must(s.p.QoSPolicy(s.ctx, a.ID))(s)
			equal(s, "swapped", got.Swapped, false)
			return
		}
		s.ok(err)
		equal(s, "swapped", got.Swapped, true)
		equal(s, "limits", got.Limits, spec.Limits)
		equal(s, "swapped when read again", must(s.p.QoSPolicy(s.ctx, a.ID))(s).Swapped, true)
		spec.Swapped = false
		equal(s, "swapped back", s.policy(spec).Swapped, false)
	}},
	{"on a port", func(s *suite) {
		policy := s.policy(sdn.QoSPolicySpec{Base: s.base("policy"), Limits: sdn.Limits{EgressKbps: 1000}})
		n := s.network("10.14.0.0/24")
		p := s.port(sdn.PortSpec{Network: n.ID, QoSPolicy: policy.ID})
		equal(s, "policy of the port", p.QoSPolicy, policy.ID)
		s.conflict(s.p.DeleteQoSPolicy(s.ctx, policy.ID), sdn.InUse)
		changed := s.policy(sdn.QoSPolicySpec{ID: policy.ID, Limits: sdn.Limits{EgressKbps: 2000}})
		equal(s, "limits", changed.Limits.EgressKbps, 2000)
		_, err := s.p.UpdatePort(s.ctx, p.ID, sdn.PortPatch{QoSPolicy: ptr(absent)})
		s.notFound(err)
		equal(s, "policy of the port", must(s.p.Port(s.ctx, p.ID))(s).QoSPolicy, policy.ID)
		got := must(s.p.UpdatePort(s.ctx, p.ID, sdn.PortPatch{QoSPolicy: ptr(sdn.ID(""))}))(s)
		equal(s, "policy of the port", got.QoSPolicy, "")
		s.ok(s.p.DeleteQoSPolicy(s.ctx, policy.ID))
		_, err = s.tryPort(sdn.PortSpec{Network: n.ID, QoSPolicy: absent})
		s.notFound(err)
	}},
	{"on a network", func(s *suite) {
		policy := s.policy(sdn.QoSPolicySpec{Base: s.base("policy"), Limits: sdn.Limits{EgressKbps: 1000}})
		spec := s.networkSpec()
		spec.QoSPolicy = policy.ID
		n := must(s.p.EnsureNetwork(s.ctx, spec))(s)
		s.cleanup("network", func(ctx context.Context) error { return s.p.DeleteNetwork(ctx, n.ID) })
		equal(s, "policy of the network", n.QoSPolicy, policy.ID)
		p := s.port(sdn.PortSpec{Network: n.ID, WithoutAddresses: true})
		equal(s, "policy of the port", p.QoSPolicy, "")
		none := sdn.ID("")
		got := must(s.p.UpdateNetwork(s.ctx, n.ID, sdn.NetworkPatch{QoSPolicy: &none}))(s)
		equal(s, "policy of the network", got.QoSPolicy, "")
		equal(s, "policy when read again", must(s.p.Network(s.ctx, n.ID))(s).QoSPolicy, "")
	}},
	{"default", func(s *suite) {
		spec := sdn.QoSPolicySpec{Base: s.base("policy"), Default: true}
		equal(s, "default", s.policy(spec).Default, true)
		spec.Default = false
		equal(s, "default", s.policy(spec).Default, false)
	}},
	{"find", func(s *suite) {
		a, b := s.policy(sdn.QoSPolicySpec{Base: s.base("policy")}), s.policy(sdn.QoSPolicySpec{Base: s.base("policy"), Limits: sdn.Limits{DSCP: 8}})
		for what, q := range map[string]sdn.Match{
			"ids":   {IDs: []sdn.ID{a.ID, b.ID, absent}},
			"keys":  {Keys: []sdn.Key{a.Key, b.Key}},
			"names": {Names: []string{a.Name, b.Name}},
		} {
			found := must(sdn.All(s.p.FindQoSPolicies(s.ctx, sdn.QoSPolicyQuery{Match: q})))(s)
			equal(s, "number found by "+what, len(found), 2)
		}
	}},
	{"one key at once is one policy", func(s *suite) {
		spec := sdn.QoSPolicySpec{Base: s.base("policy"), Limits: sdn.Limits{EgressKbps: 1000, DSCP: 8}}
		s.policy(sdn.QoSPolicySpec{Base: s.base("policy")}) // this one may
		policies, errs := together(6, func(int) (sdn.QoSPolicy, error) { return s.p.ApplyQoSPolicy(s.ctx, spec) })
		for i, p := range policies {
			s.ok(errs[i])
			equal(s, "id", p.ID, policies[0].ID)
			s.cleanup("QoS policy", func(ctx context.Context) error { return s.p.DeleteQoSPolicy(ctx, p.ID) })
		}
		equal(s, "limits", must(s.p.QoSPolicy(s.ctx, policies[0].ID))(s).Limits, spec.Limits)
	}},
}

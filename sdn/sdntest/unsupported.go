package sdntest

import (
	"errors"

	"github.com/kuryr/kuryr/sdn"
)

// bulkErrors gives the errors of a bulk call by position.
func bulkErrors(err error) []error {
	var bulk *sdn.BulkError
	if errors.As(err, &bulk) {
		return bulk.Errs
	}
	return nil
}

var quotaTests = []test{
	{"usage and limit", func(s *suite) {
		if !s.can.Quotas {
			s.Skip("this SDN has none")
		}
		project := "project-" + s.run
		err := s.p.SetQuota(s.ctx, project, map[sdn.Noun]int64{sdn.NounPort: 2})
		if sdn.IsDenied(err) {
			s.Skip("this SDN leaves it to its operators")
		}
		s.ok(err)
		n := s.network("10.10.0.0/24")
		specs := make([]sdn.PortSpec, 3)
		for i := range specs {
			specs[i] = sdn.PortSpec{Base: s.base("port"), Network: n.ID}
			specs[i].Project = project
		}
		ports, err := s.p.EnsurePorts(s.ctx, specs)
		s.exhausted(err, sdn.NoQuota)
		equal(s, "usage", must(s.p.Usage(s.ctx, project))(s)[sdn.NounPort], sdn.Usage{Used: 2, Limit: 2})
		equal(s, "used addresses", must(s.p.SubnetUsage(s.ctx, n.Subnets[0]))(s).Used, 2)
		s.dropAll(ports)
		equal(s, "usage", must(s.p.Usage(s.ctx, project))(s)[sdn.NounPort], sdn.Usage{Used: 0, Limit: 2})
		s.ok(s.p.SetQuota(s.ctx, project, map[sdn.Noun]int64{sdn.NounPort: -1}))
		s.dropAll(must(s.p.EnsurePorts(s.ctx, specs))(s))
		s.invalid(s.p.SetQuota(s.ctx, project, map[sdn.Noun]int64{sdn.NounPort: -2}), "port")
	}},
}

// says wants IsUnsupported exactly where the capability is not there.
func (s *suite) says(what string, can bool, err error) {
	s.Helper()
	if sdn.IsUnsupported(err) == can {
		s.Errorf("%s: the capability is %v, the answer is %v", what, can, err)
	}
}

var unsupportedTests = []test{
	{"as capabilities say", func(s *suite) {
		_, err := s.p.Trunk(s.ctx, absent)
		s.says("Trunk", s.can.Trunks, err)
		_, err = s.p.EnsureTrunk(s.ctx, sdn.TrunkSpec{Base: s.base("trunk"), Parent: absent})
		s.says("EnsureTrunk", s.can.Trunks, err)
		_, err = sdn.All(s.p.FindTrunks(s.ctx, sdn.TrunkQuery{}))
		s.says("FindTrunks", s.can.Trunks, err)
		_, err = s.p.AttachSubports(s.ctx, absent, []sdn.Subport{{Port: absent}})
		s.says("AttachSubports", s.can.Trunks, err)
		s.says("DeleteTrunk", s.can.Trunks, s.p.DeleteTrunk(s.ctx, absent))
		_, err = s.p.SecurityGroup(s.ctx, absent)
		s.says("SecurityGroup", s.can.SecurityGroups, err)
		_, err = sdn.All(s.p.FindSecurityGroups(s.ctx, sdn.SecurityGroupQuery{}))
		s.says("FindSecurityGroups", s.can.SecurityGroups, err)
		s.says("DeleteSecurityGroup", s.can.SecurityGroups, s.p.DeleteSecurityGroup(s.ctx, absent))
		s.says("AddGroups", s.can.SecurityGroups, s.p.AddGroups(s.ctx, absent, []sdn.ID{absent}))
		if !s.can.SecurityGroups {
			_, err = s.p.ApplySecurityGroup(s.ctx, sdn.SecurityGroup{Base: s.base("group")})
			s.says("ApplySecurityGroup", false, err)
			n := s.network()
			_, err = s.tryPort(sdn.PortSpec{Network: n.ID, Groups: []sdn.ID{absent}})
			s.says("a port with groups", false, err)
			s.port(sdn.PortSpec{Network: n.ID, WithoutGroups: true})
		}
		if !s.can.AddressGroups {
			_, err = s.p.ApplyAddressGroup(s.ctx, sdn.AddressGroup{Base: s.base("set")})
			s.says("ApplyAddressGroup", false, err)
		}
		balancers := len(s.can.LoadBalancer.Protocols) > 0
		_, err = s.p.LoadBalancer(s.ctx, s.base("lb").Key)
		s.says("LoadBalancer", balancers, err)
		_, err = sdn.All(s.p.FindLoadBalancers(s.ctx, sdn.LoadBalancerQuery{}))
		s.says("FindLoadBalancers", balancers, err)
		s.says("DeleteLoadBalancer", balancers, s.p.DeleteLoadBalancer(s.ctx, s.base("lb").Key))
		s.says("SetPortQoS", s.can.QoS, s.p.SetPortQoS(s.ctx, absent, sdn.PortQoS{IngressKbps: 1000}))
		_, err = s.p.SubnetPool(s.ctx, absent)
		s.says("SubnetPool", s.can.SubnetPools, err)
		_, err = s.p.Router(s.ctx, absent)
		s.says("Router", s.can.Routers, err)
		_, err = s.p.FloatingIP(s.ctx, absent)
		s.says("FloatingIP", s.can.FloatingIPs, err)
		_, err = sdn.All(s.p.FindForwards(s.ctx, sdn.ForwardQuery{FloatingIPs: []sdn.ID{absent}}))
		s.says("FindForwards", s.can.Forwards, err)
		_, err = s.p.Usage(s.ctx, "")
		s.says("Usage", s.can.Quotas, err)
	}},
}

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
		_, err = s.p.UpdateTrunk(s.ctx, absent, sdn.TrunkPatch{})
		s.says("UpdateTrunk", s.can.Trunks, err)
		s.says("DeleteTrunk", s.can.Trunks, s.p.DeleteTrunk(s.ctx, absent))
		publication := s.base("publication").Key
		_, err = s.p.Publish(s.ctx, sdn.PublicationSpec{Key: publication})
		s.says("Publish", s.can.HostAddresses, err)
		_, err = s.p.Publication(s.ctx, publication)
		s.says("Publication", s.can.HostAddresses, err)
		s.says("Unpublish", s.can.HostAddresses, s.p.Unpublish(s.ctx, publication))
		_, err = s.p.SecurityGroup(s.ctx, absent)
		s.says("SecurityGroup", s.can.SecurityGroups, err)
		_, err = sdn.All(s.p.FindSecurityGroups(s.ctx, sdn.SecurityGroupQuery{}))
		s.says("FindSecurityGroups", s.can.SecurityGroups, err)
		s.says("DeleteSecurityGroup", s.can.SecurityGroups, s.p.DeleteSecurityGroup(s.ctx, absent))
		s.says("AddGroups", s.can.SecurityGroups, s.p.AddGroups(s.ctx, absent, []sdn.ID{absent}))
		if !s.can.SecurityGroups {
			_, err = s.p.ApplySecurityGroup(s.ctx, sdn.SecurityGroupSpec{Base: s.base("group")})
			s.says("ApplySecurityGroup", false, err)
			n := s.network()
			_, err = s.tryPort(sdn.PortSpec{Network: n.ID, Groups: []sdn.ID{absent}})
			s.says("a port with groups", false, err)
			p := s.port(sdn.PortSpec{Network: n.ID, WithoutGroups: true})
			_, err = s.p.UpdatePort(s.ctx, p.ID, sdn.PortPatch{Groups: &[]sdn.ID{absent}})
			s.says("a port changed to have groups", false, err)
			equal(s, "number of ports found by group", len(must(sdn.All(s.p.FindPorts(s.ctx, sdn.PortQuery{Networks: []sdn.ID{n.ID}, Groups: []sdn.ID{absent}})))(s)), 0)
		}
		if !s.can.AddressGroups {
			_, err = s.p.ApplyAddressGroup(s.ctx, sdn.AddressGroupSpec{Base: s.base("set")})
			s.says("ApplyAddressGroup", false, err)
		}
		_, err = s.p.AddressGroup(s.ctx, absent)
		s.says("AddressGroup", s.can.AddressGroups, err)
		_, err = sdn.All(s.p.FindAddressGroups(s.ctx, sdn.AddressGroupQuery{}))
		s.says("FindAddressGroups", s.can.AddressGroups, err)
		s.says("DeleteAddressGroup", s.can.AddressGroups, s.p.DeleteAddressGroup(s.ctx, absent))
		balancers := len(s.can.LoadBalancer.Protocols) > 0
		_, err = s.p.LoadBalancer(s.ctx, absent)
		s.says("LoadBalancer", balancers, err)
		_, err = sdn.All(s.p.FindLoadBalancers(s.ctx, sdn.LoadBalancerQuery{}))
		s.says("FindLoadBalancers", balancers, err)
		s.says("DeleteLoadBalancer", balancers, s.p.DeleteLoadBalancer(s.ctx, absent))
		if !balancers {
			_, err = s.p.ApplyLoadBalancer(s.ctx, sdn.LoadBalancerSpec{Base: s.base("lb")})
			s.says("ApplyLoadBalancer", false, err)
		}
		_, err = s.p.QoSPolicy(s.ctx, absent)
		s.says("QoSPolicy", s.can.QoS, err)
		_, err = sdn.All(s.p.FindQoSPolicies(s.ctx, sdn.QoSPolicyQuery{}))
		s.says("FindQoSPolicies", s.can.QoS, err)
		s.says("DeleteQoSPolicy", s.can.QoS, s.p.DeleteQoSPolicy(s.ctx, absent))
		if !s.can.QoS {
			_, err = s.p.ApplyQoSPolicy(s.ctx, sdn.QoSPolicySpec{Base: s.base("policy"), Limits: sdn.Limits{IngressKbps: 1000}})
			s.says("ApplyQoSPolicy", false, err)
			n := s.network()
			_, err = s.tryPort(sdn.PortSpec{Network: n.ID, QoSPolicy: absent})
			s.says("a port with a QoS policy", false, err)
		}
		_, err = s.p.SubnetPool(s.ctx, absent)
		s.says("SubnetPool", s.can.SubnetPools, err)
		_, err = s.p.Router(s.ctx, absent)
		s.says("Router", s.can.Routers, err)
		_, err = s.p.FloatingIP(s.ctx, absent)
		s.says("FloatingIP", s.can.FloatingIPs, err)
		_, err = sdn.All(s.p.FindForwards(s.ctx, sdn.ForwardQuery{FloatingIPs: []sdn.ID{absent}}))
		s.says("FindForwards", s.can.Forwards, err)
		_, err = s.p.Usage(s.ctx, "")
		if s.says("Usage", s.can.Quotas, err); s.can.Quotas {
			s.ok(err)
		}
	}},
	{"disabled", func(s *suite) {
		n := s.network()
		p := s.port(sdn.PortSpec{Network: n.ID})
		for _, off := range []bool{true, false} {
			network, err := s.p.UpdateNetwork(s.ctx, n.ID, sdn.NetworkPatch{Disabled: &off})
			s.says("a network Disabled", s.can.AdminState || !off, err)
			if err == nil {
				equal(s, "network disabled", network.Disabled, off)
			}
			port, err := s.p.UpdatePort(s.ctx, p.ID, sdn.PortPatch{Disabled: &off})
			s.says("a port Disabled", s.can.AdminState || !off, err)
			if err == nil {
				equal(s, "port disabled", port.Disabled, off)
			}
			if s.can.Routers {
				r := s.router(nil)
				router, err := s.p.UpdateRouter(s.ctx, r.ID, sdn.RouterPatch{Disabled: &off})
				s.says("a router Disabled", s.can.AdminState || !off, err)
				if err == nil {
					equal(s, "router disabled", router.Disabled, off)
				}
			}
		}
		if !s.can.AdminState {
			_, err := s.p.EnsureNetwork(s.ctx, sdn.NetworkSpec{Base: s.base("x"), Disabled: true})
			s.says("a network made Disabled", false, err)
			_, err = s.tryPort(sdn.PortSpec{Network: n.ID, Disabled: true})
			s.says("a port made Disabled", false, err)
		}
	}},
}

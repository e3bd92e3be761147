package neutronapi

import "github.com/kuryr/kuryr/sdn"

// parts are the extensions of routers, floating IPs, security groups, trunks, QoS policies and load balancers.
var parts = []extension{
	{"router", "Neutron L3 Router", "Routers, and floating IPs on their external networks.", "2012-07-20T10:00:00-00:00", func(c sdn.Capabilities) bool { return c.Routers }},
	{"ext-gw-mode", "Neutron L3 Configurable external gateway mode", "What leaves by a gateway may keep its address.", "2013-03-28T10:00:00-00:00",
		func(c sdn.Capabilities) bool { return c.Routers }},
	{"extraroute", "Neutron Extra Route", "Routers have static routes.", "2013-02-01T10:00:00-00:00", func(c sdn.Capabilities) bool { return c.Routers }},
	{"extraroute-atomic", "Atomically add/remove extra routes", "Routes are added and removed one by one.", "2019-07-10T00:00:00+00:00",
		func(c sdn.Capabilities) bool { return c.Routers }},
	{"floating-ip-port-forwarding", "Floating IP Port Forwarding", "Ports of a floating IP lead to ports.", "2018-01-19T10:00:00-00:00",
		func(c sdn.Capabilities) bool { return c.Forwards }},
	{"floating-ip-port-forwarding-port-ranges", "Floating IP Port Forwarding support to port ranges", "Ranges of ports are forwarded.", "2022-03-15T14:00:00-00:00",
		func(c sdn.Capabilities) bool { return c.ForwardRanges }},
	{"floating-ip-port-forwarding-description", "Floating IP Port Forwarding new attribute description", "Port forwardings have descriptions.", "2020-04-30T10:00:00-05:00",
		func(c sdn.Capabilities) bool { return c.Forwards }},
	{Publications, "Kuryr publications", "Ports are published at addresses of the host as one value.",
		"2026-11-27T00:00:00-00:00", func(c sdn.Capabilities) bool { return c.HostAddresses }},
	{"security-group", "security-group", "Rules filter the traffic of ports.", "2012-10-05T10:00:00-00:00", func(c sdn.Capabilities) bool { return c.SecurityGroups }},
	{"security-groups-normalized-cidr", "Normalized CIDR field for security group rules", "Rules show their range in its normal form.", "2020-07-09T00:00:00-00:00",
		func(c sdn.Capabilities) bool { return c.SecurityGroups }},
	{"security-groups-rules-belongs-to-default-sg", "Security group rules belonging to the project's default SG", "Rules tell whether their group is a default one.",
		"2022-11-01T10:00:00-00:00", func(c sdn.Capabilities) bool { return c.SecurityGroups }},
	{"stateful-security-group", "Stateful security group", "Groups can be without state.", "2019-11-26T09:00:00-00:00", func(c sdn.Capabilities) bool { return c.Stateless }},
	{"address-group", "Address group", "Ranges are named together.", "2020-07-15T10:00:00-00:00", func(c sdn.Capabilities) bool { return c.AddressGroups }},
	{"security-groups-remote-address-group", "Remote address group id field for security group rules", "Rules name address groups.", "2020-08-25T10:00:00-00:00",
		func(c sdn.Capabilities) bool { return c.AddressGroups }},
	{"trunk", "Trunk Extension", "Ports carry others.", "2016-01-01T10:00:00-00:00", func(c sdn.Capabilities) bool { return c.Trunks }},
	{"qos", "Quality of Service", "Policies limit what ports send and receive.", "2015-06-08T10:00:00-00:00", func(c sdn.Capabilities) bool { return c.QoS }},
	{"qos-bw-limit-direction", "Direction for QoS bandwidth limit rule", "What ports receive is limited too.", "2017-04-10T10:00:00-00:00", func(c sdn.Capabilities) bool { return c.QoS }},
	{ApplyBalancers, "Kuryr load balancers applied whole", "A load balancer and all below it are applied as one value.", "2026-11-24T00:00:00-00:00",
		func(c sdn.Capabilities) bool { return len(c.LoadBalancer.Protocols) > 0 }},
	{"network-ip-availability", "Network IP Availability", "Networks tell how many addresses are free.", "2015-09-24T00:00:00-00:00", nil},
}

// serveParts adds what is more than lists and single objects, and what only some providers have.
func (s *server) serveParts() {
	s.serveLegs()
	s.serveExtraRoutes()
	s.servePrefixes()
	s.serveForwards()
	s.servePublications()
	s.serveAvailability()
	s.serveAccess()
	s.serveAddressScopes()
	s.gate(func(c sdn.Capabilities) bool { return c.SecurityGroups }, func(s *server) {
		s.serve(s.securityGroups().resource())
		s.serve(s.securityGroupRules().resource())
	}, "security-groups", "security-group-rules")
	s.gate(func(c sdn.Capabilities) bool { return c.AddressGroups }, func(s *server) {
		s.serve(s.addressGroups().resource())
		s.serveAddresses()
	}, "address-groups")
	s.gate(func(c sdn.Capabilities) bool { return c.Trunks }, func(s *server) {
		s.serve(s.trunks().resource())
		s.serveSubports()
	}, "trunks")
	s.gate(func(c sdn.Capabilities) bool { return c.QoS }, func(s *server) {
		s.serve(s.qosPolicies().resource())
		s.serveLimits()
	}, "qos")
}

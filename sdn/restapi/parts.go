package restapi

import "github.com/kuryr/kuryr/sdn"

// serveParts adds what is more than lists and single objects, and what only some providers have.
func (s *server) serveParts() {
	s.serveLegs()
	s.serveExtraRoutes()
	s.serveForwards()
	s.gate(func(c sdn.Capabilities) bool { return c.SecurityGroups }, func(s *server) {
		serve(s, s.securityGroups())
		serve(s, s.securityGroupRules())
	}, "security-groups", "security-group-rules")
	s.gate(func(c sdn.Capabilities) bool { return c.AddressGroups }, func(s *server) {
		serve(s, s.addressGroups())
		s.serveAddresses()
	}, "address-groups")
	s.gate(func(c sdn.Capabilities) bool { return c.Trunks }, func(s *server) {
		serve(s, s.trunks())
		s.serveSubports()
	}, "trunks")
	s.gate(func(c sdn.Capabilities) bool { return c.QoS }, func(s *server) {
		serve(s, s.qosPolicies())
		s.serveLimits()
	}, "qos")
}

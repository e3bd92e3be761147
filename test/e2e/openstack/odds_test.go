//go:build e2e

package openstack_test

import (
	"strings"
)

// trunks checks what the command says where there are none: the embedded SDN without a kernel has no VLANs.
func trunks(s *session) {
	said := s.do("network trunk create --parent-port none t1")
	if !strings.Contains(said, "trunk") && !strings.Contains(said, "port") {
		s.Errorf("what it says does not tell of trunks: %s", said)
	}
	if strings.Contains(said, "Traceback") || strings.Contains(said, "500") {
		s.Errorf("it says %s", said)
	}
}

func quotas(s *session) {
	shown := map[string]any{}
	s.decode(&shown, "quota show --default")
	_ = shown
}

func extensions(s *session) {
	aliases := map[string]bool{}
	for _, x := range s.list("extension list --network") {
		aliases[x.text("Alias")] = true
	}
	for _, want := range []string{"router", "security-group", "quotas", "standard-attr-tag", "subnet_allocation", "external-net", "port-security"} {
		if !aliases[want] {
			s.Errorf("there is no extension %s", want)
		}
	}
	s.is(s.one("extension show router"), "alias", "router")
}

func many(s *session) {}

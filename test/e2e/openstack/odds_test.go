//go:build e2e

package openstack_test

import (
	"fmt"
	"strings"
)

// scriptMissing checks what the command says of what the embedded SDN without a kernel has not: a sentence that tells what it is.
func scriptMissing(s *session) {
	s.one("network create jn1")
	s.one("port create --network jn1 --no-fixed-ip jp1")
	for command, words := range map[string]string{
		"network trunk create --parent-port jp1 jt1": "could not be found",
		"security group create --stateless jg1":      "stateful",
		"network create --transparent-vlan jn2":      "vlan_transparent",
	} {
		said := s.do("%s -f json", command)
		if !strings.Contains(said, words) || strings.Contains(said, "Traceback") || strings.Contains(said, "Internal") {
			s.Errorf("%s: it says %q, want something of %q", command, said, words)
		}
	}
	s.quiet("port delete jp1")
	s.quiet("network delete jn1")
}

func scriptQuotas(s *session) {
	s.is(s.one("quota show demo"), "networks", -1, "ports", -1, "project_name", "demo")
	s.quiet("quota set --networks 2 --ports 7 demo")
	s.is(s.one("quota show demo"), "networks", 2, "ports", 7)
	s.is(s.one("quota show --default demo"), "networks", -1)
	s.one("network create kn1")
	s.one("network create kn2")
	s.refused("409", "network create kn3")
	s.refused("uota", "network create kn3")
	used := map[string]float64{}
	for _, o := range s.list("quota list --network --detail --project demo") {
		used[o.text("Resource")], _ = o["In Use"].(float64)
	}
	if used["networks"] != 2 {
		s.Errorf("used: %v", used)
	}
	s.quiet("quota set --networks -1 --ports -1 demo")
	s.quiet("network delete kn1 kn2")
}

func scriptExtensions(s *session) {
	aliases := map[string]bool{}
	for _, x := range s.list("extension list --network") {
		aliases[x.text("Alias")] = true
	}
	for _, want := range []string{
		"router", "ext-gw-mode", "extraroute", "security-group", "quotas", "standard-attr-tag", "standard-attr-revisions", "subnet_allocation", "external-net", "port-security",
		"allowed-address-pairs", "floating-ip-port-forwarding", "address-group", "pagination", "sorting", "qos",
	} {
		if !aliases[want] {
			s.Errorf("there is no extension %s", want)
		}
	}
	s.is(s.one("extension show router"), "alias", "router")
	s.refused("colours", "extension show colours")
}

// scriptMany makes more ports than there are in a page of the command.
func scriptMany(s *session) {
	s.one("network create ln1")
	for i := range 5 {
		s.one("subnet create --network ln1 --subnet-range 10.%d.0.0/24 ls%d", i, i)
	}
	if got := len(s.list("subnet list --network ln1 --sort-column Name")); got != 5 {
		s.Errorf("%d subnets", got)
	}
	ids := []string{}
	for i := range 20 {
		ids = append(ids, s.one("port create --network ln1 --fixed-ip ip-address=10.0.0.%d lp%d", i+10, i).id())
	}
	if got := len(s.list("port list --network ln1")); got != 20 {
		s.Errorf("%d ports", got)
	}
	s.quiet("port delete %s", strings.Join(ids, " "))
	s.quiet("network delete ln1")
	if got := s.list("subnet list --name ls1"); len(got) != 0 {
		s.Error(fmt.Sprint("a subnet is left: ", got))
	}
}

//go:build e2e

package openstack_test

import (
	"fmt"
	"strings"
)

// scriptMissing checks what the command says of what the embedded SDN without a kernel
// has not: a sentence that tells what it is.
func scriptMissing(s *session) {
	s.one("network create jn1")
	s.one("port create --network jn1 --no-fixed-ip jp1")
	for command, words := range map[string]string{
		"security group create --stateless jg1":                "stateful",
		"network create --transparent-vlan jn2":                "vlan_transparent",
		"network trunk create --disable --parent-port jp1 jt1": "switch things off",
	} {
		said := s.do("%s -f json", command)
		if !strings.Contains(said, words) || strings.Contains(said, "Traceback") || strings.Contains(said, "Internal") {
			s.Errorf("%s: it says %q, want something of %q", command, said, words)
		}
	}
	s.quiet("port delete jp1")
	s.quiet("network delete jn1")
}

func scriptTrunks(s *session) {
	s.one("network create mn1")
	ports := map[string]string{}
	for _, name := range []string{"mp1", "ms1", "ms2"} {
		ports[name] = s.one("port create --network mn1 --no-fixed-ip %s", name).id()
	}
	const sub = "--subport port=%s,segmentation-type=vlan,segmentation-id=%d"
	made := s.one("network trunk create --parent-port mp1 --description words "+sub+" mt1", "ms1", 101)
	s.is(made, "name", "mt1", "description", "words", "port_id", ports["mp1"], "admin_state_up", true)
	member := func(name string, vlan int) object {
		return object{"port_id": ports[name], "segmentation_type": "vlan", "segmentation_id": vlan}
	}
	s.is(made, "sub_ports", []object{member("ms1", 101)})
	s.is(s.one("port show ms1"), "device_owner", "trunk:subport")
	s.refused("not eligible for use as a parent port", "network trunk create --parent-port mp1 mt2")
	s.refused("use", "network trunk set "+sub+" mt1", "ms2", 101)
	s.quiet("network trunk set --name mt3 "+sub+" mt1", "ms2", 102)
	s.is(s.one("network trunk show mt3"), "id", made.id(), "sub_ports", []object{member("ms1", 101), member("ms2", 102)})
	if got := len(s.list("network subport list --trunk mt3")); got != 2 {
		s.Errorf("%d subports", got)
	}
	if all := s.list("network trunk list"); names(all, "Name") != "mt3" || all[0].text("Parent Port") != ports["mp1"] {
		s.Errorf("the trunks are %v", all)
	}
	s.refused("in trunk", "port delete ms2")
	s.refused("in trunk", "port delete mp1")
	s.quiet("network trunk unset --subport ms1 mt3")
	s.is(s.one("network trunk show mt3"), "sub_ports", []object{member("ms2", 102)})
	s.is(s.one("port show ms1"), "device_owner", "")
	s.quiet("network trunk delete mt3")
	s.refused("Unable to find trunk", "network trunk show mt3")
	s.quiet("port delete mp1 ms1 ms2")
	s.quiet("network delete mn1")
}

func scriptQuotas(s *session) {
	s.is(s.one("quota show demo"), "networks", 100, "ports", 500, "project_name", "demo")
	s.quiet("quota set --networks 2 --ports 7 demo")
	s.is(s.one("quota show demo"), "networks", 2, "ports", 7)
	s.is(s.one("quota show --default demo"), "networks", 100)
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
		"router", "ext-gw-mode", "extraroute", "security-group", "quotas", "standard-attr-tag",
		"standard-attr-revisions", "subnet_allocation", "external-net", "port-security",
		"allowed-address-pairs", "floating-ip-port-forwarding", "address-group", "pagination", "sorting", "qos", "trunk",
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

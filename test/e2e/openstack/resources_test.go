//go:build e2e

package openstack_test

import "testing"

// Every resource of the network API that the command knows and the embedded SDN has,
// made, shown, listed, changed and deleted. The steps of a noun build on each other; the
// nouns do not.
func TestResources(t *testing.T) {
	s := open(t, start(t).admin()...)
	for _, noun := range []struct {
		name string
		run  func(*session)
	}{
		{"network", scriptNetworks}, {"subnet", scriptSubnets}, {"subnet pool", scriptSubnetPools},
		{"port", scriptPorts}, {"router", scriptRouters}, {"floating ip", scriptFloatingIPs},
		{"security group", scriptSecurityGroups}, {"address group", scriptAddressGroups},
		{"qos policy", scriptPolicies}, {"trunk", scriptTrunks}, {"missing", scriptMissing},
		{"quota", scriptQuotas}, {"extension", scriptExtensions},
		{"many", scriptMany}, {"load balancer", scriptLoadBalancers},
	} {
		s.sub(noun.name, noun.run)
	}
}

func scriptNetworks(s *session) {
	made := s.one("network create --description people --mtu 1400 --disable-port-security --tag red --tag blue n1")
	s.is(
		made, "name", "n1", "description", "people", "mtu", 1400, "port_security_enabled", false,
		"admin_state_up", true, "status", "ACTIVE",
		"tags", []string{"blue", "red"}, "router:external", false, "shared", false, "subnets", []string{})
	s.is(s.one("network show n1"), "id", made.id(), "project_id", made.text("project_id"))
	s.quiet("network set --name n2 --description other --mtu 1300 --enable-port-security --tag green n1")
	s.is(
		s.one("network show %s", made.id()), "name", "n2", "description", "other", "mtu", 1300,
		"port_security_enabled", true, "tags", []string{"blue", "green", "red"},
	)
	s.quiet("network unset --tag red n2")
	s.is(s.one("network show n2"), "tags", []string{"blue", "green"})
	second := s.one("network create --external n3")
	s.is(second, "router:external", true)
	for filter, want := range map[string]string{
		"--name n2": "n2", "--tags blue,green": "n2", "--tags blue,red": "",
		"--any-tags red,green": "n2", "--not-tags blue --name n2": "",
		"--not-any-tags red --name n2": "n2",
		"--external --name n3":         "n3", "--internal --name n3": "", "--status ACTIVE --name n2": "n2",
		"--no-share --name n2": "n2", "--enable --name n2": "n2", "--disable --name n2": "",
	} {
		if got := names(s.list("network list %s", filter), "Name"); got != want {
			s.Errorf("network list %s: %q, want %q", filter, got, want)
		}
	}
	long := s.list("network list --long --name n2")
	s.is(
		long[0], "ID", made.id(), "Status", "ACTIVE", "State", true, "Shared", false, "Router Type",
		false, "Tags", []string{"blue", "green"},
	)
	if all := s.list("network list --name n2 --name n3"); len(all) == 0 {
		s.Error("no network was found by two names")
	}
	s.quiet("network unset --all-tag n2")
	s.is(s.one("network show n2"), "tags", []string{})
	s.refused("No Network found for n9", "network show n9")
	s.refused("No Network found for n9", "network delete n9")
	s.refused("nvalid input for mtu", "network create --mtu -5 n9")
	s.one("port create --network n2 --no-fixed-ip p1")
	s.refused("409", "network delete n2")
	s.quiet("port delete p1")
	s.quiet("network delete n2 n3")
}

func scriptSubnets(s *session) {
	s.one("network create bn1")
	made := s.one("subnet create --network bn1 --subnet-range 10.0.0.0/24 --gateway 10.0.0.1 " +
		"--allocation-pool start=10.0.0.10,end=10.0.0.20" +
		" --dns-nameserver 9.9.9.9 --host-route destination=192.0.2.0/24,gateway=10.0.0.9 " +
		"--no-dhcp --description words --tag red s1")
	s.is(
		made, "name", "s1", "cidr", "10.0.0.0/24", "gateway_ip", "10.0.0.1", "ip_version", 4,
		"enable_dhcp", false, "dns_nameservers", []string{"9.9.9.9"},
		"allocation_pools", []object{{"start": "10.0.0.10", "end": "10.0.0.20"}}, "host_routes",
		[]object{{"destination": "192.0.2.0/24", "nexthop": "10.0.0.9"}},
		"description", "words", "tags", []string{"red"})
	s.quiet(
		"subnet set --name s2 --dhcp --dns-nameserver 8.8.8.8 --allocation-pool " +
			"start=10.0.0.30,end=10.0.0.40 --host-route " +
			"destination=198.51.100.0/24,gateway=10.0.0.8 --tag blue s1",
	)
	now := s.one("subnet show s2")
	s.is(now, "enable_dhcp", true, "tags", []string{"blue", "red"})
	if pools, _ := now["allocation_pools"].([]any); len(pools) != 2 {
		s.Errorf("allocation pools: %v", pools)
	}
	s.quiet(
		"subnet unset --allocation-pool start=10.0.0.30,end=10.0.0.40 --host-route " +
			"destination=198.51.100.0/24,gateway=10.0.0.8 --dns-nameserver 8.8.8.8 --tag red s2",
	)
	s.is(
		s.one("subnet show s2"), "allocation_pools",
		[]object{{"start": "10.0.0.10", "end": "10.0.0.20"}}, "dns_nameservers",
		[]string{"9.9.9.9"},
		"host_routes", []object{{"destination": "192.0.2.0/24", "nexthop": "10.0.0.9"}}, "tags", []string{"blue"})
	s.quiet("subnet set --gateway 10.0.0.2 s2")
	s.is(s.one("subnet show s2"), "gateway_ip", "10.0.0.2")
	s.quiet("subnet set --gateway none s2")
	s.is(s.one("subnet show s2"), "gateway_ip", nil)
	six := s.one("subnet create --network bn1 --ip-version 6 --subnet-range fd00:1::/64 six")
	s.is(six, "ip_version", 6, "cidr", "fd00:1::/64")
	for filter, want := range map[string]string{
		"--ip-version 6 --network bn1": "six", "--ip-version 4 --network bn1": "s2",
		"--subnet-range 10.0.0.0/24 --network bn1": "s2", "--dhcp --name s2": "s2",
		"--no-dhcp --name s2": "",
		"--gateway 10.0.0.77": "", "--tags blue": "s2", "--name six": "six",
	} {
		if got := names(s.list("subnet list %s", filter), "Name"); got != want {
			s.Errorf("subnet list %s: %q, want %q", filter, got, want)
		}
	}
	s.is(
		s.list("subnet list --long --name s2")[0], "Subnet", "10.0.0.0/24", "DHCP", true,
		"IP Version", 4, "Name Servers", []string{"9.9.9.9"},
	)
	typed := s.one("subnet create --network bn1 --subnet-range 10.5.0.0/24 --service-type compute:x s5")
	s.is(typed, "service_types", []string{"compute:x"})
	s.quiet("subnet set --service-type compute:y s5")
	s.is(s.one("subnet show s5"), "service_types", []string{"compute:x", "compute:y"})
	s.refused("not for ports", "port create --network bn1 --device-owner compute:z --fixed-ip subnet=s5 p1")
	s.quiet("subnet unset --service-type compute:x --service-type compute:y s5")
	s.is(s.one("subnet show s5"), "service_types", []string{})
	s.quiet("subnet delete s5")
	s.refused("overlap", "subnet create --network bn1 --subnet-range 10.0.0.0/25 s9")
	s.refused("nvalid", "subnet create --network bn1 --subnet-range 10.1.0.0/33 s9")
	s.refused("No Network found", "subnet create --network bn9 --subnet-range 10.1.0.0/24 s9")
	s.one("port create --network bn1 --fixed-ip subnet=s2 p1")
	s.refused("409", "subnet delete s2")
	s.quiet("port delete p1")
	s.quiet("subnet delete s2 six")
	s.quiet("network delete bn1")
}

func scriptSubnetPools(s *session) {
	made := s.one(
		"subnet pool create --pool-prefix 10.20.0.0/16 --default-prefix-length 24 " +
			"--min-prefix-length 20 --max-prefix-length 28 --description words --tag red pool1",
	)
	s.is(
		made, "name", "pool1", "prefixes", []string{"10.20.0.0/16"}, "default_prefixlen", 24,
		"min_prefixlen", 20, "max_prefixlen", 28, "ip_version", 4, "shared", false, "tags",
		[]string{"red"},
	)
	s.quiet("subnet pool set --name pool2 --pool-prefix 10.21.0.0/16 --default-prefix-length 26 --tag blue pool1")
	s.is(
		s.one("subnet pool show pool2"), "prefixes", []string{"10.20.0.0/15"}, "default_prefixlen",
		26, "tags", []string{"blue", "red"},
	)
	s.quiet("subnet pool unset --tag red pool2")
	s.one("network create cn1")
	cut := s.one("subnet create --network cn1 --subnet-pool pool2 --prefix-length 24 s1")
	s.is(cut, "subnetpool_id", made.id(), "ip_version", 4)
	s.is(s.one("subnet create --network cn1 --subnet-pool pool2 s2"), "subnetpool_id", made.id())
	if got := names(s.list("subnet list --subnet-pool pool2 --name s1"), "Name"); got != "s1" {
		s.Errorf("found by the pool: %q", got)
	}
	for filter, want := range map[string]string{
		"--name pool2": "pool2", "--tags blue": "pool2", "--no-share --name pool2": "pool2",
		"--share --name pool2": "",
	} {
		if got := names(s.list("subnet pool list %s", filter), "Name"); got != want {
			s.Errorf("subnet pool list %s: %q, want %q", filter, got, want)
		}
	}
	s.is(s.list("subnet pool list --long --name pool2")[0], "Default Prefix Length", 26, "Shared", false)
	s.refused("prefix", "subnet create --network cn1 --subnet-pool pool2 --prefix-length 30 s9")
	s.refused("400", "subnet pool delete pool2")
	s.quiet("subnet delete s1 s2")
	usual := s.one("subnet pool create --pool-prefix 10.30.0.0/16 --default-prefix-length 24 --default " +
		"--default-quota 300 pool3")
	s.is(usual, "is_default", true, "default_quota", 300)
	s.is(s.one("subnet create --network cn1 --use-default-subnet-pool s3"), "subnetpool_id", usual.id())
	s.refused("uota", "subnet create --network cn1 --use-default-subnet-pool s4")
	s.quiet("subnet pool set --no-default pool3")
	s.refused("No default subnetpool", "subnet create --network cn1 --use-default-subnet-pool s4")
	s.quiet("subnet delete s3")
	s.quiet("network delete cn1")
	s.quiet("subnet pool delete pool2 pool3")
}

func scriptPorts(s *session) {
	network := s.one("network create dn1")
	subnet := s.one("subnet create --network dn1 --subnet-range 10.0.0.0/24 s1")
	made := s.one("port create --network dn1 --fixed-ip subnet=s1,ip-address=10.0.0.9 " +
		"--mac-address 02:00:00:00:00:09 --device dev-1 --device-owner compute:kuryr" +
		" --allowed-address ip-address=10.0.0.100 --description words --tag red p1")
	s.is(
		made, "name", "p1", "network_id", network.id(), "mac_address", "02:00:00:00:00:09",
		"fixed_ips", []object{{"subnet_id": subnet.id(), "ip_address": "10.0.0.9"}},
		"device_id", "dev-1", "device_owner", "compute:kuryr", "tags", []string{"red"},
		"admin_state_up", true, "port_security_enabled", true,
		"allowed_address_pairs", []object{{"ip_address": "10.0.0.100", "mac_address": "02:00:00:00:00:09"}})
	s.quiet(
		"port set --name p2 --device dev-2 --fixed-ip subnet=s1,ip-address=10.0.0.10 " +
			"--allowed-address ip-address=10.0.0.101 --tag blue p1",
	)
	now := s.one("port show p2")
	s.is(now, "device_id", "dev-2", "tags", []string{"blue", "red"})
	if ips, _ := now["fixed_ips"].([]any); len(ips) != 2 {
		s.Errorf("addresses: %v", ips)
	}
	s.quiet(
		"port unset --fixed-ip subnet=s1,ip-address=10.0.0.9 --allowed-address " +
			"ip-address=10.0.0.101,mac-address=02:00:00:00:00:09 --tag red p2",
	)
	s.is(
		s.one("port show p2"), "fixed_ips",
		[]object{{"subnet_id": subnet.id(), "ip_address": "10.0.0.10"}}, "tags", []string{"blue"},
	)
	s.one("security group create g1")
	s.quiet("port set --security-group g1 p2")
	s.quiet("port unset --security-group g1 p2")
	s.quiet("port set --no-security-group --no-allowed-address --disable-port-security p2")
	s.is(
		s.one("port show p2"), "port_security_enabled", false, "security_group_ids", []string{},
		"allowed_address_pairs", []string{},
	)
	s.quiet("port set --enable-port-security --security-group g1 p2")
	for filter, want := range map[string]string{
		"--network dn1": "p2", "--device-id dev-2": "p2",
		"--device-owner compute:kuryr --network dn1": "p2", "--mac-address 02:00:00:00:00:09": "p2",
		"--fixed-ip ip-address=10.0.0.10": "p2",
		"--fixed-ip subnet=s1":            "p2", "--tags blue": "p2", "--tags red": "", "--name p2": "p2",
		"--fixed-ip ip-substring=10.0.0.1 --network dn1": "p2",
	} {
		if got := names(s.list("port list %s", filter), "Name"); got != want {
			s.Errorf("port list %s: %q, want %q", filter, got, want)
		}
	}
	s.is(
		s.list("port list --long --name p2")[0], "MAC Address", "02:00:00:00:00:09", "Device Owner",
		"compute:kuryr", "Tags", []string{"blue"},
	)
	s.refused("409", "port create --network dn1 --fixed-ip ip-address=10.0.0.10 p9")
	s.refused("409", "port create --network dn1 --mac-address 02:00:00:00:00:09 p9")
	s.refused("400", "port create --network dn1 --fixed-ip ip-address=10.9.0.10 p9")
	s.is(
		s.one("port create --network dn1 --no-fixed-ip --no-security-group bare"), "fixed_ips",
		[]string{}, "security_group_ids", []string{},
	)
	s.quiet("port delete p2 bare")
	s.quiet("security group delete g1")
	s.quiet("network delete dn1")
}

func scriptRouters(s *session) {
	outside := s.one("network create --external eout")
	s.one("subnet create --network eout --subnet-range 198.51.100.0/24 --no-dhcp out")
	s.one("network create en1")
	subnet := s.one("subnet create --network en1 --subnet-range 10.0.0.0/24 s1")
	s.one("subnet create --network en1 --subnet-range 10.0.1.0/24 s2")
	made := s.one("router create --description words --tag red r1")
	s.is(
		made, "name", "r1", "external_gateway_info", nil, "routes", []string{}, "admin_state_up",
		true, "status", "ACTIVE", "tags", []string{"red"},
	)
	s.quiet("router add subnet r1 s1")
	s.quiet("router set --external-gateway eout --name r2 --route destination=192.0.2.0/24,gateway=10.0.0.9 --tag blue r1")
	now := s.one("router show r2")
	s.is(now, "routes", []object{{"destination": "192.0.2.0/24", "nexthop": "10.0.0.9"}}, "tags", []string{"blue", "red"})
	gateway, _ := now["external_gateway_info"].(map[string]any)
	if gateway["network_id"] != outside.id() || gateway["enable_snat"] != true {
		s.Errorf("the gateway is %v", gateway)
	}
	legs, _ := now["interfaces_info"].([]any)
	if len(legs) != 1 || legs[0].(map[string]any)["subnet_id"] != subnet.id() ||
		legs[0].(map[string]any)["ip_address"] != "10.0.0.1" {
		s.Errorf("the legs are %v", legs)
	}
	port := s.one("port create --network en1 --fixed-ip subnet=s2,ip-address=10.0.1.5 leg")
	s.quiet("router add port r2 leg")
	s.is(s.one("port show leg"), "device_owner", "network:router_interface", "device_id", made.id())
	if got := len(s.list("port list --router r2 --network en1")); got != 2 {
		s.Errorf("%d ports are the router's on the network", got)
	}
	s.quiet("router remove port r2 %s", port.id())
	s.refused("409", "router remove subnet r2 s1") // the route
	s.quiet("router unset --route destination=192.0.2.0/24,gateway=10.0.0.9 --tag red r2")
	s.is(s.one("router show r2"), "routes", []string{}, "tags", []string{"blue"})
	s.refused("409", "router delete r2")
	for filter, want := range map[string]string{
		"--name r2": "r2", "--tags blue": "r2", "--tags red": "", "--enable --name r2": "r2",
		"--disable --name r2": "",
	} {
		if got := names(s.list("router list %s", filter), "Name"); got != want {
			s.Errorf("router list %s: %q, want %q", filter, got, want)
		}
	}
	s.is(s.list("router list --long --name r2")[0], "Status", "ACTIVE", "State", true, "Routes", []string{})
	s.quiet("router remove subnet r2 s1")
	s.quiet("router unset --external-gateway r2")
	s.is(s.one("router show r2"), "external_gateway_info", nil)
	s.quiet("router delete r2")
	s.quiet("network delete en1 eout")
}

func scriptFloatingIPs(s *session) {
	outside := s.one("network create --external fout")
	s.one("subnet create --network fout --subnet-range 198.51.100.0/24 --no-dhcp out")
	s.one("network create fn1")
	s.one("subnet create --network fn1 --subnet-range 10.0.0.0/24 s1")
	s.one("router create --external-gateway fout r1")
	s.quiet("router add subnet r1 s1")
	port := s.one("port create --network fn1 --fixed-ip ip-address=10.0.0.9 p1")
	made := s.one("floating ip create --floating-ip-address 198.51.100.50 --description words --tag red fout")
	s.is(
		made, "floating_ip_address", "198.51.100.50", "floating_network_id", outside.id(),
		"port_id", nil, "fixed_ip_address", nil, "status", "DOWN", "tags", []string{"red"},
	)
	s.quiet("floating ip set --port p1 --tag blue 198.51.100.50")
	s.is(
		s.one("floating ip show 198.51.100.50"), "port_id", port.id(), "fixed_ip_address",
		"10.0.0.9", "tags", []string{"blue", "red"},
	)
	for filter, want := range map[string]string{
		"--port p1": "198.51.100.50", "--fixed-ip-address 10.0.0.9": "198.51.100.50",
		"--floating-ip-address 198.51.100.50": "198.51.100.50", "--network fout": "198.51.100.50",
		"--router r1": "198.51.100.50", "--tags blue": "198.51.100.50", "--tags green": "",
		"--status ACTIVE --tags green": "",
	} {
		if got := names(s.list("floating ip list %s", filter), "Floating IP Address"); got != want {
			s.Errorf("floating ip list %s: %q, want %q", filter, got, want)
		}
	}
	s.is(s.list("floating ip list --long")[0], "Description", "words", "Tags", []string{"blue", "red"})
	s.refused("409", "router unset --external-gateway r1")
	s.quiet("floating ip unset --port --tag red 198.51.100.50")
	s.is(s.one("floating ip show 198.51.100.50"), "port_id", nil, "tags", []string{"blue"})
	forward := s.one(
		"floating ip port forwarding create --internal-ip-address 10.0.0.9 --port p1 " +
			"--internal-protocol-port 80 --external-protocol-port 8080 --protocol tcp " +
			"198.51.100.50",
	)
	s.is(
		forward, "internal_port_id", port.id(), "internal_port", 80, "external_port", 8080,
		"protocol", "tcp", "internal_ip_address", "10.0.0.9",
	)
	s.quiet("floating ip port forwarding set --external-protocol-port 8081 198.51.100.50 %s", forward.id())
	s.is(s.one("floating ip port forwarding show 198.51.100.50 %s", forward.id()), "external_port", 8081)
	s.refused(
		"400",
		"floating ip port forwarding create --internal-ip-address 10.0.0.9 --port p1 "+
			"--internal-protocol-port 81 --external-protocol-port 8081 --protocol tcp "+
			"198.51.100.50",
	)
	if got := len(s.list("floating ip port forwarding list --external-protocol-port 8081 198.51.100.50")); got != 1 {
		s.Errorf("%d forwardings were found", got)
	}
	s.quiet("floating ip port forwarding delete 198.51.100.50 %s", forward.id())
	s.quiet("floating ip delete 198.51.100.50")
	s.quiet("port delete p1")
	s.quiet("router remove subnet r1 s1")
	s.quiet("router delete r1")
	s.quiet("network delete fn1 fout")
}

func scriptSecurityGroups(s *session) {
	made := s.one("security group create --description words --tag red g1")
	s.is(made, "name", "g1", "description", "words", "tags", []string{"red"})
	if rules, _ := made["rules"].([]any); len(rules) != 2 {
		s.Errorf("a new group has the rules %v", rules)
	}
	s.quiet("security group set --name g2 --description other --tag blue g1")
	s.is(s.one("security group show g2"), "description", "other", "tags", []string{"blue", "red"})
	s.quiet("security group unset --tag red g2")
	web := s.one(
		"security group rule create --protocol tcp --dst-port 80:90 --remote-ip 192.0.2.0/24 " +
			"--description web g2",
	)
	s.is(
		web, "direction", "ingress", "protocol", "tcp", "port_range_min", 80, "port_range_max", 90,
		"remote_ip_prefix", "192.0.2.0/24", "ether_type", "IPv4", "security_group_id", made.id(),
		"description", "web",
	)
	s.is(
		s.one("security group rule create --protocol icmp --icmp-type 8 --icmp-code 0 --egress g2"),
		"direction", "egress", "port_range_min", 8, "port_range_max", 0,
	)
	s.is(
		s.one(
			"security group rule create --ethertype IPv6 --protocol ipv6-icmp --remote-group g2 g2",
		),
		"remote_group_id", made.id(), "ether_type", "IPv6",
	)
	s.is(s.one("security group rule create --protocol gre g2"), "protocol", "gre")
	s.is(s.one("security group rule show %s", web.id()), "id", web.id(), "protocol", "tcp")
	s.refused("already exists", "security group rule create --protocol tcp --dst-port 80:90 --remote-ip 192.0.2.0/24 g2")
	s.refused("400", "security group rule create --protocol 300 g2")
	for filter, want := range map[string]int{"g2": 6, "--ingress g2": 3, "--egress g2": 3, "--protocol tcp g2": 1} {
		if got := len(s.list("security group rule list %s", filter)); got != want {
			s.Errorf("security group rule list %s: %d, want %d", filter, got, want)
		}
	}
	s.is(
		s.list("security group rule list --protocol tcp g2")[0], "Direction", "ingress",
		"Port Range", "80:90", "IP Range", "192.0.2.0/24",
	)
	s.quiet("security group rule delete %s", web.id())
	s.refused("No SecurityGroupRule found", "security group rule show %s", web.id())
	if got := names(s.list("security group list --tags blue"), "Name"); got != "g2" {
		s.Errorf("found by the tag: %q", got)
	}
	s.one("network create gn1")
	s.one("port create --network gn1 --security-group g2 p1")
	s.refused("409", "security group delete g2")
	s.quiet("port delete p1")
	s.quiet("network delete gn1")
	s.quiet("security group delete g2")
}

func scriptAddressGroups(s *session) {
	made := s.one("address group create --address 192.0.2.0/24 --address 198.51.100.7 --description words a1")
	s.is(made, "name", "a1", "description", "words", "addresses", []string{"192.0.2.0/24", "198.51.100.7/32"})
	s.quiet("address group set --name a2 --address 203.0.113.0/24 a1")
	s.quiet("address group unset --address 192.0.2.0/24 a2")
	s.is(s.one("address group show a2"), "addresses", []string{"198.51.100.7/32", "203.0.113.0/24"})
	if got := names(s.list("address group list --name a2"), "Name"); got != "a2" {
		s.Errorf("found by the name: %q", got)
	}
	s.one("security group create g1")
	s.is(
		s.one(
			"security group rule create --protocol tcp --dst-port 22 --remote-address-group a2 g1",
		),
		"remote_address_group_id", made.id(),
	)
	s.refused("409", "address group delete a2")
	s.quiet("security group delete g1")
	s.quiet("address group delete a2")
}

func scriptPolicies(s *session) {
	made := s.one("network qos policy create --description words q1")
	s.is(made, "name", "q1", "shared", false, "rules", []string{})
	rule := s.one("network qos rule create --type bandwidth-limit --max-kbps 10000 --max-burst-kbits 1000 --egress q1")
	s.is(rule, "max_kbps", 10000, "max_burst_kbps", 1000, "direction", "egress")
	s.quiet("network qos rule set --max-kbps 20000 q1 %s", rule.id())
	s.quiet("network qos rule set --ingress q1 %s", rule.id())
	s.is(s.one("network qos rule show q1 %s", rule.id()), "max_kbps", 20000, "direction", "ingress")
	if got := len(s.list("network qos rule list q1")); got != 1 {
		s.Errorf("%d rules", got)
	}
	s.quiet("network qos policy set --name q2 q1")
	if got := names(s.list("network qos policy list"), "Name"); got != "q2" {
		s.Errorf("policies %q", got)
	}
	s.one("network create in1")
	s.is(s.one("port create --network in1 --qos-policy q2 p1"), "qos_policy_id", made.id())
	s.refused("409", "network qos policy delete q2")
	s.quiet("port unset --qos-policy p1")
	s.is(s.one("port show p1"), "qos_policy_id", nil)
	s.quiet("port delete p1")
	s.quiet("network delete in1")
	s.quiet("network qos rule delete q2 %s", rule.id())
	s.quiet("network qos policy delete q2")
}

package parity

import (
	"fmt"
	"strings"
)

// A Difference is one that there is between the two, and why. In Steps and Where a "*" stands for anything.
type Difference struct {
	Steps  string // by name
	Where  string // "status", "error", "value of …", or where in the answer
	Reason string
}

// Check compares the answers of a Neutron with those of Kuryr. It gives a line for each difference that is not listed, and for each that is listed and is
// none.
func Check(neutron, kuryr map[string]Answer) []string {
	var wrong []string
	seen := make([]bool, len(Differences))
	for _, step := range Table {
		for _, line := range compare(neutron[step.Name], kuryr[step.Name]) {
			where := line[:lastColon(line)]
			listed := false
			for i, d := range Differences {
				if fits(d.Steps, step.Name) && fits(d.Where, where) {
					seen[i], listed = true, true
				}
			}
			if !listed {
				wrong = append(wrong, fmt.Sprintf("%s: %s", step.Name, line))
			}
		}
	}
	for i, d := range Differences {
		if !seen[i] {
			wrong = append(wrong, fmt.Sprintf("listed, and no difference any more: %+v", d))
		}
	}
	return wrong
}

// lastColon is where the place ends in a line of compare: names of attributes have colons too, but no space behind them.
func lastColon(line string) int {
	for i := range len(line) - 1 {
		if line[i] == ':' && line[i+1] == ' ' {
			return i
		}
	}
	return len(line)
}

// fits tells whether s is of the pattern.
func fits(pattern, s string) bool {
	parts := strings.Split(pattern, "*")
	s, ok := strings.CutPrefix(s, parts[0])
	if !ok || len(parts) == 1 {
		return ok && s == ""
	}
	last := len(parts) - 1
	for _, part := range parts[1:last] {
		_, after, found := strings.Cut(s, part)
		if !found {
			return false
		}
		s = after
	}
	return strings.HasSuffix(s, parts[last])
}

// Differences are all that there are between Neutron (with OVN) and Kuryr's REST API over the embedded SDN.
var Differences = []Difference{
	{"*", "port*.trusted", "Neutron of release 21 has no port-trusted-vif"},
	// What Neutron has for services that there are none of here.
	{"*", "network*.dns_domain", "names in the DNS are another service's"},
	{"*", "port*.dns_*", "names in the DNS are another service's"},
	{"floatingip*", "floatingip*.dns_*", "names in the DNS are another service's"},
	{"*", "network*.l2_adjacency", "no network has several segments"},
	{"*", "subnet*.segment_id", "no network has several segments"},
	{"*", "port*.ip_allocation", "no network has several segments, so addresses are always given at once"},
	{"*", "network*.provider:*", "there is no physical network: the attributes are there, and null"},
	{"*", "port*.resource_request", "nothing asks a scheduler for bandwidth"},
	{"*", "port*.qos_network_policy_id", "networks have no QoS policy"},
	{"floatingip*", "floatingip*.qos_policy_id", "floating IPs have no QoS policy"},
	{"router*", "router*.ha_vr_id", "routers are on one machine"},
	{"*group*", "security_group*.security_group_rules[].standard_attr_id", "a number of Neutron's database that OVN's driver lets out"},

	// What Kuryr shows besides.
	{"*", "subnet*.kuryr:reserved_addresses", "what the contract knows and Neutron does not"},
	{"router*", "router*.kuryr:unreached", "what the contract knows and Neutron does not"},
	{"router*", "router*.interfaces_info", "the openstack command shows it; there it asks for the ports itself"},
	{"*", "network*.is_default", "Neutron 21 has it with the service plugin auto_allocate only"},
	{"router*", "router*.ha", "false: clients look for it; Neutron shows it with the L3 agents' plugins only"},
	{"router*", "router*.distributed", "false: clients look for it; Neutron shows it with the L3 agents' plugins only"},
	{"router*", "router*.flavor_id", "null; Neutron shows it with the flavors' plugin only"},
	{"*subnetpool*", "subnetpool*.default_quota", "null; Neutron's answer to a change leaves it out"},
	{"*subnetpool*", "subnetpool*.address_scope_id", "null; Neutron's answer to a change leaves it out"},
	{"address group*", "address_group*.tags", "all objects have the attributes that Neutron calls standard, also where its release 21 leaves them out"},
	{"address group*", "address_group*.shared", "shown as of other nouns; Neutron 21 leaves it out"},
	{"address group*", "address_group*.revision_number", "all objects have the attributes that Neutron calls standard, also where its release 21 leaves them out"},
	{"address group*", "address_group*.*ated_at", "all objects have the attributes that Neutron calls standard, also where its release 21 leaves them out"},
	{"*rule*", "security_group_rule*.tags", "all objects have the attributes that Neutron calls standard, also where its release 21 leaves them out"},
	{"*rule*", "security_group_rule*.belongs_to_default_sg", "of a later release of Neutron"},
	{"group*", "security_group*.security_group_rules[].belongs_to_default_sg", "of a later release of Neutron"},
	{"default group*", "security_group*.security_group_rules[].belongs_to_default_sg", "of a later release of Neutron"},
	{"floatingip*", "floatingip*.name", "floating IPs have names as all objects of the contract"},
	{"router * *", "project_id", "the project of what was put on the router; Neutron calls it tenant_id alone"},

	// What is shown in another way.
	{"subnetpool*", "subnetpool*.*_prefixlen", "numbers; Neutron gives texts where the object has just been made"},
	{"subnetpool*", "subnetpool*.*prefixlen", "numbers; Neutron gives texts where the object has just been made"},
	{"subnetpool create*", "value of subnetpool.*_prefixlen", "numbers; Neutron gives texts where the object has just been made, and its least length is 8 whatever the prefixes are"},
	{"*rule*", "security_group_rule*.description", "the empty text; Neutron gives null for rules that it makes itself"},
	{"group*", "security_group*.security_group_rules[].description", "the empty text; Neutron gives null for rules that it makes itself"},
	{"default group*", "security_group*.security_group_rules[].description", "the empty text; Neutron gives null for rules that it makes itself"},
	{"default group rules", "value of security_group_rules", "the order of directions; in Neutron's database it is that of an enumeration"},
	{"subnet create v6", "value of subnet.gateway_ip", "the first address; Neutron takes the anycast address of routers, which local hosts cannot tell from the subnet's"},
	{"router*", "router*.gw_port_id", "a gateway's port is found by device_id; Neutron with OVN shows its id after a change only"},
	{
		"quota show*", "value of quota.port",
		"a project without limits of its own has default ones; the recorded Neutron was set to have none",
	},
	{"quota details", "quota.*.kuryr:default", "whether a limit is one that was set"},
	{"quota *", "quota.address_group", "quotas are of each noun that a project can make"},
	{"quota *", "quota.port_forwarding", "quotas are of each noun that a project can make"},
	{"quota *", "quota.qos_policy", "quotas are of each noun that a project can make"},
	{"quota list", "value of quotas.#", "quotas are of projects, and the contract does not list those"},

	// What is refused otherwise, or not refused.
	{"network list by absent marker", "*", "reading goes on behind an id that is gone, so that a page can follow what was deleted meanwhile"},
	{"network tags comma", "*", "a tag with a comma could never be found again"},
	{"port create address of other subnet", "error", "which of the two is wrong, address or subnet, is not told apart"},
	{"router add subnet to second", "error", "the network is refused, for it can be on one router only, not the address"},
	{"port create group that is no uuid", "error", "ids are opaque: what is no UUID is no group there is"},
	{"group list", "value of *", "follows from the next one"},
	{"group create stateless", "*", "the embedded SDN has stateful groups only, as its capabilities say"},
	{"group delete stateless", "*", "follows from the one above"},
	{"rule create protocol 0", "*", "0 is any protocol in the contract: the rule would allow more than it says, so it is refused"},
	{"trunk create parent no uuid", "*", "ids are opaque: what is no UUID is no port there is"},
	{"trunk add nothing", "*", "Neutron fails inside (500) where the body has no sub_ports; here nothing is added"},
	{"rule type show absent", "*", "Neutron fails inside (500); here it is not found"},
	{"extension show absent", "*", "Neutron answers in another shape than everywhere else"},

	// What is not there.
	{"floatingip*", "floatingip*.port_forwardings", "they are listed below the floating IP"},
	{"floatingip*", "floatingip*.port_details", "the port itself tells"},
	{"trunk parent show", "*port.trunk_details*", "the trunk itself tells its subports"},
	{"availability zones", "*", "there is one machine"},
	{"agents", "*", "there are no agents"},
	{"service providers", "*", "there is one way to make a router"},
}

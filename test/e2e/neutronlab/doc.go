// Package neutronlab runs a small OpenStack for a test: a real neutron-server on OVN, hosts with Open vSwitch and
// Docker, and, if asked, Keystone and Octavia.
//
// A Lab is a central host (MariaDB, neutron-server, OVN's databases and northd, Keystone,
// Octavia) and compute hosts (their own ovsdb-server, ovs-vswitchd in user space,
// ovn-controller and Docker engine), each a privatehost.Host, so that all of it lives in
// namespaces and a temporary folder that end with the test; two labs on one machine do
// not meet. The package owns these hosts and one folder of the user's cache, which keeps
// the database as Neutron's migrations leave it. It must change nothing else on the
// machine, and it knows of Kuryr only which environment starts it.
//
// With Options.Agents there is no OVN: RabbitMQ runs on the central host, and Neutron's Open vSwitch
// agent or Linux bridge agent on the others, whose VXLAN goes over Underlay.
//
// The cables, bridges on the central host: Management, on which hosts reach Neutron and OVN; Underlay, which carries
// Geneve; External, a flat provider network (PhysicalNetwork, br-ex) on which the central host plays the outside.
package neutronlab

import "net/netip"

// The networks between the hosts. Host number i (from 1) has address i on the management network and the underlay; the
// central host the ones below.
var (
	Management = netip.MustParsePrefix("10.254.0.254/24")
	Underlay   = netip.MustParsePrefix("10.255.0.254/24")
	External   = netip.MustParsePrefix("203.0.113.1/24")
)

// PhysicalNetwork is the name by which Neutron knows the external network.
const PhysicalNetwork = "physnet1"

// IntegrationBridge is the Open vSwitch bridge into which ports are plugged.
const IntegrationBridge = "br-int"

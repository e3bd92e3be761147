//go:build e2e

package docker_test

import (
	"os"
	"testing"
)

// onNeutron tells that the hosts' SDN is a real Neutron, not the embedded one.
var onNeutron = os.Getenv("KURYR_E2E_PROVIDER") == "neutron"

// capability is what a scenario, or a line of one, needs of the SDN and not every SDN gives.
type capability string

// The capabilities that Neutron lacks, or has its own way with.
const (
	ownKernel     capability = "a store and a data path of Kuryr's own"
	managedPlugin capability = "the managed plugin"
	hostRoutes    capability = "ways between the host and its containers"
	outIPv6       capability = "a way out by IPv6"
	uplinkMTU     capability = "the uplink's MTU for networks"
	translation   capability = "published ports by address translation"
	sharedGateway capability = "a way out by a router that networks share by its name"
	severalRanges capability = "several ranges of one family on a network"
	anyGuard      capability = "a guard against router advertisements and DHCP servers"
)

// neutronLacks tells of each why Neutron cannot have it.
var neutronLacks = map[capability]string{
	ownKernel: "what is made of networks and routers is Neutron's; kuryr sdn, down and " +
		"trace, and what the doctor sees in the kernel, are the embedded SDN's",
	managedPlugin: "its scenarios on Neutron, and those of a swarm, which needs it, are in test/e2e/neutron",
	hostRoutes: "the host is on none of its networks and routers, so it reaches containers by " +
		"published ports only, and they reach it as the provider's network does",
	outIPv6:   "a router translates IPv4 alone; IPv6 ranges are for the provider's network to route",
	uplinkMTU: "networks have the MTU that Neutron's underlay leaves them",
	translation: "the host's ports are Kuryr's proxy's: the container sees its own address as " +
		"the caller's, SCTP is refused, and no floating IP stands for them",
	sharedGateway: "a router that kuryr.router makes has no gateway; one with a gateway is somebody else's",
	severalRanges: "all subnets of a network and family must be cut from one subnet pool, and " +
		"each range of Docker's is a pool",
	anyGuard: "OVN lets router advertisements of every port pass, and the default security " +
		"group all that its members send one another",
}

// has tells whether the SDN has a capability, for the lines of a scenario that need it.
func has(c capability) bool { return !onNeutron || neutronLacks[c] == "" }

// needs skips a scenario that is about what the SDN lacks.
func needs(t *testing.T, c capability) {
	t.Helper()
	if !has(c) {
		t.Skipf("Neutron lacks %s: %s", c, neutronLacks[c])
	}
}

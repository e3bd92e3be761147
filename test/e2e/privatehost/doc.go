// Package privatehost runs real container engines on a "host" that a test throws away.
//
// A Host is two processes, each the first process of namespaces of its own: one is the
// host (pid, network, mount, uts and ipc namespaces; private /run, /etc and /var/lib),
// the other its neighbour, which plays the outside world. A veth joins them, and the
// neighbour is the host's default route. The package owns those two processes and one
// temporary folder, and everything ends with them: links, mounts and daemons live in
// namespaces that only they hold.
//
// A Pool leases hosts to tests, so that they share boots. It takes a host back only if
// everything on it is as it was after the boot. So a test that leaves anything on a
// leased host fails.
//
// It must change nothing in the machine's own namespaces. It knows of Kuryr only how the
// program is started, when it answers, and what its commands and metrics tell. Programs
// that use it call Init first thing in main or TestMain, because the two processes are
// the calling program, executed again.
package privatehost

import "net/netip"

// The addresses of the link between the host and its neighbour. They are from the ranges
// reserved for documentation.
var (
	HostIPv4      = netip.MustParsePrefix("198.51.100.1/24")
	HostIPv6      = netip.MustParsePrefix("2001:db8:1::1/64")
	NeighbourIPv4 = netip.MustParsePrefix("198.51.100.2/24")
	NeighbourIPv6 = netip.MustParsePrefix("2001:db8:1::2/64")
)

// Uplink is the name of the host's interface towards its neighbour.
const Uplink = "uplink0"

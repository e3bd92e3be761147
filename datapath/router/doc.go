//go:build linux

// Package router is the Linux data path of the embedded SDN: it turns routers, networks
// and ports into kernel objects.
//
// A router here is an SDN router with its networks, or a network without a router. It is
// one pinned network namespace. A network is a bridge in it that carries the gateway
// addresses. A router with an external gateway has one veth pair: up0 in its namespace, a
// link named kr… in the host's namespace. Addresses are translated twice: the router maps
// containers, ports and floating addresses behind its uplink address; the host knows only
// uplink addresses, so networks of different routers may overlap.
//
//	container ── tap… ─ br-… (gateway) ─ router namespace ─ up0 ══ kr… ─ host namespace ─ outside
//
// The package owns: the namespaces in its store and all that is in them but the ports'
// links (package bind makes those, but for subports'); in the host's namespace the links
// kr… with its alias, the nftables table "inet kuryr", and the routes and proxy
// neighbours with its protocol number. It decides how a shape is made, never what should
// exist: who calls it decides that and hands it whole values. It must not touch anything
// else of the host: not its forwarding switch, not others' firewalls, not a sysctl of a
// link that is not its own.
//
// Every method is idempotent, and whatever a killed one left is finished by the next call
// for the same thing or by Reconcile. Calls for different routers run in parallel; calls
// for one router, and Reconcile against all others, wait for each other.
//
// A floating IPv6 address is announced by a proxy neighbour entry that the kernel heeds
// only where proxy_ndp is on for the host's link; that switch is the host's, so IPv6
// floating addresses are to be routed to the host unless its owner turned it on.
//
// A subport, which is reached through another port's interface with a VLAN tag, has a
// VLAN link of that port's tap as its own tap. It follows that tap as it comes and goes,
// of which one socket tells.
//
// On a kernel without IPv6 what is IPv6 of a router is left out without an error, so that
// its IPv4 works; and on one without 802.1Q the links of subports.
package router

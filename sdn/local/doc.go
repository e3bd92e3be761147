// Package local is the embedded software-defined network: a provider of package sdn for one machine, with nothing behind
// it but a file and the Linux kernel.
//
// The rules are those of package engine. This package owns the store (one bbolt file) and the projection of the store
// onto the data path. The store is the truth: a change is one transaction, and the kernel is brought after it by a
// Datapath. A nil Datapath is an SDN without a kernel, with the same semantics, for the tests of front ends.
//
// It must not touch the kernel itself, know a front end, or serve more than one machine.
//
// # Choices that the contract leaves open
//
//   - A network is on at most one router, with all its subnets. Putting it on a router or taking it away moves it to another
//     namespace, plugged ports and all: their VIF changes.
//   - Only this machine's name is a valid Host of a port.
//   - All external networks lead to the one host, so a gateway on one of them reaches the addresses of all. The router's own
//     addresses outside are always of the built-in external network (Capabilities.ExternalNetwork).
//   - The forwardings of one floating IP all go through one router.
//   - A port without security groups is not filtered. Each named project has a default group; the project "" has none, so that what it plugs is
//     open as long as nobody says otherwise. Groups are stateful.
//   - A remote group stands for the addresses of the ports that have it in the domain: behind the same router, or in the same network without one.
//   - Security groups and QoS policies are there where the Datapath Supports them, and without a Datapath.
//   - Trunks are there where the Datapath Supports VLANs, and without a Datapath. Those that are in a store stay in it, and hold their ports, where it is opened
//     with one that does not. They cannot be disabled. A subport's VIF is VIFVLAN: the Datapath makes its link, with the parent's.
//   - IPv6 subnets are static: there is no DHCP and no SLAAC.
//   - A network's MTU may be anything from 68 (1280 with IPv6) to 65535; what leaves by a router is cut to the uplink's.
package local

// Package securitygroup makes the kernel enforce security groups and limits of ports: which
// peers a port may talk with, and how much it may send.
//
// It owns the nftables table kuryr_policy, of family bridge, of each namespace with such
// a port: its sets, chains and rules. Its input is the values of this package. Package
// router gives them, router by router, together with the ports they are for. base.go
// explains how the table judges a packet.
//
// It must not know where the values come from (the store, Neutron's API), nor touch the
// tables of package router. Those decide which addresses a port may send from, and a packet
// must pass both.
package securitygroup

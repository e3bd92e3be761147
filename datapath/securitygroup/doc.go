// Package securitygroup is what the kernel is to enforce for ports with security groups: whom
// they may talk with, and how much they may send.
//
// It owns the nftables table kuryr_policy, of family bridge, of each namespace with such
// a port: its sets, chains and rules. Its input is the values of this package; package
// fabric gives them, domain by domain, together with the ports they are for. How the
// table judges is told where its fixed part is made.
//
// It must not know where the values come from (the store, Neutron's API), nor touch the
// tables of package router: who may send from which address is decided there, and a
// packet must pass both.
package securitygroup

//go:build linux

// Package bind plugs a port into a container: it turns an SDN port into a network interface in a network namespace, and
// takes it away again. How that is done depends on the port's VIF type; a Binder chooses the Driver.
//
// The package owns the links it makes, and only these: a host end named HostName(port), in the namespace and on the bridge
// that the port's VIF details name, with the alias "kuryr:port:<id>" and the link group that marks them; the container end
// that belongs to it; and what it calls tombstones, which are host ends on their way out. It keeps no state of its own: the kernel's links are
// the state, so a killed process loses nothing, and Plug and Unplug are idempotent whatever a killed call has left.
//
// It must not know of routers, engines or SDNs, not make namespaces, bridges or firewall rules, not fork, and not hold a
// lock that two ports share.
package bind

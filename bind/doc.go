//go:build linux

// Package bind plugs a port into a container: it turns an SDN port into a network
// interface in a network namespace, and removes it again. How that is done depends on
// the port's VIF type; a Binder chooses the Driver.
//
// The package owns the links it makes, and only these: a host end named HostName(port),
// in the namespace and on the bridge that the port's VIF details name, with the alias
// "kuryr:port:<id>" and the link group that marks them; the container end that belongs to
// it; of a hybrid port the Linux bridge and the pair between the host end and Open
// vSwitch; and retired links, which are such links that wait for their deletion. Of a
// nested port it owns the one link, on that of the virtual machine's own port; of one
// that is a function of a network card nothing: it configures what is the machine's. In
// Open vSwitch it owns the interfaces with "owner" kuryr and the port's id. It keeps no
// state of its own: the kernel's links and the switch's database are the state, so a
// killed process loses nothing, and Plug and Unplug are idempotent whatever a killed call
// has left. A network's bridge (AgentBridge) it makes where an agent of Neutron's expects
// that of the first plugger; it is then the agent's.
//
// It must not know of routers, engines or SDNs, not make namespaces, other bridges or
// firewall rules, not fork, and not hold a lock that two ports share.
package bind
